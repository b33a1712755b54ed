"""The values that an expression can have: limits, and what healthy GPUs show, carried from its metrics to its root.

`rule_mistakes` compares them with the thresholds of rules. A wrong guess would blame a right rule: what cannot be
derived is unlimited.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf

from watchkeeper.catalogue import metric_values, series
from watchkeeper.errors import QueryError
from watchkeeper.query.promql import ast, parser, types

# Results have the values of their argument: the extremes and means of a metric are within its limits.
KEEPING_AGGREGATIONS = frozenset({"max", "min", "avg", "quantile", "topk", "bottomk", "limitk", "limit_ratio"})
KEEPING_FUNCTIONS = frozenset(
    {
        *("avg_over_time", "first_over_time", "last_over_time", "max_over_time", "min_over_time", "quantile_over_time"),
        *("label_join", "label_replace", "sort", "sort_by_label", "sort_by_label_desc", "sort_desc"),
        *("scalar", "vector"),
    }
)
ADDING = frozenset({"sum", "sum_over_time"})
COUNTING = frozenset({"count", "count_over_time", "changes", "resets", "count_values", "group", "absent"})
ROUNDING: dict[str, Callable[[float], float]] = {"floor": math.floor, "ceil": math.ceil, "abs": abs}
ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": math.fmod,
    "^": operator.pow,
}
COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "==", "!=": "!="}
GPU_LABELS = frozenset({"UUID", "uuid", "gpu", "device", "pci_bus_id", "GPU_I_ID"})
OFTEN_JOINED = ("_info", "_labels")
UNIX_TIMES = (1e9, 4.3e9)
# A quotient such as power and its limit may exceed 1 for a moment.
QUOTIENT_HIGH = 1.5
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Values:
    """The limits of an expression's values; `metric` is what they come from, if it is one metric.

    `normal`, `too_late` and `whole` (what 100 % is; 0 for what is no share) are scaled as the values are. A raw counter
    was not passed through `rate` or `increase`.
    """

    low: float = -inf
    high: float = inf
    metric: metric_values.MetricValues | None = None
    normal: tuple[tuple[float, str], ...] = ()
    too_late: float | None = None
    is_counter: bool = False
    whole: float = 0.0
    is_growth: bool = False
    is_sum: bool = False
    is_per_gpu: bool = True

    @property
    def constant(self) -> float | None:
        return self.low if self.low == self.high and not self.metric else None

    def scaled(self, change: Callable[[float], float]) -> Values:
        """These values after a monotonic change, such as a division by 100."""
        low, high = _changed(change, self.low), _changed(change, self.high)
        normal = tuple((_changed(change, value), meaning) for value, meaning in self.normal)
        too_late = None if self.too_late is None or low > high else _changed(change, self.too_late)
        whole = abs(_changed(change, self.whole) - _changed(change, 0)) if self.whole else 0
        low, high = min(low, high), max(low, high)
        return replace(self, low=low, high=high, normal=normal, too_late=too_late, whole=whole, is_growth=False)


UNLIMITED = Values()


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Derives values; `recorded` has the expressions of recording rules by name, `hold_seconds` is the rule's `for`."""

    recorded: Mapping[str, ast.Expr]
    hold_seconds: float = 0.0

    def read(self, expr: ast.Expr, depth: int = 0) -> Values:
        if depth > MAX_DEPTH:
            return UNLIMITED
        match expr:
            case ast.Number():
                return Values(expr.value, expr.value)
            case ast.Selector():
                return self.read_metric(expr.name or "", depth)
            case ast.RangeSelector():
                return self.read(expr.selector, depth)
            case ast.Paren() | ast.Subquery():
                return self.read(expr.expr, depth)
            case ast.Unary():
                inner = self.read(expr.expr, depth)
                return inner.scaled(operator.neg) if expr.op == "-" else inner
            case ast.Aggregate():
                inner = _transformed(expr.op, self.read(expr.expr, depth))
                return replace(inner, is_per_gpu=inner.is_per_gpu and keeps_gpus(expr))
            case ast.FunctionCall():
                return self.read_call(expr, depth)
            case ast.Binary():
                return self.read_binary(expr, depth)
        return UNLIMITED

    def read_metric(self, name: str, depth: int) -> Values:
        if name in self.recorded:
            return self.read(self.recorded[name], depth + 1)
        row, replacement = metric_values.lookup(name), series.origin(name).replacement
        if replacement and (row is None or row.name != replacement):
            return self.read(_parse(replacement), depth + 1)
        if row is None:
            return Values(1, 1) if name.endswith(OFTEN_JOINED) else UNLIMITED
        return Values(
            row.low,
            row.high,
            metric=row,
            normal=row.normal,
            too_late=row.too_late,
            is_counter=row.is_counter and row.high == inf and not row.may_compare,
            whole=row.whole,
        )

    def read_call(self, call: ast.FunctionCall, depth: int) -> Values:
        name = call.function
        if name in ("time", "timestamp"):
            return Values(*UNIX_TIMES)
        args = [arg for arg in call.args if types.value_type(arg) in (ast.ValueType.INSTANT, ast.ValueType.RANGE)]
        if not args:
            return self.read(call.args[0], depth) if name == "vector" else UNLIMITED
        values = self.read(args[0], depth)
        if name in ("rate", "irate", "deriv", "increase", "delta", "idelta"):
            return self.read_growth(name, values, _window_seconds(args[0]))
        if name in ROUNDING and values.low >= 0:
            return values.scaled(lambda value: value if math.isinf(value) else ROUNDING[name](value))
        return _transformed(name, values)

    def read_growth(self, name: str, values: Values, window: float) -> Values:
        """How fast a metric can grow: a gauge cannot grow by more than its whole range while the rule holds."""
        grown = Values(metric=values.metric, is_growth=True)
        row = values.metric
        if row is None or not window:
            return grown
        if name in ("rate", "irate") and row.is_counter:
            high = inf if values.is_sum else row.rate_high
            return replace(grown, low=0, high=high, whole=high if high < inf else 0)
        span = values.high - values.low
        if name == "deriv" and not values.is_counter and span < inf:
            steepest = span / max(window, self.hold_seconds)
            return replace(grown, low=-steepest, high=steepest)
        return grown

    def read_binary(self, expr: ast.Binary, depth: int) -> Values:
        left, right = self.read(expr.left, depth), self.read(expr.right, depth)
        if expr.op in types.COMPARISONS:
            if expr.returns_bool:
                return Values(0, 1)
            return _filtered(expr, left, right)
        if expr.op in types.SET_OPERATORS:
            return left if expr.op != "or" else _either(left, right)
        if expr.op not in ARITHMETIC:
            return UNLIMITED
        combine, constant = ARITHMETIC[expr.op], right.constant
        if constant is not None:
            return _with_constant(expr.op, left, constant)
        if left.constant is not None:
            number = left.constant
            return right.scaled(lambda value: combine(number, value)) if expr.op in "+-*" and number else UNLIMITED
        if expr.op == "/" and _is_part(expr, left, right):
            return Values(0, 1 if _has_term(expr.right, strip(expr.left)) else QUOTIENT_HIGH, whole=1)
        return _combined(expr.op, left, right)


