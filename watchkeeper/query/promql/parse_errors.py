"""Parse errors of PromQL, in Prometheus' words because people search for them.

The lexer, the type checks and the parser raise `ParseError` with a position; `parser.parse` converts it
to a QueryError with line and column.
"""

from __future__ import annotations

from watchkeeper import errors
from watchkeeper.query.promql.functions import AGGREGATIONS

EXPERIMENTAL = "Watchkeeper supports stable PromQL; in Prometheus this modifier is behind a feature flag"
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


class ParseError(Exception):
    """An error at a position of the expression, counted in characters."""

    def __init__(self, problem: str, position: int, remedy: str | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.position = position
        self.remedy = remedy

    def to_query_error(self, text: str) -> errors.QueryError:
        line, column = line_and_column(text, self.position)
        kind = errors.QueryLimit if isinstance(self, NestedTooDeep) else errors.QueryError
        return kind(self.problem, line=line, column=column, remedy=self.remedy)


def line_and_column(text: str, position: int) -> tuple[int, int]:
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


class NestedTooDeep(ParseError):
    def __init__(self, position: int, max_depth: int) -> None:
        super().__init__(
            f"expression is nested {max_depth + 1} levels deep or more, the limit is {max_depth}",
            position,
            "Group it with parentheses or use recording rules: a chain of n operators has n levels",
        )


def describe_token(kind: str, text: str) -> str:
    """A token as error messages name it: `identifier "x"`, `<op:+>`, `<by>`, `end of input`."""
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


def describe_unexpected(kind: str, text: str, *, context: str, expected: str) -> str:
    if kind == "bad":
        if len(text) > 1 or text.isdigit():
            return f"bad number or duration syntax: {quote(text)}"
        return UNCLOSED.get(text) or f"unexpected character: {text!r}"
    problem = f"unexpected {describe_token(kind, text)}"
    problem += f" in {context}" if context else ""
    return problem + (f", expected {expected}" if expected else "")


def quote(text: str) -> str:
    """Quote a text as Prometheus does, and truncate it if it is long."""
    return f'"{text}"' if len(text) <= errors.QUOTE_LIMIT else errors.quote(text)
