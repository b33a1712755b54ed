"""What type an expression has, and which types may meet.

The parser checks every node as it builds it; the evaluator and the rules ask `value_type`. The
wording of a mismatch is Prometheus' own, because people search for it.
"""

from __future__ import annotations

from watchkeeper.query.promql import ast
from watchkeeper.query.promql.ast import ValueType
from watchkeeper.query.promql.functions import AGGREGATION_PARAMETERS, FUNCTIONS, Function
from watchkeeper.query.promql.mistakes import Mistake

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
    """The type of a well-formed expression."""
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


def expect(expr: ast.Expr, wanted: ValueType, context: str) -> None:
    got = value_type(expr)
    if got is not wanted:
        raise Mistake(f"expected type {wanted} in {context}, got {got}", expr.position)


def check_call(function: Function, args: tuple[ast.Expr, ...], position: int) -> None:
    count, most, name = len(args), function.most, function.name
    if not function.variadic and count != function.fewest:
        raise Mistake(f'expected {function.fewest} argument(s) in call to "{name}", got {count}', position)
    if count < function.fewest:
        raise Mistake(f'expected at least {function.fewest} argument(s) in call to "{name}", got {count}', position)
    if most is not None and count > most:
        raise Mistake(f'expected at most {most} argument(s) in call to "{name}", got {count}', position)
    last = len(function.args) - 1
    for at, arg in enumerate(args):
        expect(arg, function.args[min(at, last)], f'call to function "{name}"')
    if name == "info" and count > 1 and not (isinstance(args[1], ast.Selector) and args[1].name is None):
        raise Mistake("expected label selectors only", args[1].position)


def check_aggregate(aggregate: ast.Aggregate) -> None:
    expect(aggregate.expr, INSTANT, "aggregation expression")
    if aggregate.parameter is not None:
        expect(aggregate.parameter, AGGREGATION_PARAMETERS[aggregate.op], "aggregation parameter")


def check_unary(unary: ast.Unary) -> None:
    got = value_type(unary.expr)
    if got is not SCALAR and got is not INSTANT:
        raise Mistake(
            f"unary expression only allowed on expressions of type scalar or instant vector, got {got}", unary.position
        )


def settle_matching(
    op: str, sides: tuple[ast.Expr, ast.Expr], *, matching: ast.Matching, returns_bool: bool, at: int
) -> ast.Matching | None:
    """Check a binary expression, and say how its sides match.

    That is None where a side is a scalar, many-to-many for set operators, else as written.
    """
    left, right = value_type(sides[0]), value_type(sides[1])
    for got, expr in ((left, sides[0]), (right, sides[1])):
        if got is not SCALAR and got is not INSTANT:
            raise Mistake("binary expression must contain only scalar and instant vector types", expr.position)
    is_comparison, is_set = op in COMPARISONS, op in SET_OPERATORS
    if returns_bool and not is_comparison:
        raise Mistake("bool modifier can only be used on comparison operators", at)
    if matching.is_on and (twice := set(matching.labels) & set(matching.include)):
        raise Mistake(f'label "{min(twice)}" must not occur in ON and GROUP clause at once', at)
    has_fill = matching.fill_left is not None or matching.fill_right is not None
    if has_fill and is_set:
        raise Mistake(f'filling in missing series not allowed for set operator "{op}"', at)
    if left is SCALAR or right is SCALAR:
        if is_set:
            raise Mistake(f'set operator "{op}" not allowed in binary scalar expression', at)
        if op in TRIMS and left is right:
            raise Mistake(f'operator "{op}" not allowed for Scalar operations', at)
        if is_comparison and not returns_bool and left is right:
            raise Mistake("comparisons between scalars must use BOOL modifier", at)
        if matching.labels:
            raise Mistake("vector matching only allowed between instant vectors", at)
        if has_fill:
            raise Mistake("filling in missing series only allowed between instant vectors", at)
        return None
    if is_set and matching.kind is not ast.MatchKind.ONE_TO_ONE:
        raise Mistake(f'no grouping allowed for "{op}" operation', at)
    return ast.Matching(ast.MatchKind.MANY_TO_MANY, matching.is_on, labels=matching.labels) if is_set else matching