def _filtered(expr: ast.Binary, left: Values, right: Values) -> Values:
    """The values that a comparison keeps: those of its vector, without the normal ones for which it is false."""
    is_reversed = types.value_type(expr.left) is ast.ValueType.SCALAR
    kept, other = (right, left) if is_reversed else (left, right)
    threshold, compare = other.constant, COMPARE[MIRRORED[expr.op] if is_reversed else expr.op]
    if threshold is None:
        return kept
    return replace(kept, normal=tuple(pair for pair in kept.normal if compare(pair[0], threshold)))


def keeps_gpus(expr: ast.Aggregate) -> bool:
    """Whether the results of an aggregation are about one GPU each."""
    return bool(GPU_LABELS & set(expr.grouping)) is not expr.is_without


def _with_constant(op: str, values: Values, number: float) -> Values:
    """The values after an operation with a number on the right; bits of a mask are read with `/`, `floor` and `%`."""
    if (op in "*/%" and number == 0) or (op == "^" and (values.low < 0 or number <= 0)):
        return UNLIMITED
    scaled = values.scaled(lambda value: ARITHMETIC[op](value, number))
    if op != "%":
        return scaled
    low = 0.0 if values.low >= 0 else -abs(number)
    return replace(scaled, low=low, high=min(values.high, abs(number)), too_late=None)


