"""The walk over a syntax tree: each node is evaluated once, for all steps of the query.

`embedded` makes one evaluator per query. It fetches samples from the head, keeps the budget, and hands
the numbers to the functions of this package; the value of the root goes back to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Millis, QueryLimits, QueryRange
from watchkeeper.query.evaluate import (
    binary,
    enrich,
    histograms,
    native_calls,
    numbers,
    over_time,
    rates,
    relabel,
    windows,
)
from watchkeeper.query.evaluate.aggregate import aggregate
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.notes import COUNTER_ENDINGS, Notes
from watchkeeper.query.evaluate.values import Scalar, Text, Value, Vector, Windows, drop_name, empty, label_of
from watchkeeper.query.promql import ast, computed
from watchkeeper.store import columns as stored
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.interfaces import SampleStore
from watchkeeper.store.sample_columns import Columns
from watchkeeper.store.series import SeriesSet

T = TypeVar("T", bound=np.generic)

# Functions that look at the first and last samples of a window, or at sums that were made once for all windows.
READ_EDGES_ONLY = frozenset(
    {
        *("changes", "count_over_time", "delta", "first_over_time", "idelta", "increase", "irate", "last_over_time"),
        *("present_over_time", "rate", "resets", "ts_of_first_over_time", "ts_of_last_over_time"),
    }
)


class Evaluator:
    """Evaluates expressions of one query over one time span."""

    def __init__(self, head: SampleStore, limits: QueryLimits, *, span: QueryRange) -> None:
        self._head = head
        self._limits = limits
        self._span = span
        self._spent = 0
        self._window_samples = 0
        # Whether histograms that are read now say that they are counter resets (`native_calls.TELLING_RESETS`).
        self._tells_resets = False
        self.notes = Notes()

    def evaluate(self, expr: ast.Expr, times: Millis) -> Value:
        return NODES[type(expr)](self, expr, times)

    def number(self, node: ast.Number, times: Millis) -> Scalar:
        return Scalar(np.full(len(times), node.value))

    def string(self, node: ast.String, _: Millis) -> Text:
        return Text(node.value)

    def paren(self, node: ast.Paren, times: Millis) -> Value:
        return self.evaluate(node.expr, times)

    def unary(self, node: ast.Unary, times: Millis) -> Value:
        value = self.evaluate(node.expr, times)
        if node.op == "+":
            return value
        if isinstance(value, Scalar):
            return Scalar(-value.values)
        assert isinstance(value, Vector)
        negated = None if value.histograms is None else native_calls.negated(value.histograms)
        return drop_name(Vector(value.series, -value.values, value.present, negated))

    def binary(self, node: ast.Binary, times: Millis) -> Value:
        tells, self._tells_resets = self._tells_resets, False
        left, right = self.evaluate(node.left, times), self.evaluate(node.right, times)
        self._tells_resets = tells
        assert isinstance(left, (Vector, Scalar))
        assert isinstance(right, (Vector, Scalar))
        return binary.combine(node, left, right, notes=self.notes)

    def aggregate(self, node: ast.Aggregate, times: Millis) -> Value:
        vector = self.evaluate(node.expr, times)
        assert isinstance(vector, Vector)
        if node.parameter is None and not vector.present.any():
            # Of nothing there are no groups, and no work on labels.
            return empty(len(times))
        parameter = None if node.parameter is None else self.evaluate(node.parameter, times)
        assert parameter is None or isinstance(parameter, (Scalar, Text))
        return aggregate(node, vector, parameter, notes=self.notes)

    def selector(self, node: ast.Selector, times: Millis) -> Vector:
        return self.newest(node, times)[0]

    def newest(self, node: ast.Selector, times: Millis) -> tuple[Vector, Callable[[], Millis]]:
        """The newest samples at each step, and a way to their times, which are rarely asked for."""
        at_ms = self._moved(node, times)
        lookback_ms = self._limits.lookback_ms
        # Times ascend.
        first_ms, last_ms = int(at_ms[0]), int(at_ms[-1])
        if first_ms == last_ms:
            series, sample_ms, found = self._head.latest(node.matchers, first_ms - lookback_ms, last_ms)
            steps = len(times)
            self._spend(len(series) * steps)
            cells = self._revealed(found)
            present = np.ones(len(found), dtype=bool)
            if windows.has_nan(found):
                present = ~(stored.is_absent(found) | stored.is_stale(found))
            histograms = None if cells is None else _at_each(cells, steps)
            vector = Vector(series, _at_each(found, steps), _at_each(present, steps), histograms)
            return vector, lambda: _at_each(sample_ms, steps)
        columns = self._fetch(node, first_ms - lookback_ms, last_ms)
        self._spend(len(columns.series) * len(times) * (1 if columns.histograms is None else native_calls.COST))
        return windows.newest(columns, at_ms, lookback_ms=lookback_ms)

    def range_selector(self, node: ast.RangeSelector, times: Millis) -> Windows:
        ends_ms = self._moved(node.selector, times)
        range_ms = node.range_ms if node.range_by is None else self._worked_out(node.range_by)
        columns = self._fetch(node.selector, int(ends_ms[0]) - range_ms, int(ends_ms[-1]))
        self._spend(len(columns.series) * len(times))
        return windows.over(columns, ends_ms, range_ms=range_ms)

    def subquery(self, node: ast.Subquery, times: Millis) -> Windows:
        """Evaluate the inner expression once on the grid of all windows, whose steps are multiples of the step."""
        ends_ms = self._moved(node, times)
        step_ms = node.step_ms or self._limits.subquery_step_ms
        step_ms = step_ms if node.step_by is None else self._worked_out(node.step_by)
        range_ms = node.range_ms if node.range_by is None else self._worked_out(node.range_by)
        first_ms = ((int(ends_ms[0]) - range_ms) // step_ms + 1) * step_ms
        last_ms = int(ends_ms[-1])
        self._refuse_steps(max(0, last_ms - first_ms) // step_ms)
        grid = np.arange(first_ms, last_ms + 1, step_ms, dtype=np.int64)
        if not len(grid):
            inner = Vector(SeriesSet([]), np.empty((0, 0)), np.empty((0, 0), dtype=bool))
        else:
            tells, self._tells_resets = self._tells_resets, False
            inner = _as_vector(self.evaluate(node.expr, grid))
            self._tells_resets = tells
        self._spend(inner.values.size)
        groups = np.zeros(len(inner.series), dtype=np.int64)
        columns = Columns(inner.series, groups, grid[None, :], inner.values, inner.histograms)
        found = windows.over(columns, ends_ms, range_ms=range_ms)
        usable = None if inner.present.all() else inner.present
        return Windows(
            found.series,
            found.groups,
            found.times,
            found.values,
            usable,
            found.lows,
            found.highs,
            ends_ms,
            range_ms,
            found.histograms,
        )

    def call(self, node: ast.FunctionCall, times: Millis) -> Value:
        special = SPECIAL.get(node.function)
        if special is not None:
            return special(self, node, times)
        function = FUNCTIONS.get(node.function)
        if function is None:
            raise errors.QueryError(
                f"the embedded engine has no function {node.function}()", remedy="Ask a Prometheus server"
            )
        tells = self._tells_resets
        self._tells_resets = native_calls.TELLING_RESETS.get(node.function, tells)
        args = tuple(self.evaluate(arg, times) for arg in node.args)
        self._tells_resets = tells
        if node.function not in READ_EDGES_ONLY:
            self._read(arg for arg in args if isinstance(arg, Windows))
        invocation = Invocation(node, args, times, self.notes)
        if any(map(native_calls.has_histograms, args)):
            self._spend(native_calls.cost(args, len(times)))
            return native_calls.call(function, invocation)
        return function(invocation)

    def timestamp(self, node: ast.FunctionCall, times: Millis) -> Value:
        """The time of the sample where the argument is a selector, else the time of the step."""
        argument = _bare(node.args[0])
        if isinstance(argument, ast.Selector):
            vector, sample_ms = self.newest(argument, times)
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

    def with_target_labels(self, node: ast.FunctionCall, times: Millis) -> Value:
        """The labels of info metrics, as of the time at which the first selector of the argument is looked at."""
        vector = self.evaluate(node.args[0], times)
        assert isinstance(vector, Vector)
        selector = node.args[1] if len(node.args) > 1 else None
        assert selector is None or isinstance(selector, ast.Selector)
        asked = enrich.wanted(selector)
        at_ms = times
        for mover in enrich.pinned(node.args[0]):
            at_ms = self._moved(mover, at_ms)
        found, sample_ms = self.newest(asked.selector, at_ms)
        return enrich.enriched(vector, found, sample_ms(), asked)

    def edge(self, node: ast.FunctionCall, times: Millis) -> Value:
        """start(), end(), range() and step() of the query, in seconds."""
        span, known = self._span, self._known
        known_ms = {
            "start": span.start_ms,
            "end": span.end_ms,
            "range": known.range_ms,
            "step": known.step_ms,
        }
        return Scalar(np.full(len(times), known_ms[node.function] / 1000))

    def _moved(self, node: ast.Selector | ast.Subquery, times: Millis) -> Millis:
        """The times that the node looks at, after @ and offset."""
        if node.at is None and not node.offset_ms and node.offset_by is None:
            return times
        at = {ast.AtEdge.START: self._span.start_ms, ast.AtEdge.END: self._span.end_ms}.get(node.at, node.at)  # type: ignore[arg-type]
        moved = times if at is None else np.full(len(times), at, dtype=np.int64)
        if node.offset_by is not None:
            return moved - computed.milliseconds(node.offset_by, self._known)
        return moved - node.offset_ms

    def _worked_out(self, duration: ast.DurationExpr) -> int:
        return computed.milliseconds(duration, self._known, is_positive=True)

    @property
    def _known(self) -> computed.Known:
        span = self._span
        step_ms = 0 if span.start_ms == span.end_ms else span.step_ms
        return computed.Known(step_ms, span.end_ms - span.start_ms)

    def _fetch(self, node: ast.Selector, start_ms: int, end_ms: int) -> Columns:
        limit = self._limits.max_samples
        left = None if limit is None else limit - self._spent
        columns = self._head.select(node.matchers, start_ms, end_ms, max_samples=left)
        self._spend(columns.values.size)
        cells = self._revealed(columns.values)
        return columns if cells is None else replace(columns, histograms=cells)

    def _revealed(self, values: Floats) -> Cells | None:
        cells = self._head.find_histograms(values)
        return cells if cells is None or self._tells_resets else native_calls.without_resets(cells)

    def _spend(self, samples: int) -> None:
        self._spent += samples
        limit = self._limits.max_samples
        if limit is not None and self._spent > limit:
            raise errors.QueryLimit(
                f"the query would handle {self._spent} samples, the limit is {limit}",
                remedy="Select fewer series, a shorter time or a larger step",
            )

    def _read(self, found: Iterable[Windows]) -> None:
        """Count the samples of windows that will be read whole; overlapping windows read theirs again and again."""
        limit = self._limits.max_window_samples
        for each in found:
            self._window_samples += int((each.highs - each.lows).sum(axis=1)[each.groups].sum())
        if limit is not None and self._window_samples > limit:
            raise errors.QueryLimit(
                f"the windows of the query hold {self._window_samples} samples, the limit is {limit}",
                remedy="Select fewer series, a shorter range or a larger step",
            )

    def _refuse_steps(self, steps: int) -> None:
        limit = self._limits.max_samples
        if limit is not None and steps > limit:
            raise errors.QueryLimit(
                f"a subquery has {steps} steps, the limit is {limit}", remedy="Use a larger step or a shorter range"
            )


def _at_each(column: npt.NDArray[T], steps: int) -> npt.NDArray[T]:
    """A column that stands for every step; read-only where there are several."""
    return column[:, None] if steps == 1 else np.broadcast_to(column[:, None], (len(column), steps))


def _bare(expr: ast.Expr) -> ast.Expr:
    while isinstance(expr, ast.Paren):
        expr = expr.expr
    return expr


def _as_vector(value: Value) -> Vector:
    """A scalar inside a subquery is a series without labels."""
    if isinstance(value, Scalar):
        values = value.values[None, :]
        return Vector(SeriesSet([()]), values, np.ones(values.shape, dtype=bool))
    assert isinstance(value, Vector)
    return value


def _of_window(compute: Callable[[Windows], Vector], *, keeps_name: bool = False) -> PromFunction:
    def call(invocation: Invocation) -> Vector:
        result = compute(invocation.windows(0))
        return result if keeps_name else drop_name(result)

    return call


def _scalar(invocation: Invocation) -> Scalar:
    """The value of the only series at each step, NaN where there is none or more than one."""
    vector = invocation.vector(0)
    alone = np.count_nonzero(vector.present, axis=0) == 1
    with np.errstate(invalid="ignore"):
        return Scalar(np.where(alone, np.where(vector.present, vector.values, 0.0).sum(axis=0), np.nan))


def _of_counter(compute: Callable[[Windows], Vector]) -> PromFunction:
    """A function that makes sense of counters only, and says so where the name is not that of one."""

    def call(invocation: Invocation) -> Vector:
        result = compute(invocation.windows(0))
        if suspects := result.series.cached("no_counters", lambda: _named_unlike_counters(result.series)):
            shown = (name for name, rows in suspects.items() if result.present[rows].any())
            invocation.notes.doubt_counters(dict.fromkeys(shown), invocation.call.args[0])
        return drop_name(result)

    return call


def _named_unlike_counters(series: SeriesSet) -> dict[str, Ints]:
    """Rows of each metric whose name does not end as counters' do."""
    if series.has_one_name and series.pairs:
        name = label_of(series.pairs[0], METRIC_NAME)
        return {} if name.endswith(COUNTER_ENDINGS) else {name: np.arange(len(series))}
    rows: dict[str, list[int]] = {}
    for row, pairs in enumerate(series.pairs):
        name = next((value for label, value in pairs if label == METRIC_NAME), "")
        if name and not name.endswith(COUNTER_ENDINGS):
            rows.setdefault(name, []).append(row)
    return {name: np.array(found, dtype=np.int64) for name, found in rows.items()}


