"""Apply `offset` and `@` to a selector or a subquery, each at most once."""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.query.promql import ast
from watchkeeper.query.promql.parse_errors import ParseError

SELECTOR_KINDS = "an instant vector selector or range vector selector or a subquery"


def with_offset(expr: ast.Expr, offset_ms: int, offset_expr: ast.DurationExpr | None, *, position: int) -> ast.Expr:
    inner = _require_selector(expr, "offset modifier", position=position)
    if inner.offset_ms or inner.offset_expr is not None:
        raise ParseError("offset may not be set multiple times", position)
    return _replace_selector(expr, replace(inner, offset_ms=offset_ms, offset_expr=offset_expr))


def with_at(expr: ast.Expr, at: int | ast.AtEdge, *, position: int) -> ast.Expr:
    inner = _require_selector(expr, "@ modifier", position=position)
    if inner.at is not None:
        raise ParseError("@ <timestamp> may not be set multiple times", position)
    return _replace_selector(expr, replace(inner, at=at))


def _require_selector(expr: ast.Expr, modifier: str, *, position: int) -> ast.Selector | ast.Subquery:
    if isinstance(expr, ast.RangeSelector):
        return expr.selector
    if isinstance(expr, ast.Selector | ast.Subquery):
        return expr
    raise ParseError(f"{modifier} must be preceded by {SELECTOR_KINDS}", position)


def _replace_selector(expr: ast.Expr, changed: ast.Selector | ast.Subquery) -> ast.Expr:
    if isinstance(expr, ast.RangeSelector) and isinstance(changed, ast.Selector):
        return replace(expr, selector=changed)
    return changed
