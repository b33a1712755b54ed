"""Duration expressions: `[5m * 2]`, `[1h:step()]`, `offset max_of(step(), 1m)`.

The parser reads them as a range, a step or an offset. A constant expression is evaluated by the parser; one that
depends on the step or the range of a query stays in the tree, and the evaluator calls `evaluate_ms`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.query.promql.ast import DurationExpr
from watchkeeper.query.promql.lexer import COMMENT, Brackets, Token, parse_literal, read_brackets, round_ms, tokenize
from watchkeeper.query.promql.parse_errors import NestedTooDeep, ParseError, describe_unexpected

BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 3}
UNARY_BINDING, POWER_BINDING = 2, 3
# Values of the running query: its step, and the time from its start to its end.
QUERY_FUNCTIONS = frozenset({"step", "range"})
CHOICE_FUNCTIONS = frozenset({"min_of", "max_of"})
CALCULATION = re.compile(r"[-+*/%^(]")
FUNCTIONS = QUERY_FUNCTIONS | CHOICE_FUNCTIONS
# The step and range if there is no query, for example if an expression is only checked.
DEFAULT_MS = 1000


class QueryTimes(NamedTuple):
    step_ms: int = DEFAULT_MS
    range_ms: int = DEFAULT_MS


def evaluate_ms(duration: DurationExpr, query_times: QueryTimes = QueryTimes(), *, is_positive: bool = False) -> int:  # noqa: B008 (a tuple)
    """Evaluate a duration expression in a query; QueryError if it is out of range."""
    seconds = _seconds(duration, query_times)
    if math.isnan(seconds) or abs(seconds) * 1000 > durations.MAX_MS:
        raise errors.QueryError("duration out of range")
    value_ms = round_ms(seconds)
    if is_positive and value_ms <= 0:
        raise errors.QueryError(f"duration must be greater than 0, it is {value_ms / 1000:g} s in this query")
    return value_ms


def _seconds(duration: DurationExpr, query_times: QueryTimes) -> float:
    if duration.op in QUERY_FUNCTIONS:
        return (query_times.step_ms if duration.op == "step" else query_times.range_ms) / 1000
    if not duration.args:
        return duration.seconds
    values = [_seconds(arg, query_times) for arg in duration.args]
    if duration.op in CHOICE_FUNCTIONS:
        return min(values) if duration.op == "min_of" else max(values)
    return -values[0] if len(values) == 1 else _apply(duration.op, *values)


def _apply(op: str, left: float, right: float) -> float:
    if op in ("/", "%") and right == 0:
        raise errors.QueryError(f"{'division' if op == '/' else 'modulo'} by zero in a duration")
    try:
        if op == "^":
            return math.pow(left, right)
    except (ValueError, OverflowError):
        return math.nan
    if op == "%":
        return math.fmod(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}.get(op, left / right if right else math.nan)


def is_fixed(duration: DurationExpr) -> bool:
    """Whether the duration is the same in every query."""
    return duration.op not in QUERY_FUNCTIONS and all(map(is_fixed, duration.args))


def to_text(duration: DurationExpr) -> str:
    if duration.op in QUERY_FUNCTIONS:
        return f"{duration.op}()"
    if duration.op in CHOICE_FUNCTIONS:
        return f"{duration.op}({', '.join(map(to_text, duration.args))})"
    if not duration.args:
        return durations.format_ms(round_ms(duration.seconds))
    operands = [f"({to_text(arg)})" if arg.op in BINDING else to_text(arg) for arg in duration.args]
    return f"-{operands[0]}" if len(operands) == 1 else f"{operands[0]} {duration.op} {operands[1]}"


def read_range(text: str, *, max_depth: int) -> Brackets:
    """Read `[…]` of a range or subquery, with or without calculations; error positions count from the bracket."""
    if not CALCULATION.search(text):
        return read_brackets(text)
    inside = COMMENT.sub("", text)[1:-1]
    if not CALCULATION.search(inside):
        return read_brackets(text)
    range_text, colon, step_text = inside.partition(":")
    range_ms, range_expr = _read_duration(range_text, max_depth=max_depth)
    if not step_text.strip():
        return Brackets(range_ms, bool(colon), None, range_expr)
    step_ms, step_expr = _read_duration(step_text, max_depth=max_depth)
    return Brackets(range_ms, True, step_ms, range_expr, step_expr)


def _read_duration(text: str, *, max_depth: int) -> tuple[int, DurationExpr | None]:
    tokens = tokenize(text)
    reader = DurationReader(tokens, 0, max_depth=max_depth)
    duration = reader.read_expression()
    kind, text, _ = tokens[reader.index]
    if kind != "end":
        raise ParseError(describe_unexpected(kind, text, context="duration", expected='"]"'), 0)
    return resolve(duration, 0, is_positive=True)


def resolve(duration: DurationExpr, position: int, *, is_positive: bool = False) -> tuple[int, DurationExpr | None]:
    """The duration in milliseconds, and its expression if each query must evaluate it."""
    try:
        if is_fixed(duration):
            return evaluate_ms(duration, is_positive=is_positive), None
        return evaluate_ms(duration), duration
    except errors.QueryError as error:
        if is_fixed(duration):
            raise ParseError(error.problem, position) from error
        return DEFAULT_MS, duration


class DurationReader:
    """Reads duration expressions from tokens; `index` is the position of the next token."""

    def __init__(self, tokens: Sequence[Token], index: int, *, max_depth: int) -> None:
        self._tokens = tokens
        self._max_depth = max_depth
        self._depth = self._operators = 0
        self.index = index

    def read_expression(self, min_binding: int = 0) -> DurationExpr:
        self._depth += 1
        self._check_depth()
        left = self.read_operand()
        while (binding := BINDING.get(op := self._tokens[self.index][0], 0)) > min_binding:
            self.index += 1
            self._operators += 1
            self._check_depth()
            right = self.read_expression(binding - 1 if binding == POWER_BINDING else binding)
            left = DurationExpr(op, (left, right))
        self._depth -= 1
        return left

    def _check_depth(self) -> None:
        """Refuse an expression that is too deep for a recursive evaluation."""
        if self._depth + self._operators > self._max_depth:
            raise NestedTooDeep(self._tokens[self.index][2], self._max_depth)

    def read_operand(self) -> DurationExpr:
        """One duration with its sign, as after `offset`."""
        kind = self._tokens[self.index][0]
        if kind in ("+", "-"):
            self.index += 1
            inner = self.read_expression(UNARY_BINDING)
            return DurationExpr("-", (inner,)) if kind == "-" else inner
        return self.read_primary()

    def read_primary(self) -> DurationExpr:
        kind, text, position = self._tokens[self.index]
        word = text.lower() if kind == "name" else ""
        self.index += 1
        if kind in ("number", "duration"):
            return DurationExpr("", seconds=parse_literal(kind, text, position))
        if kind == "(":
            inner = self.read_expression()
            self._expect(")")
            return inner
        if word not in FUNCTIONS:
            self.index -= 1
            raise ParseError(
                describe_unexpected(kind, text, context="duration", expected="duration or number"), position
            )
        self._expect("(")
        args: tuple[DurationExpr, ...] = ()
        if word in CHOICE_FUNCTIONS:
            first = self.read_expression()
            self._expect(",")
            args = (first, self.read_expression())
        self._expect(")")
        return DurationExpr(word, args)

    def _expect(self, kind: str) -> None:
        token_kind, text, position = self._tokens[self.index]
        if token_kind != kind:
            raise ParseError(describe_unexpected(token_kind, text, context="duration", expected=f'"{kind}"'), position)
        self.index += 1
