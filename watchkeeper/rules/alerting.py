"""Alert state transitions: compute the next alerts of a rule from the previous alerts and the query result.

`evaluate` calls `step` once per alerting rule and evaluation. The transitions are exactly those of Prometheus,
so that a rule file has the same effect in both.
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
# As in Prometheus: long enough to notify every receiver that the alert is resolved.
RESOLVED_RETENTION = timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class RuleEnvironment:
    """The template variables of a rule besides its sample: external labels, external URL, and queries."""

    external_labels: Mapping[str, str]
    external_url: str = ""
    query: templates.Query | None = None


NO_ENVIRONMENT = RuleEnvironment(external_labels={})


@dataclass(frozen=True, slots=True)
class AlertStep:
    """The result of one step: all current alerts, and those that started firing or were resolved."""

    alerts: Mapping[Labels, Alert]
    changes: tuple[Alert, ...]

    @property
    def active(self) -> Iterator[Alert]:
        """Pending and firing alerts, which are written as `ALERTS`."""
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
    """Compute the next alerts of one rule; QueryError if two series become the same alert."""
    # If `may_resolve` is false, a firing alert stays firing even if its series is missing from the result.
    fresh_alerts = _create_alerts(rule, vector, now=now, environment=environment)
    alerts: dict[Labels, Alert] = {}
    changes: list[Alert] = []
    for labels in {**previous, **fresh_alerts}:
        before = previous.get(labels)
        if labels in fresh_alerts:
            after: Alert | None = _update_present(rule, before, fresh_alerts[labels], now)
        else:
            after = _update_absent(rule, before, now, may_resolve=may_resolve)
        if after is None:
            continue
        alerts[labels] = after
        if after.state is not AlertState.PENDING and (before is None or before.state is not after.state):
            changes.append(after)
    return AlertStep(alerts, tuple(changes))


def _create_alerts(
    rule: AlertingRule, vector: Mapping[Labels, float], *, now: datetime, environment: RuleEnvironment
) -> dict[Labels, Alert]:
    fresh_alerts: dict[Labels, Alert] = {}
    for series, value in vector.items():
        context = templates.TemplateContext(
            series, value, environment.external_labels, environment.external_url, environment.query
        )
        rule_labels = {name: template.expand(context) for name, template in rule.labels.items()}
        labels = Labels({**series, **rule_labels, ALERT_NAME: rule.name, METRIC_NAME: ""})
        if labels in fresh_alerts:
            remedy = "Aggregate the series, or keep a label that distinguishes them"
            raise QueryError(f"two series become the same alert {labels}", remedy=remedy)
        annotations = {name: template.expand(context) for name, template in rule.annotations.items()}
        fresh_alerts[labels] = Alert(labels, AlertState.PENDING, active_at=now, value=value, annotations=annotations)
    return fresh_alerts


def _update_present(rule: AlertingRule, before: Alert | None, fresh: Alert, now: datetime) -> Alert:
    alert = fresh
    if before is not None and before.state is not AlertState.RESOLVED:
        # After the clock went back, `for` must not wait until the previous time.
        since = min(before.active_at, now)
        alert = replace(before, active_at=since, value=fresh.value, annotations=fresh.annotations, kept_since=None)
    active_seconds = (now - alert.active_at).total_seconds()
    if alert.state is AlertState.PENDING and active_seconds >= rule.hold_seconds:
        alert = replace(alert, state=AlertState.FIRING, fired_at=now)
    return alert


def _update_absent(rule: AlertingRule, before: Alert | None, now: datetime, *, may_resolve: bool) -> Alert | None:
    if before is None or before.state is AlertState.PENDING:
        return None
    if before.state is AlertState.RESOLVED:
        is_expired = before.resolved_at is None or now - before.resolved_at > RESOLVED_RETENTION
        return None if is_expired else before
    kept_since = min(before.kept_since or now, now)
    if (now - kept_since).total_seconds() < rule.keep_firing_seconds:
        return replace(before, kept_since=kept_since)
    if not may_resolve:
        return before
    return replace(before, state=AlertState.RESOLVED, resolved_at=now, kept_since=None)
