"""PromQL text to tokens: one regular expression, one pass, no backtracking.

The parser calls `tokenize` and then decodes the tokens it uses with `number`, `duration_ms` and
`unquote`. What stands in square brackets is one token, because `:` means something else in there.
A token that is no PromQL becomes a `bad` one: whether it is an error, and which, the parser says.
"""

from __future__ import annotations

import functools
import math
import re
from typing import NamedTuple, TypeAlias

from watchkeeper import errors
from watchkeeper.kit import durations
from watchkeeper.query.promql.ast import DurationExpr
from watchkeeper.query.promql.mistakes import Mistake

DIGITS = r"\d+(?:_\d+)*+"
HEX_OR_DECIMAL = rf"0[xX](?:_?[0-9a-fA-F])++|(?:{DIGITS}(?:\.(?:{DIGITS})?)?|\.{DIGITS})(?:[eE][+-]?{DIGITS})?"
DURATION = r"(?:\d+(?:ms|[smhdwy]))++"
# Possessive quantifiers (++, *+) keep the scan linear whatever the text is.
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


# kind, text, position. The kind is name, number, duration, string, bracket, end, bad, or the sign itself.
# A plain tuple: a named one takes longer to build than the rest of the scan.
Token: TypeAlias = tuple[str, str, int]


class Brackets(NamedTuple):
    """What `[5m]` or `[1h:5m]` says; `step_ms` None is the default resolution."""

    range_ms: int
    is_subquery: bool
    step_ms: int | None
    range_by: DurationExpr | None = None
    step_by: DurationExpr | None = None


def tokenize(text: str) -> list[Token]:
    """The tokens up to the end of the text or the first bad one, which is as far as a parser gets."""
    tokens: list[Token] = []
    for match in TOKEN.finditer(text):
        kind = match.lastgroup
        assert kind is not None  # `bad` takes whatever nothing else wants
        token = match[kind]
        tokens.append((token if kind == "op" else kind, token, match.start(kind)))
        if kind in ("end", "bad"):
            break
    return tokens


def number(text: str, position: int) -> float:
    """A number as Go reads it: 0x is hexadecimal, a leading 0 is octal if the digits allow it."""
    is_hex = text[:2] in ("0x", "0X")
    if is_hex or (text[0] == "0" and OCTAL.fullmatch(text)):
        digits = text[2:] if is_hex else text
        whole = int(digits.replace("_", ""), 16 if is_hex else 8)
        value = float(whole) if whole <= LARGEST_INTEGER else math.inf
    else:
        value = float(text)
    if math.isinf(value):
        raise Mistake(f"error parsing number: {errors.quote(text)} is out of range", position)
    return value


def duration_ms(text: str, position: int) -> int:
    """Milliseconds of `5m`, or of a number of seconds."""
    if text[-1] in "smhdwy":
        try:
            return durations.parse_ms(text)
        except ValueError as error:
            raise Mistake(f"not a valid duration string: {error}", position) from error
    seconds = number(text, position)
    if seconds * 1000 > durations.MAX_MS:
        raise Mistake("duration out of range", position)
    return round_ms(seconds)


def literal(kind: str, text: str, position: int) -> float:
    """The value of a number, or of a duration in seconds."""
    return number(text, position) if kind == "number" else duration_ms(text, position) / 1000


def round_ms(seconds: float) -> int:
    """Whole milliseconds, halves away from zero as Go rounds."""
    return int(math.copysign(math.floor(abs(seconds) * 1000 + 0.5), seconds))


# Rules and dashboards share a handful of windows: [5m], [1h], [30m:1m].
@functools.lru_cache(maxsize=512)
def read_brackets(text: str) -> Brackets:
    """A range or subquery selector; positions in its mistakes count from the bracket."""
    match = BRACKET.fullmatch(COMMENT.sub("", text))
    if match is None:
        raise _explain_brackets(text)
    range_text, colon, step_text = match.groups()
    step_ms = None if step_text is None else _positive_ms(step_text)
    return Brackets(_positive_ms(range_text), colon is not None, step_ms)


def _positive_ms(text: str) -> int:
    found = duration_ms(text, 0)
    if found <= 0:
        raise Mistake("duration must be greater than 0", 0)
    return found


def _explain_brackets(text: str) -> Mistake:
    inside = COMMENT.sub("", text)[1:-1].strip()
    if not inside:
        return Mistake('unexpected "]" in subquery or range selector, expected duration', 0)
    problem = f"bad duration in subquery or range selector: {errors.quote(inside)}"
    return Mistake(problem, 0, "Write [5m] or [1h:5m]")


def unquote(text: str, position: int) -> str:
    """The value of a string literal; back-quoted ones are raw, the others have Go's escapes."""
    mark, body = text[0], text[1:-1]
    if mark == "`" or "\\" not in body:
        return body
    parts, done = bytearray(), 0
    for match in ESCAPE.finditer(body):
        parts += body[done : match.start()].encode()
        parts += _unescape(match, mark, at=position + 1 + match.start())
        done = match.end()
    parts += body[done:].encode()
    try:
        return parts.decode()
    except UnicodeDecodeError as error:
        raise Mistake("string is not valid UTF-8", position, "Check its \\x and octal escapes") from error


def _unescape(match: re.Match[str], mark: str, *, at: int) -> bytes:
    letter, octal, byte, short, long, _ = match.groups()
    if letter is not None and (letter not in "'\"" or letter == mark):
        return bytes([ONE_LETTER[letter]]) if letter in ONE_LETTER else letter.encode()
    if octal is not None or byte is not None:
        code = int(octal, 8) if octal else int(byte, 16)
        if code > 255:
            raise Mistake("octal escape value > 255", at)
        return bytes([code])
    if short is None and long is None:
        raise Mistake(f"unknown escape sequence {errors.quote(match[0])}", at)
    code = int(short or long, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise Mistake("escape sequence is an invalid Unicode code point", at)
    return chr(code).encode()
