"""The functions that a rule's labels and annotations may call, spelled and rounded as Prometheus does.

One table row per function; `templates` looks names up here when a rule file is loaded, so a
misspelt one is found before anything fires.
"""

from __future__ import annotations

import math
import re as stdlib_re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import re2

LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SMALL = ("", "m", "u", "n", "p", "f", "a", "z", "y")
BINARY = ("", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
VERB = stdlib_re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d+))?([a-zA-Z%])")
GROUP = stdlib_re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
# Go prints a float with an exponent from 1e21 on, and below 1e-4; Python from 1e16 on.
GO_LARGEST_PLAIN, GO_SMALLEST_PLAIN = 1e21, 1e-4


class TemplateError(ValueError):
    """A template cannot be read or expanded; stays inside rules/, where it becomes a problem or a text."""


def show(value: Any) -> str:
    """A value as Go's text/template prints it."""
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _show_float(value)
    if isinstance(value, Mapping):
        return "map[" + " ".join(f"{key}:{show(item)}" for key, item in sorted(value.items())) + "]"
    if isinstance(value, (list, tuple)):
        return "[" + " ".join(show(item) for item in value) + "]"
    return str(value)


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"{show(value)!r} is not a number") from error


def is_true(value: Any) -> bool:
    """Go's truth: empty text, zero, nil and empty collections are false."""
    return bool(value)


def humanize(value: Any) -> str:
    scaled, prefix = number(value), ""
    if scaled == 0 or not math.isfinite(scaled):
        return _four(scaled)
    if abs(scaled) >= 1:
        scaled, prefix = _scale(scaled, LARGE, by=1000)
    else:
        for prefix in SMALL:
            if abs(scaled) >= 1 or prefix == SMALL[-1]:
                break
            scaled *= 1000
    return _four(scaled) + prefix


def humanize1024(value: Any) -> str:
    scaled = number(value)
    if abs(scaled) <= 1 or not math.isfinite(scaled):
        return _four(scaled)
    scaled, prefix = _scale(scaled, BINARY, by=1024)
    return _four(scaled) + prefix


