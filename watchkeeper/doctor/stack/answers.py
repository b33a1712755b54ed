"""Can this expression ever have an answer, given which series there are?

A rule whose series do not exist looks healthy and never fires; a panel with them is empty. `or` needs one of its sides,
`unless` its left, everything else both; `absent` answers because there is nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchkeeper.query import engine
from watchkeeper.query.promql import ast, patterns, walk

ABSENT = frozenset({"absent", "absent_over_time"})


@dataclass(frozen=True, slots=True)
class KnownSeries:
    """Metric names that exist, and the label names of some of them."""

    names: frozenset[str]
    labels: Mapping[str, frozenset[str]]

    def lacks(self, selector: ast.Selector) -> str:
        """Why no series can match, or an empty text; a name that is not fixed may match anything."""
        if selector.name is None:
            return ""
        if selector.name not in self.names:
            return f"there is no series {selector.name}"
        has = self.labels.get(selector.name)
        for matcher in selector.matchers if has is not None else ():
            assert has is not None
            if matcher.name not in has and matcher.name != "__name__" and not patterns.matches(matcher, ""):
                return f"no series {selector.name} has the label {matcher.name}"
        return ""


def missing(expr: ast.Expr, existing: KnownSeries) -> list[str]:
    """What is missing so that the expression can never answer; nothing if it can."""
    match expr:
        case ast.Selector():
            lack = existing.lacks(expr)
            return [lack] if lack else []
        case ast.Binary(op="or"):
            left, right = missing(expr.left, existing), missing(expr.right, existing)
            return [*left, *right] if left and right else []
        case ast.Binary(op="unless"):
            return missing(expr.left, existing)
        case ast.FunctionCall() if expr.function in ABSENT:
            return []
        case _:
            inner = [missing(part, existing) for part in walk.children(expr)]
            return [lack for part in inner for lack in part]


def names_with_labels(expr: ast.Expr) -> frozenset[str]:
    """Names whose labels matter for `missing`: those with a matcher that a series without the label fails."""
    return frozenset(
        selector.name
        for selector in walk.selectors(expr)
        if selector.name is not None and any(_needs_label(matcher) for matcher in selector.matchers)
    )


def _needs_label(matcher: engine.Matcher) -> bool:
    return matcher.name != "__name__" and not patterns.matches(matcher, "")
