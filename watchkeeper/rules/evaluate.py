"""One evaluation of a rule group: ask the engine, move the alerts, say what to write back.

The hub owns the loop: it walks `evaluate_each`, appends each rule's samples before the next rule is
asked (so that a rule can read what an earlier one recorded), keeps the new state, and hands the
changes to incidents. A rule that fails is reported and does not stop its group.
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
# Since when the expression of an alert is silent that `keep_firing_for` keeps; Prometheus forgets it at each start.
KEPT_SINCE = "watchkeeper_hub_alert_kept_since_seconds"
# How far back a restart looks for the time an alert became active; Prometheus' outage tolerance.
OUTAGE_TOLERANCE = "1h"
# The hub writes this series as long as it runs, so its last sample tells when rules were last looked after.
HEARTBEAT = "watchkeeper_hub_rule_group_seconds"
# After a restart an expression needs its `for` and two intervals to be true again; Prometheus' usual interval.
USUAL_INTERVAL_SECONDS = 60.0
# A hub that is back this soon has had no outage: what was seen before it went counts as seen.
LONGEST_PAUSE = timedelta(seconds=2 * USUAL_INTERVAL_SECONDS)
# After any start: with the first evaluation each target was read once, and a rate needs a second reading.
FIRST_READINGS = timedelta(seconds=30)
PAUSE_STEP_MS = 15_000


class RuleHealth(StrEnum):
    """Prometheus' words for a rule: not evaluated yet, fine, failed."""

    UNKNOWN = "unknown"
    OK = "ok"
    ERROR = "err"


@dataclass(frozen=True, slots=True)
class RuleState:
    """What is remembered of one rule: its alerts, the series it wrote last, and how the last evaluation went.

    `named` is what each series of the last answer was recorded as: mostly the next answer has the same ones.
    `holds_until` is set after a start: until then a firing alert does not end, see `with_holds`.
    """

    alerts: Mapping[Labels, Alert] = field(default_factory=dict)
    written: frozenset[Labels] = frozenset()
    recorded_as: Mapping[Labels, Labels] = field(default_factory=dict)
    health: RuleHealth = RuleHealth.UNKNOWN
    last_error: str = ""
    evaluated_at: datetime | None = None
    duration_seconds: float = 0.0
    resolves_after: datetime | None = None


RuleStates: TypeAlias = Mapping[str, RuleState]
# No rule has this key: what a restart finds of rules that are gone waits here for `retire`.
NO_RULE = ""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule, evaluated: what to append, which alerts began to fire or were resolved, and the state to keep."""

    key: str
    rule: Rule
    state: RuleState
    samples: tuple[interfaces.AnySample, ...] = ()
    changes: tuple[Alert, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupResult:
    results: tuple[RuleResult, ...]
    state: RuleStates

    @property
    def samples(self) -> tuple[interfaces.AnySample, ...]:
        return tuple(sample for result in self.results for sample in result.samples)

    @property
    def changes(self) -> tuple[Alert, ...]:
        return tuple(change for result in self.results for change in result.changes)


def rule_key(group: RuleGroup, rule: Rule) -> str:
    """What a rule is known by across reloads: a changed expression or label makes it another rule."""
    if isinstance(rule, RecordingRule):
        return f"{group.key};record;{rule.name};{rule.labels};{rule.expr}"
    labels = sorted((name, template.text) for name, template in rule.labels.items())
    return f"{group.key};alert;{rule.name};{labels};{rule.expr}"


def evaluate(
    group: RuleGroup,
    engine: engines.InstantEngine,
    state: RuleStates,
    *,
    now: datetime,
    environment: alerting.RuleEnvironment = alerting.NO_ENVIRONMENT,
) -> GroupResult:
    """Evaluate a whole group at once; its rules do not see what this evaluation records."""
    results = tuple(evaluate_each(group, engine, state, now=now, environment=environment))
    return GroupResult(results, {**state, **{result.key: result.state for result in results}})


def evaluate_each(
    group: RuleGroup,
    engine: engines.InstantEngine,
    state: RuleStates,
    *,
    now: datetime,
    environment: alerting.RuleEnvironment = alerting.NO_ENVIRONMENT,
    timer: Callable[[], float] = time.perf_counter,
) -> Iterator[RuleResult]:
    """Evaluate rule by rule; append each result's samples before taking the next one."""
    if environment.query is None:
        environment = replace(environment, query=partial(query_rows, engine, clock.to_ms(now)))
    for rule in group.rules:
        key, began = rule_key(group, rule), timer()
        before = _held(group, rule, state.get(key, RuleState()), now=now)
        outcome = _evaluate_one(group, rule, engine, before, now=now, surroundings=environment)
        kept = replace(outcome.state, evaluated_at=now, duration_seconds=timer() - began)
        yield RuleResult(key, rule, kept, outcome.samples, outcome.changes)


