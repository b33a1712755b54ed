"""`offset` and `@`: they change a selector or a subquery, once each, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.query.promql import ast
from watchkeeper.query.promql.mistakes import Mistake

SELECTIONS = "an instant vector selector or range vector selector or a subquery"


def with_offset(expr: ast.Expr, offset_ms: int, offset_by: ast.DurationExpr | None, *, position: int) -> ast.Expr:
    inner = _selection(expr, "offset modifier", position=position)
    if inner.offset_ms or inner.offset_by is not None:
        raise Mistake("offset may not be set multiple times", position)
    return _put_back(expr, replace(inner, offset_ms=offset_ms, offset_by=offset_by))


def with_at(expr: ast.Expr, at: int | ast.AtEdge, *, position: int) -> ast.Expr:
    inner = _selection(expr, "@ modifier", position=position)
    if inner.at is not None:
        raise Mistake("@ <timestamp> may not be set multiple times", position)
    return _put_back(expr, replace(inner, at=at))


def _selection(expr: ast.Expr, modifier: str, *, position: int) -> ast.Selector | ast.Subquery:
    if isinstance(expr, ast.RangeSelector):
        return expr.selector
    if isinstance(expr, ast.Selector | ast.Subquery):
        return expr
    raise Mistake(f"{modifier} must be preceded by {SELECTIONS}", position)


def _put_back(expr: ast.Expr, changed: ast.Selector | ast.Subquery) -> ast.Expr:
    if isinstance(expr, ast.RangeSelector) and isinstance(changed, ast.Selector):
        return replace(expr, selector=changed)
    return changed
