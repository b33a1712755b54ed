"""An expression of a rule for the checks of `rule_mistakes`: its comparisons with numbers, and what else it reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from watchkeeper.catalogue import metrics, series
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, printer, walk
from watchkeeper.rules.value_ranges import COMPARE, MIRRORED, ValueReader, Values, keeps_gpus

RATES = frozenset({"rate", "irate", "increase"})
GROWTH = RATES | {"changes", "delta", "deriv", "idelta", "resets"}
WORKLOAD_LABELS = frozenset({"pod", "namespace", "container", "hpc_job", "job_id", "job_name", "workload"})


@dataclass(frozen=True, slots=True)
class Mistake:
    """`part` is the wrong part of the expression; `alert` is a shipped alert and `instead` an expression, or empty."""

    part: str
    why: str
    instead: str = ""
    alert: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """What is wrong and why, then what to use."""
        use = [f"the shipped alert {self.alert}"] if self.alert else []
        use += [self.instead] if self.instead else []
        return (f"{self.part}: {self.why}", *((f"use {' or '.join(use)}",) if use else ()))


@dataclass(frozen=True)
class RuleExpression:
    """An expression of a rule or panel; alerts have a result only if something is wrong, so more checks apply."""

    expr: ast.Expr
    is_alert: bool = False
    hold_seconds: float = 0.0
    recorded: Mapping[str, ast.Expr] = field(default_factory=dict)

    @cached_property
    def values(self) -> ValueReader:
        return ValueReader(self.recorded, self.hold_seconds)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        return list(self._find_comparisons(self.expr, is_per_gpu=True, is_excluded=False))

    def _find_comparisons(self, expr: ast.Expr, *, is_per_gpu: bool, is_excluded: bool) -> Iterator[Comparison]:
        if isinstance(expr, ast.Binary) and expr.op in COMPARE:
            for side, other, op in ((expr.left, expr.right, expr.op), (expr.right, expr.left, MIRRORED[expr.op])):
                threshold = self.values.read(other).constant
                values = self.values.read(side)
                if threshold is not None and values.constant is None:
                    is_one_gpu = is_per_gpu and not expr.returns_bool and values.is_per_gpu
                    yield Comparison(expr, side, op, threshold, values, is_one_gpu, is_excluded)
        is_one_gpu = is_per_gpu and not isinstance(expr, ast.Subquery | ast.FunctionCall)
        if isinstance(expr, ast.Aggregate):
            is_one_gpu = is_one_gpu and keeps_gpus(expr)
        for child in walk.iterate_children(expr):
            is_unless = isinstance(expr, ast.Binary) and expr.op == "unless" and child is expr.right
            yield from self._find_comparisons(child, is_per_gpu=is_one_gpu, is_excluded=is_excluded is not is_unless)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison with a number. `is_per_gpu` is false where GPUs are counted or summed afterwards.

    `is_excluded` is true on the right of `unless`: the rule drops what it is true for.
    """

    expr: ast.Binary
    side: ast.Expr
    op: str
    threshold: float
    values: Values
    is_per_gpu: bool
    is_excluded: bool

    @property
    def part(self) -> str:
        return printer.to_text(self.expr)

    def holds(self, value: float) -> bool:
        return COMPARE[self.op](value, self.threshold)

    def mistake(self, why: str, *, instead: str = "", names_alert: bool = True) -> Mistake:
        """A mistake with the alert for this metric; an alert about idle GPUs is no answer to `>`."""
        row = self.values.metric
        if row is None or not names_alert or (row.unless == "workload" and self.op not in ("<", "<=", "==")):
            return Mistake(self.part, why, instead)
        return Mistake(self.part, why, instead or row.instead, row.alert)


def reads_growth(expr: ast.Expr, name: str) -> bool:
    """Whether an expression reads how a metric changed: by a function, against itself earlier, or by an Xid's code."""
    if reads_code(expr):
        return True
    for part in walk.iterate_nodes(expr):
        is_growth = isinstance(part, ast.FunctionCall) and part.function in GROWTH
        is_earlier = isinstance(part, ast.Selector) and part.offset_ms
        if (is_growth or is_earlier) and name in map(_canonical, walk.metric_names(part)):
            return True
    return False


def reads_code(expr: ast.Expr) -> bool:
    return reads_labels(expr, {"err_code"})


def reads_labels(expr: ast.Expr, names: Collection[str]) -> bool:
    return any(matcher.name in names for selector in walk.selectors(expr) for matcher in selector.matchers)


def reads_workload(expr: ast.Expr) -> bool:
    """Whether an expression also reads another metric, or selects GPUs that a workload holds."""
    selectors = list(walk.selectors(expr))
    if len({_canonical(selector.name or "") for selector in selectors}) > 1:
        return True
    return any(
        matcher.name.removeprefix("exported_") in WORKLOAD_LABELS
        and not (matcher.op is engine.MatchOp.EQUAL and not matcher.value)
        for selector in selectors
        for matcher in selector.matchers
    )


def _canonical(name: str) -> str:
    row = metrics.lookup(series.origin(name).replacement or name)
    return row.name if row else name


def outside_subqueries(expr: ast.Expr) -> Iterator[ast.Expr]:
    yield expr
    for child in () if isinstance(expr, ast.Subquery) else walk.iterate_children(expr):
        yield from outside_subqueries(child)
