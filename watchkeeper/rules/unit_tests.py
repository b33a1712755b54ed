"""promtool's rule tests on our own engine: the same YAML, the same verdict.

`watchkeeper rules test` and the tests of packs/rules call `run`. Time starts at 0, or where the test says, and moves
by the evaluation interval; before each evaluation the samples due by then are appended, as promtool does.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from watchkeeper.errors import QueryError, RuleFileError, WireError, error_reason
from watchkeeper.kit import clock, durations, wire, yaml_text
from watchkeeper.model.alerts import AlertState
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import Labels
from watchkeeper.query import embedded, histogram_text
from watchkeeper.query.engine import Engine, QueryLimits
from watchkeeper.rules import alerting, evaluate, notation, rulefile
from watchkeeper.store.head import head
from watchkeeper.store.interfaces import AnySample

# promtool compares values as floats; ours may differ in the last bits because it adds in another order.
RELATIVE_TOLERANCE = 1e-9
DEFAULT_INTERVAL = "1m"
WILDCARDS = frozenset("*?[")
# Every time that a test can name is kept.
RETENTION_MS = durations.MAX_MS


@dataclass(frozen=True, slots=True)
class InputSeries:
    series: str
    values: str | int | float


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    exp_labels: Mapping[str, Any] = field(default_factory=dict)
    exp_annotations: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertTest:
    eval_time: str | int
    alertname: str
    exp_alerts: tuple[ExpectedAlert, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpectedSample:
    labels: str = ""
    value: int | float | str = 0
    histogram: str = ""


@dataclass(frozen=True, slots=True)
class ExprTest:
    expr: str
    eval_time: str | int
    exp_samples: tuple[ExpectedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One test: series over time, and what must be so at which time."""

    input_series: tuple[InputSeries, ...] = ()
    # Without it that of the evaluations.
    interval: str = ""
    name: str = ""
    start_timestamp: str | int | float = 0
    alert_rule_test: tuple[AlertTest, ...] = ()
    promql_expr_test: tuple[ExprTest, ...] = ()
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""

    @property
    def start_ms(self) -> int:
        """When time begins; ValueError if the text is none."""
        text = str(self.start_timestamp)
        if text.replace(".", "", 1).isdigit():
            return round(float(text) * 1000)
        at = datetime.fromisoformat(text)
        return clock.to_ms(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class RuleTestFile:
    """One test file."""

    rule_files: tuple[str, ...] = ()
    tests: tuple[RuleTest, ...] = ()
    evaluation_interval: str = DEFAULT_INTERVAL
    group_eval_order: tuple[str, ...] = ()
    # promtool's word for "the last bits may differ", which is always so here.
    fuzzy_compare: bool = False


def run_test_file(path: Path, *, open_engine: Callable[[], Engine] | None = None) -> list[str]:
    """Every expectation of one file that does not hold, in words; RuleFileError if the file cannot be read."""
    file = _read(path)
    rule_set = rulefile.load_rules(_rule_files(path, file))
    failures: list[str] = []
    for at, story in enumerate(file.tests):
        title = story.name or f"test {at + 1}"
        try:
            engine = _embedded(file) if open_engine is None else open_engine()
            failures += [f"{title}: {failure}" for failure in _play(file, story, rule_set, engine)]
        except (ValueError, QueryError) as error:
            failures.append(f"{title}: {error}")
    return failures


def _rule_files(path: Path, file: RuleTestFile) -> list[Path]:
    """Files and patterns count from the directory of the test file; a pattern without a match is a slip."""
    found: list[Path] = []
    for name in file.rule_files:
        matching = sorted(glob.glob(str(path.parent / name))) if WILDCARDS.intersection(name) else [path.parent / name]
        if not matching:
            raise RuleFileError(f"no rule file matches `{name}`", path=str(path))
        found += [Path(each) for each in matching]
    return found


def _embedded(file: RuleTestFile) -> Engine:
    # As in promtool and in a server, a subquery without a step takes the interval of the rules.
    limits = QueryLimits(subquery_step_ms=durations.parse_ms(file.evaluation_interval))
    return embedded.EmbeddedEngine(head.Head(retention_ms=RETENTION_MS), limits)


def _read(path: Path) -> RuleTestFile:
    try:
        plain = yaml_text.load(path.read_text(encoding="utf-8"))
        return wire.from_plain(RuleTestFile, _without_nulls(plain))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RuleFileError(f"cannot be read: {error_reason(error)}", path=str(path)) from error
    except WireError as error:
        raise RuleFileError("; ".join(error.problems), path=str(path)) from error


def _without_nulls(plain: Any) -> Any:
    """A key without a value, such as `exp_alerts:`, is the same as no key."""
    if isinstance(plain, dict):
        return {key: _without_nulls(value) for key, value in plain.items() if value is not None}
    if isinstance(plain, datetime):
        return plain.isoformat()
    return [_without_nulls(item) for item in plain] if isinstance(plain, list) else plain


def _play(script: RuleTestFile, story: RuleTest, rule_set: rulefile.RuleSet, engine: Engine) -> Iterator[str]:
    step_ms = durations.parse_ms(script.evaluation_interval)
    due = {_ms(test.eval_time) for test in story.alert_rule_test} | {
        _ms(test.eval_time) for test in story.promql_expr_test
    }
    start_ms = story.start_ms
    waiting = _samples(script, story)
    state: evaluate.RuleStates = {}
    for now_ms in range(0, max(due, default=0) + 1, step_ms):
        engine.appender.append(_take(waiting, start_ms + now_ms))
        state = _tick(script, story, rule_set, engine, state, now_ms=now_ms)
        for test in story.alert_rule_test:
            if now_ms <= _ms(test.eval_time) < now_ms + step_ms:
                yield from _alerts_differ(test, state)
    # As in promtool, what comes after the last evaluation is not there yet.
    for question in story.promql_expr_test:
        try:
            yield from _samples_differ(question, engine, start_ms)
        except (ValueError, QueryError) as error:
            yield f"`{question.expr}` at {question.eval_time}: {error}"


def _tick(
    script: RuleTestFile,
    story: RuleTest,
    rule_set: rulefile.RuleSet,
    engine: Engine,
    state: evaluate.RuleStates,
    *,
    now_ms: int,
) -> evaluate.RuleStates:
    order = {name: at for at, name in enumerate(script.group_eval_order)}
    surroundings = alerting.RuleEnvironment(story.external_labels, story.external_url)
    kept = dict(state)
    for group in sorted(rule_set.groups, key=lambda group: order.get(group.name, len(order))):
        now = clock.from_ms(story.start_ms + now_ms)
        for result in evaluate.evaluate_each(group, engine, state, now=now, environment=surroundings):
            if result.state.health is evaluate.RuleHealth.ERROR:
                raise QueryError(
                    f"{result.rule.name} failed at {durations.format_ms(now_ms)}: {result.state.last_error}"
                )
            engine.appender.append(result.samples)
            kept[result.key] = result.state
    return kept


def _samples(script: RuleTestFile, story: RuleTest) -> list[AnySample]:
    """Every sample of the story backwards, so that the next ones are taken from the end in the order of the file."""
    step_ms, start_ms = durations.parse_ms(story.interval or script.evaluation_interval), story.start_ms
    found: list[AnySample] = []
    for series in story.input_series:
        try:
            values = enumerate(notation.values(str(series.values)))
            timed = ((start_ms + at * step_ms, value) for at, value in values if value is not None)
            found += [notation.sample(series.series, at_ms, value) for at_ms, value in timed]
        except (ValueError, QueryError) as error:
            raise ValueError(f"series `{series.series}`: {error}") from error
    return sorted(found, key=lambda sample: sample.at_ms)[::-1]


def _take(waiting: list[AnySample], until_ms: int) -> list[AnySample]:
    taken = []
    while waiting and waiting[-1].at_ms <= until_ms:
        taken.append(waiting.pop())
    return taken


def _alerts_differ(test: AlertTest, state: evaluate.RuleStates) -> Iterator[str]:
    found = sorted(
        _told(alert.labels, alert.annotations)
        for one in state.values()
        for alert in one.alerts.values()
        if alert.state is AlertState.FIRING and alert.name == test.alertname
    )
    expected = sorted(
        _told(Labels({**_texts(alert.exp_labels), alerting.ALERT_NAME: test.alertname}), _texts(alert.exp_annotations))
        for alert in test.exp_alerts
    )
    if found != expected:
        yield f"alert {test.alertname} at {test.eval_time}: expected {_list(expected)}; found {_list(found)}"


def _told(labels: Labels, annotations: Mapping[str, str]) -> str:
    """An alert with everything that a test may expect of it, as one text."""
    return " ".join([str(labels), *(f'{name}="{text}"' for name, text in sorted(annotations.items()))])


def _samples_differ(test: ExprTest, engine: Engine, start_ms: int) -> Iterator[str]:
    answer = engine.instant(test.expr, start_ms + _ms(test.eval_time))
    found: dict[Labels, float | Histogram] = {**answer.latest(), **answer.latest_histograms()}
    expected = {notation.labels(sample.labels): _expected(sample) for sample in test.exp_samples}
    if found.keys() != expected.keys() or not all(_same(found[key], value) for key, value in expected.items()):
        shown = [[f"{labels} {_shown(side[labels])}" for labels in sorted(side)] for side in (expected, found)]
        yield f"`{test.expr}` at {test.eval_time}: expected {_list(shown[0])}; found {_list(shown[1])}"


def _ms(text: str | int) -> int:
    return durations.parse_ms(str(text))


def _texts(plain: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(value) for name, value in plain.items()}


def _expected(sample: ExpectedSample) -> float | Histogram:
    """A number, or the histogram between its braces, as promtool has it."""
    if not sample.histogram:
        return float(sample.value)
    [histogram] = histogram_text.expand(sample.histogram.strip())
    return histogram


def _shown(value: float | Histogram) -> str:
    return histogram_text.show(value) if isinstance(value, Histogram) else f"{value:g}"


def _same(left: float | Histogram, right: float | Histogram) -> bool:
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        return _alike(left.compacted(), right.compacted())
    if isinstance(left, Histogram) or isinstance(right, Histogram):
        return False
    return math.isclose(left, right, rel_tol=RELATIVE_TOLERANCE) or (math.isnan(left) and math.isnan(right))


def _alike(left: Histogram, right: Histogram) -> bool:
    """The same buckets with nearly the same numbers; a hint about counter resets is no part of it."""
    return left.layout == right.layout and all(map(_same, left.numbers, right.numbers))


def _list(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items) or "none"
