"""Read the alerts of a server that evaluates the rules: Prometheus, vmalert, or a ruler of Thanos or Mimir.

With `[rules] owner = "server"` the hub calls `read_rules` instead of evaluating, and `compare_alerts` to find alerts
that started firing or were resolved. If the server is unreachable, has no alerting rules, or has stopped evaluating,
no alert is resolved, and the snapshot has the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from watchkeeper import errors
from watchkeeper.config import settings
from watchkeeper.kit import durations, wire
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.labels import Labels
from watchkeeper.query.remote import responses
from watchkeeper.query.remote.http import Request, ServerClient

# A rule is stuck after this many missed intervals, plus the tolerated difference between two clocks.
MAX_MISSED_INTERVALS = 3
CLOCK_DIFFERENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServerRule:
    """One alerting rule of the server; `problem` is why its alerts are unknown, or None."""

    group: str
    name: str
    expr: str
    hold_seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RulesSnapshot:
    """The rules and alerts of a server; if `unknown_reason` is set, a missing alert is not resolved."""

    alerts: tuple[Alert, ...] = ()
    rules: tuple[ServerRule, ...] = ()
    unknown_reason: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.unknown_reason is None

    @property
    def problems(self) -> tuple[str, ...]:
        """Each rule whose alerts are unknown, with the reason."""
        return tuple(f"{rule.group}/{rule.name}: {rule.problem}" for rule in self.rules if rule.problem)


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """The current alerts, and those that this snapshot started firing or resolved."""

    alerts: Mapping[Labels, Alert] = field(default_factory=dict)
    changes: tuple[Alert, ...] = ()


def open_client(hub_settings: settings.Settings) -> ServerClient:
    """A client for the server that evaluates the rules: rules.server_url, else query.url."""
    url = hub_settings.rules.server_url or hub_settings.query.url
    if url is None:
        raise errors.StartRefused("no server to read rules from", remedy="Set rules.server_url")
    key = "rules.server_url" if hub_settings.rules.server_url else "query.url"
    return ServerClient(hub_settings.query, url, key=key)


def read_rules(client: ServerClient, now: datetime) -> RulesSnapshot:
    """Read the server's rules and alerts; after a failure the snapshot has only `unknown_reason`."""
    try:
        data, warnings = _fetch(client, "/api/v1/rules")
        groups = data["groups"] or []
        rules = tuple(rule for group in groups for rule in _read_rules(group, now))
        alerts = tuple(
            alert
            for rule in _alerting_rules(groups)
            for alert in _read_alerts(rule.get("alerts") or (), hold_seconds=float(rule.get("duration") or 0.0))
        )
        if not alerts and any(rule.get("state") in ("firing", "pending") for rule in _alerting_rules(groups)):
            # Some proxies remove alerts from rules; the list of alerts has no `for`, so `fired_at` is `active_at`.
            data, more_warnings = _fetch(client, "/api/v1/alerts")
            alerts, warnings = tuple(_read_alerts(data["alerts"], hold_seconds=0.0)), (*warnings, *more_warnings)
    except (errors.StoreError, errors.QueryError) as error:
        return RulesSnapshot(unknown_reason=str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{client.url}: the list of rules does not match the Prometheus HTTP API"
        return RulesSnapshot(unknown_reason=f"{problem} ({type(error).__name__}: {error})")
    unknown_reason = None if rules else f"{client.url}: the server has no alerting rules"
    if rules and all(rule.problem for rule in rules):
        unknown_reason = f"{client.url}: all {len(rules)} alerting rules have problems; the first: {rules[0].problem}"
    return RulesSnapshot(alerts, rules, unknown_reason, warnings)


def compare_alerts(before: Mapping[Labels, Alert], snapshot: RulesSnapshot, now: datetime) -> AlertChanges:
    """Compare with the previous alerts: a missing alert is resolved only if its rule has no problem."""
    alerts: dict[Labels, Alert] = {}
    changes: list[Alert] = []
    for alert in snapshot.alerts:
        previous = before.get(alert.labels)
        if previous is not None and previous.state is alert.state is AlertState.FIRING:
            alert = replace(alert, fired_at=previous.fired_at)
        elif alert.state is AlertState.FIRING:
            changes.append(alert)
        alerts[alert.labels] = alert
    unreliable = {rule.name for rule in snapshot.rules if rule.problem}
    rule_names = {rule.name for rule in snapshot.rules}
    for labels, alert in before.items():
        if labels in alerts:
            continue
        if not snapshot.is_known or alert.name in unreliable:
            alerts[labels] = alert
        elif alert.state is AlertState.FIRING:
            # Alerts of a deleted rule are resolved too, else they would fire forever.
            reason = {} if alert.name in rule_names else {"resolved_because": "the server no longer has this rule"}
            annotations = {**alert.annotations, **reason}
            changes.append(replace(alert, state=AlertState.RESOLVED, resolved_at=now, annotations=annotations))
    return AlertChanges(alerts, tuple(changes))


def _fetch(client: ServerClient, path: str) -> tuple[Any, tuple[str, ...]]:
    data, notes = responses.read_payload(client.send(Request("GET", path)), client.url)
    return data, notes.warnings


def _alerting_rules(groups: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (rule for group in groups for rule in group["rules"] or () if rule["type"] == "alerting")


def _read_rules(group: Mapping[str, Any], now: datetime) -> Iterator[ServerRule]:
    interval = float(group.get("interval") or 0.0)
    for rule in _alerting_rules([group]):
        hold = float(rule.get("duration") or 0.0)
        yield ServerRule(group["name"], rule["name"], rule["query"], hold, _rule_problem(rule, interval, now))


def _rule_problem(rule: Mapping[str, Any], interval_seconds: float, now: datetime) -> str | None:
    if rule.get("health") == "err":
        return f"the server cannot evaluate it: {str(rule.get('lastError'))[:300]}"
    evaluated_at = _parse_go_time(rule.get("lastEvaluation"))
    if evaluated_at is None:
        return "the server has not evaluated it yet"
    late = now - evaluated_at
    if late > timedelta(seconds=MAX_MISSED_INTERVALS * interval_seconds + CLOCK_DIFFERENCE_SECONDS):
        ago = durations.format_seconds(round(late.total_seconds()))
        interval = durations.format_seconds(interval_seconds)
        return f"the server last evaluated it {ago} ago, its interval is {interval}"
    return None


def _read_alerts(rows: Iterable[Mapping[str, Any]], *, hold_seconds: float) -> Iterator[Alert]:
    """Active alerts. The API has no `fired_at`; it is `active_at` plus the `for` of the rule."""
    for row in rows:
        # vmalert lists resolved alerts for some time, as inactive.
        if row["state"] not in (AlertState.FIRING, AlertState.PENDING):
            continue
        state, active_at = AlertState(row["state"]), wire.parse_time(row["activeAt"])
        fired_at = active_at + timedelta(seconds=hold_seconds) if state is AlertState.FIRING else None
        annotations = dict(row.get("annotations") or {})
        yield Alert(Labels(row["labels"]), state, active_at, float(row["value"]), annotations, fired_at)


def _parse_go_time(text: str | None) -> datetime | None:
    """Parse a time of Go; its zero value means never."""
    at = wire.parse_time(text) if text else None
    return None if at is None or at < datetime(1970, 1, 1, tzinfo=UTC) else at
