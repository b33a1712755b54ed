"""Evaluate a rule group: query the engine, update the alerts, and return the samples to append.

The hub owns the loop: it iterates over `evaluate_each`, appends the samples of each rule before the next rule is
evaluated (so that a rule can read what an earlier rule recorded), keeps the new state, and passes changed alerts to
incidents. A rule that fails is reported and does not stop its group.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TypeAlias

from watchkeeper.errors import QueryError, QueryLimit, WatchkeeperError
from watchkeeper.kit import clock, durations
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.histograms import Histogram, HistogramSample
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import engine as engines
from watchkeeper.rules import alerting
from watchkeeper.rules.rulefile import AlertingRule, RecordingRule, Rule, RuleGroup, RuleSet
from watchkeeper.store import interfaces

ALERTS = "ALERTS"
ALERTS_FOR_STATE = "ALERTS_FOR_STATE"
ALERT_STATE = "alertstate"
# When the expression of an alert that `keep_firing_for` keeps became false; Prometheus loses it at each restart.
KEPT_SINCE = "watchkeeper_hub_alert_kept_since_seconds"
# How far back a restart searches for the time an alert became active; Prometheus' outage tolerance.
OUTAGE_TOLERANCE = "1h"
# The hub writes this series while it runs, so its last sample is the time of the last rule evaluation.
HEARTBEAT = "watchkeeper_hub_rule_group_seconds"
# The interval of groups without one, for resolve delays after a restart; Prometheus' default.
USUAL_INTERVAL_SECONDS = 60.0
# A restart within this time is not an outage: evaluations before it count.
MAX_PAUSE = timedelta(seconds=2 * USUAL_INTERVAL_SECONDS)
# After any start: at the first evaluation each target was scraped once, and a rate needs two scrapes.
FIRST_SCRAPES = timedelta(seconds=30)
HEARTBEAT_STEP_MS = 15_000


class RuleHealth(StrEnum):
    """The health of a rule, in Prometheus' words: not evaluated yet, ok, failed."""

    UNKNOWN = "unknown"
    OK = "ok"
    ERROR = "err"


@dataclass(frozen=True, slots=True)
class RuleState:
    """The state of one rule: its alerts, the series it wrote last, and the outcome of the last evaluation."""

    alerts: Mapping[Labels, Alert] = field(default_factory=dict)
    written: frozenset[Labels] = frozenset()
    # The recorded label set of each series of the last result: mostly the next result has the same.
    recorded_as: Mapping[Labels, Labels] = field(default_factory=dict)
    health: RuleHealth = RuleHealth.UNKNOWN
    last_error: str = ""
    evaluated_at: datetime | None = None
    duration_seconds: float = 0.0
    # Set after a start: firing alerts are not resolved before, see `with_resolve_delays`.
    resolves_after: datetime | None = None

    @property
    def is_restored(self) -> bool:
        """Whether it has alerts from before the start and was not evaluated yet."""
        return self.evaluated_at is None and bool(self.alerts)


