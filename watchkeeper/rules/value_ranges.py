"""The values that an expression can have: limits, and what healthy GPUs show, carried from its metrics to its root.

`rule_mistakes` compares them with the thresholds of rules. A wrong guess would blame a right rule: what cannot be
derived is unlimited.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
    # What the values of the metric are multiplied by; 0 if it is not a plain factor.
    scale: float = 1.0
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
        zero, low, high = _changed(change, 0), min(low, high), max(low, high)
        whole = abs(_changed(change, self.whole) - zero) if self.whole else 0
        moved = replace(self, low=low, high=high, normal=normal, too_late=too_late, whole=whole, is_growth=False)
        return replace(moved, scale=0 if zero else _changed(change, self.scale))


UNLIMITED = Values()


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Derives values; `recorded` has the expressions of recording rules by name, `hold_seconds` is the rule's `for`."""

    recorded: Mapping[str, ast.Expr]
    hold_seconds: float = 0.0
    known_series: dict[str, Values] = field(default_factory=dict)

    def read(self, expr: ast.Expr) -> Values:
        match expr:
            case ast.Number():
                return Values(expr.value, expr.value)
            case ast.Selector():
                return self.read_metric(expr.name or "")
            case ast.RangeSelector():
                return self.read(expr.selector)
            case ast.Paren() | ast.Subquery():
                return self.read(expr.expr)
            case ast.Unary():
                inner = self.read(expr.expr)
                return inner.scaled(operator.neg) if expr.op == "-" else inner
            case ast.Aggregate():
                inner = _transformed(expr.op, self.read(expr.expr))
                return replace(inner, is_per_gpu=inner.is_per_gpu and keeps_gpus(expr))
            case ast.FunctionCall():
                return self.read_call(expr)
            case ast.Binary():
                return self.read_binary(expr)
        return UNLIMITED

    def read_metric(self, name: str) -> Values:
        if name in self.recorded:
            # While a rule that records its own input is read, nothing is known about it.
            if name not in self.known_series:
                self.known_series[name] = UNLIMITED
                self.known_series[name] = self.read(self.recorded[name])
            return self.known_series[name]
        row, replacement = metric_values.lookup(name), series.origin(name).replacement
        if replacement and (row is None or row.name != replacement):
            return self.read(_parse(replacement))
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

    def read_call(self, call: ast.FunctionCall) -> Values:
        name = call.function
        if name in ("time", "timestamp"):
            return Values(*UNIX_TIMES)
        args = [arg for arg in call.args if types.value_type(arg) in (ast.ValueType.INSTANT, ast.ValueType.RANGE)]
        if not args:
            return self.read(call.args[0]) if name == "vector" else UNLIMITED
        values = self.read(args[0])
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
        if name == "delta" and span < inf:
            return Values(-span * QUOTIENT_HIGH, span * QUOTIENT_HIGH, metric=row)
        if name == "deriv" and not values.is_counter and span < inf:
            steepest = span / max(window, self.hold_seconds)
            return replace(grown, low=-steepest, high=steepest)
        return grown

    def read_binary(self, expr: ast.Binary) -> Values:
        left, right = self.read(expr.left), self.read(expr.right)
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
        return (self.read_share(expr, left, right) if expr.op == "/" else None) or _combined(expr.op, left, right)

    def read_share(self, expr: ast.Binary, left: Values, right: Values) -> Values | None:
        """A quotient that is a mean or a share: `sum(x) / count(x)`, `used / (used + free)`, `used / total`."""
        part, whole = _without_factor(expr.left), strip(expr.right)
        if isinstance(part, ast.Aggregate) and isinstance(whole, ast.Aggregate) and whole.op == "count":
            counted = _unfiltered(part.expr)
            if replace(part, op="count", expr=counted) == replace(whole, expr=strip(whole.expr)):
                total = replace(self.read(part.expr), is_per_gpu=False)
                return Values(0, 1, whole=1) if part.op == "count" else total if part.op == "sum" else None
        if min(left.low, right.low) < 0 or left.is_growth or right.is_growth or not (left.scale and right.scale):
            return None
        if _has_term(whole, part):
            factor = left.scale / self.read(part).scale
            return Values(0, factor, whole=factor)
        if left.metric is None or right.metric is None or left.is_sum != right.is_sum:
            return None
        factor = left.scale / right.scale
        is_share = left.metric.unit == right.metric.unit and _is_part(left.metric.name, right.metric.name)
        return Values(0, factor * QUOTIENT_HIGH, whole=factor) if is_share else None


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
        return replace(scaled, scale=0) if op == "^" else scaled
    low = 0.0 if values.low >= 0 else -abs(number)
    return replace(scaled, low=low, high=min(values.high, abs(number)), too_late=None, whole=0, scale=0)


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


def _is_part(name: str, whole_name: str) -> bool:
    """Whether a metric is at most, or hardly more than, another one, as FB_USED and FB_TOTAL."""
    pairs = (("_USED", "_TOTAL"), ("_FREE", "_TOTAL"), ("POWER_USAGE", "_LIMIT"), ("_SM_CLOCK", "_MAX_"))
    return any(part in name and whole in whole_name for part, whole in pairs)


def _without_factor(expr: ast.Expr) -> ast.Expr:
    """`x` of `100 * x`."""
    expr = strip(expr)
    if isinstance(expr, ast.Binary) and expr.op == "*":
        sides = [side for side in (expr.left, expr.right) if not isinstance(strip(side), ast.Number)]
        return _without_factor(sides[0]) if len(sides) == 1 else expr
    return expr


def _unfiltered(expr: ast.Expr) -> ast.Expr:
    """`x` of `x > 5`."""
    expr = strip(expr)
    is_filter = isinstance(expr, ast.Binary) and expr.op in types.COMPARISONS and not expr.returns_bool
    return _unfiltered(expr.left) if is_filter and isinstance(expr, ast.Binary) else expr


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
