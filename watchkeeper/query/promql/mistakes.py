"""What can be wrong with an expression, said in Prometheus' words because people search for them.

The lexer, the type checks and the parser raise `Mistake` with a place; the parser's edge turns it
into the QueryError that everyone else sees.
"""

from __future__ import annotations

from watchkeeper import errors
from watchkeeper.query.promql.functions import AGGREGATIONS

EXPERIMENTAL = "Watchkeeper speaks stable PromQL; this is an experiment behind a feature flag of Prometheus"
WORD_OPERATORS = frozenset({"and", "or", "unless", "atan2"})
SIGN_OPERATORS = frozenset(
    ("+", "-", "*", "/", "%", "^", "==", "!=", ">", "<", ">=", "<=", "</", ">/", "@", "=~", "!~")
)
KEYWORDS = frozenset({"bool", "on", "ignoring", "group_left", "group_right", "by", "without", "offset"})
UNCLOSED = {
    '"': "unterminated quoted string",
    "'": "unterminated quoted string",
    "`": "unterminated raw string",
    "[": "unclosed left bracket",
    "]": "unexpected right bracket ']'",
}


class Mistake(Exception):
    """Something is wrong at a place of the expression, counted in characters."""

    def __init__(self, problem: str, position: int, remedy: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.position = position
        self.remedy = remedy

    def as_error(self, text: str) -> errors.QueryError:
        line, column = place(text, self.position)
        kind = errors.QueryLimit if isinstance(self, TooDeep) else errors.QueryError
        return kind(self.problem, line=line, column=column, remedy=self.remedy)


def place(text: str, position: int) -> tuple[int, int]:
    """Line and column of a character, both counted from 1."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


class TooDeep(Mistake):
    def __init__(self, position: int, deepest: int) -> None:
        super().__init__(
            f"expression is nested {deepest + 1} levels deep or more; {deepest} are allowed",
            position,
            "A chain of n operators has n levels: group it with parentheses, or use recording rules",
        )


def describe(kind: str, text: str) -> str:
    """A token as an error names it: `identifier "x"`, `<op:+>`, `<by>`, `end of input`."""
    word = text.lower()
    if kind == "end":
        return "end of input"
    if kind == "name":
        if word in AGGREGATIONS:
            return f"<aggr:{word}>"
        if word in WORD_OPERATORS:
            return f"<op:{word}>"
        return f"<{word}>" if word in KEYWORDS else f"identifier {quote(text)}"
    if kind in ("number", "duration"):
        return f"{kind} {quote(text)}"
    if kind == "string":
        return f"string {text if len(text) <= errors.QUOTE_LIMIT else errors.quote(text)}"
    return f"<op:{text}>" if kind in SIGN_OPERATORS else f'"{text[: errors.QUOTE_LIMIT]}"'


def complain(kind: str, text: str, *, context: str, expected: str) -> str:
    """What to say about a token that has no place here."""
    if kind == "bad":
        return describe_bad(text)
    problem = f"unexpected {describe(kind, text)}"
    problem += f" in {context}" if context else ""
    return problem + (f", expected {expected}" if expected else "")


def describe_bad(text: str) -> str:
    """Why a piece of text is no token."""
    if len(text) > 1 or text.isdigit():
        return f"bad number or duration syntax: {quote(text)}"
    return UNCLOSED.get(text) or f"unexpected character: {text!r}"


def quote(text: str) -> str:
    """In double quotes as Prometheus has it, where the text is short."""
    return f'"{text}"' if len(text) <= errors.QUOTE_LIMIT else errors.quote(text)