RuleStates: TypeAlias = Mapping[str, RuleState]
# The key of restored alerts whose rules no longer exist; `retire_rules` resolves them.
ORPHANED_KEY = ""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule: its new state, samples to append, and alerts that started firing or were resolved."""

    key: str
    rule: Rule
    state: RuleState
    samples: tuple[interfaces.AnySample, ...] = ()
    changes: tuple[Alert, ...] = ()


def rule_key(group: RuleGroup, rule: Rule) -> str:
    """The identity of a rule across reloads: a changed expression or label makes it a different rule."""
    if isinstance(rule, RecordingRule):
        return f"{group.key};record;{rule.name};{rule.labels};{rule.expr}"
    labels = sorted((name, template.text) for name, template in rule.labels.items())
    return f"{group.key};alert;{rule.name};{labels};{rule.expr}"


def evaluate_each(
    group: RuleGroup,
    engine: engines.InstantEngine,
    state: RuleStates,
    *,
    now: datetime,
    environment: alerting.RuleEnvironment = alerting.NO_ENVIRONMENT,
    timer: Callable[[], float] = time.perf_counter,
) -> Iterator[RuleResult]:
    """Evaluate rule by rule; callers append the samples of each result before they request the next one."""
    if environment.query is None:
        environment = replace(environment, query=partial(query_rows, engine, clock.to_ms(now)))
    for rule in group.rules:
        key, started = rule_key(group, rule), timer()
        before = state.get(key, RuleState())
        if isinstance(rule, AlertingRule) and before.is_restored and before.resolves_after is None:
            before = replace(before, resolves_after=now + _resolve_delay(group, rule))
        outcome = _evaluate_rule(group, rule, engine, before, now=now, environment=environment)
        new_state = replace(outcome.state, evaluated_at=now, duration_seconds=timer() - started)
        yield RuleResult(key, rule, new_state, outcome.samples, outcome.changes)


def retire_rules(
    state: RuleStates, rule_set: RuleSet, *, now: datetime
) -> tuple[RuleStates, tuple[Sample, ...], tuple[Alert, ...]]:
    """Drop rules that a reload removed: the remaining state, stale markers for their series, resolved alerts."""
    rule_keys = {rule_key(group, rule) for group in rule_set.groups for rule in group.rules}
    retired = [rule_state for key, rule_state in state.items() if key not in rule_keys]
    samples: list[Sample] = []
    for rule_state in retired:
        # After its last evaluation, because a series has one sample per time.
        evaluated_at = rule_state.evaluated_at
        stale_at = now if evaluated_at is None else max(now, evaluated_at + timedelta(milliseconds=1))
        samples += [Sample(labels, clock.to_ms(stale_at), STALE) for labels in sorted(rule_state.written)]
    resolved = tuple(
        replace(alert, state=AlertState.RESOLVED, resolved_at=now)
        for rule_state in retired
        for alert in rule_state.alerts.values()
        if alert.state is AlertState.FIRING
    )
    return {key: rule_state for key, rule_state in state.items() if key in rule_keys}, tuple(samples), resolved


def restore_alerts(rule_set: RuleSet, alerts: Iterable[Alert]) -> RuleStates:
    """Assign alerts from before a restart to their rules; `retire_rules` resolves those of deleted rules."""
    restored_alerts = list(alerts)
    state: RuleStates = {}
    for group in rule_set.groups:
        state = restore_group(group, state, restored_alerts)
    rule_alerts = {labels for rule_state in state.values() for labels in rule_state.alerts}
    orphaned = {alert.labels: alert for alert in restored_alerts if alert.labels not in rule_alerts}
    written = frozenset(labels for alert in orphaned.values() for labels in _active_series(alert))
    return {**state, **({ORPHANED_KEY: RuleState(alerts=orphaned, written=written)} if orphaned else {})}


def with_series_before_restart(
    group: RuleGroup, state: RuleStates, written_before: Callable[[str], Iterable[Labels]]
) -> RuleStates:
    """Add series written before a restart to a group's state, so that missing ones get stale markers."""
    restored = dict(state)
    for key in (rule_key(group, rule) for rule in group.rules):
        rule_state = state.get(key, RuleState())
        restored[key] = replace(rule_state, written=rule_state.written.union(written_before(key)))
    return restored


def restore_group(group: RuleGroup, state: RuleStates, alerts: Iterable[Alert]) -> RuleStates:
    """Assign alerts from before a restart to the rules of a group; other alerts are ignored."""
    restored = dict(state)
    for alert in alerts:
        # The rule that may have created it: same name, and same labels without templates.
        named = (rule for rule in group.rules if isinstance(rule, AlertingRule) and rule.name == alert.name)
        for rule in named:
            plain = {name: template.text for name, template in rule.labels.items() if "{{" not in template.text}
            if any(alert.labels.get(name, "") != text for name, text in plain.items()):
                continue
            key = rule_key(group, rule)
            rule_state = restored.get(key, RuleState())
            written = rule_state.written | _active_series(alert)
            restored[key] = replace(rule_state, alerts={**rule_state.alerts, alert.labels: alert}, written=written)
            break
    return restored


def ages_before_restart(name: str, engine: engines.InstantEngine, started: datetime) -> Mapping[Labels, float]:
    """The age in seconds of each alert's recorded time, at the last rule evaluation before `started`."""
    # For ALERTS_FOR_STATE: how long alerts had been active; for KEPT_SINCE: how long kept alerts had been false.
    last = f"max(max_over_time(timestamp({HEARTBEAT})[{OUTAGE_TOLERANCE}:15s]))"
    seconds = next(iter(engine.instant(last, clock.to_ms(started)).latest().values()), None)
    if seconds is None:
        return {}
    # At exactly that time: an alert that was resolved before it must not continue.
    result = engine.instant(name, round(seconds * 1000))
    return {labels.without(METRIC_NAME): max(0.0, seconds - value) for labels, value in result.latest().items()}


def restore_pending_ages(state: RuleStates, active_seconds: Mapping[Labels, float]) -> RuleStates:
    """After the first evaluation of a restart, restore how long pending alerts had been active."""
    # As in Prometheus, the time without evaluations does not count: the expression may have been false.

    def extend_active(alert: Alert, seconds: float) -> Alert:
        return replace(alert, active_at=alert.active_at - timedelta(seconds=seconds))

    return _change_alerts(state, AlertState.PENDING, active_seconds, extend_active)


