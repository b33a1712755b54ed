"""Walk a PromQL tree: its nodes, selectors and metric names.

`migrate` and `doctor.stack` use it to find the series and labels that rules and dashboards need.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.query.promql import ast


def iterate_children(expr: ast.Expr) -> Iterator[ast.Expr]:
    """The direct children of a node, in the order of the text."""
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


def iterate_nodes(expr: ast.Expr) -> Iterator[ast.Expr]:
    """The expression and all nodes in it, parents first."""
    yield expr
    for child in iterate_children(expr):
        yield from iterate_nodes(child)


def selectors(expr: ast.Expr) -> Iterator[ast.Selector]:
    return (part for part in iterate_nodes(expr) if isinstance(part, ast.Selector))


def metric_names(expr: ast.Expr) -> frozenset[str]:
    """The metric names that the expression selects; a selector without a fixed name has the empty name."""
    return frozenset(selector.name or "" for selector in selectors(expr))
