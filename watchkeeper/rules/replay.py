"""Replay rules over history: evaluate each rule at every step of a time window, and list its alerts.

Each rule is evaluated over the whole window, in the order of the files: a rule reads what earlier rules record, at the
same step, but nothing of what later rules record. Series that the hub had recorded under the same names are excluded
before (`metric_names`), so that old and new results do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeAlias

import numpy as np

from watchkeeper.errors import QueryError, WatchkeeperError
from watchkeeper.kit import clock
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import STALE, Sample
from watchkeeper.query import engine as engines
from watchkeeper.rules import alerting
from watchkeeper.rules.evaluate import ALERT_STATE, ALERTS, query_rows
from watchkeeper.rules.rulefile import AlertingRule, RecordingRule, Rule, RuleGroup, RuleSet
from watchkeeper.store import interfaces

# The result of a rule at each time in milliseconds.
Vectors: TypeAlias = Iterator[tuple[int, dict[Labels, float]]]
# An engine refuses a query with more than 11,000 steps.
STEPS_AT_ONCE = 5000


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """The time window of a replay, and the interval of groups without their own."""

    from_ms: int
    to_ms: int
    interval_seconds: float = 15.0


@dataclass(frozen=True, slots=True)
class Episode:
    """One alert from its first result to its end; a time is None if the window ends before."""

    alert: str
    labels: Labels
    active_at: datetime
    fired_at: datetime | None
    ended_at: datetime | None
    value: float
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    rule: str
    problem: str


@dataclass(frozen=True, slots=True)
class Timeline:
    episodes: tuple[Episode, ...] = ()
    failures: tuple[Failure, ...] = ()
    steps: int = 0

    @property
    def fired(self) -> tuple[Episode, ...]:
        return tuple(episode for episode in self.episodes if episode.fired_at is not None)


def replay(
    rule_set: RuleSet,
    engine: engines.Engine,
    window: ReplayWindow,
    *,
    appender: interfaces.Appender | None,
    progress: Callable[[int, int], None] | None = None,
) -> Timeline:
    """Every alert that these rules would have had in the window, earliest first."""
    # Recorded samples are written to `appender`; without one, rules read existing recorded samples.
    episodes: list[Episode] = []
    failures: list[Failure] = []
    steps = 0
    rules = [(group, rule) for group in rule_set.groups for rule in group.rules]
    for rules_done, (group, rule) in enumerate(rules):
        if progress is not None:
            progress(rules_done, len(rules))
        try:
            offset_ms = round(group.query_offset_seconds * 1000)
            span = _query_range(group, window)
            steps += len(span.times)
            vectors = _iterate_vectors(rule, engine, span, offset_ms=offset_ms)
            if isinstance(rule, RecordingRule):
                _replay_recording(rule, vectors, appender=appender)
            else:
                episodes += _replay_alerting(rule, engine, vectors, appender=appender)
        except WatchkeeperError as error:
            failures.append(Failure(rule.name, str(error)))
    episodes.sort(key=lambda episode: (episode.fired_at or episode.active_at, episode.alert, episode.labels))
    return Timeline(tuple(episodes), tuple(failures), steps)


def _query_range(group: RuleGroup, window: ReplayWindow) -> engines.QueryRange:
    """The evaluation times of a group: multiples of its interval, as in the hub."""
    step_ms = round((group.interval_seconds or window.interval_seconds) * 1000)
    first = -(-window.from_ms // step_ms) * step_ms
    if first > window.to_ms:
        raise QueryError(f"group {group.name} has no evaluation in this window, its interval is {step_ms / 1000:g} s")
    return engines.QueryRange(first, window.to_ms // step_ms * step_ms, step_ms)


def _iterate_vectors(rule: Rule, engine: engines.Engine, span: engines.QueryRange, *, offset_ms: int) -> Vectors:
    """The query result of a rule at each step."""
    for start in range(0, len(span.times), STEPS_AT_ONCE):
        times = span.times[start : start + STEPS_AT_ONCE]
        part = engines.QueryRange(int(times[0]) - offset_ms, int(times[-1]) - offset_ms, span.step_ms)
        frame = engine.range(rule.expr, part).frame
        # Most rules have no result at most steps: only steps with samples are processed by series.
        steps_with_samples = set(np.nonzero(frame.present)[1].tolist())
        for at, at_ms in enumerate(times.tolist()):
            rows = np.flatnonzero(frame.present[:, at]).tolist() if at in steps_with_samples else []
            yield at_ms, {frame.labels[row]: float(frame.values[row, at]) for row in rows}


def _replay_recording(rule: RecordingRule, vectors: Vectors, *, appender: interfaces.Appender | None) -> None:
    """Append the samples of a recording rule, and a stale marker at the end of each series."""
    before: set[Labels] = set()
    samples: list[Sample] = []
    for at_ms, vector in vectors:
        values = {Labels({**series, **rule.labels, METRIC_NAME: rule.name}): value for series, value in vector.items()}
        if len(values) < len(vector):
            raise QueryError(f"{rule.name}: two series become the same series")
        samples += [Sample(labels, at_ms, value) for labels, value in values.items()]
        samples += [Sample(labels, at_ms, STALE) for labels in before - values.keys()]
        before = set(values)
    if appender is not None:
        appender.append(samples)


def _replay_alerting(
    rule: AlertingRule, engine: engines.Engine, vectors: Vectors, *, appender: interfaces.Appender | None
) -> list[Episode]:
    """Replay the alerts of a rule through the window, and append them as `ALERTS`."""
    current: dict[Labels, Alert] = {}
    ended: list[Episode] = []
    samples: list[Sample] = []
    for at_ms, vector in vectors:
        if not vector and not current:
            continue
        environment = alerting.RuleEnvironment({}, query=partial(query_rows, engine, at_ms))
        now = clock.from_ms(at_ms)
        step = alerting.step(rule, current, vector, now=now, environment=environment)
        for labels, alert in current.items():
            after = step.alerts.get(labels)
            if after is None or after.state is AlertState.RESOLVED:
                ended.append(_episode(alert, ended_at=now))
            if after is None or after.state is not alert.state:
                samples.append(Sample(_state_series(alert), at_ms, STALE))
        current = {alert.labels: alert for alert in step.active}
        samples += [Sample(_state_series(alert), at_ms, 1.0) for alert in current.values()]
    if appender is not None:
        appender.append(samples)
    return [*ended, *(_episode(alert, ended_at=None) for alert in current.values())]


def _episode(alert: Alert, *, ended_at: datetime | None) -> Episode:
    fired_at = alert.fired_at if alert.state is AlertState.FIRING else None
    return Episode(alert.name, alert.labels, alert.active_at, fired_at, ended_at, alert.value, dict(alert.annotations))


def _state_series(alert: Alert) -> Labels:
    return Labels({**alert.labels, METRIC_NAME: ALERTS, ALERT_STATE: alert.state.value})
