"""Looking through a tree of PromQL: every part of an expression, and what it asks for.

`migrate` and `doctor.stack` ask which series and labels somebody's rules and dashboards need.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.query.promql import ast


def children(expr: ast.Expr) -> Iterator[ast.Expr]:
    """What stands directly inside, in the order in which it is written."""
    match expr:
        case ast.RangeSelector():
            yield expr.selector
        case ast.Subquery() | ast.Unary() | ast.Paren():
            yield expr.expr
        case ast.Binary():
            yield expr.left
            yield expr.right
        case ast.Aggregate():
            if expr.parameter is not None:
                yield expr.parameter
            yield expr.expr
        case ast.FunctionCall():
            yield from expr.args
        case _:
            return


def parts(expr: ast.Expr) -> Iterator[ast.Expr]:
    """The expression and everything in it, from the outside to the inside."""
    yield expr
    for child in children(expr):
        yield from parts(child)


def selectors(expr: ast.Expr) -> Iterator[ast.Selector]:
    return (part for part in parts(expr) if isinstance(part, ast.Selector))


def names(expr: ast.Expr) -> frozenset[str]:
    """The metric names that the expression asks for; an empty one stands for a selector without a fixed name."""
    return frozenset(selector.name or "" for selector in selectors(expr))