def retire_rules(
    state: RuleStates, rule_set: RuleSet, *, now: datetime
) -> tuple[RuleStates, tuple[Sample, ...], tuple[Alert, ...]]:
    """Drop the rules that a reload took away: the state left, stale markers for their series, resolved alerts."""
    kept = {rule_key(group, rule) for group in rule_set.groups for rule in group.rules}
    gone = [one for key, one in state.items() if key not in kept]
    samples = tuple(_stale(labels, _after(one, now)) for one in gone for labels in sorted(one.written))
    resolved = tuple(
        replace(alert, state=AlertState.RESOLVED, resolved_at=now)
        for one in gone
        for alert in one.alerts.values()
        if alert.state is AlertState.FIRING
    )
    return {key: one for key, one in state.items() if key in kept}, samples, resolved


def _after(one: RuleState, now: datetime) -> datetime:
    """When the series of a rule can end: a store takes one sample for a time, and the last evaluation may be of now."""
    return now if one.evaluated_at is None else max(now, one.evaluated_at + timedelta(milliseconds=1))


def restore_alerts(rule_set: RuleSet, alerts: Iterable[Alert]) -> RuleStates:
    """Give alerts kept from before a restart back to their rules; `retire` ends those of rules that are gone."""
    kept = list(alerts)
    state: RuleStates = {}
    for group in rule_set.groups:
        state = restore_group(group, state, kept)
    known = {labels for one in state.values() for labels in one.alerts}
    strangers = {alert.labels: alert for alert in kept if alert.labels not in known}
    written = frozenset(labels for alert in strangers.values() for labels in _series_of(alert))
    return {**state, **({NO_RULE: RuleState(alerts=strangers, written=written)} if strangers else {})}


def with_series_before_restart(
    group: RuleGroup, state: RuleStates, wrote: Callable[[str], Iterable[Labels]]
) -> RuleStates:
    """The state before a group's first evaluation: what its rules wrote before a restart ends, if it is not so now."""
    keys = [rule_key(group, rule) for rule in group.rules]
    known = {key: state.get(key, RuleState()) for key in keys}
    left = {key: replace(one, written=one.written.union(wrote(key))) for key, one in known.items()}
    return {**state, **left}


def restore_group(group: RuleGroup, state: RuleStates, alerts: Iterable[Alert]) -> RuleStates:
    """Give alerts kept from before a restart back to the rules they came from; strangers are left out."""
    restored = dict(state)
    for alert in alerts:
        rule = next((rule for rule in group.rules if isinstance(rule, AlertingRule) and _made(rule, alert)), None)
        if rule is None:
            continue
        key = rule_key(group, rule)
        one = restored.get(key, RuleState())
        restored[key] = replace(
            one, alerts={**one.alerts, alert.labels: alert}, written=one.written | _series_of(alert)
        )
    return restored


def ages_before_restart(name: str, engine: engines.InstantEngine, started: datetime) -> Mapping[Labels, float]:
    """How many seconds ago was what this series told of each alert, when rules were last looked after before `started`.

    Of ALERTS_FOR_STATE: how long alerts had been active; of KEPT_SINCE: how long those had been silent that are kept.
    """
    last = f"max(max_over_time(timestamp({HEARTBEAT})[{OUTAGE_TOLERANCE}:15s]))"
    seconds = next(iter(engine.instant(last, clock.to_ms(started)).latest().values()), None)
    if seconds is None:
        return {}
    # At that moment, and not within some time before it: an alert that had ended by then is not to be continued.
    answer = engine.instant(name, round(seconds * 1000))
    return {labels.without(METRIC_NAME): max(0.0, seconds - value) for labels, value in answer.latest().items()}


def restore_pending_ages(state: RuleStates, held: Mapping[Labels, float]) -> RuleStates:
    """After the first evaluation of a restart: pending alerts have held for as long as they had before it.

    Like in Prometheus, the time in which nobody looked does not count: the expression may have been false in it.
    """

    def go_on(alert: Alert) -> Alert:
        if alert.state is not AlertState.PENDING or alert.labels not in held:
            return alert
        return replace(alert, active_at=alert.active_at - timedelta(seconds=held[alert.labels]))

    return _each_alert(state, go_on)


def restore_keep_firing(state: RuleStates, silent: Mapping[Labels, float], *, now: datetime) -> RuleStates:
    """Before the first evaluation of a restart: alerts that were kept have been silent for as long as before it.

    Nor does the time count here in which nobody looked: the expression may have been true in it.
    """

    def go_on(alert: Alert) -> Alert:
        if alert.state is not AlertState.FIRING or alert.labels not in silent:
            return alert
        return replace(alert, kept_since=now - timedelta(seconds=silent[alert.labels]))

    return _each_alert(state, go_on)


