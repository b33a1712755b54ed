"""Laws: columns say what a loop over samples would say, and a range query is many instant queries."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.query import trees
from tests.query.loading import loaded
from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample, is_stale
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryRange
from watchkeeper.query.promql import ast, printer
from watchkeeper.store.head.head import Head

Window = list[tuple[int, float]]
RANGE_MS = 60_000


def naive_increase(window: Window, end_ms: int) -> float | None:
    """Prometheus' extrapolation, sample by sample."""
    if len(window) < 2:
        return None
    (first_ms, first), (last_ms, last) = window[0], window[-1]
    result = last - first
    for (_, before), (_, value) in itertools.pairwise(window):
        result += before if value < before else 0.0
    sampled = (last_ms - first_ms) / 1000
    interval = sampled / (len(window) - 1)
    to_start, to_end = (first_ms - end_ms + RANGE_MS) / 1000, (end_ms - last_ms) / 1000
    if to_start >= interval * 1.1:
        to_start = interval / 2
    if result > 0 and first >= 0:
        to_start = min(to_start, sampled * (first / result))
    if to_end >= interval * 1.1:
        to_end = interval / 2
    return result * (sampled + to_start + to_end) / sampled


def naive_changes(window: Window, _: int) -> float | None:
    pairs = itertools.pairwise(window)
    return float(sum(before != after for (_, before), (_, after) in pairs)) if window else None


def naive_deriv(window: Window, _: int) -> float | None:
    if len(window) < 2:
        return None
    times = [(at - window[0][0]) / 1000 for at, _ in window]
    mean_x, mean_y = math.fsum(times) / len(times), math.fsum(value for _, value in window) / len(window)
    top = math.fsum((x - mean_x) * (value - mean_y) for x, (_, value) in zip(times, window, strict=True))
    return top / math.fsum((x - mean_x) ** 2 for x in times)


def of_values(compute: Callable[[list[float]], float]) -> Callable[[Window, int], float | None]:
    return lambda window, _: compute([value for _, value in window]) if window else None


NAIVE: dict[str, Callable[[Window, int], float | None]] = {
    "increase": naive_increase,
    "rate": lambda window, end: None if (found := naive_increase(window, end)) is None else found / 60,
    "changes": naive_changes,
    "deriv": naive_deriv,
    "sum_over_time": of_values(math.fsum),
    "avg_over_time": of_values(lambda values: math.fsum(values) / len(values)),
    "min_over_time": of_values(min),
    "max_over_time": of_values(max),
    "count_over_time": of_values(lambda values: float(len(values))),
    "last_over_time": of_values(lambda values: values[-1]),
}
# Gaps of irregular length, counters that fall, and stale markers.
POINTS = st.tuples(
    st.integers(1, 40_000), st.one_of(st.just(STALE), st.integers(0, 50).map(float), st.floats(0, 1e6, width=32))
)
HISTORIES = st.lists(st.lists(POINTS, max_size=25), min_size=1, max_size=4)


def engine_of(histories: list[list[tuple[int, float]]]) -> tuple[EmbeddedEngine, list[Window]]:
    engine, samples = EmbeddedEngine(Head(retention_ms=10**12)), []
    for row, history in enumerate(histories):
        at, own = 0, []
        for wait, value in history:
            at += wait
            own.append((at, value))
        engine.appender.append(Sample(Labels({"__name__": "x", "row": str(row)}), at, value) for at, value in own)
        samples.append([(at, value) for at, value in own if not is_stale(value)])
    return engine, samples


@pytest.mark.slow
@pytest.mark.parametrize("function", NAIVE)
@examples(60)
@given(histories=HISTORIES)
def test_columns_agree_with_a_loop_over_samples(function: str, histories: list[list[tuple[int, float]]]) -> None:
    engine, samples = engine_of(histories)
    span = QueryRange(0, 300_000, 20_000)
    found = {
        (labels["row"], int(at)): float(value)
        for labels, times, values in engine.range(f"{function}(x[1m])", span).frame.rows()
        for at, value in zip(times, values, strict=True)
    }
    expected = {}
    for row, own in enumerate(samples):
        for end in span.times.tolist():
            value = NAIVE[function]([(at, v) for at, v in own if end - RANGE_MS < at <= end], end)
            if value is not None:
                expected[str(row), end] = pytest.approx(value, rel=1e-9, abs=1e-6)
    assert found == expected


EXPRESSIONS = (
    "x",
    "x > 10",
    "rate(x[1m])",
    "irate(x[2m])",
    "avg_over_time(x[90s])",
    "quantile_over_time(0.3, x[2m])",
    "stddev_over_time(x[2m])",
    "predict_linear(x[2m], 30)",
    "double_exponential_smoothing(x[2m], 0.3, 0.6)",
    "max_over_time(rate(x[1m])[2m:30s])",
    "sum(x)",
    "quantile(0.9, x)",
    "topk(2, x)",
    "count_values('v', x)",
    "x / ignoring (row) group_left () sum(x)",
    "x and on (row) (x offset 1m)",
    "x or vector(1)",
    "x unless x > 20",
    "absent(x{row='1'})",
    "timestamp(x)",
    "x @ 100 - x",
    "resets(x[2m] offset 30s)",
    "label_replace(x, 'half', '$1', 'row', '([01])')",
    "scalar(x{row='0'}) + time()",
)


def shown(frame_rows: object, at: int) -> dict[str, str]:
    out = {}
    for labels, times, values in frame_rows:  # type: ignore[attr-defined]
        for time, value in zip(times, values, strict=True):
            if time == at:
                out[str(labels)] = f"{value:.9g}"
    return out


@pytest.mark.parametrize("expr", EXPRESSIONS)
@examples(20)
@given(histories=HISTORIES)
def test_a_range_query_equals_an_instant_query_at_each_step(
    expr: str, histories: list[list[tuple[int, float]]]
) -> None:
    engine, _ = engine_of(histories)
    span = QueryRange(0, 300_000, 25_000)
    ranged = engine.range(expr, span)
    for at in span.times.tolist():
        assert shown(ranged.frame.rows(), at) == shown(engine.instant(expr, at).frame.rows(), at)


@pytest.mark.slow
@examples(300)
@given(tree=trees.vectors())
def test_any_expression_answers_or_is_a_query_error(tree: ast.Expr) -> None:
    engine = loaded('up{gpu="a"} 1 0 -1', 'up{on="b"} 1e308 NaN Inf', 'sum{gpu="a", inf="i"} 0+5x5', 'by{le="1"} 1')
    with contextlib.suppress(errors.QueryError):
        engine.range(printer.to_text(tree), QueryRange(0, 240_000, 60_000))
