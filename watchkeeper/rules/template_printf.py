"""Format values and times as Go does: in text, by the verbs of `printf`, and with the methods of Go's time.Time.

A verb that does not match its value is printed as an error, as in Go. `(… | toTime).Format "2006-01-02"` uses Go's
layouts, which show how a reference time is formatted.
"""

from __future__ import annotations

import math
import re as stdlib_re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.query.evaluate.notes import format_go_number

# %-8.2f, %[1]s: flags, width, precision, argument number, verb.
VERB = stdlib_re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(?:\[(\d+)\])?(.)?", stdlib_re.DOTALL)
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b", "\f": "\\f"}
# Parts of Mon Jan 2 15:04:05 MST 2006, the longest of each kind first, and their strftime codes; times are in UTC.
NAMES = {"January": "%B", "Jan": "%b", "Monday": "%A", "Mon": "%a", "PM": "%p", "MST": "UTC"}
ZONES = {"Z07:00": "Z", "Z0700": "Z", "Z07": "Z", "-07:00": "+00:00", "-0700": "+0000", "-07": "+00"}
NUMBERS = {"2006": "%Y", "002": "%j", "01": "%m", "02": "%d", "03": "%I", "04": "%M", "05": "%S", "06": "%y"}
LAYOUT_PARTS = NAMES | ZONES | NUMBERS | {"15": "%H"}
LAYOUT = stdlib_re.compile(
    "|".join([*map(stdlib_re.escape, LAYOUT_PARTS), "pm", "_2(?!006)", r"[.,](?:0+|9+)(?!\d)", "[1-5]"])
)
GO_TYPES = {bool: "bool", int: "int", float: "float64", str: "string"}


class Struct(dict[str, Any]):
    """A Go struct: access to any other field is an error."""


def format_value(value: Any) -> str:
    """Format a value as Go's text/template does."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_go_number(value)
    if isinstance(value, Struct):
        return "{" + " ".join(format_value(item) for item in value.values()) + "}"
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{format_value(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(format_value(item) for item in value) + "]"
    return str(value)


def printf(form: Any, *args: Any) -> str:
    """Go's Sprintf, without widths from arguments (`%*d`)."""
    index, is_reordered = 0, False

    def replace_verb(match: stdlib_re.Match[str]) -> str:
        nonlocal index, is_reordered
        flags, width, precision, argument_number, verb = match.groups()
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        if argument_number is not None:
            index, is_reordered = int(argument_number) - 1, True
        if not 0 <= index < len(args):
            return f"%!{verb}(BADINDEX)" if argument_number is not None else f"%!{verb}(MISSING)"
        index += 1
        return _format_verb(args[index - 1], verb, spec=f"{flags}{width}", precision=precision)

    text = VERB.sub(replace_verb, str(form))
    rest = () if is_reordered else args[index:]
    return text + (f"%!(EXTRA {', '.join(_with_type(item) for item in rest)})" if rest else "")


def _format_verb(value: Any, verb: str, *, spec: str, precision: str | None) -> str:
    point = "" if precision is None else f".{precision}"
    if verb == "T":
        return f"%{spec}s" % GO_TYPES.get(type(value), "value")
    if verb == "v" and value is None:
        return f"%{spec}s" % "<nil>"
    formatted: str | None = None
    if isinstance(value, float):
        formatted = _format_float(value, verb, spec, point)
    elif isinstance(value, int) and not isinstance(value, bool):
        formatted = _format_int(value, verb, spec, point)
    elif isinstance(value, str):
        formatted = _format_text(value, verb, spec, point)
    elif verb in "tv" if isinstance(value, bool) else verb in "sv" and value is not None:
        formatted = f"%{spec}{point}s" % format_value(value)
    return f"%!{verb}({_with_type(value)})" if formatted is None else formatted


def _format_float(value: float, verb: str, spec: str, point: str) -> str | None:
    if verb not in "veEfFgG":
        return None
    if not math.isfinite(value) or (verb in "vgG" and not point):
        text = format_value(value).replace("e", "E") if verb == "G" else format_value(value)
        return f"%{spec}s" % (f"+{text}" if "+" in spec and text[0] not in "+-N" else text)
    return f"%{spec}{point}{'g' if verb == 'v' else verb}" % value


def _format_int(value: int, verb: str, spec: str, point: str) -> str | None:
    if verb in "vdxXo":
        return f"%{spec}{point}{'d' if verb == 'v' else verb}" % value
    by_verb = {"b": f"{value:b}", "U": f"U+{value:04X}"}
    if verb in "cq" and 0 <= value < 0x110000:
        by_verb |= {"c": chr(value), "q": f"'{chr(value)}'"}
    return f"%{spec}s" % by_verb[verb] if verb in by_verb else None


def _format_text(value: str, verb: str, spec: str, point: str) -> str | None:
    def escape(character: str) -> str:
        if character in ESCAPES or character.isprintable():
            return ESCAPES.get(character, character)
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    if verb in "sv":
        return f"%{spec}{point}s" % value
    by_verb = {"q": f'"{"".join(map(escape, value))}"', "x": value.encode().hex(), "X": value.encode().hex().upper()}
    return f"%{spec}s" % by_verb[verb] if verb in by_verb else None


def _with_type(value: Any) -> str:
    return "<nil>" if value is None else f"{GO_TYPES.get(type(value), 'value')}={format_value(value)}"


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime

    def __str__(self) -> str:
        return self.format("2006-01-02 15:04:05.999999999 -0700 MST")

    def format(self, layout: str) -> str:
        return LAYOUT.sub(lambda part: self._format_part(part[0]), layout)

    def _format_part(self, part: str) -> str:
        if part in LAYOUT_PARTS:
            return self.at.strftime(LAYOUT_PARTS[part])
        if part[0] in ".,":
            digits = f"{self.at.microsecond:06}".ljust(len(part) - 1, "0")[: len(part) - 1]
            shown = digits.rstrip("0") if part[1] == "9" else digits
            return part[0] + shown if shown else ""
        plain = {"pm": self.at.strftime("%p").lower(), "_2": f"{self.at.day:2}", "1": str(self.at.month)}
        plain |= {"2": str(self.at.day), "3": str((self.at.hour - 1) % 12 + 1)}
        return (plain | {"4": str(self.at.minute), "5": str(self.at.second)})[part]


METHODS: Mapping[str, Callable[..., Any]] = {
    "Format": lambda moment, layout: moment.format(str(layout)),
    "String": str,
    "UTC": lambda moment: moment,
    "Unix": lambda moment: int(moment.at.timestamp() // 1),
    "UnixMilli": lambda moment: int(moment.at.timestamp() * 1000 // 1),
    "Year": lambda moment: moment.at.year,
    "Month": lambda moment: moment.format("January"),
    "Day": lambda moment: moment.at.day,
    "Hour": lambda moment: moment.at.hour,
    "Minute": lambda moment: moment.at.minute,
    "Second": lambda moment: moment.at.second,
    "Weekday": lambda moment: moment.format("Monday"),
    "YearDay": lambda moment: int(moment.format("002")),
}