def _quantile_over_time(invocation: Invocation) -> Vector:
    result = over_time.quantile_over_time(invocation.windows(1), invocation.scalar(0))
    asked = invocation.scalar(0).values[result.present.any(axis=0)]
    invocation.notes.doubt_quantiles(asked, invocation.call.args[0])
    return drop_name(result)


def _predict_linear(invocation: Invocation) -> Vector:
    return drop_name(over_time.predict_linear(invocation.windows(0), invocation.scalar(1), at_ms=invocation.times_ms))


def _smoothing(invocation: Invocation) -> Vector:
    return drop_name(
        over_time.double_exponential_smoothing(invocation.windows(0), invocation.scalar(1), invocation.scalar(2))
    )


FUNCTIONS: dict[str, PromFunction] = {
    **numbers.FUNCTIONS,
    **relabel.FUNCTIONS,
    **histograms.FUNCTIONS,
    **{
        compute.__name__: _of_window(compute)
        for compute in (
            rates.changes,
            rates.delta,
            rates.idelta,
            rates.irate,
            rates.resets,
            over_time.avg_over_time,
            over_time.count_over_time,
            over_time.deriv,
            over_time.mad_over_time,
            over_time.max_over_time,
            over_time.min_over_time,
            over_time.present_over_time,
            over_time.stddev_over_time,
            over_time.stdvar_over_time,
            over_time.sum_over_time,
            over_time.ts_of_first_over_time,
            over_time.ts_of_last_over_time,
            over_time.ts_of_max_over_time,
            over_time.ts_of_min_over_time,
        )
    },
    "increase": _of_counter(rates.increase),
    "rate": _of_counter(rates.rate),
    "first_over_time": _of_window(over_time.first_over_time, keeps_name=True),
    "last_over_time": _of_window(over_time.last_over_time, keeps_name=True),
    "quantile_over_time": _quantile_over_time,
    "predict_linear": _predict_linear,
    "double_exponential_smoothing": _smoothing,
    "scalar": _scalar,
    "vector": lambda invocation: invocation.one_row(invocation.scalar(0)),
    "time": lambda invocation: Scalar(invocation.times_ms / 1000),
    "pi": lambda invocation: Scalar(np.full(len(invocation.times_ms), np.pi)),
}
SPECIAL: dict[str, Callable[[Evaluator, ast.FunctionCall, Millis], Value]] = {
    "timestamp": Evaluator.timestamp,
    "absent": Evaluator.absent,
    "absent_over_time": Evaluator.absent,
    "info": Evaluator.with_target_labels,
    **dict.fromkeys(("start", "end", "range", "step"), Evaluator.edge),
}
NODES: dict[type, Callable[[Evaluator, Any, Millis], Value]] = {
    ast.Number: Evaluator.number,
    ast.String: Evaluator.string,
    ast.Paren: Evaluator.paren,
    ast.Unary: Evaluator.unary,
    ast.Binary: Evaluator.binary,
    ast.Aggregate: Evaluator.aggregate,
    ast.Selector: Evaluator.selector,
    ast.RangeSelector: Evaluator.range_selector,
    ast.Subquery: Evaluator.subquery,
    ast.FunctionCall: Evaluator.call,
}
