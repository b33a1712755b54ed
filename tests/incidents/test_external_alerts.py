"""External alerts without a resolved notification expire after a stated time, with the reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub_stories import Line, later
from watchkeeper.incidents import external_alerts
from watchkeeper.kit import wire
from watchkeeper.model import alerts
from watchkeeper.model.incidents import IncidentState
from watchkeeper.notify import alertmanager

STALE = external_alerts.STALE_AFTER.total_seconds()
NEVER = "0001-01-01T00:00:00Z"


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(tmp_path)
    yield line
    line.journal.close()


def hear(line: Line, at: float, *, status: str = "firing", node: str = "n1", **more: Any) -> None:
    labels = {"alertname": "TheirRule", "cluster": "main", "Hostname": node, "cause": "thermal_throttle"}
    alert = {"status": status, "labels": labels, "startsAt": wire.format_time(later(0)), "endsAt": NEVER} | more
    body = json.dumps({"version": "4", "alerts": [alert | {"annotations": {"summary": "n1 is hot"}}]}).encode()
    line.pipeline.ingest_alerts(alertmanager.read_webhook(body, later(at), cause_by_alert_name={}).alerts, later(at))


def tick(line: Line, at: float) -> None:
    line.pipeline.tick(later(at))


def state(line: Line) -> IncidentState:
    (incident,) = line.journal.incidents()
    return incident.state


def test_an_alert_without_updates_expires_after_the_stated_time(line: Line) -> None:
    hear(line, 0)
    tick(line, STALE - 1)
    assert state(line) is IncidentState.OPEN
    tick(line, STALE + 10)
    texts = [entry.text for entry in line.journal.timeline("INC-1")]
    assert texts[-1] == "Resolved: n1 is hot (expired: no update until 2026-05-05 00:00:00Z)"
    tick(line, STALE + 200)
    assert state(line) is IncidentState.RESOLVED


def test_a_repeated_alert_does_not_expire(line: Line) -> None:
    hear(line, 0)
    hear(line, STALE - 60)
    tick(line, STALE + 60)
    assert state(line) is IncidentState.OPEN


def test_an_alert_expires_at_its_ends_at(line: Line) -> None:
    hear(line, 0, endsAt=wire.format_time(later(300)))
    tick(line, 290)
    assert state(line) is IncidentState.OPEN
    tick(line, 301)
    tick(line, 500)
    assert state(line) is IncidentState.RESOLVED


def test_a_restart_leaves_time_for_a_repetition_before_an_alert_expires(line: Line) -> None:
    hear(line, 0)
    line.restart(STALE + 3600)
    tick(line, STALE + 3601)
    assert state(line) is IncidentState.OPEN
    tick(line, STALE + 3600 + external_alerts.GRACE.total_seconds() + 1)
    assert "expired: no update" in line.journal.timeline("INC-1")[-1].text


def test_an_alert_that_still_fires_reopens_an_incident_that_a_person_resolved(line: Line) -> None:
    hear(line, 0)
    line.pipeline.incidents.resolve("INC-1", "ada", why="looked fine", now=later(60))
    tick(line, 120)
    assert state(line) is IncidentState.RESOLVED
    tick(line, 800)
    assert state(line) is IncidentState.OPEN


def test_past_the_limit_the_oldest_alerts_expire(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_alerts, "MAX_ALERTS", 2)
    for at, node in enumerate(("n1", "n2", "n3")):
        hear(line, at, node=node)
    tick(line, 60)
    texts = [entry.text for number in (1, 2, 3) for entry in line.journal.timeline(f"INC-{number}")]
    assert [text for text in texts if "limit" in text] == [
        "Resolved: n1 is hot (expired: 3 external alerts are firing, the limit is 2)"
    ]


def test_alerts_of_own_rules_are_ignored() -> None:
    read = alertmanager.read_webhook(b'{"alerts": []}', later(0), cause_by_alert_name={}, stale=timedelta(hours=1))
    kept = external_alerts.ExternalAlerts(read.alerts, now=later(0))
    own = alerts.Alert(alertmanager.Labels({"alertname": "Ours"}), alerts.AlertState.FIRING, later(0), 1.0)
    kept.update([own], later(0))
    assert list(kept.firing()) == []
