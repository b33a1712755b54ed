"""Values as Go prints them: in a text, and by the verbs of `printf`.

`template_functions` has the functions that use it. A verb that does not fit its value is shown, as in Go.
"""

from __future__ import annotations

import math
import re as stdlib_re
from collections.abc import Callable, Mapping
from typing import Any

from watchkeeper.query.evaluate.notes import go_number

# %-8.2f, %[1]s: flags, width, precision, which value, verb.
VERB = stdlib_re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d*))?(?:\[(\d+)\])?(.)?", stdlib_re.DOTALL)
ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b", "\f": "\\f"}
KINDS = {bool: "bool", int: "int", float: "float64", str: "string"}


class Struct(dict[str, Any]):
    """What Go has as a struct: it has these fields and no others."""


def show(value: Any) -> str:
    """A value as Go's text/template prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return go_number(value)
    if isinstance(value, Struct):
        return "{" + " ".join(show(item) for item in value.values()) + "}"
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{show(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(show(item) for item in value) + "]"
    return str(value)


def printf(form: Any, *args: Any) -> str:
    """Go's Sprintf, without widths that are values themselves."""
    at, is_reordered = 0, False

    def one(match: stdlib_re.Match[str]) -> str:
        nonlocal at, is_reordered
        flags, width, precision, which, verb = match.groups()
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        if which is not None:
            at, is_reordered = int(which) - 1, True
        if not 0 <= at < len(args):
            return f"%!{verb}(BADINDEX)" if which is not None else f"%!{verb}(MISSING)"
        at += 1
        return _verb(args[at - 1], verb, spec=f"{flags}{width}", precision=precision)

    text = VERB.sub(one, str(form))
    rest = () if is_reordered else args[at:]
    return text + (f"%!(EXTRA {', '.join(_with_type(item) for item in rest)})" if rest else "")


def _verb(value: Any, verb: str, *, spec: str, precision: str | None) -> str:
    point = "" if precision is None else f".{precision}"
    if verb == "T":
        return f"%{spec}s" % KINDS.get(type(value), "value")
    if verb == "v" and value is None:
        return f"%{spec}s" % "<nil>"
    write: Callable[[Any, str, str, str], str | None] = _other
    if isinstance(value, float):
        write = _float
    elif isinstance(value, int) and not isinstance(value, bool):
        write = _int
    elif isinstance(value, str):
        write = _text
    written = write(value, verb, spec, point)
    return f"%!{verb}({_with_type(value)})" if written is None else written


def _float(value: float, verb: str, spec: str, point: str) -> str | None:
    if verb not in "veEfFgG":
        return None
    if not math.isfinite(value) or (verb in "vgG" and not point):
        text = show(value).replace("e", "E") if verb == "G" else show(value)
        return f"%{spec}s" % (f"+{text}" if "+" in spec and text[0] not in "+-N" else text)
    return f"%{spec}{point}{'g' if verb == 'v' else verb}" % value


def _int(value: int, verb: str, spec: str, point: str) -> str | None:
    if verb in "vdxXo":
        return f"%{spec}{point}{'d' if verb == 'v' else verb}" % value
    spelled = {"b": f"{value:b}", "U": f"U+{value:04X}"}
    if verb in "cq" and 0 <= value < 0x110000:
        spelled |= {"c": chr(value), "q": f"'{chr(value)}'"}
    return f"%{spec}s" % spelled[verb] if verb in spelled else None


def _text(value: str, verb: str, spec: str, point: str) -> str | None:
    if verb in "sv":
        return f"%{spec}{point}s" % value
    spelled = {"q": _quoted(value), "x": value.encode().hex(), "X": value.encode().hex().upper()}
    return f"%{spec}s" % spelled[verb] if verb in spelled else None


def _other(value: Any, verb: str, spec: str, point: str) -> str | None:
    """Truths, maps, lists and what has no printf of its own."""
    fits = verb in "tv" if isinstance(value, bool) else verb in "sv" and value is not None
    return f"%{spec}{point}s" % show(value) if fits else None


def _quoted(text: str) -> str:
    def one(character: str) -> str:
        if character in ESCAPES or character.isprintable():
            return ESCAPES.get(character, character)
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"

    return '"' + "".join(map(one, text)) + '"'


def _with_type(value: Any) -> str:
    return "<nil>" if value is None else f"{KINDS.get(type(value), 'value')}={show(value)}"
