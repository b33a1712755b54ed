"""The template functions for labels and annotations of rules, with Prometheus' names and rounding.

One table row per function. `template_reader` checks names when a rule file is loaded, so that an unknown function is
reported before an alert fires.
"""

from __future__ import annotations

import html
import ipaddress
import math
import re as stdlib_re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote_plus

import re2

from watchkeeper.kit import durations
from watchkeeper.rules.template_printf import GO_TYPES, Moment, format_value, printf

LARGE_PREFIXES = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SMALL_PREFIXES = ("", "m", "u", "n", "p", "f", "a", "z", "y")
BINARY_PREFIXES = ("", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
GROUP = stdlib_re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
# Words with Unicode word boundaries: the x of world-x starts a word, the s of it's and the r of n1.rack do not.
WORD = stdlib_re.compile(r"\w+(?:['.’:]\w+)*")

FIRST_LETTER = stdlib_re.compile(r"[^\W\d_]")
HOST_AND_PORT = stdlib_re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*)):([^:\[\]]*)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
JS_ESCAPES = {letter: f"\\u{ord(letter):04X}" for letter in "<>&=" + "".join(map(chr, range(32)))}
JS_ESCAPES |= {"\\": "\\\\", "'": "\\'", '"': '\\"'}


class TemplateError(ValueError):
    """A template cannot be read or expanded; inside rules/ it becomes a problem of the file or the expanded text."""


def number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TemplateError(f"{format_value(value)!r} is not a number") from error


def humanize(value: Any) -> str:
    scaled, prefix = number(value), ""
    if scaled == 0 or not math.isfinite(scaled):
        return _format_4g(scaled)
    if abs(scaled) >= 1:
        scaled, prefix = _scale(scaled, LARGE_PREFIXES, by=1000)
    else:
        for prefix in SMALL_PREFIXES:
            if abs(scaled) >= 1 or prefix == SMALL_PREFIXES[-1]:
                break
            scaled *= 1000
    return _format_4g(scaled) + prefix


def humanize1024(value: Any) -> str:
    scaled, prefix = number(value), ""
    if abs(scaled) > 1 and math.isfinite(scaled):
        scaled, prefix = _scale(scaled, BINARY_PREFIXES, by=1024)
    return _format_4g(scaled) + prefix


def humanize_duration(value: Any) -> str:
    seconds = number(value)
    if not math.isfinite(seconds):
        return _format_4g(seconds)
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
    return f"{sign}{minute}m {second}s" if minutes else f"{sign}{_format_4g(length)}s"


def humanize_timestamp(value: Any) -> str:
    seconds = number(value)
    return str(to_time(seconds)) if math.isfinite(seconds) else _format_4g(seconds)


def to_time(value: Any) -> Moment:
    """Convert seconds to a time; as in Prometheus, fractions of a millisecond are truncated."""
    nanoseconds = number(value) * 1e9
    if not abs(nanoseconds) < 2.0**63:
        raise TemplateError(f"{format_value(number(value))} cannot be represented as a nanoseconds timestamp")
    return Moment(EPOCH + timedelta(milliseconds=int(nanoseconds / 1e6)))


def re_replace_all(pattern: Any, replacement: Any, text: Any) -> str:
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

    return str(_compile(str(pattern)).sub(expand, str(text)))


def first(rows: Any) -> Any:
    if not rows:
        raise TemplateError("first() called on a vector with no elements")
    return rows[0]


def label_of(name: Any, row: Any) -> str:
    return str(_row(row)["Labels"].get(str(name), ""))


def index(value: Any, key: Any) -> Any:
    try:
        return value.get(key, "") if isinstance(value, Mapping) else value[int(key)]
    except (IndexError, TypeError, ValueError) as error:
        raise TemplateError(f"index out of range: {format_value(key)}") from error


def sprint(*values: Any) -> str:
    """Go's Sprint: a space between two values if neither is a string."""
    texts = [format_value(value) for value in values[:1]]
    for before, value in pairwise(values):
        separator = "" if isinstance(before, str) or isinstance(value, str) else " "
        texts.append(separator + format_value(value))
    return "".join(texts)


def upper(character: str) -> str:
    """Convert a character to upper case as Go does, which keeps ß because its upper case has two letters."""
    return character.upper() if len(character.upper()) == 1 else character


def parse_duration(text: Any) -> float:
    try:
        return durations.parse_ms(str(text)) / 1000
    except ValueError as error:
        raise TemplateError(str(error)) from error


