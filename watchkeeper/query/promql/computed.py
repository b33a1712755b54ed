"""Durations that are computed: `[5m * 2]`, `[1h:step()]`, `offset max_of(step(), 1m)`.

The parser reads them where a range, a step or an offset stands. What holds for every query is worked out there and
then; what depends on the step or the length of a query stays in the tree, and the evaluator asks `milliseconds`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.query.promql.ast import DurationExpr
from watchkeeper.query.promql.lexer import COMMENT, Brackets, Token, literal, read_brackets, round_ms, tokenize
from watchkeeper.query.promql.mistakes import Mistake, TooDeep, complain

BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2, "^": 3}
UNARY_BINDING, POWER_BINDING = 2, 3
# What is only known while a query runs: its step, and the time from its start to its end.
OF_QUERY = frozenset({"step", "range"})
CHOICES = frozenset({"min_of", "max_of"})
CALCULATION = re.compile(r"[-+*/%^(]")
STARTS = OF_QUERY | CHOICES
# Where nothing is known about the query, as when an expression is only checked, a step has a second.
UNKNOWN_MS = 1000


class Known(NamedTuple):
    """What the query says about time, in milliseconds."""

    step_ms: int = UNKNOWN_MS
    range_ms: int = UNKNOWN_MS


def milliseconds(duration: DurationExpr, known: Known = Known(), *, is_positive: bool = False) -> int:  # noqa: B008 (a tuple)
    """The duration in a query; QueryError where it has none."""
    seconds = _seconds(duration, known)
    if math.isnan(seconds) or abs(seconds) * 1000 > durations.MAX_MS:
        raise errors.QueryError("duration out of range")
    found = round_ms(seconds)
    if is_positive and found <= 0:
        raise errors.QueryError(f"duration must be greater than 0, it is {found / 1000:g} s in this query")
    return found


def _seconds(duration: DurationExpr, known: Known) -> float:
    if duration.op in OF_QUERY:
        return (known.step_ms if duration.op == "step" else known.range_ms) / 1000
    if not duration.args:
        return duration.seconds
    values = [_seconds(each, known) for each in duration.args]
    if duration.op in CHOICES:
        return min(values) if duration.op == "min_of" else max(values)
    return -values[0] if len(values) == 1 else _calculated(duration.op, *values)


def _calculated(op: str, left: float, right: float) -> float:
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
    """Whether it is the same in every query."""
    return duration.op not in OF_QUERY and all(map(is_fixed, duration.args))


def to_text(duration: DurationExpr) -> str:
    if duration.op in OF_QUERY:
        return f"{duration.op}()"
    if duration.op in CHOICES:
        return f"{duration.op}({', '.join(map(to_text, duration.args))})"
    if not duration.args:
        return durations.format_ms(round_ms(duration.seconds))
    shown = [f"({to_text(each)})" if each.op in BINDING else to_text(each) for each in duration.args]
    return f"-{shown[0]}" if len(shown) == 1 else f"{shown[0]} {duration.op} {shown[1]}"


def ranged(text: str, *, deepest: int) -> Brackets:
    """A range or subquery selector, calculated or not; positions in its mistakes count from the bracket."""
    if not CALCULATION.search(text):
        return read_brackets(text)
    inside = COMMENT.sub("", text)[1:-1]
    if not CALCULATION.search(inside):
        return read_brackets(text)
    range_text, colon, step_text = inside.partition(":")
    range_ms, range_by = _settled(range_text, deepest=deepest)
    if not step_text.strip():
        return Brackets(range_ms, bool(colon), None, range_by)
    step_ms, step_by = _settled(step_text, deepest=deepest)
    return Brackets(range_ms, True, step_ms, range_by, step_by)


def _settled(text: str, *, deepest: int) -> tuple[int, DurationExpr | None]:
    tokens = tokenize(text)
    reader = Reader(tokens, 0, deepest=deepest)
    found = reader.expression()
    kind, rest, _ = tokens[reader.at]
    if kind != "end":
        raise Mistake(complain(kind, rest, context="duration", expected='"]"'), 0)
    return settled(found, 0, is_positive=True)


def settled(duration: DurationExpr, position: int, *, is_positive: bool = False) -> tuple[int, DurationExpr | None]:
    """Milliseconds, and the duration itself where a query must work it out anew."""
    try:
        if is_fixed(duration):
            return milliseconds(duration, is_positive=is_positive), None
        return milliseconds(duration), duration
    except errors.QueryError as error:
        if is_fixed(duration):
            raise Mistake(error.problem, position) from error
        return UNKNOWN_MS, duration


class Reader:
    """Reads durations out of tokens; `at` is where the next one stands."""

    def __init__(self, tokens: Sequence[Token], at: int, *, deepest: int) -> None:
        self._tokens = tokens
        self._deepest = deepest
        self._depth = self._operators = 0
        self.at = at

    def expression(self, loosest: int = 0) -> DurationExpr:
        self._depth += 1
        self._grow()
        left = self.operand()
        while (binding := BINDING.get(op := self._tokens[self.at][0], 0)) > loosest:
            self.at += 1
            self._operators += 1
            self._grow()
            right = self.expression(binding - 1 if binding == POWER_BINDING else binding)
            left = DurationExpr(op, (left, right))
        self._depth -= 1
        return left

    def _grow(self) -> None:
        """Refuse what would be too high for those who walk it by recursion."""
        if self._depth + self._operators > self._deepest:
            raise TooDeep(self._tokens[self.at][2], self._deepest)

    def operand(self) -> DurationExpr:
        """One duration with its sign: what `offset` takes."""
        kind = self._tokens[self.at][0]
        if kind in ("+", "-"):
            self.at += 1
            inner = self.expression(UNARY_BINDING)
            return DurationExpr("-", (inner,)) if kind == "-" else inner
        return self.primary()

    def primary(self) -> DurationExpr:
        kind, text, position = self._tokens[self.at]
        word = text.lower() if kind == "name" else ""
        self.at += 1
        if kind in ("number", "duration"):
            return DurationExpr("", seconds=literal(kind, text, position))
        if kind == "(":
            inner = self.expression()
            self._take(")")
            return inner
        if word not in STARTS:
            self.at -= 1
            raise Mistake(complain(kind, text, context="duration", expected="duration or number"), position)
        self._take("(")
        args: tuple[DurationExpr, ...] = ()
        if word in CHOICES:
            first = self.expression()
            self._take(",")
            args = (first, self.expression())
        self._take(")")
        return DurationExpr(word, args)

    def _take(self, kind: str) -> None:
        found, text, position = self._tokens[self.at]
        if found != kind:
            raise Mistake(complain(found, text, context="duration", expected=f'"{kind}"'), position)
        self.at += 1
