"""A loss that went wrong carries what its GPUs did around then."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from watchkeeper.model.jobs import HardwareEvent
from watchkeeper.workloads.losses import LossAnomaly, add_hardware_events, find_anomalies, merge_anomalies

AT = datetime(2026, 11, 15, 12, tzinfo=UTC)


def points(*values: float) -> list[tuple[float, float]]:
    return [(AT.timestamp() + 60 * at, value) for at, value in enumerate(values)]


def xid(minutes: float) -> HardwareEvent:
    return HardwareEvent(AT + timedelta(minutes=minutes), "n1/gpu3", "xid", "94", "ecc_uncorrectable", "Xid 94", 3)


def test_a_loss_that_stops_being_a_number_is_one_event_however_long_it_lasts() -> None:
    [anomaly] = find_anomalies(points(2.0, 1.9, math.nan, math.nan, math.nan), [])
    assert (anomaly.at, anomaly.text) == (AT + timedelta(minutes=2), "loss is not a number")


def test_a_gradient_that_leaps_to_ten_times_its_middle_is_an_event() -> None:
    [anomaly] = find_anomalies([], points(*[0.7] * 9, 30.0, 0.7))
    assert (anomaly.at, anomaly.value) == (AT + timedelta(minutes=9), 30.0)
    assert find_anomalies([], points(*[0.7] * 9, 3.0, 0.7)) == []


def test_hardware_events_of_ten_minutes_before_are_joined_and_older_ones_are_not() -> None:
    joined = add_hardware_events(LossAnomaly(AT, "loss is not a number"), [xid(-30), xid(-8), xid(1), xid(5)])
    assert [event.at - AT for event in joined.hardware] == [timedelta(minutes=-8), timedelta(minutes=1)]


def test_a_loss_without_hardware_events_says_so_by_an_empty_list() -> None:
    assert add_hardware_events(LossAnomaly(AT, "loss is infinite"), []).hardware == ()


def test_a_reported_anomaly_is_not_repeated_by_its_series() -> None:
    reported, detected = LossAnomaly(AT, "nan loss"), LossAnomaly(AT + timedelta(minutes=1), "loss is not a number")
    later = LossAnomaly(AT + timedelta(hours=1), "loss is not a number")
    assert merge_anomalies([reported], [detected, later]) == [reported, later]