def restore_keep_firing(state: RuleStates, silent_seconds: Mapping[Labels, float], *, now: datetime) -> RuleStates:
    """Before the first evaluation of a restart, restore how long kept alerts had been false."""
    # The time without evaluations does not count: the expression may have been true.

    def extend_silent(alert: Alert, seconds: float) -> Alert:
        return replace(alert, kept_since=now - timedelta(seconds=seconds))

    return _change_alerts(state, AlertState.FIRING, silent_seconds, extend_silent)


def _change_alerts(
    states: RuleStates, state: AlertState, seconds: Mapping[Labels, float], change: Callable[[Alert, float], Alert]
) -> RuleStates:
    changed = {}
    for key, rule_state in states.items():
        alerts = {
            labels: change(alert, seconds[labels]) if alert.state is state and labels in seconds else alert
            for labels, alert in rule_state.alerts.items()
        }
        written = rule_state.written.union(*map(_active_series, alerts.values()))
        changed[key] = replace(rule_state, alerts=alerts, written=written)
    return changed


@dataclass(frozen=True, slots=True)
class EvaluationCoverage:
    """When this hub started evaluating rules, and since when any hub has evaluated them without a long pause."""

    started: datetime
    since: datetime


def evaluated_since(engine: engines.Engine, now: datetime) -> datetime | None:
    """Since when rules were evaluated without an outage; None if they were not evaluated before `now`."""
    hour = round(durations.parse_seconds(OUTAGE_TOLERANCE) * 1000)
    span = engines.QueryRange(clock.to_ms(now) - hour, clock.to_ms(now), HEARTBEAT_STEP_MS)
    result = engine.range(f"max(timestamp({HEARTBEAT}))", span)
    heartbeats_ms = {round(value * 1000) for _, _, values in result.frame.rows() for value in values.tolist()}
    since = now
    for at in (clock.from_ms(at_ms) for at_ms in sorted(heartbeats_ms, reverse=True)):
        if since - at > MAX_PAUSE:
            break
        since = at
    return None if since == now else since


def with_resolve_delays(group: RuleGroup, state: RuleStates, coverage: EvaluationCoverage) -> RuleStates:
    """Before a group's first evaluation, set when restored alerts may be resolved."""
    # An outage of the hub must not resolve alerts: a rule must be evaluated long enough for its expression to become
    # true again. Short pauses do not restart this delay, so that a hub which restarts every minute still resolves its
    # alerts.
    delayed = dict(state)
    for rule in group.rules:
        key = rule_key(group, rule)
        rule_state = delayed.get(key, RuleState())
        if isinstance(rule, AlertingRule) and rule_state.is_restored:
            until = max(coverage.since + _resolve_delay(group, rule), coverage.started + FIRST_SCRAPES)
            delayed[key] = replace(rule_state, resolves_after=until)
    return delayed


def _resolve_delay(group: RuleGroup, rule: AlertingRule) -> timedelta:
    return timedelta(seconds=rule.hold_seconds + 2 * (group.interval_seconds or USUAL_INTERVAL_SECONDS))


@dataclass(frozen=True, slots=True)
class _Outcome:
    state: RuleState
    samples: tuple[interfaces.AnySample, ...] = ()
    changes: tuple[Alert, ...] = ()


def _evaluate_rule(
    group: RuleGroup,
    rule: Rule,
    engine: engines.InstantEngine,
    before: RuleState,
    *,
    now: datetime,
    environment: alerting.RuleEnvironment,
) -> _Outcome:
    try:
        result = engine.instant(rule.expr, clock.to_ms(now) - round(group.query_offset_seconds * 1000))
        if result.kind not in (engines.ResultType.VECTOR, engines.ResultType.SCALAR):
            raise QueryError(f"{rule.name} returns a {result.kind}, a rule needs a vector or a scalar")
        vector, histograms = result.latest(), result.latest_histograms()
        if isinstance(rule, RecordingRule):
            outcome = _evaluate_recording(rule, vector, histograms, before=before, now=now)
            count = len(vector) + len(histograms)
        else:
            # An alert on a histogram has no number as its value.
            vector = vector | dict.fromkeys(histograms, math.nan) if histograms else vector
            outcome = _evaluate_alerting(rule, vector, before, now=now, environment=environment)
            count = sum(alert.state is not AlertState.RESOLVED for alert in outcome.state.alerts.values())
        if group.limit and count > group.limit:
            raise QueryLimit(f"{rule.name} returns {count} series, the limit of its group is {group.limit}")
    except WatchkeeperError as error:
        # Alerts keep their state: a failed query must not resolve them.
        return _Outcome(replace(before, health=RuleHealth.ERROR, last_error=str(error)))
    return outcome


