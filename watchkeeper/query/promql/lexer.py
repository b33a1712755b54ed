"""Split PromQL text into tokens: one regular expression, one pass, no backtracking.

Square brackets and their content are one token, because `:` has another meaning inside. Invalid text becomes a `bad`
token, and the parser reports the error.
"""

from __future__ import annotations

import functools
import math
import re
from typing import NamedTuple, TypeAlias

from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.query.promql.ast import DurationExpr
from watchkeeper.query.promql.parse_errors import ParseError

DIGITS = r"\d+(?:_\d+)*+"
HEX_OR_DECIMAL = rf"0[xX](?:_?[0-9a-fA-F])++|(?:{DIGITS}(?:\.(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][+-]?{DIGITS})?"
DURATION = r"(?:\d+(?:ms|[smhdwy]))++"
# Possessive quantifiers (++, *+) keep the scan linear for any text.
TOKEN = re.compile(
    rf"""(?:[ \t\r\n]++|\#[^\n]*+)*+
    (?: (?P<name>[A-Za-z_:][\w:]*+)
      | (?P<op>==|=~|!=|!~|<=|>=|</|>/|[-+*/%^=<>(){{}},@])
      | (?P<duration>{DURATION})(?![\w.])
      | (?P<number>{HEX_OR_DECIMAL})(?![\w.])
      | (?P<string>"(?:[^"\\\n]|\\[^\n])*+"|'(?:[^'\\\n]|\\[^\n])*+'|`[^`]*+`)
      | (?P<bracket>\[(?:[^\]\#]|\#[^\n]*+)*+\])
      | (?P<end>\Z)
      | (?P<bad>\.?\d[\w.]*+|.)
    )""",
    re.VERBOSE | re.ASCII | re.DOTALL,
)
COMMENT = re.compile(r"#[^\n]*")
BRACKET = re.compile(
    rf"\[\s*+({DURATION}|{HEX_OR_DECIMAL})\s*+(?:(:)\s*+({DURATION}|{HEX_OR_DECIMAL})?\s*+)?\]", re.ASCII
)
ESCAPE = re.compile(r"\\(?:([abfnrtv\\'\"])|([0-7]{3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))")
ONE_LETTER = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
OCTAL = re.compile(r"0_?[0-7]+(?:_[0-7]+)*")
LARGEST_INTEGER = 2**63 - 1


# kind, text, position. The kind is name, number, duration, string, bracket, end, bad, or the operator itself.
# A plain tuple: building a named tuple takes longer than the rest of the scan.
Token: TypeAlias = tuple[str, str, int]


class Brackets(NamedTuple):
    """The content of `[5m]` or `[1h:5m]`; `step_ms` None is the default resolution."""

    range_ms: int
    is_subquery: bool
    step_ms: int | None
    range_expr: DurationExpr | None = None
    step_expr: DurationExpr | None = None


def tokenize(text: str) -> list[Token]:
    """The tokens up to the end of the text or the first bad token, where the parser stops."""
    tokens: list[Token] = []
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        assert kind is not None  # `bad` matches any other character
        token = match[kind]
        tokens.append((token if kind == "op" else kind, token, match.start(kind)))
        if kind in ("end", "bad"):
            break
    return tokens


def parse_number(text: str, position: int) -> float:
    """Parse a number as Go does: 0x is hexadecimal, a leading 0 is octal if the digits allow it."""
    is_hex = text[:2] in ("0x", "0X")
    if is_hex or (text[0] == "0" and OCTAL.fullmatch(text)):
        digits = text[2:] if is_hex else text
        integer = int(digits.replace("_", ""), 16 if is_hex else 8)
        value = float(integer) if integer <= LARGEST_INTEGER else math.inf
    else:
        value = float(text)
    if math.isinf(value):
        raise ParseError(f"error parsing number: {errors.quote(text)} is out of range", position)
    return value


def parse_duration_ms(text: str, position: int) -> int:
    """Parse `5m`, or a number of seconds, to milliseconds."""
    if text[-1] in "smhdwy":
        try:
            return durations.parse_ms(text)
        except ValueError as error:
            raise ParseError(f"not a valid duration string: {error}", position) from error
    seconds = parse_number(text, position)
    if seconds * 1000 > durations.MAX_MS:
        raise ParseError("duration out of range", position)
    return round_ms(seconds)


def parse_literal(kind: str, text: str, position: int) -> float:
    """Parse a number, or a duration to seconds."""
    return parse_number(text, position) if kind == "number" else parse_duration_ms(text, position) / 1000


def round_ms(seconds: float) -> int:
    """Round to whole milliseconds, halves away from zero as Go does."""
    return int(math.copysign(math.floor(abs(seconds) * 1000 + 0.5), seconds))


# Rules and dashboards use few different windows: [5m], [1h], [30m:1m].
@functools.lru_cache(maxsize=512)
def read_brackets(text: str) -> Brackets:
    """Read `[…]` of a range or subquery; error positions count from the bracket."""
    match = BRACKET.fullmatch(COMMENT.sub("", text))
    if match is None:
        inside = COMMENT.sub("", text)[1:-1].strip()
        if not inside:
            raise ParseError('unexpected "]" in subquery or range selector, expected duration', 0)
        problem = f"bad duration in subquery or range selector: {errors.quote(inside)}"
        raise ParseError(problem, 0, "Write [5m] or [1h:5m]")
    range_text, colon, step_text = match.groups()
    step_ms = None if step_text is None else _positive_ms(step_text)
    return Brackets(_positive_ms(range_text), colon is not None, step_ms)


def _positive_ms(text: str) -> int:
    value_ms = parse_duration_ms(text, 0)
    if value_ms <= 0:
        raise ParseError("duration must be greater than 0", 0)
    return value_ms


def unquote(text: str, position: int) -> str:
    """The value of a string literal; back-quoted strings are raw, others have Go's escapes."""
    quote_mark, body = text[0], text[1:-1]
    if quote_mark == "`" or "\\" not in body:
        return body
    parts, consumed = bytearray(), 0
    for match in ESCAPE.finditer(body):
        parts += body[consumed : match.start()].encode()
        parts += _unescape(match, quote_mark, at=position + 1 + match.start())
        consumed = match.end()
    parts += body[consumed:].encode()
    try:
        return parts.decode()
    except UnicodeDecodeError as error:
        raise ParseError("string is not valid UTF-8", position, "Check its \\x and octal escapes") from error


def _unescape(match: re.Match[str], quote_mark: str, *, at: int) -> bytes:
    letter, octal, byte, short, long, _ = match.groups()
    if letter is not None and (letter not in "'\"" or letter == quote_mark):
        return bytes([ONE_LETTER[letter]]) if letter in ONE_LETTER else letter.encode()
    if octal is not None or byte is not None:
        code = int(octal, 8) if octal else int(byte, 16)
        if code > 255:
            raise ParseError("octal escape value > 255", at)
        return bytes([code])
    if short is None and long is None:
        raise ParseError(f"unknown escape sequence {errors.quote(match[0])}", at)
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ParseError("escape sequence is an invalid Unicode code point", at)
    return chr(code).encode()