def strip_domain(text: Any) -> str:
    """The first part of a host name, with its port; an IP address is not changed."""
    host, port = _host_and_port(str(text))
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.split(".")[0] + (f":{port}" if port else "")
    return str(text)


def _host_and_port(text: str) -> tuple[str, str | None]:
    """Split n1:9400 and [::1]:9400; any other text is a host without a port."""
    match = HOST_AND_PORT.fullmatch(text)
    return (text, None) if match is None else (match[1] or match[2] or "", match[3])


def equal(value: Any, *others: Any) -> bool:
    return any(_comparable(value, other) and value == other for other in others)


def _comparable(left: Any, right: Any) -> bool:
    """Refuse to compare an integer with a float, as Go does: `gt $value 5` fails, `gt $value 5.0` works."""
    go_types = [GO_TYPES.get(type(side)) for side in (left, right)]
    if go_types[0] != go_types[1] and None not in (left, right):
        raise TemplateError(f"incompatible types for comparison: {go_types[0] or 'value'} and {go_types[1] or 'value'}")
    return True


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def compare(left: Any, right: Any) -> bool:
        return _comparable(left, right) and holds(left, right)

    return compare


def slice_value(value: Any, start: int = 0, stop: int | None = None) -> Any:
    """Go's `slice`: the bytes of a text or the items of a list, from `start` to before `stop`."""
    items = value.encode() if isinstance(value, str) else value
    end = len(items) if stop is None else stop
    if not 0 <= start <= end <= len(items):
        raise TemplateError(f"{start} to {end} is out of range, the length is {len(items)}")
    return items[start:end].decode(errors="replace") if isinstance(value, str) else items[start:end]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": lambda value: _format_4g(number(value) * 100) + "%",
    "humanizeTimestamp": humanize_timestamp,
    "printf": printf,
    "print": sprint,
    "println": lambda *values: " ".join(format_value(value) for value in values) + "\n",
    "html": lambda *values: html.escape(sprint(*values)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "urlquery": lambda *values: quote_plus(sprint(*values)),
    "title": lambda text: WORD.sub(
        lambda word: FIRST_LETTER.sub(lambda letter: upper(letter[0]), word[0], count=1), format_value(text)
    ),
    "toUpper": lambda text: "".join(map(upper, format_value(text))),
    "toLower": lambda text: format_value(text).lower(),
    "toTime": to_time,
    "parseDuration": parse_duration,
    "graphLink": lambda expr: f"/graph?g0.expr={quote_plus(format_value(expr))}&g0.tab=0",
    "tableLink": lambda expr: f"/graph?g0.expr={quote_plus(format_value(expr))}&g0.tab=1",
    "safeHtml": format_value,
    "args": lambda *values: {f"arg{at}": value for at, value in enumerate(values)},
    "reReplaceAll": re_replace_all,
    "match": lambda pattern, text: _compile(str(pattern)).search(str(text)) is not None,
    "stripPort": lambda text: _host_and_port(str(text))[0],
    "stripDomain": strip_domain,
    "first": first,
    "value": lambda row: _row(row)["Value"],
    "label": label_of,
    "strvalue": lambda row: label_of("__value__", row),
    "sortByLabel": lambda name, rows: sorted(rows, key=lambda row: label_of(name, row)),
    "index": index,
    "slice": slice_value,
    "js": lambda *values: "".join(JS_ESCAPES.get(letter, letter) for letter in sprint(*values)),
    "len": lambda value: len(value.encode() if isinstance(value, str) else value),
    "not": lambda value: not value,
    "eq": equal,
    "ne": lambda left, right: not equal(left, right),
    "lt": _ordered(lambda left, right: bool(left < right)),
    "le": _ordered(lambda left, right: bool(left <= right)),
    # Negated as in Go, which matters for NaN.
    "gt": _ordered(lambda left, right: not left <= right),
    "ge": _ordered(lambda left, right: not left < right),
}


def _format_4g(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else format_value(value)


def _scale(value: float, prefixes: Sequence[str], *, by: int) -> tuple[float, str]:
    for prefix in prefixes[:-1]:
        if abs(value) < by:
            return value, prefix
        value /= by
    return value, prefixes[-1]


def _row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or "Value" not in value:
        raise TemplateError(f"{format_value(value)} is not a sample of a query result")
    return value


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern)
    except re2.error as error:
        raise TemplateError(f"bad regular expression {pattern!r}: {error}") from error
