"""Decide whether an expression can return a result with the existing series.

A rule whose series do not exist looks healthy and never fires; a panel with such an expression is empty. `or` needs one
of its sides, `unless` its left side, all other operators both; `absent` returns a result without series.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchkeeper.query import engine
from watchkeeper.query.promql import ast, patterns, walk

ABSENT = frozenset({"absent", "absent_over_time"})


@dataclass(frozen=True, slots=True)
class ExistingSeries:
    """The existing metric names, and the label names of some of them."""

    names: frozenset[str]
    labels: Mapping[str, frozenset[str]]

    def missing_reason(self, selector: ast.Selector) -> str:
        """Why no series can match, otherwise empty; a selector without a fixed name may match any series."""
        if selector.name is None:
            return ""
        if selector.name not in self.names:
            return f"there is no series {selector.name}"
        label_names = self.labels.get(selector.name)
        for matcher in selector.matchers:
            if label_names is not None and matcher.name not in label_names and _needs_label(matcher):
                return f"no series {selector.name} has the label {matcher.name}"
        return ""


def missing_reasons(expr: ast.Expr, existing: ExistingSeries) -> list[str]:
    """Why the expression can never return a result; empty if it can."""
    match expr:
        case ast.Selector():
            reason = existing.missing_reason(expr)
            return [reason] if reason else []
        case ast.Binary(op="or"):
            left, right = missing_reasons(expr.left, existing), missing_reasons(expr.right, existing)
            return [*left, *right] if left and right else []
        case ast.Binary(op="unless"):
            return missing_reasons(expr.left, existing)
        case ast.FunctionCall() if expr.function in ABSENT:
            return []
        case _:
            return [lack for part in walk.iterate_children(expr) for lack in missing_reasons(part, existing)]


def names_with_labels(expr: ast.Expr) -> frozenset[str]:
    """The metrics whose label names matter: those with a matcher that fails on a series without the label."""
    return frozenset(
        selector.name
        for selector in walk.selectors(expr)
        if selector.name is not None and any(_needs_label(matcher) for matcher in selector.matchers)
    )


def _needs_label(matcher: engine.Matcher) -> bool:
    return matcher.name != "__name__" and not patterns.matches(matcher, "")
