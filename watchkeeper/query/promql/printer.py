"""Print a tree as PromQL text in Prometheus' format: `to_text` on one line, `pretty` on several lines.

The API, the console and rule files show queries in this format, and it is the key of the query cache.
For every tree of the parser `parse(to_text(tree)) == tree`; a tree built by code gets the parentheses
that keep its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from watchkeeper.kit import durations
from watchkeeper.model import labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, duration_expr
from watchkeeper.query.promql.parser import BINDING, LABEL_NAME, NOT_LABELS, POWER_BINDING, UNARY_BINDING

# The width and the indent of Prometheus' own formatter (promql/parser/prettier.go).
WIDTH = 100
INDENT = "  "
ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
ESCAPES |= {"\\": "\\\\", '"': '\\"'}
ATOM_BINDING = POWER_BINDING + 1


def to_text(expr: ast.Expr) -> str:
    """The expression on one line, in canonical format."""
    if isinstance(expr, ast.Number):
        return _number(expr.value)
    if isinstance(expr, ast.String):
        return _quote(expr.value)
    if isinstance(expr, ast.Selector):
        return _selector(expr) + _modifiers(expr)
    if isinstance(expr, ast.RangeSelector):
        return f"{_selector(expr.selector)}[{_duration(expr.range_ms, expr.range_expr)}]{_modifiers(expr.selector)}"
    if isinstance(expr, ast.Subquery):
        return to_text(_parenthesize(expr.expr, ATOM_BINDING)) + _subquery_suffix(expr)
    if isinstance(expr, ast.Paren):
        return f"({to_text(expr.expr)})"
    if isinstance(expr, ast.Unary):
        return expr.op + to_text(_unary_operand(expr))
    if isinstance(expr, ast.Binary):
        left, right = map(to_text, _sides(expr))
        return f"{left} {_operator(expr)} {right}"
    if isinstance(expr, ast.Aggregate):
        args = (expr.expr,) if expr.parameter is None else (expr.parameter, expr.expr)
        return f"{_aggregate_head(expr)}({', '.join(map(to_text, args))})"
    return f"{expr.function}({', '.join(map(to_text, expr.args))})"


def pretty(expr: ast.Expr, level: int = 0) -> str:
    """The expression as Prometheus' format_query prints it: long lines are split and indented."""
    margin, line = INDENT * level, to_text(expr)
    if len(line) <= WIDTH or isinstance(expr, ast.Selector | ast.RangeSelector | ast.Number | ast.String):
        return margin + line
    if isinstance(expr, ast.Binary):
        left, right = (pretty(side, level + 1) for side in _sides(expr))
        return f"{left}\n{margin}{_operator(expr)}\n{right}"
    if isinstance(expr, ast.Unary):
        return f"{margin}{expr.op}{pretty(_unary_operand(expr), level).lstrip(' ')}"
    if isinstance(expr, ast.Subquery):
        return pretty(_parenthesize(expr.expr, ATOM_BINDING), level) + _subquery_suffix(expr)
    if isinstance(expr, ast.Paren):
        return _block(margin + "(", (expr.expr,), level)
    if isinstance(expr, ast.Aggregate):
        args = (expr.expr,) if expr.parameter is None else (expr.parameter, expr.expr)
        return _block(margin + _aggregate_head(expr) + "(", args, level)
    return _block(f"{margin}{expr.function}(", expr.args, level)


def _block(head: str, args: Iterable[ast.Expr], level: int) -> str:
    inside = ",\n".join(pretty(arg, level + 1) for arg in args)
    return f"{head}\n{inside}\n{INDENT * level})"


def _parenthesize(expr: ast.Expr, min_binding: int) -> ast.Expr:
    """Add parentheses if the expression binds looser than its position allows."""
    return expr if _binding(expr) >= min_binding else ast.Paren(expr, position=expr.position)


def _binding(expr: ast.Expr) -> int:
    if isinstance(expr, ast.Binary):
        return BINDING[expr.op]
    if isinstance(expr, ast.Unary) or (isinstance(expr, ast.Number) and math.copysign(1, expr.value) < 0):
        return UNARY_BINDING
    return ATOM_BINDING


