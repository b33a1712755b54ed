"""Rules that a server evaluates: its alerts are ours, and its silence is no health."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support import engines
from tests.support.scripted import Reply, serving, success
from tests.support.waiting import until
from watchkeeper.config.settings import RuleOwner, RulesSettings, Settings
from watchkeeper.kit.clock import ScaledClock
from watchkeeper.model.alerts import AlertState
from watchkeeper.query.remote import http, server_rules

NOW = datetime(2024, 1, 15, tzinfo=UTC)
HOT = {"alertname": "Hot", "severity": "critical", "gpu": "3"}
RULE_FILE = """
groups:
  - name: heat
    interval: 1s
    rules:
      - {alert: Hot, expr: vector(91) > 90, labels: {severity: critical}, annotations: {summary: "at {{ $value }}"}}
      - {alert: Cold, expr: vector(91) < 0}
"""


def text(at: datetime) -> str:
    """As Go writes it, with nanoseconds."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "123Z")


def alert(state: str = "firing", **labels: str) -> dict[str, Any]:
    active = text(NOW - timedelta(minutes=10, microseconds=1))
    return {"labels": HOT | labels, "annotations": {}, "state": state, "activeAt": active, "value": "9.1e+01"}


def rule(*alerts: dict[str, Any], name: str = "Hot", **more: object) -> dict[str, Any]:
    state = alerts[0]["state"] if alerts else "inactive"
    fixed = {"type": "alerting", "name": name, "query": "temp > 90", "duration": 120, "health": "ok", "state": state}
    return {**fixed, "alerts": list(alerts), "lastEvaluation": text(NOW), **more}


def listing(*found: dict[str, Any]) -> Reply:
    return success({"groups": [{"name": "heat", "interval": 15, "rules": list(found)}]})


def read(*replies: Reply, now: datetime = NOW) -> server_rules.RulesSnapshot:
    with serving(*replies) as server, contextlib.closing(client(server.url)) as asked:
        return server_rules.read_rules(asked, now)


def client(url: str) -> http.ServerClient:
    return http.ServerClient(engines.settings(url, retries=0), url)


def test_alerts_of_a_server_become_ours() -> None:
    reading = read(listing(rule(alert(), alert("pending", gpu="4"), alert("inactive", gpu="5"))))
    assert reading.is_known
    assert [(one.labels["gpu"], one.state) for one in reading.alerts] == [("3", "firing"), ("4", "pending")]
    hot, waiting = reading.alerts
    assert (hot.name, hot.value, hot.severity) == ("Hot", 91.0, "critical")
    assert hot.fired_at == hot.active_at + timedelta(seconds=120)
    assert waiting.fired_at is None


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (success({"groups": []}), "no alerting rules"),
        (success({"groups": None}), "no alerting rules"),
        (listing({"type": "recording", "name": "a:b", "health": "ok"}), "no alerting rules"),
        (success({"rules": 1}), "does not match the Prometheus"),
        (Reply(404, b"page not found"), "answered 404"),
        (listing(rule(health="err", lastError="boom")), "all 1 alerting rules have problems.*boom"),
    ],
)
def test_a_server_without_rules_or_answers_is_unknown_and_not_healthy(reply: Reply, why: str) -> None:
    reading = read(reply)
    assert not reading.is_known
    assert pytest.raises(AssertionError, match=why).matches(AssertionError(reading.unknown_reason))


def test_a_failing_or_stuck_rule_is_named() -> None:
    late = text(NOW - timedelta(minutes=5))
    never = rule(name="C", lastEvaluation="0001-01-01T00:00:00Z")
    reading = read(listing(rule(name="A"), rule(name="B", lastEvaluation=late), never))
    assert reading.is_known
    assert reading.problems == (
        "heat/B: the server last evaluated it 5m ago, its interval is 15s",
        "heat/C: the server has not evaluated it yet",
    )


def test_alerts_are_read_from_their_own_list_where_rules_come_without_them() -> None:
    bare = rule(state="firing")
    reading = read(listing(bare), success({"alerts": [alert()]}))
    assert [one.labels["gpu"] for one in reading.alerts] == ["3"]