def _each_alert(state: RuleStates, change: Callable[[Alert], Alert]) -> RuleStates:
    changed = {}
    for key, one in state.items():
        alerts = {labels: change(alert) for labels, alert in one.alerts.items()}
        changed[key] = replace(one, alerts=alerts, written=one.written.union(*map(_series_of, alerts.values())))
    return changed


@dataclass(frozen=True, slots=True)
class EvaluationCoverage:
    """When this hub first evaluated a rule, and since when rules were looked after without a long pause by any hub."""

    began: datetime
    since: datetime


def evaluated_since(engine: engines.Engine, now: datetime) -> datetime | None:
    """When the rules were first looked after without a pause that is an outage; None where nobody did before `now`."""
    hour = round(durations.parse_seconds(OUTAGE_TOLERANCE) * 1000)
    span = engines.QueryRange(clock.to_ms(now) - hour, clock.to_ms(now), PAUSE_STEP_MS)
    answer = engine.range(f"max(timestamp({HEARTBEAT}))", span)
    seen = {round(value * 1000) for _, _, values in answer.frame.rows() for value in values.tolist()}
    since = now
    for at in (clock.from_ms(at_ms) for at_ms in sorted(seen, reverse=True)):
        if since - at > LONGEST_PAUSE:
            break
        since = at
    return None if since == now else since


def with_resolve_delays(group: RuleGroup, state: RuleStates, watch: EvaluationCoverage) -> RuleStates:
    """The state before a group's first evaluation: when the alerts from before a start may end.

    An outage of ours is not to be taken for health: an alert ends when its rule was looked after for as long as it
    needs to be true again. That time goes on through short pauses, so that a hub which is restarted every minute still
    ends its alerts.
    """
    held = dict(state)
    for rule in group.rules:
        key = rule_key(group, rule)
        one = held.get(key, RuleState())
        if isinstance(rule, AlertingRule) and _is_from_before(one):
            until = max(watch.since + _time_to_show(group, rule), watch.began + FIRST_READINGS)
            held[key] = replace(one, resolves_after=until)
    return held


def _held(group: RuleGroup, rule: Rule, before: RuleState, *, now: datetime) -> RuleState:
    """Where nobody knows of a time before this evaluation, all of the time to show again begins with it."""
    if isinstance(rule, RecordingRule) or not _is_from_before(before) or before.resolves_after is not None:
        return before
    return replace(before, resolves_after=now + _time_to_show(group, rule))


def _is_from_before(one: RuleState) -> bool:
    """It has alerts, and no evaluation of ours has seen them."""
    return one.evaluated_at is None and bool(one.alerts)


def _time_to_show(group: RuleGroup, rule: AlertingRule) -> timedelta:
    return timedelta(seconds=rule.hold_seconds + 2 * (group.interval_seconds or USUAL_INTERVAL_SECONDS))


@dataclass(frozen=True, slots=True)
class _Outcome:
    state: RuleState
    samples: tuple[interfaces.AnySample, ...] = ()
    changes: tuple[Alert, ...] = ()


def _evaluate_one(
    group: RuleGroup,
    rule: Rule,
    engine: engines.InstantEngine,
    before: RuleState,
    *,
    now: datetime,
    surroundings: alerting.RuleEnvironment,
) -> _Outcome:
    try:
        answer = _ask(rule, engine, clock.to_ms(now) - round(group.query_offset_seconds * 1000))
        vector, histograms = answer.latest(), answer.latest_histograms()
        if isinstance(rule, RecordingRule):
            outcome = _record(rule, vector, histograms, before=before, now=now)
        else:
            # A histogram is something, and no number.
            vector = vector | dict.fromkeys(histograms, math.nan) if histograms else vector
            outcome = _alert(rule, vector, before, now=now, surroundings=surroundings)
        count = len(vector) + len(histograms) if isinstance(rule, RecordingRule) else _active_count(outcome.state)
        if group.limit and count > group.limit:
            raise QueryLimit(f"{rule.name} answers {count} series; its group allows {group.limit}")
    except WatchkeeperError as error:
        # What the rule said before stays in force: a failed question is not an answer of "all is well".
        return _Outcome(replace(before, health=RuleHealth.ERROR, last_error=str(error)))
    return outcome


def _ask(rule: Rule, engine: engines.InstantEngine, at_ms: int) -> engines.QueryResult:
    answer = engine.instant(rule.expr, at_ms)
    if answer.kind not in (engines.ResultType.VECTOR, engines.ResultType.SCALAR):
        raise QueryError(f"{rule.name} answers a {answer.kind}; a rule needs a vector or a scalar")
    return answer


