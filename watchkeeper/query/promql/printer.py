"""Tree to PromQL text, as Prometheus writes it: `to_text` on one line, `pretty` on as many as it needs.

The API, the console and rule files show queries in this form, and it is the key of the query cache.
For every tree of the parser `parse(to_text(tree)) == tree`; a tree built by hand gets the parentheses
it needs to keep its meaning.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal

from watchkeeper.kit import durations
from watchkeeper.model import labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, computed
from watchkeeper.query.promql.parser import BINDING, LABEL_NAME, NOT_LABELS, POWER_BINDING, UNARY_BINDING

# The width and the indent of Prometheus' own formatter (promql/parser/prettier.go).
WIDTH = 100
INDENT = "  "
ESCAPES = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
ESCAPES |= {"\\": "\\\\", '"': '\\"'}
ATOM = POWER_BINDING + 1


def to_text(expr: ast.Expr) -> str:
    """The canonical spelling on one line."""
    if isinstance(expr, ast.Number):
        return _number(expr.value)
    if isinstance(expr, ast.String):
        return _quote(expr.value)
    if isinstance(expr, ast.Selector):
        return _selector(expr) + _times(expr)
    if isinstance(expr, ast.RangeSelector):
        return f"{_selector(expr.selector)}[{_duration(expr.range_ms, expr.range_by)}]{_times(expr.selector)}"
    if isinstance(expr, ast.Subquery):
        return to_text(_fenced(expr.expr, ATOM)) + _subquery_suffix(expr)
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
    """The spelling of Prometheus' format_query: what does not fit on a line is split and indented."""
    margin, line = INDENT * level, to_text(expr)
    if len(line) <= WIDTH or isinstance(expr, ast.Selector | ast.RangeSelector | ast.Number | ast.String):
        return margin + line
    if isinstance(expr, ast.Binary):
        left, right = (pretty(side, level + 1) for side in _sides(expr))
        return f"{left}\n{margin}{_operator(expr)}\n{right}"
    if isinstance(expr, ast.Unary):
        return f"{margin}{expr.op}{pretty(_unary_operand(expr), level).lstrip(' ')}"
    if isinstance(expr, ast.Subquery):
        return pretty(_fenced(expr.expr, ATOM), level) + _subquery_suffix(expr)
    if isinstance(expr, ast.Paren):
        return _block(margin + "(", (expr.expr,), level)
    if isinstance(expr, ast.Aggregate):
        args = (expr.expr,) if expr.parameter is None else (expr.parameter, expr.expr)
        return _block(margin + _aggregate_head(expr) + "(", args, level)
    return _block(f"{margin}{expr.function}(", expr.args, level)


def _block(head: str, args: Iterable[ast.Expr], level: int) -> str:
    inside = ",\n".join(pretty(arg, level + 1) for arg in args)
    return f"{head}\n{inside}\n{INDENT * level})"


def _fenced(expr: ast.Expr, tightest: int) -> ast.Expr:
    """The expression, in parentheses if it binds looser than its place allows."""
    return expr if _binding(expr) >= tightest else ast.Paren(expr, position=expr.position)


def _binding(expr: ast.Expr) -> int:
    if isinstance(expr, ast.Binary):
        return BINDING[expr.op]
    if isinstance(expr, ast.Unary) or (isinstance(expr, ast.Number) and math.copysign(1, expr.value) < 0):
        return UNARY_BINDING
    return ATOM


def _sides(expr: ast.Binary) -> tuple[ast.Expr, ast.Expr]:
    binding = BINDING[expr.op]
    is_power = binding == POWER_BINDING
    left = _fenced(expr.left, ATOM if is_power else binding)
    # After an operator a sign needs no parentheses: 2 ^ -1.
    if isinstance(expr.right, ast.Unary | ast.Number):
        return left, expr.right
    return left, _fenced(expr.right, binding if is_power else binding + 1)


def _unary_operand(expr: ast.Unary) -> ast.Expr:
    return expr.expr if isinstance(expr.expr, ast.Unary) else _fenced(expr.expr, UNARY_BINDING + 1)


def _operator(expr: ast.Binary) -> str:
    parts = [expr.op]
    if expr.returns_bool:
        parts.append("bool")
    matching = expr.matching
    if matching is not None:
        is_grouped = matching.kind in (ast.MatchKind.MANY_TO_ONE, ast.MatchKind.ONE_TO_MANY)
        if matching.labels or matching.is_on or is_grouped:
            parts.append(f"{'on' if matching.is_on else 'ignoring'} ({_names(matching.labels)})")
        if is_grouped:
            side = "left" if matching.kind is ast.MatchKind.MANY_TO_ONE else "right"
            parts.append(f"group_{side} ({_names(matching.include)})")
        parts += _fills(matching)
    return " ".join(parts)


def _fills(matching: ast.Matching) -> list[str]:
    left, right = matching.fill_left, matching.fill_right
    if left is not None and right is not None and _number(left) == _number(right):
        return [f"fill ({_number(left)})"]
    sides = (("fill_left", left), ("fill_right", right))
    return [f"{word} ({_number(value)})" for word, value in sides if value is not None]


def _aggregate_head(expr: ast.Aggregate) -> str:
    if expr.is_without:
        return f"{expr.op} without ({_names(expr.grouping)}) "
    return f"{expr.op} by ({_names(expr.grouping)}) " if expr.grouping else expr.op


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(_name, names))


def _name(name: str) -> str:
    return name if LABEL_NAME.fullmatch(name) and name.lower() not in NOT_LABELS else _quote(name)


def _selector(expr: ast.Selector) -> str:
    own_name = engine.Matcher(labels.METRIC_NAME, engine.MatchOp.EQUAL, expr.name or "")
    shown = sorted(f"{_name(m.name)}{m.op}{_quote(m.value)}" for m in expr.matchers if not expr.name or m != own_name)
    return f"{expr.name or ''}{{{','.join(shown)}}}" if shown or not expr.name else expr.name


def _times(expr: ast.Selector | ast.Subquery) -> str:
    text = ""
    if isinstance(expr.at, ast.AtEdge):
        text += f" @ {expr.at}()"
    elif expr.at is not None:
        seconds, rest = divmod(abs(expr.at), 1000)
        text += f" @ {'-' if expr.at < 0 else ''}{seconds}.{rest:03}"
    if expr.offset_by is not None:
        return f"{text} offset ({computed.to_text(expr.offset_by)})"
    return text + (f" offset {durations.format_ms(expr.offset_ms)}" if expr.offset_ms else "")


def _duration(fixed_ms: int, by: ast.DurationExpr | None) -> str:
    return durations.format_ms(fixed_ms) if by is None else computed.to_text(by)


def _subquery_suffix(expr: ast.Subquery) -> str:
    step = "" if expr.step_ms is None else _duration(expr.step_ms, expr.step_by)
    return f"[{_duration(expr.range_ms, expr.range_by)}:{step}]{_times(expr)}"


def _number(value: float) -> str:
    """As Go's 'f' format: the shortest digits that read back the same, never an exponent.

    Infinity has no plus, unlike in Go: Prometheus reads its own `+Inf ^ 2` as +(Inf ^ 2).
    """
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