def _evaluate_recording(
    rule: RecordingRule,
    vector: Mapping[Labels, float],
    histograms: Mapping[Labels, Histogram],
    *,
    before: RuleState,
    now: datetime,
) -> _Outcome:
    previous_names = before.recorded_as
    if not histograms and list(vector) == list(previous_names) and (previous_names or not before.written):
        # The same series as in the last result, as nearly always: recorded labels are known, and none becomes stale.
        at_ms, recorded = clock.to_ms(now), zip(previous_names.values(), vector.values(), strict=True)
        samples = tuple([Sample(labels, at_ms, value) for labels, value in recorded])
        return _Outcome(RuleState(health=RuleHealth.OK, recorded_as=previous_names, written=before.written), samples)
    recorded_as = {
        series: previous_names.get(series) or Labels({**series, **rule.labels, METRIC_NAME: rule.name})
        for series in (*vector, *histograms)
    }
    values = {recorded_as[series]: value for series, value in vector.items()}
    native = {recorded_as[series]: histogram for series, histogram in histograms.items()}
    if len(values | native if native else values) < len(recorded_as):
        duplicate = next(labels for labels, count in Counter(recorded_as.values()).items() if count > 1)
        raise QueryError(f"{rule.name}: two series become the same {duplicate}")
    outcome = _build_outcome(RuleState(health=RuleHealth.OK, recorded_as=recorded_as), values, before=before, now=now)
    if not native:
        return outcome
    # A series that is a histogram now is not stale.
    floats = (sample for sample in outcome.samples if sample.labels not in native)
    native_samples = (HistogramSample(labels, clock.to_ms(now), histogram) for labels, histogram in native.items())
    state = replace(outcome.state, written=outcome.state.written | native.keys())
    return replace(outcome, state=state, samples=(*floats, *native_samples))


def _evaluate_alerting(
    rule: AlertingRule,
    vector: Mapping[Labels, float],
    before: RuleState,
    *,
    now: datetime,
    environment: alerting.RuleEnvironment,
) -> _Outcome:
    # If the clock went back, `resolves_after` is meaningless.
    clock_went_back = before.evaluated_at is not None and now < before.evaluated_at
    may_resolve = before.resolves_after is None or now >= before.resolves_after or clock_went_back
    step = alerting.step(rule, before.alerts, vector, now=now, environment=environment, may_resolve=may_resolve)
    values: dict[Labels, float] = {}
    for alert in step.active:
        values |= _alert_series(alert)
    resolves_after = None if may_resolve else before.resolves_after
    state = RuleState(alerts=step.alerts, health=RuleHealth.OK, resolves_after=resolves_after)
    return replace(_build_outcome(state, values, before=before, now=now), changes=step.changes)


def _build_outcome(state: RuleState, values: Mapping[Labels, float], *, before: RuleState, now: datetime) -> _Outcome:
    """The samples of this evaluation, and a stale marker for each series that only the last evaluation wrote."""
    at_ms = clock.to_ms(now)
    samples = [Sample(labels, at_ms, value) for labels, value in values.items()]
    samples += [Sample(labels, at_ms, STALE) for labels in sorted(before.written - values.keys())]
    return _Outcome(replace(state, written=frozenset(values)), tuple(samples))


def _alert_series(alert: Alert) -> dict[Labels, float]:
    """The series of an active alert: ALERTS and ALERTS_FOR_STATE, and KEPT_SINCE while `keep_firing_for` keeps it."""
    alert_labels = Labels({**alert.labels, METRIC_NAME: ALERTS, ALERT_STATE: alert.state.value})
    values = {alert_labels: 1.0, Labels({**alert.labels, METRIC_NAME: ALERTS_FOR_STATE}): alert.active_at.timestamp()}
    if alert.kept_since is not None:
        values[Labels({**alert.labels, METRIC_NAME: KEPT_SINCE})] = alert.kept_since.timestamp()
    return values


def _active_series(alert: Alert) -> frozenset[Labels]:
    return frozenset() if alert.state is AlertState.RESOLVED else frozenset(_alert_series(alert))


def query_rows(engine: engines.InstantEngine, at_ms: int, expr: str) -> list[dict[str, object]]:
    vector = engine.instant(expr, at_ms).latest()
    return [{"Labels": labels, "Value": value} for labels, value in sorted(vector.items())]
