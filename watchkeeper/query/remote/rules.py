"""Alerts of a server that evaluates the rules itself: Prometheus, vmalert, or a ruler of Thanos or Mimir.

With `[rules] owner = "server"` the hub calls `read` now and then instead of evaluating, and `follow` to learn which
alerts began to fire or ended. Silence is not health: a server that does not answer, has no alerting rule, or has not
evaluated lately leaves everything as it was, and the reading says why.
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
from watchkeeper.query.remote import answers
from watchkeeper.query.remote.http import Request, ServerClient

# A group may be late by some turns and by the difference of two clocks before it counts as stuck.
LATE_TURNS = 3
LATE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServerRule:
    """One alerting rule of the server; `trouble` is why its alerts are unknown, None if they are not."""

    group: str
    name: str
    expr: str
    hold_seconds: float
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RulesSnapshot:
    """What a server said about its rules; while `unknown_because` is set, absent alerts mean nothing."""

    alerts: tuple[Alert, ...] = ()
    rules: tuple[ServerRule, ...] = ()
    unknown_reason: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.unknown_reason is None

    @property
    def problems(self) -> tuple[str, ...]:
        """Each rule that cannot be relied on, with the reason."""
        return tuple(f"{rule.group}/{rule.name}: {rule.problem}" for rule in self.rules if rule.problem)


@dataclass(frozen=True, slots=True)
class AlertChanges:
    """The alerts as they are believed to be, and those that began to fire or were resolved by this reading."""

    alerts: Mapping[Labels, Alert] = field(default_factory=dict)
    changes: tuple[Alert, ...] = ()


def client_of(chosen: settings.Settings) -> ServerClient:
    """The server whose rules count: its own address, or the one that answers queries."""
    url = chosen.rules.server_url or chosen.query.url
    if url is None:
        raise errors.StartRefused("there is no server whose rules could be read", remedy="Set rules.server_url")
    return ServerClient(chosen.query, url, key="rules.server_url" if chosen.rules.server_url else "query.url")


def read_rules(client: ServerClient, now: datetime) -> RulesSnapshot:
    """Ask the server for its rules and alerts; a failure is a reading too: one that knows nothing."""
    try:
        found, said = _ask(client, "/api/v1/rules")
        groups = found["groups"] or []
        rules = tuple(rule for group in groups for rule in _rules(group, now))
        alerts = tuple(alert for group in groups for alert in _group_alerts(group))
        if not alerts and any(rule.get("state") in ("firing", "pending") for rule in _alerting(groups)):
            # A proxy that strips alerts from rules; the list of alerts has no `for`, so no time of firing.
            found, more = _ask(client, "/api/v1/alerts")
            alerts, said = tuple(_alerts(found["alerts"], hold_seconds=0.0)), (*said, *more)
    except (errors.StoreError, errors.QueryError) as error:
        return RulesSnapshot(unknown_reason=str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"{client.url}: the list of rules has not the form of Prometheus' API"
        return RulesSnapshot(unknown_reason=f"{problem} ({type(error).__name__}: {error})")
    unknown = None if rules else f"{client.url}: the server has no alerting rules, so nobody watches"
    if rules and all(rule.problem for rule in rules):
        unknown = f"{client.url}: none of {len(rules)} alerting rules can be relied on; the first: {rules[0].problem}"
    return RulesSnapshot(alerts, rules, unknown, said)


def compare_alerts(before: Mapping[Labels, Alert], reading: RulesSnapshot, now: datetime) -> AlertChanges:
    """Compare with what was believed before: an alert that is gone has ended only if its rule is known to be well."""
    alerts: dict[Labels, Alert] = {}
    changes: list[Alert] = []
    for alert in reading.alerts:
        known = before.get(alert.labels)
        if known is not None and known.state is alert.state is AlertState.FIRING:
            alert = replace(alert, fired_at=known.fired_at)
        elif alert.state is AlertState.FIRING:
            changes.append(alert)
        alerts[alert.labels] = alert
    unsure = {rule.name for rule in reading.rules if rule.problem}
    watched = {rule.name for rule in reading.rules}
    for labels, alert in before.items():
        if labels in alerts:
            continue
        if not reading.is_known or alert.name in unsure:
            alerts[labels] = alert
        elif alert.state is AlertState.FIRING:
            # A rule that was taken away ends its alerts as well: nobody would ever end them otherwise.
            note = {} if alert.name in watched else {"resolved_because": "the server no longer has this rule"}
            ended = replace(
                alert, state=AlertState.RESOLVED, resolved_at=now, annotations={**alert.annotations, **note}
            )
            changes.append(ended)
    return AlertChanges(alerts, tuple(changes))


def _ask(client: ServerClient, path: str) -> tuple[Any, tuple[str, ...]]:
    found, said = answers.content(client.send(Request("GET", path)), client.url)
    return found, said.warnings


def _alerting(groups: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (rule for group in groups for rule in group["rules"] or () if rule["type"] == "alerting")


def _rules(group: Mapping[str, Any], now: datetime) -> Iterator[ServerRule]:
    interval = float(group.get("interval") or 0.0)
    for rule in _alerting([group]):
        hold = float(rule.get("duration") or 0.0)
        yield ServerRule(group["name"], rule["name"], rule["query"], hold, _trouble(rule, interval, now))


def _trouble(rule: Mapping[str, Any], interval_seconds: float, now: datetime) -> str | None:
    if rule.get("health") == "err":
        return f"the server cannot evaluate it: {str(rule.get('lastError'))[:300]}"
    evaluated_at = _time(rule.get("lastEvaluation"))
    if evaluated_at is None:
        return "the server has not evaluated it yet"
    late = now - evaluated_at
    if late > timedelta(seconds=LATE_TURNS * interval_seconds + LATE_SECONDS):
        ago = durations.format_seconds(round(late.total_seconds()))
        return f"the server evaluated it last {ago} ago, and should each {durations.format_seconds(interval_seconds)}"
    return None


def _group_alerts(group: Mapping[str, Any]) -> Iterator[Alert]:
    for rule in _alerting([group]):
        yield from _alerts(rule.get("alerts") or (), hold_seconds=float(rule.get("duration") or 0.0))


def _alerts(found: Iterable[Mapping[str, Any]], *, hold_seconds: float) -> Iterator[Alert]:
    """Active alerts. A server does not tell when one began to fire, which is its hold after it became active."""
    for one in found:
        # vmalert lists alerts for a while after they have ended, as inactive.
        if one["state"] not in (AlertState.FIRING, AlertState.PENDING):
            continue
        state, active_at = AlertState(one["state"]), wire.parse_time(one["activeAt"])
        fired_at = active_at + timedelta(seconds=hold_seconds) if state is AlertState.FIRING else None
        yield Alert(
            Labels(one["labels"]), state, active_at, float(one["value"]), dict(one.get("annotations") or {}), fired_at
        )


def _time(text: str | None) -> datetime | None:
    """A time of Go, whose zero means never."""
    at = wire.parse_time(text) if text else None
    return None if at is None or at < datetime(1970, 1, 1, tzinfo=UTC) else at
