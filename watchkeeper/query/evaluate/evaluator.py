"""Evaluate a syntax tree: each node once, for all steps of the query.

`embedded` creates one evaluator per query. It reads samples from the store, checks the limits, and calls the functions
of this package; it returns the value of the root to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Millis, QueryLimits, QueryRange
from watchkeeper.query.evaluate import (
    binary,
    histograms,
    native_calls,
    numbers,
    over_time,
    rates,
    relabel,
    target_labels,
    windows,
)
from watchkeeper.query.evaluate.aggregate import aggregate
from watchkeeper.query.evaluate.notes import COUNTER_ENDINGS, Notes
from watchkeeper.query.evaluate.values import (
    CELL_BYTES,
    Invocation,
    PromFunction,
    Scalar,
    Text,
    Value,
    Vector,
    Windows,
    drop_name,
    empty_vector,
    label_of,
    size_of,
)
from watchkeeper.query.promql import ast, duration_expr
from watchkeeper.store import columns as stored
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.sample_columns import Columns
from watchkeeper.store.series import SeriesSet

if TYPE_CHECKING:
    from watchkeeper.store.durable import SampleStore

T = TypeVar("T", bound=np.generic)

# Functions that read only the first and last samples of a window, or running sums over a whole series.
READ_EDGES_ONLY = frozenset(
    {
        *("changes", "count_over_time", "delta", "first_over_time", "idelta", "increase", "irate", "last_over_time"),
        *("present_over_time", "rate", "resets", "ts_of_first_over_time", "ts_of_last_over_time"),
    }
)
# The bounds of a window of one group of series; and of a window of one series, once they are needed there.
BOUNDS_BYTES, EDGES_BYTES = 16, 48
KEEPS_NAME = ("first_over_time", "last_over_time")


class Evaluator:
    def __init__(self, head: SampleStore, limits: QueryLimits, *, span: QueryRange) -> None:
        self._head = head
        self._limits = limits
        self._span = span
        self._samples_used = 0
        self._window_samples = 0
        # Whether histograms keep their hint of a counter reset (`native_calls.NEEDS_RESETS`).
        self._keeps_resets = False
        self.notes = Notes()
        self.memory = allowance.Memory(limits.max_bytes)

    def evaluate(self, expr: ast.Expr, times: Millis) -> Value:
        """Evaluate a node; its operands are released when it returns."""
        allowance.check()
        memory = self.memory
        held_bytes = memory.held_bytes
        value = NODES[type(expr)](self, expr, times)
        memory.hold(held_bytes + size_of(value))
        return value

    def unary(self, node: ast.Unary, times: Millis) -> Value:
        value = self.evaluate(node.expr, times)
        if node.op == "+":
            return value
        if isinstance(value, Scalar):
            return Scalar(-value.values)
        assert isinstance(value, Vector)
        negated = value.histograms
        if negated is not None:
            # The results are gauges.
            negated = native_calls.map_histograms(negated, lambda histogram: histogram.scaled(-1.0))
        return drop_name(Vector(value.series, -value.values, value.present, negated))

    def binary(self, node: ast.Binary, times: Millis) -> Value:
        keeps_resets, self._keeps_resets = self._keeps_resets, False
        left, right = self.evaluate(node.left, times), self.evaluate(node.right, times)
        self._keeps_resets = keeps_resets
        assert isinstance(left, (Vector, Scalar))
        assert isinstance(right, (Vector, Scalar))
        return binary.combine(node, left, right, notes=self.notes)

    def aggregate(self, node: ast.Aggregate, times: Millis) -> Value:
        vector = self.evaluate(node.expr, times)
        assert isinstance(vector, Vector)
        if node.parameter is None and not vector.present.any():
            # Without samples there are no groups, and no work on labels.
            return empty_vector(len(times))
        parameter = None if node.parameter is None else self.evaluate(node.parameter, times)
        assert parameter is None or isinstance(parameter, (Scalar, Text))
        return aggregate(node, vector, parameter, notes=self.notes)

    def newest_samples(self, node: ast.Selector, times: Millis) -> tuple[Vector, Callable[[], Millis]]:
        """The newest samples at each step, and a function that returns their times, which are rarely needed."""
        at_ms = self._shift_times(node, times)
        lookback_ms = self._limits.lookback_ms
        # Times are ascending.
        first_ms, last_ms = int(at_ms[0]), int(at_ms[-1])
        if first_ms == last_ms:
            series, sample_ms, values = self._head.latest(node.matchers, first_ms - lookback_ms, last_ms)
            steps = len(times)
            self._count_samples(len(series) * steps)
            self.memory.require(CELL_BYTES * len(series) * steps)
            cells = self._find_histograms(values)
            present = np.ones(len(values), dtype=bool)
            if windows.has_nan(values):
                present = ~(stored.is_absent(values) | stored.is_stale(values))
            histograms = None if cells is None else _repeat_per_step(cells, steps)
            vector = Vector(series, _repeat_per_step(values, steps), _repeat_per_step(present, steps), histograms)
            return vector, lambda: _repeat_per_step(sample_ms, steps)
        columns = self._fetch(node, first_ms - lookback_ms, last_ms)
        self.memory.require(2 * CELL_BYTES * len(columns.series) * len(times))
        self._count_samples(
            len(columns.series) * len(times) * (1 if columns.histograms is None else native_calls.SAMPLES_PER_HISTOGRAM)
        )
        return windows.newest_samples(columns, at_ms, lookback_ms=lookback_ms)

    def range_selector(self, node: ast.RangeSelector, times: Millis) -> Windows:
        ends_ms = self._shift_times(node.selector, times)
        range_ms = self._duration_ms(node.range_ms, node.range_expr)
        columns = self._fetch(node.selector, int(ends_ms[0]) - range_ms, int(ends_ms[-1]))
        self._count_samples(len(columns.series) * len(times))
        self.memory.require(BOUNDS_BYTES * len(columns.times) * len(times))
        return windows.build_windows(columns, ends_ms, range_ms=range_ms)

    def subquery(self, node: ast.Subquery, times: Millis) -> Windows:
        """Evaluate the inner expression once, on one grid for all windows; grid times are multiples of the step."""
        ends_ms = self._shift_times(node, times)
        step_ms = self._duration_ms(node.step_ms or self._limits.subquery_step_ms, node.step_expr)
        range_ms = self._duration_ms(node.range_ms, node.range_expr)
        first_ms = ((int(ends_ms[0]) - range_ms) // step_ms + 1) * step_ms
        last_ms = int(ends_ms[-1])
        steps = max(0, last_ms - first_ms) // step_ms
        limit = self._limits.max_samples
        if limit is not None and steps > limit:
            raise errors.QueryLimit(
                f"a subquery has {steps} steps, the limit is {limit}", remedy="Use a larger step or a shorter range"
            )
        self.memory.require(CELL_BYTES * steps)
        grid = np.arange(first_ms, last_ms + 1, step_ms, dtype=np.int64)
        if not len(grid):
            inner = Vector(SeriesSet([]), np.empty((0, 0)), np.empty((0, 0), dtype=bool))
        else:
            keeps_resets, self._keeps_resets = self._keeps_resets, False
            inner = _as_vector(self.evaluate(node.expr, grid))
            self._keeps_resets = keeps_resets
        self._count_samples(inner.values.size)
        groups = np.zeros(len(inner.series), dtype=np.int64)
        columns = Columns(inner.series, groups, grid[None, :], inner.values, inner.histograms)
        inner_windows = windows.build_windows(columns, ends_ms, range_ms=range_ms)
        return replace(inner_windows, usable=None if inner.present.all() else inner.present)

    def call(self, node: ast.FunctionCall, times: Millis) -> Value:
        special_function = SPECIAL_FUNCTIONS.get(node.function)
        if special_function is not None:
            return special_function(self, node, times)
        function = FUNCTIONS.get(node.function)
        if function is None:
            raise errors.QueryError(
                f"the embedded engine does not support {node.function}()", remedy="Use a Prometheus server"
            )
        keeps_resets = self._keeps_resets
        self._keeps_resets = native_calls.NEEDS_RESETS.get(node.function, keeps_resets)
        args = tuple(self.evaluate(arg, times) for arg in node.args)
        self._keeps_resets = keeps_resets
        if node.function not in READ_EDGES_ONLY:
            self._count_window_samples(arg for arg in args if isinstance(arg, Windows))
        for arg in args:
            if isinstance(arg, Windows):
                needed = EDGES_BYTES if arg.usable is not None else CELL_BYTES
                self.memory.require(needed * len(arg.series) * len(times))
        invocation = Invocation(node, args, times, self.notes)
        if any(map(native_calls.has_histograms, args)):
            self._count_samples(native_calls.estimate_cost(args, len(times)))
            return native_calls.call_function(function, invocation)
        return function(invocation)

    def timestamp(self, node: ast.FunctionCall, times: Millis) -> Value:
        """The time of the sample if the argument is a selector, else the time of the step."""
        argument = node.args[0]
        while isinstance(argument, ast.Paren):
            argument = argument.expr
        if isinstance(argument, ast.Selector):
            vector, sample_ms = self.newest_samples(argument, times)
            return drop_name(Vector(vector.series, sample_ms() / 1000, vector.present))
        value = self.evaluate(argument, times)
        assert isinstance(value, Vector)
        return drop_name(Vector(value.series, np.broadcast_to(times / 1000, value.values.shape), value.present))

    def absent(self, node: ast.FunctionCall, times: Millis) -> Value:
        value = self.evaluate(node.args[0], times)
        if isinstance(value, Windows):
            present = windows.edges(value).count > 0
        else:
            assert isinstance(value, Vector)
            present = value.present
        return relabel.absent(present, node.args[0])

    def add_target_labels(self, node: ast.FunctionCall, times: Millis) -> Value:
        """Add the labels of info metrics, as of the time at which the first selector of the argument is evaluated."""
        vector = self.evaluate(node.args[0], times)
        assert isinstance(vector, Vector)
        selector = node.args[1] if len(node.args) > 1 else None
        assert selector is None or isinstance(selector, ast.Selector)
        label_sources = target_labels.parse_label_sources(selector)
        at_ms = times
        for modifier in target_labels.time_modifiers(node.args[0]):
            at_ms = self._shift_times(modifier, at_ms)
        info_vector, sample_ms = self.newest_samples(label_sources.selector, at_ms)
        return target_labels.add_target_labels(vector, info_vector, sample_ms(), label_sources)

    def query_time(self, node: ast.FunctionCall, times: Millis) -> Value:
        """Evaluate start(), end(), range() and step(), in seconds."""
        span, (step_ms, range_ms) = self._span, self._query_times
        value_ms = {"start": span.start_ms, "end": span.end_ms, "range": range_ms, "step": step_ms}
        return Scalar(np.full(len(times), value_ms[node.function] / 1000))

    def _shift_times(self, node: ast.Selector | ast.Subquery, times: Millis) -> Millis:
        if node.at is None and not node.offset_ms and node.offset_expr is None:
            return times
        at = {ast.AtEdge.START: self._span.start_ms, ast.AtEdge.END: self._span.end_ms}.get(node.at, node.at)  # type: ignore[arg-type]
        shifted = times if at is None else np.full(len(times), at, dtype=np.int64)
        if node.offset_expr is not None:
            return shifted - duration_expr.evaluate_ms(node.offset_expr, self._query_times)
        return shifted - node.offset_ms

    def _duration_ms(self, fixed_ms: int, expr: ast.DurationExpr | None) -> int:
        return fixed_ms if expr is None else duration_expr.evaluate_ms(expr, self._query_times, is_positive=True)

    @property
    def _query_times(self) -> duration_expr.QueryTimes:
        span = self._span
        step_ms = 0 if span.start_ms == span.end_ms else span.step_ms
        return duration_expr.QueryTimes(step_ms, span.end_ms - span.start_ms)

    def _fetch(self, node: ast.Selector, start_ms: int, end_ms: int) -> Columns:
        limit = self._limits.max_samples
        samples_left = None if limit is None else limit - self._samples_used
        columns = self._head.select(node.matchers, start_ms, end_ms, max_samples=samples_left)
        self._count_samples(columns.values.size)
        cells = self._find_histograms(columns.values)
        return columns if cells is None else replace(columns, histograms=cells)

    def _find_histograms(self, values: Floats) -> Cells | None:
        cells = self._head.find_histograms(values)
        return (
            cells
            if cells is None or self._keeps_resets
            else native_calls.map_histograms(cells, native_calls.clear_reset_hint)
        )

    def _count_samples(self, samples: int) -> None:
        self._samples_used += samples
        limit = self._limits.max_samples
        if limit is not None and self._samples_used > limit:
            raise errors.QueryLimit(
                f"the query would read {self._samples_used} samples, the limit is {limit}",
                remedy="Select fewer series, a shorter time range or a larger step",
            )

    def _count_window_samples(self, range_args: Iterable[Windows]) -> None:
        """Count all samples of all windows; a sample in overlapping windows counts several times."""
        limit = self._limits.max_window_samples
        for range_arg in range_args:
            self._window_samples += int((range_arg.highs - range_arg.lows).sum(axis=1)[range_arg.groups].sum())
        if limit is not None and self._window_samples > limit:
            raise errors.QueryLimit(
                f"the windows of the query have {self._window_samples} samples, the limit is {limit}",
                remedy="Select fewer series, a shorter range or a larger step",
            )


def _repeat_per_step(column: npt.NDArray[T], steps: int) -> npt.NDArray[T]:
    """Repeat a column for every step; the result is read-only if there are several steps."""
    return column[:, None] if steps == 1 else np.broadcast_to(column[:, None], (len(column), steps))


def _as_vector(value: Value) -> Vector:
    """Convert the value inside a subquery to a vector; a scalar becomes a series without labels."""
    if isinstance(value, Scalar):
        values = value.values[None, :]
        return Vector(SeriesSet([()]), values, np.ones(values.shape, dtype=bool))
    assert isinstance(value, Vector)
    return value


def _window_function(compute: Callable[[Windows], Vector], *, keeps_name: bool = False) -> PromFunction:
    def call(invocation: Invocation) -> Vector:
        result = compute(invocation.windows(0))
        return result if keeps_name else drop_name(result)

    return call


def _scalar(invocation: Invocation) -> Scalar:
    """The value of the only series at each step; NaN if there is no series or more than one."""
    vector = invocation.vector(0)
    is_single = np.count_nonzero(vector.present, axis=0) == 1
    with np.errstate(invalid="ignore"):
        return Scalar(np.where(is_single, np.where(vector.present, vector.values, 0.0).sum(axis=0), np.nan))


def _counter_function(compute: Callable[[Windows], Vector]) -> PromFunction:
    """Wrap a function for counters; adds an info if the metric name is not that of a counter."""

    def call(invocation: Invocation) -> Vector:
        result = compute(invocation.windows(0))
        if rows_by_name := result.series.cached("no_counters", lambda: _rows_not_named_as_counters(result.series)):
            shown = (name for name, rows in rows_by_name.items() if result.present[rows].any())
            invocation.notes.check_counter_names(dict.fromkeys(shown), invocation.call.args[0])
        return drop_name(result)

    return call


def _rows_not_named_as_counters(series: SeriesSet) -> dict[str, Ints]:
    if series.has_one_name and series.pairs:
        name = label_of(series.pairs[0], METRIC_NAME)
        return {} if name.endswith(COUNTER_ENDINGS) else {name: np.arange(len(series))}
    rows: dict[str, list[int]] = {}
    for row, pairs in enumerate(series.pairs):
        name = next((value for label, value in pairs if label == METRIC_NAME), "")
        if name and not name.endswith(COUNTER_ENDINGS):
            rows.setdefault(name, []).append(row)
    return {name: np.array(row_list, dtype=np.int64) for name, row_list in rows.items()}


def _quantile_over_time(invocation: Invocation) -> Vector:
    result = over_time.quantile_over_time(invocation.windows(1), invocation.scalar(0))
    quantiles = invocation.scalar(0).values[result.present.any(axis=0)]
    invocation.notes.check_quantiles(quantiles, invocation.call.args[0])
    return drop_name(result)


FUNCTIONS: dict[str, PromFunction] = {
    **numbers.FUNCTIONS,
    **relabel.FUNCTIONS,
    **histograms.FUNCTIONS,
    **{name: _window_function(compute) for name, compute in (rates.FUNCTIONS | over_time.FUNCTIONS).items()},
    **{name: _counter_function(rates.FUNCTIONS[name]) for name in ("increase", "rate")},
    **{name: _window_function(over_time.FUNCTIONS[name], keeps_name=True) for name in KEEPS_NAME},
    "quantile_over_time": _quantile_over_time,
    "predict_linear": lambda call: drop_name(
        over_time.predict_linear(call.windows(0), call.scalar(1), at_ms=call.times_ms)
    ),
    "double_exponential_smoothing": lambda call: drop_name(
        over_time.double_exponential_smoothing(call.windows(0), call.scalar(1), call.scalar(2))
    ),
    "scalar": _scalar,
    "vector": lambda invocation: invocation.single_series(invocation.scalar(0)),
    "time": lambda invocation: Scalar(invocation.times_ms / 1000),
    "pi": lambda invocation: Scalar(np.full(len(invocation.times_ms), np.pi)),
}
SPECIAL_FUNCTIONS: dict[str, Callable[[Evaluator, ast.FunctionCall, Millis], Value]] = {
    "timestamp": Evaluator.timestamp,
    "absent": Evaluator.absent,
    "absent_over_time": Evaluator.absent,
    "info": Evaluator.add_target_labels,
    **dict.fromkeys(("start", "end", "range", "step"), Evaluator.query_time),
}
NODES: dict[type, Callable[[Evaluator, Any, Millis], Value]] = {
    ast.Number: lambda _, node, times: Scalar(np.full(len(times), node.value)),
    ast.String: lambda _, node, __: Text(node.value),
    ast.Paren: lambda evaluator, node, times: evaluator.evaluate(node.expr, times),
    ast.Unary: Evaluator.unary,
    ast.Binary: Evaluator.binary,
    ast.Aggregate: Evaluator.aggregate,
    ast.Selector: lambda evaluator, node, times: evaluator.newest_samples(node, times)[0],
    ast.RangeSelector: Evaluator.range_selector,
    ast.Subquery: Evaluator.subquery,
    ast.FunctionCall: Evaluator.call,
}