def _combined(op: str, left: Values, right: Values) -> Values:
    if op == "+":
        joined = replace(left, low=left.low + right.low, high=left.high + right.high, whole=0, too_late=None)
        joined = replace(joined, is_counter=left.is_counter and right.is_counter)
        if not (left.metric and right.metric):
            return replace(joined, metric=None, normal=(), is_counter=False)
        return replace(joined, high=left.high) if left.metric.has_budget and right.metric.has_budget else joined
    if op == "-":
        return Values(left.low - right.high, left.high - right.low)
    if op == "*" and min(left.low, right.low) >= 0 and max(left.high, right.high) < inf:
        return Values(left.low * right.low, left.high * right.high)
    return UNLIMITED


def _either(left: Values, right: Values) -> Values:
    """The values of `left or right`; only what both have in common is known about both."""
    limits = Values(min(left.low, right.low), max(left.high, right.high))
    if left.metric is None or right.metric is None or left.metric.name != right.metric.name:
        return limits
    shared_normal = left.normal if left.normal == right.normal else ()
    return replace(left, low=limits.low, high=limits.high, normal=shared_normal)


def _transformed(name: str, values: Values) -> Values:
    if name in KEEPING_AGGREGATIONS or name in KEEPING_FUNCTIONS:
        return values
    if name in ADDING:
        low, high = min(values.low, 0 if values.low < 0 else values.low), inf if values.high > 0 else values.high
        return replace(values, low=-inf if low < 0 else low, high=high, is_sum=True, whole=0, too_late=None)
    return Values(0) if name in COUNTING else UNLIMITED


def _is_part(expr: ast.Binary, left: Values, right: Values) -> bool:
    """Whether a quotient is a share: `used / (used + free)`, or a metric and its limit such as FB_USED and FB_TOTAL."""
    if left.low < 0 or right.low < 0 or left.is_growth or right.is_growth:
        return False
    if _has_term(expr.right, strip(expr.left)):
        return True
    if left.is_sum != right.is_sum or left.metric is None or right.metric is None:
        return False
    return any(
        part in left.metric.name and whole in right.metric.name and left.metric.unit == right.metric.unit
        for part, whole in (("_USED", "_TOTAL"), ("_FREE", "_TOTAL"), ("POWER_USAGE", "_LIMIT"), ("_SM_CLOCK", "_MAX_"))
    )


def _has_term(expr: ast.Expr, term: ast.Expr) -> bool:
    expr = strip(expr)
    if isinstance(expr, ast.Binary) and expr.op == "+":
        return _has_term(expr.left, term) or _has_term(expr.right, term)
    if isinstance(expr, ast.Aggregate) and isinstance(term, ast.Aggregate) and expr != term:
        return replace(expr, expr=term.expr) == term and _has_term(expr.expr, strip(term.expr))
    return expr == term


def strip(expr: ast.Expr) -> ast.Expr:
    while isinstance(expr, ast.Paren):
        expr = expr.expr
    return expr


def _window_seconds(expr: ast.Expr) -> float:
    return expr.range_ms / 1000 if isinstance(expr, ast.RangeSelector | ast.Subquery) else 0.0


def _changed(change: Callable[[float], float], value: float) -> float:
    try:
        return change(value)
    except (OverflowError, ValueError):
        return inf


def _parse(text: str) -> ast.Expr:
    try:
        return parser.parse(text)
    except QueryError:
        return ast.Number(math.nan)