def test_an_alert_begins_once_and_ends_when_the_server_says_so() -> None:
    first = server_rules.compare_alerts({}, read(listing(rule(alert()))), NOW)
    assert [one.state for one in first.changes] == [AlertState.FIRING]
    again = server_rules.compare_alerts(first.alerts, read(listing(rule(alert()))), NOW)
    assert (again.changes, again.alerts) == ((), first.alerts)
    later = NOW + timedelta(seconds=15)
    ended = server_rules.compare_alerts(again.alerts, read(listing(rule())), later)
    assert ended.alerts == {}
    assert [(one.state, one.resolved_at) for one in ended.changes] == [(AlertState.RESOLVED, later)]


@pytest.mark.parametrize("reply", [success({"groups": []}), Reply(500), listing(rule(health="err"), rule(name="Cold"))])
def test_an_alert_stays_firing_while_its_rule_has_a_problem(reply: Reply) -> None:
    before = server_rules.compare_alerts({}, read(listing(rule(alert()))), NOW).alerts
    after = server_rules.compare_alerts(before, read(reply), NOW)
    assert (after.alerts, after.changes) == (before, ())


def test_a_pending_alert_that_disappears_is_not_a_change() -> None:
    before = server_rules.compare_alerts({}, read(listing(rule(alert("pending")))), NOW)
    assert before.changes == ()
    assert server_rules.compare_alerts(before.alerts, read(listing(rule())), NOW).changes == ()


def test_a_rule_that_was_taken_away_ends_its_alerts_and_says_why() -> None:
    before = server_rules.compare_alerts({}, read(listing(rule(alert()))), NOW).alerts
    [ended] = server_rules.compare_alerts(before, read(listing(rule(name="Cold"))), NOW).changes
    assert ended.annotations == {"resolved_because": "the server no longer has this rule"}


def test_the_rules_are_read_where_they_run() -> None:
    query = engines.settings("http://prometheus:9090")
    assert server_rules.open_client(Settings(query=query)).url == "http://prometheus:9090"
    elsewhere = RulesSettings(owner=RuleOwner.SERVER, server_url="http://vmalert:8880/")
    assert server_rules.open_client(Settings(query=query, rules=elsewhere)).url == "http://vmalert:8880"


@contextlib.contextmanager
def vmalert(folder: Path) -> Iterator[str]:
    with engines.victoria_metrics(folder) as storage:
        port = servers.free_port()
        url = f"http://127.0.0.1:{port}"
        places = [f"-datasource.url={storage}", f"-notifier.url={storage}", f"-remoteWrite.url={storage}"]
        listen = [f"-httpListenAddr=127.0.0.1:{port}", f"-rule={folder / 'rules.yml'}"]
        command = [servers.require("vmalert"), *places, *listen]
        with servers.running(command, ready_url=f"{url}/health", log=folder / "vmalert.log"):
            yield url


@pytest.mark.servers
@pytest.mark.parametrize("name", ["prometheus", "vmalert"])
def test_alerts_are_read_from_real_servers(name: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(RULE_FILE)
    started = engines.prometheus(tmp_path, "rule_files: [rules.yml]\n") if name == "prometheus" else vmalert(tmp_path)
    with started as url, contextlib.closing(client(url)) as asked:
        until(lambda: bool(server_rules.read_rules(asked, ScaledClock().now()).alerts))
        reading = server_rules.read_rules(asked, ScaledClock().now())
    [hot] = reading.alerts
    assert (hot.name, hot.state, hot.value, hot.annotations["summary"]) == ("Hot", "firing", 91.0, "at 91")
    assert [one.name for one in reading.rules] == ["Hot", "Cold"]
    assert reading.is_known


@pytest.mark.servers
def test_a_prometheus_without_rule_files_is_unknown(tmp_path: Path) -> None:
    with engines.prometheus(tmp_path) as url, contextlib.closing(client(url)) as asked:
        assert server_rules.read_rules(asked, NOW).unknown_reason == f"{url}: the server has no alerting rules"
