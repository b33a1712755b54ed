"""Alertmanager's shapes in and out: our incidents as its alerts, its webhook as our alerts, and what is not taken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.incident_stories import Room, alert, gpu, later, node, xid
from tests.support.webhooks import Web, running
from watchkeeper.errors import WireError
from watchkeeper.incidents import incident_labels
from watchkeeper.incidents.signals import from_alert
from watchkeeper.kit import wire
from watchkeeper.model import alerts
from watchkeeper.model.labels import Labels
from watchkeeper.notify import alertmanager, message

CAUSE_BY_ALERT_NAME = {"GPUMissing": "gpu_missing"}


def webhook(*entries: dict[str, Any]) -> bytes:
    return json.dumps({"version": "4", "status": "firing", "alerts": entries}).encode()


def webhook_alert(status: str = "firing", annotations: dict[str, str] | None = None, **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": "Theirs", **labels},
        "annotations": annotations or {},
        "startsAt": "2026-05-04T11:59:00Z",
        "endsAt": "2026-05-04T11:59:30Z" if status == "resolved" else "0001-01-01T00:00:00Z",
    }


def read(*entries: dict[str, Any]) -> list[alerts.Alert]:
    return list(alertmanager.read_webhook(webhook(*entries), later(0), cause_by_alert_name=CAUSE_BY_ALERT_NAME).alerts)


def posted(room: Room, at: float) -> list[alertmanager.PostedAlert]:
    about = [
        (each, incident_labels.collect_labels(each, incident_labels.InventoryLookup()))
        for each in room.incidents.recent()
    ]
    return [alertmanager.make_alert(each, labels, message.MessageContext(), now=later(at)) for each, labels in about]


@pytest.mark.parametrize(
    ("entry", "cause"),
    [
        (webhook_alert(cause="ecc_uncorrectable"), "ecc_uncorrectable"),
        (webhook_alert(xid="79"), "gpu_fell_off_bus"),
        (webhook_alert(annotations={"summary": "XID 48 on node n1"}), "ecc_uncorrectable"),
        (webhook_alert(alertname="GPUMissing"), "gpu_missing"),
        (webhook_alert(cause="their own word"), "unknown"),
    ],
)
def test_the_cause_of_an_external_alert_comes_from_its_labels_and_texts(entry: dict[str, Any], cause: str) -> None:
    signals = [from_alert(each) for each in read(entry)]
    assert [signal.cause for signal in signals if signal] == [cause]


def test_an_alert_with_changed_annotations_stays_the_same_alert() -> None:
    (first,) = read(webhook_alert(annotations={"summary": "XID 48 on node n1"}))
    (later_on,) = read(webhook_alert("resolved", annotations={"summary": "XID 79 on node n1"}))
    assert first.labels == later_on.labels


def test_an_alert_that_ended_before_it_began_ended_when_it_began() -> None:
    (over,) = read(webhook_alert("resolved") | {"endsAt": "0001-01-01T00:00:00Z"})
    assert over.resolved_at == over.fired_at


def test_an_invalid_time_is_a_problem_of_that_alert_only() -> None:
    received = alertmanager.read_webhook(
        webhook(
            webhook_alert(), webhook_alert() | {"startsAt": "0001-01-01T00:00:00+09:00"}, {"labels": {"alertname": "A"}}
        ),
        later(0),
        cause_by_alert_name=CAUSE_BY_ALERT_NAME,
    )
    assert len(received.alerts) == 1
    assert received.problems[1] == "alerts[2]: startsAt is missing"


def test_an_incident_of_a_power_domain_can_be_silenced_by_its_label(room: Room) -> None:
    labels = Labels({"alertname": "FeedDown", "power": "p3", "severity": "critical", "cluster": "main"})
    room.hear(alerts.Alert(labels, alerts.AlertState.FIRING, later(0), 1.0, fired_at=later(0)))
    (sent,) = posted(room, 1)
    matchers = incident_labels.place_matchers(room.incidents.open_incidents()[0].place)
    assert {matcher.name: matcher.value for matcher in matchers}.items() <= sent.labels.items()


def test_an_alert_that_ended_is_resolved_and_one_from_the_future_is_from_now() -> None:
    (over, ahead) = read(webhook_alert("resolved"), webhook_alert() | {"startsAt": "2031-01-01T00:00:00Z"})
    assert over.state is alerts.AlertState.RESOLVED
    assert over.resolved_at == later(-30)
    assert ahead.fired_at == later(0)


def test_alerts_that_the_hub_sent_are_ignored() -> None:
    assert read(webhook_alert(watchkeeper_incident="INC-1")) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "not JSON"),
        (b"[]", "a list `alerts`"),
        (b'{"alerts": 3}', "a list `alerts`"),
        (webhook({"labels": {}, "startsAt": "2026-05-04T11:59:00Z"}), "labels.alertname is missing"),
        (webhook({"labels": {"alertname": 3}}), "must be an object of strings"),
        (webhook(webhook_alert() | {"startsAt": "yesterday"}), "alerts[0]"),
        (webhook(webhook_alert(**{f"l{at}": "x" for at in range(100)})), "the limit is 64"),
        (webhook(webhook_alert(big="x" * 5000)), "the limit is 4,096"),
        (webhook(webhook_alert(**{f"l{at}": "x" * 1000 for at in range(20)})), "the limit is 16,384"),
        (json.dumps({"alerts": [{}] * 10_001}).encode(), "the limit is 10,000"),
    ],
)
def test_an_invalid_webhook_body_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(WireError) as refused:
        alertmanager.read_webhook(body, later(0), cause_by_alert_name=CAUSE_BY_ALERT_NAME)
    assert problem in str(refused.value)


@pytest.mark.slow
def test_an_alert_with_too_many_labels_is_refused_with_both_numbers() -> None:
    many = ",".join(f'"l{at}":"x"' for at in range(1_000_000))
    body = webhook(webhook_alert(), webhook_alert(alertname="Huge")).replace(b'"Huge"', f'"Huge",{many}'.encode())
    received = alertmanager.read_webhook(body, later(0), cause_by_alert_name=CAUSE_BY_ALERT_NAME)
    assert [alert.name for alert in received.alerts] == ["Theirs"]
    assert received.problems == ("alerts[1]: labels has 1,000,001 entries, the limit is 64",)


def test_the_same_alert_a_thousand_times_in_one_call_is_one_signal(room: Room) -> None:
    room.hear(*read(*[webhook_alert(Hostname="n1", cause="agent_down")] * 1000))
    (incident,) = room.incidents.open_incidents()
    assert (len(incident.members), incident.version) == (1, 1)


def test_an_invalid_alert_does_not_affect_valid_ones() -> None:
    received = alertmanager.read_webhook(
        webhook(webhook_alert(), {"labels": {}}, webhook_alert(x="y")),
        later(0),
        cause_by_alert_name=CAUSE_BY_ALERT_NAME,
    )
    assert len(received.alerts) == 2
    assert received.problems == ("alerts[1]: labels.alertname is missing",)


def test_an_open_incident_is_an_alert_that_ends_soon_unless_it_is_repeated(room: Room) -> None:
    room.push(xid(79, gpu(3), 0))
    (sent,) = posted(room, 60)
    assert sent.body["endsAt"] == "2026-05-04T12:03:00.000000Z"
    assert sent.labels == {
        "alertname": "GpuFellOffBus",
        "cause": "gpu_fell_off_bus",
        "cluster": "main",
        "gpu": "GPU-n1-3",
        "node": "n1",
        "severity": "critical",
        "watchkeeper_incident": "INC-1",
    }


def batch(feed: alertmanager.AlertmanagerFeed, room: Room, at: float) -> list[Mapping[str, Any]]:
    return feed.next_alerts(zip(room.incidents.recent(), posted(room, at), strict=True), now=later(at))


@contextmanager
def an_alertmanager() -> Iterator[alertmanager.AlertmanagerFeed]:
    """One that takes everything."""
    with running(Web()) as port:
        yield alertmanager.AlertmanagerFeed(f"http://127.0.0.1:{port}")


def test_an_incident_whose_labels_change_ends_under_the_old_ones(room: Room) -> None:
    feed = alertmanager.AlertmanagerFeed("http://127.0.0.1:1")
    room.hear(alert("thermal_throttle", gpu(1), 0, severity="warning"))
    batch(feed, room, 1)
    room.hear(alert("thermal_throttle", gpu(1), 5, severity="critical"))
    current, ended = batch(feed, room, 6)
    assert (ended["labels"]["severity"], ended["endsAt"]) == ("warning", "2026-05-04T12:00:06.000000Z")
    assert current["labels"]["severity"] == "critical"


def test_labels_that_fire_again_before_their_end_was_sent_are_not_resolved(room: Room) -> None:
    feed = alertmanager.AlertmanagerFeed("http://127.0.0.1:1")
    room.hear(alert("thermal_throttle", gpu(1), 0))
    (incident,) = room.incidents.open_incidents()

    def send(team: str, at: float) -> list[tuple[str, bool]]:
        about = {
            **incident_labels.collect_labels(incident, incident_labels.InventoryLookup()),
            "team": frozenset({team}),
        }
        posted = alertmanager.make_alert(incident, about, message.MessageContext(), now=later(at))
        sent = feed.next_alerts([(incident, posted)], now=later(at))
        return [(body["labels"]["team"], body["endsAt"] > wire.format_time(later(at))) for body in sent]

    assert send("llm", 1) == [("llm", True)]
    assert send("vision", 2) == [("vision", True), ("llm", False)]
    assert send("llm", 3) == [("llm", True), ("vision", False)]


@pytest.mark.slow
def test_a_resolved_alert_is_repeated_for_a_while(room: Room) -> None:
    room.hear(alert("agent_down", node(), 0), alert("agent_down", node(), 0, ends=10))
    room.tick(70)
    with an_alertmanager() as feed:
        assert feed.send(batch(feed, room, 71)) == ""
        assert len(batch(feed, room, 200)) == 1
        assert batch(feed, room, 1000) == []


@pytest.mark.slow
def test_an_alertmanager_that_was_down_for_an_hour_gets_every_end(room: Room) -> None:
    down = alertmanager.AlertmanagerFeed("http://127.0.0.1:1")
    room.hear(alert("agent_down", node(), 0))
    batch(down, room, 1)
    room.hear(alert("agent_down", node(), 0, ends=10))
    for at in range(70, 3600, 60):
        room.tick(at)
        down.send(batch(down, room, at))
    (owed,) = batch(down, room, 3600)
    assert owed["endsAt"] == "2026-05-04T12:01:10.000000Z"
    with running(Web()) as port:
        down.url = f"http://127.0.0.1:{port}"
        assert down.send([owed]) == ""
    assert batch(down, room, 3660) == []


def test_a_reopened_incident_is_no_longer_resolved(room: Room) -> None:
    feed = alertmanager.AlertmanagerFeed("http://127.0.0.1:1")
    room.hear(alert("agent_down", node(), 0), alert("agent_down", node(), 0, ends=10))
    room.tick(70)
    assert len(batch(feed, room, 71)) == 1
    room.hear(alert("agent_down", node(), 90))
    (again,) = batch(feed, room, 91)
    assert again["endsAt"] == "2026-05-04T12:03:31.000000Z"


def test_an_alertmanager_that_is_down_is_a_problem_and_not_an_end() -> None:
    problem = alertmanager.AlertmanagerFeed("http://127.0.0.1:1").send([{}])
    assert "unreachable" in problem
