"""The types of PromQL expressions, type checks, and `offset` and `@` on selectors and subqueries, each at most once.

The parser checks every node when it builds it; the evaluator and the rules call `value_type`. The messages are
Prometheus' own, because people search for them.
"""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.query.promql import ast
from watchkeeper.query.promql.ast import ValueType
from watchkeeper.query.promql.functions import AGGREGATION_PARAMETERS, FUNCTIONS, Function
from watchkeeper.query.promql.parse_errors import ParseError

COMPARISONS = frozenset({"==", "!=", ">", "<", ">=", "<="})
TRIMS = frozenset({"</", ">/"})
SET_OPERATORS = frozenset({"and", "or", "unless"})
SCALAR, INSTANT = ValueType.SCALAR, ValueType.INSTANT
FIXED_TYPES: dict[type, ValueType] = {
    ast.Number: SCALAR,
    ast.String: ValueType.STRING,
    ast.Selector: INSTANT,
    ast.RangeSelector: ValueType.RANGE,
    ast.Subquery: ValueType.RANGE,
    ast.Aggregate: INSTANT,
}


def value_type(expr: ast.Expr) -> ValueType:
    fixed = FIXED_TYPES.get(type(expr))
    if fixed is not None:
        return fixed
    if isinstance(expr, ast.FunctionCall):
        return FUNCTIONS[expr.function].returns
    if isinstance(expr, ast.Paren | ast.Unary):
        return value_type(expr.expr)
    assert isinstance(expr, ast.Binary)
    both_scalar = value_type(expr.left) is SCALAR and value_type(expr.right) is SCALAR
    return SCALAR if both_scalar else INSTANT


def check_type(expr: ast.Expr, expected: ValueType, context: str) -> None:
    actual = value_type(expr)
    if actual is not expected:
        raise ParseError(f"expected type {expected} in {context}, got {actual}", expr.position)


def check_call(function: Function, args: tuple[ast.Expr, ...], position: int) -> None:
    count, max_args, name = len(args), function.max_args, function.name
    if not function.variadic and count != function.min_args:
        raise ParseError(f'expected {function.min_args} argument(s) in call to "{name}", got {count}', position)
    if count < function.min_args:
        raise ParseError(
            f'expected at least {function.min_args} argument(s) in call to "{name}", got {count}', position
        )
    if max_args is not None and count > max_args:
        raise ParseError(f'expected at most {max_args} argument(s) in call to "{name}", got {count}', position)
    last_type = len(function.args) - 1
    for index, arg in enumerate(args):
        check_type(arg, function.args[min(index, last_type)], f'call to function "{name}"')
    if name == "info" and count > 1 and not (isinstance(args[1], ast.Selector) and args[1].name is None):
        raise ParseError("expected label selectors only", args[1].position)


def check_aggregate(aggregate: ast.Aggregate) -> None:
    check_type(aggregate.expr, INSTANT, "aggregation expression")
    if aggregate.parameter is not None:
        check_type(aggregate.parameter, AGGREGATION_PARAMETERS[aggregate.op], "aggregation parameter")


def check_unary(unary: ast.Unary) -> None:
    actual = value_type(unary.expr)
    if actual is not SCALAR and actual is not INSTANT:
        raise ParseError(
            f"unary expression only allowed on expressions of type scalar or instant vector, got {actual}",
            unary.position,
        )


def resolve_matching(
    op: str, sides: tuple[ast.Expr, ast.Expr], *, matching: ast.Matching, returns_bool: bool, position: int
) -> ast.Matching | None:
    """Check a binary expression and return its matching: None with a scalar, many-to-many for set operators."""
    left, right = value_type(sides[0]), value_type(sides[1])
    for actual, expr in ((left, sides[0]), (right, sides[1])):
        if actual is not SCALAR and actual is not INSTANT:
            raise ParseError("binary expression must contain only scalar and instant vector types", expr.position)
    is_comparison, is_set = op in COMPARISONS, op in SET_OPERATORS
    if returns_bool and not is_comparison:
        raise ParseError("bool modifier can only be used on comparison operators", position)
    if matching.is_on and (repeated := set(matching.labels) & set(matching.include)):
        raise ParseError(f'label "{min(repeated)}" must not occur in ON and GROUP clause at once', position)
    has_fill = matching.fill_left is not None or matching.fill_right is not None
    if has_fill and is_set:
        raise ParseError(f'filling in missing series not allowed for set operator "{op}"', position)
    if left is SCALAR or right is SCALAR:
        if is_set:
            raise ParseError(f'set operator "{op}" not allowed in binary scalar expression', position)
        if op in TRIMS and left is right:
            raise ParseError(f'operator "{op}" not allowed for Scalar operations', position)
        if is_comparison and not returns_bool and left is right:
            raise ParseError("comparisons between scalars must use BOOL modifier", position)
        if matching.labels:
            raise ParseError("vector matching only allowed between instant vectors", position)
        if has_fill:
            raise ParseError("filling in missing series only allowed between instant vectors", position)
        return None
    if is_set and matching.kind is not ast.MatchKind.ONE_TO_ONE:
        raise ParseError(f'no grouping allowed for "{op}" operation', position)
    return ast.Matching(ast.MatchKind.MANY_TO_MANY, matching.is_on, labels=matching.labels) if is_set else matching


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
