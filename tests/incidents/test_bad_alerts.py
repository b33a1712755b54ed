"""Alerts without labels, with labels of others, or by the thousand: incidents stay right, small and readable."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.support.incident_stories import Room, later
from watchkeeper.incidents import correlate, tracker
from watchkeeper.model import alerts, labels
from watchkeeper.model.alerts import AlertState

NAMES = (
    "alertname",
    "cluster",
    "Hostname",
    "node",
    "UUID",
    "pod",
    "namespace",
    "job_name",
    "cause",
    "severity",
    "rack",
)
VALUES = st.sampled_from(["", "n1", "GPU-1", "gpu_fell_off_bus", "training_stalled", "gpu_idle_waste"]) | st.text(
    max_size=40
)


def fires(at: float = 0, *, ends: float | None = None, **label_values: str) -> alerts.Alert:
    return alerts.Alert(
        labels=labels.Labels(label_values),
        state=AlertState.FIRING if ends is None else AlertState.RESOLVED,
        active_at=later(at),
        value=1.0,
        annotations={},
        fired_at=later(at),
        resolved_at=None if ends is None else later(ends),
    )


def titles(room: Room) -> list[str]:
    return [incident.title for incident in room.incidents.open_incidents()]


@pytest.mark.parametrize(
    ("label_values", "title"),
    [
        ({}, "Cluster default reports a fault without a known cause"),
        ({"alertname": "DiskFull", "host": "db7", "cluster": "eu"}, "DiskFull on cluster eu"),
        ({"cause": "gpu_fell_off_bus"}, "A GPU of cluster default fell off the bus"),
        ({"cause": "cooling_failure"}, "Cooling of a node of cluster default has failed"),
        ({"cause": "training_stalled"}, "A workload of cluster default makes no progress"),
        ({"alertname": "A\n<b>\u202e"}, "A <b> on cluster default"),
        ({"alertname": "A", "node": "n" * 3000}, ("A on " + "n" * 300)[:300]),
    ],
)
def test_an_alert_that_names_no_place_claims_none(room: Room, label_values: dict[str, str], title: str) -> None:
    room.incidents._context = correlate.CorrelationContext(
        lambda place: place.node or f"cluster {place.cluster}",
        room.workloads,
        room.journal.next_incident_id,
        room.incidents._domains,
        lambda _: (),
    )
    room.hear(fires(**label_values))
    assert titles(room) == [title]


def test_alerts_without_a_place_do_not_explain_each_other(room: Room) -> None:
    room.hear(fires(cause="gpu_fell_off_bus"), fires(alertname="DiskFull"), fires(alertname="Other", cause="unknown"))
    assert len(titles(room)) == 3


def test_ten_thousand_alerts_of_a_rule_are_one_incident_that_says_at_least(room: Room) -> None:
    firing = [fires(alertname="Hot", node=f"n{at}", UUID=f"GPU-{at}") for at in range(10_000)]
    room.incidents.apply_alerts(firing, later(0))
    (incident,) = room.incidents.open_incidents()
    assert (len(incident.members), incident.version) == (correlate.MAX_MEMBERS, correlate.MAX_MEMBERS)
    assert incident.title.endswith(" and at least 199 more")
    ended = [fires(alertname="Hot", node=f"n{at}", UUID=f"GPU-{at}", ends=60) for at in range(9_990)]
    room.incidents.apply_alerts(ended, later(60))
    room.tick(75, *firing[9_990:])
    (incident,) = room.incidents.open_incidents()
    assert sum(member.until is None for member in incident.members) == 10, "the last ten still fire"
    assert room.incidents._waiting_alerts == {}


def test_waiting_alerts_are_retried_in_turns(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlate, "MAX_MEMBERS", 2)
    monkeypatch.setattr(tracker, "MAX_RETRIES", 3)
    firing = [fires(alertname="Hot", node=f"n{at}") for at in range(12)]
    room.hear(*firing)
    room.hear(*(fires(alertname="Hot", node=f"n{at}", ends=60) for at in range(2)))
    for turn in range(4):
        room.tick(61 + 11 * turn, *firing[2:])
        assert len(room.incidents.open_incidents()) == 1
    assert len(room.incidents._waiting_alerts) == 9, "one joined; the ended one that leads stays"


@given(st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), max_size=8))
@examples(50)
def test_no_labels_break_incidents(label_sets: list[dict[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        room = Room(Path(folder))
        firing = [fires(at, **label_values) for at, label_values in enumerate(label_sets)]
        room.hear(*firing)
        room.tick(60, *firing)
        assert all(title and title.isprintable() and len(title) <= 300 for title in titles(room))
        assert bool(firing) == bool(titles(room))
        room.hear(*(fires(at, ends=120, **label_values) for at, label_values in enumerate(label_sets)))
        room.tick(10_000)
        assert titles(room) == []
        room.journal.close()
