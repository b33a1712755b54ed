"""The PromQL syntax tree: what the parser builds, the printer writes and the evaluator walks.

Times and durations are whole milliseconds. `position` is the offset of a node's first character in
the expression; two trees are equal when they mean the same, wherever they were written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from watchkeeper.query.engine import Matcher


class ValueType(StrEnum):
    """The type of an expression, in Prometheus' words."""

    SCALAR = "scalar"
    INSTANT = "instant vector"
    RANGE = "range vector"
    STRING = "string"


class AtEdge(StrEnum):
    """`@ start()` and `@ end()`."""

    START = "start"
    END = "end"


class MatchKind(StrEnum):
    """How many series of each side of a binary operator may meet."""

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
    """A duration that a query must work out: a number of seconds, `step()`, `range()`, or something made of others."""

    op: str
    args: tuple[DurationExpr, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Selector:
    """An instant vector selector; `name` is also in `matchers` as `__name__`, when it was written outside the braces.

    `at` is a fixed time in milliseconds, an edge of the query, or None. Where `offset_by` is there, it counts.
    """

    name: str | None
    matchers: tuple[Matcher, ...]
    offset_ms: int = 0
    at: int | AtEdge | None = None
    position: int = field(default=0, compare=False)
    offset_by: DurationExpr | None = None


@dataclass(frozen=True, slots=True)
class RangeSelector:
    """`selector[5m]`; offset and @ are on the inner selector. Where `range_by` is there, it counts."""

    selector: Selector
    range_ms: int
    position: int = field(default=0, compare=False)
    range_by: DurationExpr | None = None


@dataclass(frozen=True, slots=True)
class Subquery:
    """`expr[30m:1m]`; step None means the engine's default resolution. What ends in `_by` counts where it is there."""

    expr: Expr
    range_ms: int
    step_ms: int | None = None
    offset_ms: int = 0
    at: int | AtEdge | None = None
    position: int = field(default=0, compare=False)
    range_by: DurationExpr | None = None
    step_by: DurationExpr | None = None
    offset_by: DurationExpr | None = None


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
    """How the two sides of a binary operator find each other.

    With `is_on` only `labels` are compared, else all but them. `include` is what group_left/right carry over.
    `fill_left` and `fill_right` stand for samples that a side does not have.
    """

    kind: MatchKind = MatchKind.ONE_TO_ONE
    is_on: bool = False
    labels: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    fill_left: float | None = None
    fill_right: float | None = None


@dataclass(frozen=True, slots=True)
class Binary:
    """`op` is as written: + - * / % ^ atan2 == != > < >= <= </ >/ and or unless.

    `matching` is None if a side is a scalar.
    """

    op: str
    left: Expr
    right: Expr
    returns_bool: bool = False
    matching: Matching | None = None
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`sum by (a) (expr)`; `parameter` is k, the quantile, the ratio or count_values' label."""

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
