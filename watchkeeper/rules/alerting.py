"""The life of alerts: one pure step from what was, and what the expression answers, to what is.

`evaluate` calls `step` once per alerting rule and interval. The states move exactly as Prometheus
moves them, so that a rule file means the same here and there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.errors import QueryError
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.rules import templates
from watchkeeper.rules.rulefile import AlertingRule

ALERT_NAME = "alertname"
# As long as Prometheus keeps a resolved alert: long enough for every receiver to have heard of it.
RESOLVED_RETENTION = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class RuleEnvironment:
    """What every expansion of a rule's templates may use besides its own sample."""

    external_labels: Mapping[str, str]
    external_url: str = ""
    query: templates.Query | None = None


NO_ENVIRONMENT = RuleEnvironment(external_labels={})


@dataclass(frozen=True, slots=True)
class AlertStep:
    """`alerts` is the whole new state; `changes` are those that began to fire or were resolved in this step."""

    alerts: Mapping[Labels, Alert]
    changes: tuple[Alert, ...]

    @property
    def active(self) -> Iterator[Alert]:
        """Pending and firing alerts: what is written as `ALERTS`."""
        return (alert for alert in self.alerts.values() if alert.state is not AlertState.RESOLVED)


def step(
    rule: AlertingRule,
    previous: Mapping[Labels, Alert],
    vector: Mapping[Labels, float],
    *,
    now: datetime,
    environment: RuleEnvironment = NO_ENVIRONMENT,
    may_resolve: bool = True,
) -> AlertStep:
    """Move every alert of one rule; QueryError if two series become the same alert.

    Where `may_resolve` is false, an answer without a firing alert does not end it.
    """
    seen = _seen(rule, vector, now=now, surroundings=environment)
    alerts: dict[Labels, Alert] = {}
    changes: list[Alert] = []
    for labels in {**previous, **seen}:
        before = previous.get(labels)
        if labels in seen:
            after: Alert | None = _present(rule, before, seen[labels], now)
        else:
            after = _absent(rule, before, now, may_resolve=may_resolve)
        if after is None:
            continue
        alerts[labels] = after
        if after.state is not AlertState.PENDING and (before is None or before.state is not after.state):
            changes.append(after)
    return AlertStep(alerts, tuple(changes))


def _seen(
    rule: AlertingRule, vector: Mapping[Labels, float], *, now: datetime, surroundings: RuleEnvironment
) -> dict[Labels, Alert]:
    """A fresh pending alert for each series that the expression answers now."""
    seen: dict[Labels, Alert] = {}
    for series, value in vector.items():
        context = templates.TemplateContext(
            labels=series,
            value=value,
            external_labels=surroundings.external_labels,
            external_url=surroundings.external_url,
            query=surroundings.query,
        )
        extra = {name: template.expand(context) for name, template in rule.labels.items()}
        labels = Labels({**series, **extra, ALERT_NAME: rule.name, METRIC_NAME: ""})
        if labels in seen:
            raise QueryError(f"two series become the same alert {labels}", remedy="Aggregate, or keep a label apart")
        annotations = {name: template.expand(context) for name, template in rule.annotations.items()}
        seen[labels] = Alert(labels, AlertState.PENDING, active_at=now, value=value, annotations=annotations)
    return seen


def _present(rule: AlertingRule, before: Alert | None, fresh: Alert, now: datetime) -> Alert:
    alert = fresh
    if before is not None and before.state is not AlertState.RESOLVED:
        # A clock that was put back must not make a hold wait for the time it showed before.
        since = min(before.active_at, now)
        alert = replace(before, active_at=since, value=fresh.value, annotations=fresh.annotations, kept_since=None)
    held = (now - alert.active_at).total_seconds()
    if alert.state is AlertState.PENDING and held >= rule.hold_seconds:
        alert = replace(alert, state=AlertState.FIRING, fired_at=now)
    return alert


def _absent(rule: AlertingRule, before: Alert | None, now: datetime, *, may_resolve: bool) -> Alert | None:
    if before is None or before.state is AlertState.PENDING:
        return None
    if before.state is AlertState.RESOLVED:
        forgotten = before.resolved_at is None or now - before.resolved_at > RESOLVED_RETENTION
        return None if forgotten else before
    kept_since = min(before.kept_since or now, now)
    if (now - kept_since).total_seconds() < rule.keep_firing_seconds:
        return replace(before, kept_since=kept_since)
    if not may_resolve:
        return before
    return replace(before, state=AlertState.RESOLVED, resolved_at=now, kept_since=None)
