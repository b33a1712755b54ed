"""Format values as Go does: in text, and by the verbs of `printf`.

`template_functions` uses it. A verb that does not match its value is printed as an error, as in Go.
"""

from __future__ import annotations

import math
import re as stdlib_re
from collections.abc import Callable, Mapping
from typing import Any

from watchkeeper.query.evaluate.notes import format_go_number

# %-8.2f, %[1]s: flags, width, precision, argument number, verb.
VERB = stdlib_re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(?:\[(\d+)\])?(.)?", stdlib_re.DOTALL)
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b", "\f": "\\f"}
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
    precision_text = "" if precision is None else f".{precision}"
    if verb == "T":
        return f"%{spec}s" % GO_TYPES.get(type(value), "value")
    if verb == "v" and value is None:
        return f"%{spec}s" % "<nil>"
    format_kind: Callable[[Any, str, str, str], str | None] = _format_other
    if isinstance(value, float):
        format_kind = _format_float
    elif isinstance(value, int) and not isinstance(value, bool):
        format_kind = _format_int
    elif isinstance(value, str):
        format_kind = _format_text
    formatted = format_kind(value, verb, spec, precision_text)
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
    if verb in "sv":
        return f"%{spec}{point}s" % value
    by_verb = {"q": _quote(value), "x": value.encode().hex(), "X": value.encode().hex().upper()}
    return f"%{spec}s" % by_verb[verb] if verb in by_verb else None


def _format_other(value: Any, verb: str, spec: str, point: str) -> str | None:
    """Format booleans, maps, lists and other values."""
    fits = verb in "tv" if isinstance(value, bool) else verb in "sv" and value is not None
    return f"%{spec}{point}s" % format_value(value) if fits else None


def _quote(text: str) -> str:
    def escape(character: str) -> str:
        if character in ESCAPES or character.isprintable():
            return ESCAPES.get(character, character)
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return '"' + "".join(map(escape, text)) + '"'


def _with_type(value: Any) -> str:
    return "<nil>" if value is None else f"{GO_TYPES.get(type(value), 'value')}={format_value(value)}"
