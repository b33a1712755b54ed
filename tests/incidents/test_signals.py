"""Events and alerts read as cause, place and severity."""

from __future__ import annotations

import pytest

from tests.support.incident_stories import NOON, alert, event, gpu, node, xid
from watchkeeper.incidents.signals import clear_rule, from_alert, from_event, place_of
from watchkeeper.model import alerts, events, fleet


@pytest.mark.parametrize(
    ("code", "cause"),
    [(79, "gpu_fell_off_bus"), (48, "ecc_uncorrectable"), (31, "app_illegal_access"), (9999, "unknown")],
)
def test_an_xid_means_what_the_catalogue_says(code: int, cause: str) -> None:
    signal = from_event(xid(code, gpu(1), 0))
    assert signal is not None
    assert (signal.cause, signal.place, signal.at) == (cause, gpu(1), NOON)


@pytest.mark.parametrize("kind", [events.EventKind.GPU_RESET, events.EventKind.NODE_BOOT])
def test_good_news_is_no_signal(kind: events.EventKind) -> None:
    assert from_event(event(kind, node(), 0)) is None


def test_a_pending_alert_is_no_signal() -> None:
    pending = alerts.Alert(alert("gpu_missing", node(), 0).labels, alerts.AlertState.PENDING, NOON, 1.0)
    assert from_alert(pending) is None


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        ({"cluster": "a", "Hostname": "n1", "UUID": "GPU-1"}, fleet.Place("a", node="n1", gpu="GPU-1")),
        ({"cluster": "a", "hostname": "n1", "gpu": "3"}, fleet.Place("a", node="n1")),
        ({"Hostname": "n1", "UUID": "G", "GPU_I_ID": "7"}, fleet.Place("default", node="n1", gpu="G", slice="7")),
        ({"cluster": "a", "instance": "n7:9400"}, fleet.Place("a", node="n7")),
        ({"cluster": "a", "rack": "r1"}, fleet.Place("a", domain="rack=r1")),
        ({"cluster": "a", "UUID": "GPU-1"}, fleet.Place("a")),
    ],
)
def test_labels_name_the_smallest_place_they_can(labels: dict[str, str], place: fleet.Place) -> None:
    assert place_of(labels) == place


def test_hardware_waits_for_a_reset_and_applications_for_quiet() -> None:
    any_xid = xid(79, gpu(3), 0)
    assert clear_rule("gpu_fell_off_bus", any_xid).quiet_seconds is None
    assert clear_rule("app_illegal_access", any_xid).quiet_seconds == 600
    assert clear_rule("unknown", any_xid).quiet_seconds == 600