def _record(
    rule: RecordingRule,
    vector: Mapping[Labels, float],
    histograms: Mapping[Labels, Histogram],
    *,
    before: RuleState,
    now: datetime,
) -> _Outcome:
    known = before.recorded_as
    if not histograms and list(vector) == list(known) and (known or not before.written):
        # The series of the last answer, as nearly always: none has to be named, and none ends.
        at_ms, again = clock.to_ms(now), zip(known.values(), vector.values(), strict=True)
        samples = tuple([Sample(labels, at_ms, value) for labels, value in again])
        return _Outcome(RuleState(health=RuleHealth.OK, recorded_as=known, written=before.written), samples)
    named = {series: known.get(series) or _recorded(rule, series) for series in (*vector, *histograms)}
    values = {named[series]: value for series, value in vector.items()}
    native = {named[series]: histogram for series, histogram in histograms.items()}
    if len(values | native if native else values) < len(named):
        twice = next(labels for labels, count in Counter(named.values()).items() if count > 1)
        raise QueryError(f"{rule.name}: two series become the same {twice}")
    outcome = _written(RuleState(health=RuleHealth.OK, recorded_as=named), values, before=before, now=now)
    return _with_histograms(outcome, native, now) if native else outcome


def _with_histograms(outcome: _Outcome, native: Mapping[Labels, Histogram], now: datetime) -> _Outcome:
    """What was written with histograms beside the numbers; a series that is one now is not stale."""
    at_ms = clock.to_ms(now)
    samples: list[interfaces.AnySample] = [sample for sample in outcome.samples if sample.labels not in native]
    samples += [HistogramSample(labels, at_ms, histogram) for labels, histogram in native.items()]
    state = replace(outcome.state, written=outcome.state.written | native.keys())
    return replace(outcome, state=state, samples=tuple(samples))


def _recorded(rule: RecordingRule, series: Labels) -> Labels:
    return Labels({**series, **rule.labels, METRIC_NAME: rule.name})


def _alert(
    rule: AlertingRule,
    vector: Mapping[Labels, float],
    before: RuleState,
    *,
    now: datetime,
    surroundings: alerting.RuleEnvironment,
) -> _Outcome:
    # Before the last evaluation: the clock was put back, and nobody knows for how long it has held.
    was_put_back = before.evaluated_at is not None and now < before.evaluated_at
    may_resolve = before.resolves_after is None or now >= before.resolves_after or was_put_back
    moved = alerting.step(rule, before.alerts, vector, now=now, environment=surroundings, may_resolve=may_resolve)
    values: dict[Labels, float] = {}
    for alert in moved.active:
        values |= _series(alert)
    state = RuleState(
        alerts=moved.alerts, health=RuleHealth.OK, resolves_after=None if may_resolve else before.resolves_after
    )
    return replace(_written(state, values, before=before, now=now), changes=moved.changes)


def _written(state: RuleState, values: Mapping[Labels, float], *, before: RuleState, now: datetime) -> _Outcome:
    """The samples of this evaluation, and a stale marker for each series that was written last time only."""
    at_ms = clock.to_ms(now)
    samples = [Sample(labels, at_ms, value) for labels, value in values.items()]
    samples += [_stale(labels, now) for labels in sorted(before.written - values.keys())]
    return _Outcome(replace(state, written=frozenset(values)), tuple(samples))


def _stale(labels: Labels, now: datetime) -> Sample:
    return Sample(labels, clock.to_ms(now), STALE)


def _series(alert: Alert) -> dict[Labels, float]:
    """What stands for an active alert: two series in Prometheus' names, and ours while it is kept."""
    shown = Labels({**alert.labels, METRIC_NAME: ALERTS, ALERT_STATE: alert.state.value})
    values = {shown: 1.0, Labels({**alert.labels, METRIC_NAME: ALERTS_FOR_STATE}): alert.active_at.timestamp()}
    if alert.kept_since is not None:
        values[Labels({**alert.labels, METRIC_NAME: KEPT_SINCE})] = alert.kept_since.timestamp()
    return values


def _series_of(alert: Alert) -> frozenset[Labels]:
    return frozenset() if alert.state is AlertState.RESOLVED else frozenset(_series(alert))


def _active_count(state: RuleState) -> int:
    return sum(alert.state is not AlertState.RESOLVED for alert in state.alerts.values())


def _made(rule: AlertingRule, alert: Alert) -> bool:
    """True when this rule can have made the alert: its name, and its labels where they are plain text."""
    plain = {name: template.text for name, template in rule.labels.items() if "{{" not in template.text}
    return alert.name == rule.name and all(alert.labels.get(name, "") == text for name, text in plain.items())


def query_rows(engine: engines.InstantEngine, at_ms: int, expr: str) -> list[dict[str, object]]:
    """What the template function `query` answers."""
    answer = engine.instant(expr, at_ms).latest()
    return [{"Labels": labels, "Value": value} for labels, value in sorted(answer.items())]