def humanize_duration(value: Any) -> str:
    seconds = number(value)
    if not math.isfinite(seconds):
        return _four(seconds)
    if seconds == 0 or abs(seconds) < 1:
        return humanize(seconds) + "s"
    sign, length = "-" if seconds < 0 else "", abs(seconds)
    minutes, second = divmod(int(length), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{sign}{days}d {hour}h {minute}m {second}s"
    if hours:
        return f"{sign}{hour}h {minute}m {second}s"
    return f"{sign}{minute}m {second}s" if minutes else f"{sign}{_four(length)}s"


def humanize_percentage(value: Any) -> str:
    return _four(number(value) * 100) + "%"


def humanize_timestamp(value: Any) -> str:
    seconds = number(value)
    if not math.isfinite(seconds):
        return _four(seconds)
    try:
        at = datetime.fromtimestamp(round(seconds, 3), UTC)
    except (OverflowError, OSError, ValueError) as error:
        raise TemplateError(f"{show(seconds)} is not a time") from error
    fraction = f".{at.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{at:%Y-%m-%d %H:%M:%S}{fraction} +0000 UTC"


def printf(form: Any, *args: Any) -> str:
    """Go's Sprintf for the verbs that annotations use; a verb that does not fit its value is shown, as in Go."""
    rest = list(args)

    def one(match: stdlib_re.Match[str]) -> str:
        flags, width, precision, verb = match.groups()
        if verb == "%":
            return "%"
        if not rest:
            return f"%!{verb}(MISSING)"
        return _verb(rest.pop(0), verb, spec=f"{flags}{width}", precision=precision)

    text = VERB.sub(one, str(form))
    return text + (f"%!(EXTRA {', '.join(_with_type(item) for item in rest)})" if rest else "")


def re_replace_all(pattern: Any, replacement: Any, text: Any) -> str:
    compiled = _compile(str(pattern))

    def expand(match: Any) -> str:
        def group(reference: stdlib_re.Match[str]) -> str:
            name = reference.group(1) or reference.group(2)
            if name is None:
                return "$"
            try:
                return match.group(int(name) if name.isdigit() else name) or ""
            except (IndexError, KeyError):
                return ""

        return GROUP.sub(group, str(replacement))

    return str(compiled.sub(expand, str(text)))


def matches(pattern: Any, text: Any) -> bool:
    return _compile(str(pattern)).search(str(text)) is not None


def first(rows: Any) -> Any:
    if not rows:
        raise TemplateError("first() called on a vector with no elements")
    return rows[0]


def value_of(row: Any) -> Any:
    return _row(row)["Value"]


def label_of(name: Any, row: Any) -> str:
    return str(_row(row)["Labels"].get(str(name), ""))


def index(value: Any, key: Any) -> Any:
    try:
        return value.get(key, "") if isinstance(value, Mapping) else value[int(key)]
    except (IndexError, TypeError, ValueError) as error:
        raise TemplateError(f"index {show(key)} is not there") from error


def all_of(*values: Any) -> Any:
    return next((value for value in values if not is_true(value)), values[-1] if values else None)


def any_of(*values: Any) -> Any:
    return next((value for value in values if is_true(value)), values[-1] if values else None)


def equal(value: Any, *others: Any) -> bool:
    return any(value == other for other in others)


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def compare(left: Any, right: Any) -> bool:
        if isinstance(left, str) != isinstance(right, str):
            raise TemplateError("incompatible types for comparison")
        return holds(left, right)

    return compare


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
    "humanizeTimestamp": humanize_timestamp,
    "printf": printf,
    "print": lambda *values: "".join(show(value) for value in values),
    "title": lambda text: " ".join(word[:1].upper() + word[1:] for word in show(text).split(" ")),
    "toUpper": lambda text: show(text).upper(),
    "toLower": lambda text: show(text).lower(),
    "reReplaceAll": re_replace_all,
    "match": matches,
    "stripPort": lambda text: str(text).rsplit(":", 1)[0] if str(text).count(":") == 1 else str(text),
    "stripDomain": lambda text: str(text).split(".", 1)[0],
    "first": first,
    "value": value_of,
    "label": label_of,
    "sortByLabel": lambda name, rows: sorted(rows, key=lambda row: label_of(name, row)),
    "index": index,
    "len": len,
    "and": all_of,
    "or": any_of,
    "not": lambda value: not is_true(value),
    "eq": equal,
    "ne": lambda left, right: left != right,
    "lt": _ordered(lambda left, right: bool(left < right)),
    "le": _ordered(lambda left, right: bool(left <= right)),
    "gt": _ordered(lambda left, right: bool(left > right)),
    "ge": _ordered(lambda left, right: bool(left >= right)),
}
# Needs the engine, so `templates` supplies it with each expansion.
QUERY = "query"


def _show_float(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0 or GO_SMALLEST_PLAIN <= abs(value) < GO_LARGEST_PLAIN:
        return str(int(value)) if value == int(value) else repr(value)
    mantissa, _, exponent = repr(value).partition("e")
    return f"{mantissa}e{int(exponent):+03d}"


def _four(value: float) -> str:
    """Go's %.4g."""
    return f"{value:.4g}" if math.isfinite(value) else _show_float(value)


def _scale(value: float, prefixes: Sequence[str], *, by: int) -> tuple[float, str]:
    for prefix in prefixes[:-1]:
        if abs(value) < by:
            return value, prefix
        value /= by
    return value, prefixes[-1]


def _verb(value: Any, verb: str, *, spec: str, precision: str | None) -> str:
    point = "" if precision is None else f".{precision}"
    if verb in "feEgG" and isinstance(value, float):
        return f"%{spec}{point}{verb}" % value if math.isfinite(value) else f"%{spec}s" % show(value)
    if verb in "dxXo" and isinstance(value, int) and not isinstance(value, bool):
        return f"%{spec}{verb}" % value
    if verb == "v" or (verb == "s" and not isinstance(value, (bool, int, float))):
        return f"%{spec}{point}s" % show(value)
    if verb == "q" and isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"%!{verb}({_with_type(value)})"


def _with_type(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float64", str: "string"}
    return f"{kinds.get(type(value), 'value')}={show(value)}"


def _row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or "Value" not in value:
        raise TemplateError(f"{show(value)} is not a sample of a query")
    return value


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern)
    except re2.error as error:
        raise TemplateError(f"bad regular expression {pattern!r}: {error}") from error
