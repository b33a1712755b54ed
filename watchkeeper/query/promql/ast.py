"""The nodes of the PromQL syntax tree, which the parser builds, the printer writes and the evaluator walks.

Times and durations are whole milliseconds. `position` is the offset of a node's first character in the
expression; comparisons of trees ignore it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from watchkeeper.query.engine import Matcher


class ValueType(StrEnum):
    SCALAR = "scalar"
    INSTANT = "instant vector"
    RANGE = "range vector"
    STRING = "string"


class AtEdge(StrEnum):
    START = "start"
    END = "end"


class MatchKind(StrEnum):
    """How many series of each side of a binary operator may match."""

    ONE_TO_ONE = "one-to-one"
    MANY_TO_ONE = "many-to-one"  # group_left
    ONE_TO_MANY = "one-to-many"  # group_right
    MANY_TO_MANY = "many-to-many"  # and, or, unless


@dataclass(frozen=True, slots=True)
class Number:
    value: float
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class String:
    value: str
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class DurationExpr:
    """A duration expression: a number of seconds, `step()`, `range()`, or an operation on other durations."""

    op: str
    args: tuple[DurationExpr, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Selector:
    """An instant vector selector; a `name` before the braces is also in `matchers` as `__name__`.

    `at` is a fixed time in milliseconds, the start or end of the query, or None. `offset_expr` overrides `offset_ms`.
    """

    name: str | None
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    at: int | AtEdge | None = None
    position: int = field(default=0, compare=False)
    offset_expr: DurationExpr | None = None


@dataclass(frozen=True, slots=True)
class RangeSelector:
    """`selector[5m]`; the inner selector has offset and @. `range_expr` overrides `range_ms`."""

    selector: Selector
    range_ms: int
    position: int = field(default=0, compare=False)
    range_expr: DurationExpr | None = None


@dataclass(frozen=True, slots=True)
class Subquery:
    """`expr[30m:1m]`; step None is the engine's default. A duration expression overrides the field in milliseconds."""

    expr: Expr
    range_ms: int
    step_ms: int | None = None
    offset_ms: int = 0
    at: int | AtEdge | None = None
    position: int = field(default=0, compare=False)
    range_expr: DurationExpr | None = None
    step_expr: DurationExpr | None = None
    offset_expr: DurationExpr | None = None


@dataclass(frozen=True, slots=True)
class Unary:
    op: str  # "-" or "+"
    expr: Expr
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Paren:
    expr: Expr
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Matching:
    """The vector matching of a binary operator.

    With `is_on` only `labels` are compared, else all other labels. `include` has the labels of group_left/right.
    `fill_left` and `fill_right` are the values for samples that one side does not have.
    """

    kind: MatchKind = MatchKind.ONE_TO_ONE
    is_on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """A binary operation, also atan2, </, >/, and, or, unless; `matching` is None if a side is a scalar."""

    op: str
    left: Expr
    right: Expr
    returns_bool: bool = False
    matching: Matching | None = None
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`sum by (a) (expr)`; `parameter` is k, the quantile, the ratio or the label of count_values."""

    op: str
    expr: Expr
    parameter: Expr | None = None
    grouping: tuple[str, ...] = ()
    is_without: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    function: str
    args: tuple[Expr, ...]
    position: int = field(default=0, compare=False)


Expr: TypeAlias = (
    Number | String | Selector | RangeSelector | Subquery | Unary | Paren | Binary | Aggregate | FunctionCall
)
