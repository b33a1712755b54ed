"""Run promtool's rule tests on the embedded engine: the same YAML, the same result.

`watchkeeper rules test` and the tests of packs/rules call `run_test_file`. Time starts at 0 or at `start_timestamp`,
and advances by the evaluation interval. Before each evaluation samples up to that time are appended, as in promtool.
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
from watchkeeper.rules import alerting, evaluate, rulefile, series_notation
from watchkeeper.store.head import head
from watchkeeper.store.interfaces import AnySample

# promtool compares floats exactly; our results may differ in the last bits, because numbers are added in another order.
RELATIVE_TOLERANCE = 1e-9
DEFAULT_INTERVAL = "1m"
WILDCARDS = frozenset("*?[")
# Samples of any time are kept.
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

    @property
    def expected_value(self) -> float | Histogram:
        """A number, or a histogram in braces as in promtool."""
        if not self.histogram:
            return float(self.value)
        [histogram] = histogram_text.expand(self.histogram.strip())
        return histogram


@dataclass(frozen=True, slots=True)
class ExprTest:
    expr: str
    eval_time: str | int
    exp_samples: tuple[ExpectedSample, ...] = ()


@dataclass(frozen=True, slots=True)
class RuleTest:
    input_series: tuple[InputSeries, ...] = ()
    # Empty: the evaluation interval.
    interval: str = ""
    name: str = ""
    start_timestamp: str | int | float = 0
    alert_rule_test: tuple[AlertTest, ...] = ()
    promql_expr_test: tuple[ExprTest, ...] = ()
    external_labels: Mapping[str, str] = field(default_factory=dict)
    external_url: str = ""

    @property
    def start_ms(self) -> int:
        """The start time; ValueError if the text is not a time."""
        text = str(self.start_timestamp)
        if text.replace(".", "", 1).isdigit():
            return round(float(text) * 1000)
        at = datetime.fromisoformat(text)
        return clock.to_ms(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class RuleTestFile:
    rule_files: tuple[str, ...] = ()
    tests: tuple[RuleTest, ...] = ()
    evaluation_interval: str = DEFAULT_INTERVAL
    group_eval_order: tuple[str, ...] = ()
    # Ignored: values are always compared with a tolerance here.
    fuzzy_compare: bool = False


def run_test_file(path: Path, *, open_engine: Callable[[], Engine] | None = None) -> list[str]:
    """Run one test file and return its failures; RuleFileError if the file cannot be read."""
    try:
        file = wire.from_plain(RuleTestFile, _without_nulls(yaml_text.load(path.read_text(encoding="utf-8"))))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RuleFileError(f"cannot be read: {error_reason(error)}", path=str(path)) from error
    except WireError as error:
        raise RuleFileError("; ".join(error.problems), path=str(path)) from error
    rule_set = rulefile.load_rules(_find_rule_files(path, file))
    failures: list[str] = []
    for index, rule_test in enumerate(file.tests):
        title = rule_test.name or f"test {index + 1}"
        try:
            if open_engine is None:
                # As in promtool and in a server, the default step of a subquery is the evaluation interval.
                limits = QueryLimits(subquery_step_ms=durations.parse_ms(file.evaluation_interval))
                engine: Engine = embedded.EmbeddedEngine(head.Head(retention_ms=RETENTION_MS), limits)
            else:
                engine = open_engine()
            failures += [f"{title}: {failure}" for failure in _run_test(file, rule_test, rule_set, engine)]
        except (ValueError, QueryError) as error:
            failures.append(f"{title}: {error}")
    return failures


def _find_rule_files(path: Path, file: RuleTestFile) -> list[Path]:
    """Find rule files; paths are relative to the test file, and a pattern must match at least one file."""
    paths: list[Path] = []
    for name in file.rule_files:
        matching = sorted(glob.glob(str(path.parent / name))) if WILDCARDS.intersection(name) else [path.parent / name]
        if not matching:
            raise RuleFileError(f"no rule file matches `{name}`", path=str(path))
        paths += [Path(match) for match in matching]
    return paths


def _without_nulls(plain: Any) -> Any:
    """Remove keys without a value, such as `exp_alerts:`, and convert times to text."""
    if isinstance(plain, dict):
        return {key: _without_nulls(value) for key, value in plain.items() if value is not None}
    if isinstance(plain, datetime):
        return plain.isoformat()
    return [_without_nulls(item) for item in plain] if isinstance(plain, list) else plain


def _run_test(
    test_file: RuleTestFile, rule_test: RuleTest, rule_set: rulefile.RuleSet, engine: Engine
) -> Iterator[str]:
    step_ms, start_ms = durations.parse_ms(test_file.evaluation_interval), rule_test.start_ms
    pending = _build_samples(test_file, rule_test)
    states: evaluate.RuleStates = {}
    timed: list[AlertTest | ExprTest] = [*rule_test.alert_rule_test, *rule_test.promql_expr_test]
    last_ms = max((_eval_ms(test) for test in timed), default=0)
    for now_ms in range(0, last_ms + 1, step_ms):
        due = []
        while pending and pending[-1].at_ms <= start_ms + now_ms:
            due.append(pending.pop())
        engine.appender.append(due)
        states = _evaluate_groups(test_file, rule_test, rule_set, engine, states, now_ms=now_ms)
        for test in rule_test.alert_rule_test:
            if now_ms <= _eval_ms(test) < now_ms + step_ms:
                yield from _compare_alerts(test, states)
    # As in promtool, samples after the last evaluation are not appended.
    for expr_test in rule_test.promql_expr_test:
        try:
            yield from _compare_samples(expr_test, engine, start_ms)
        except (ValueError, QueryError) as error:
            yield f"`{expr_test.expr}` at {expr_test.eval_time}: {error}"


def _evaluate_groups(
    test_file: RuleTestFile,
    rule_test: RuleTest,
    rule_set: rulefile.RuleSet,
    engine: Engine,
    states: evaluate.RuleStates,
    *,
    now_ms: int,
) -> evaluate.RuleStates:
    order = {name: at for at, name in enumerate(test_file.group_eval_order)}
    environment = alerting.RuleEnvironment(rule_test.external_labels, rule_test.external_url)
    new_states = dict(states)
    for group in sorted(rule_set.groups, key=lambda group: order.get(group.name, len(order))):
        now = clock.from_ms(rule_test.start_ms + now_ms)
        for result in evaluate.evaluate_each(group, engine, states, now=now, environment=environment):
            if result.state.health is evaluate.RuleHealth.ERROR:
                failed_at = durations.format_ms(now_ms)
                raise QueryError(f"{result.rule.name} failed at {failed_at}: {result.state.last_error}")
            engine.appender.append(result.samples)
            new_states[result.key] = result.state
    return new_states


def _build_samples(test_file: RuleTestFile, rule_test: RuleTest) -> list[AnySample]:
    """All samples of a test, newest first, so that the next ones are popped from the end in the order of the file."""
    step_ms, start_ms = durations.parse_ms(rule_test.interval or test_file.evaluation_interval), rule_test.start_ms
    samples: list[AnySample] = []
    for series in rule_test.input_series:
        try:
            values = enumerate(series_notation.parse_values(str(series.values)))
            timed = ((start_ms + at * step_ms, value) for at, value in values if value is not None)
            samples += [series_notation.build_sample(series.series, at_ms, value) for at_ms, value in timed]
        except (ValueError, QueryError) as error:
            raise ValueError(f"series `{series.series}`: {error}") from error
    return sorted(samples, key=lambda sample: sample.at_ms)[::-1]


def _compare_alerts(test: AlertTest, states: evaluate.RuleStates) -> Iterator[str]:
    def describe(labels: Mapping[str, Any], annotations: Mapping[str, Any]) -> str:
        texts = {str(name): str(value) for name, value in labels.items()} | {alerting.ALERT_NAME: test.alertname}
        return " ".join([str(Labels(texts)), *(f'{name}="{text}"' for name, text in sorted(annotations.items()))])

    alerts = [alert for rule_state in states.values() for alert in rule_state.alerts.values()]
    firing = [alert for alert in alerts if alert.state is AlertState.FIRING and alert.name == test.alertname]
    actual = sorted(describe(alert.labels, alert.annotations) for alert in firing)
    expected = sorted(describe(alert.exp_labels, alert.exp_annotations) for alert in test.exp_alerts)
    if actual != expected:
        yield f"alert {test.alertname} at {test.eval_time}: {_difference(expected, actual)}"


def _compare_samples(test: ExprTest, engine: Engine, start_ms: int) -> Iterator[str]:
    result = engine.instant(test.expr, start_ms + _eval_ms(test))
    actual: dict[Labels, float | Histogram] = {**result.latest(), **result.latest_histograms()}
    expected = {series_notation.parse_labels(sample.labels): sample.expected_value for sample in test.exp_samples}
    has_same_series = actual.keys() == expected.keys()
    if not has_same_series or not all(_is_same_value(actual[key], value) for key, value in expected.items()):
        shown = [[f"{labels} {_format_value(side[labels])}" for labels in sorted(side)] for side in (expected, actual)]
        yield f"`{test.expr}` at {test.eval_time}: {_difference(*shown)}"


def _format_value(value: float | Histogram) -> str:
    return histogram_text.format_histogram(value) if isinstance(value, Histogram) else f"{value:g}"


def _is_same_value(left: float | Histogram, right: float | Histogram) -> bool:
    """Whether numbers are nearly the same, or histograms have the same buckets; reset hints are ignored."""
    if isinstance(left, Histogram) and isinstance(right, Histogram):
        left, right = left.compacted(), right.compacted()
        return left.layout == right.layout and all(map(_is_same_value, left.numbers, right.numbers))
    if isinstance(left, Histogram) or isinstance(right, Histogram):
        return False
    return math.isclose(left, right, rel_tol=RELATIVE_TOLERANCE) or (math.isnan(left) and math.isnan(right))


def _eval_ms(test: AlertTest | ExprTest) -> int:
    return durations.parse_ms(str(test.eval_time))


def _difference(expected: Sequence[str], actual: Sequence[str]) -> str:
    return f"expected {', '.join(expected) or 'none'}; found {', '.join(actual) or 'none'}"