def _sides(expr: ast.Binary) -> tuple[ast.Expr, ast.Expr]:
    binding = BINDING[expr.op]
    is_power = binding == POWER_BINDING
    left = _parenthesize(expr.left, ATOM_BINDING if is_power else binding)
    # No parentheses around a sign after an operator: 2 ^ -1.
    if isinstance(expr.right, ast.Unary | ast.Number):
        return left, expr.right
    return left, _parenthesize(expr.right, binding if is_power else binding + 1)


def _unary_operand(expr: ast.Unary) -> ast.Expr:
    return expr.expr if isinstance(expr.expr, ast.Unary) else _parenthesize(expr.expr, UNARY_BINDING + 1)


def _operator(expr: ast.Binary) -> str:
    parts = [expr.op]
    if expr.returns_bool:
        parts.append("bool")
    matching = expr.matching
    if matching is not None:
        is_grouped = matching.kind in (ast.MatchKind.MANY_TO_ONE, ast.MatchKind.ONE_TO_MANY)
        if matching.labels or matching.is_on or is_grouped:
            parts.append(f"{'on' if matching.is_on else 'ignoring'} ({_label_names(matching.labels)})")
        if is_grouped:
            side = "left" if matching.kind is ast.MatchKind.MANY_TO_ONE else "right"
            parts.append(f"group_{side} ({_label_names(matching.include)})")
        parts += _fill_modifiers(matching)
    return " ".join(parts)


def _fill_modifiers(matching: ast.Matching) -> list[str]:
    left, right = matching.fill_left, matching.fill_right
    if left is not None and right is not None and _number(left) == _number(right):
        return [f"fill ({_number(left)})"]
    sides = (("fill_left", left), ("fill_right", right))
    return [f"{word} ({_number(value)})" for word, value in sides if value is not None]


def _aggregate_head(expr: ast.Aggregate) -> str:
    if expr.is_without:
        return f"{expr.op} without ({_label_names(expr.grouping)}) "
    return f"{expr.op} by ({_label_names(expr.grouping)}) " if expr.grouping else expr.op


def _label_names(names: Iterable[str]) -> str:
    return ", ".join(map(_label_name, names))


def _label_name(name: str) -> str:
    return name if LABEL_NAME.fullmatch(name) and name.lower() not in NOT_LABELS else _quote(name)


def _selector(expr: ast.Selector) -> str:
    name_matcher = engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, expr.name or "")
    matcher_texts = sorted(
        f"{_label_name(matcher.name)}{matcher.op}{_quote(matcher.value)}"
        for matcher in expr.matchers
        if not expr.name or matcher != name_matcher
    )
    return f"{expr.name or ''}{{{','.join(matcher_texts)}}}" if matcher_texts or not expr.name else expr.name


def _modifiers(expr: ast.Selector | ast.Subquery) -> str:
    text = ""
    if isinstance(expr.at, ast.AtEdge):
        text += f" @ {expr.at}()"
    elif expr.at is not None:
        seconds, millis = divmod(abs(expr.at), 1000)
        text += f" @ {'-' if expr.at < 0 else ''}{seconds}.{millis:03}"
    if expr.offset_expr is not None:
        return f"{text} offset ({duration_expr.to_text(expr.offset_expr)})"
    return text + (f" offset {durations.format_ms(expr.offset_ms)}" if expr.offset_ms else "")


def _duration(fixed_ms: int, expr: ast.DurationExpr | None) -> str:
    return durations.format_ms(fixed_ms) if expr is None else duration_expr.to_text(expr)


def _subquery_suffix(expr: ast.Subquery) -> str:
    step = "" if expr.step_ms is None else _duration(expr.step_ms, expr.step_expr)
    return f"[{_duration(expr.range_ms, expr.range_expr)}:{step}]{_modifiers(expr)}"


def _number(value: float) -> str:
    """Format as Go's 'f' format does, but infinity has no plus sign: Prometheus parses `+Inf ^ 2` as +(Inf ^ 2)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


def _quote(text: str) -> str:
    return '"' + "".join(ESCAPES.get(char) or (char if char.isprintable() else _escape(char)) for char in text) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
