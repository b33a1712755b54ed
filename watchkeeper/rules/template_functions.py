"""The functions that a rule's labels and annotations may call, spelled and rounded as Prometheus does.

One table row per function; `templates` looks names up here when a rule file is loaded, so a
misspelt one is found before anything fires.
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
from watchkeeper.rules.template_printf import KINDS, printf, show
from watchkeeper.rules.template_time import Moment

LARGE = ("", "k", "M", "G", "T", "P", "E", "Z", "Y")
SMALL = ("", "m", "u", "n", "p", "f", "a", "z", "y")
BINARY = ("", "ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
GROUP = stdlib_re.compile(r"\$(?:\{(\w+)\}|(\w+)|\$)")
# A word as Unicode ends it: the x of world-x begins one, those of it's and n1.rack do not.
WORD = stdlib_re.compile(r"\w+(?:['.’:]\w+)*")

FIRST_LETTER = stdlib_re.compile(r"[^\W\d_]")
HOST_AND_PORT = stdlib_re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*)):([^:\[\]]*)")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SCRIPT = {letter: f"\\u{ord(letter):04X}" for letter in "<>&=" + "".join(map(chr, range(32)))}
SCRIPT |= {"\\": "\\\\", "'": "\\'", '"': '\\"'}


class TemplateError(ValueError):
    """A template cannot be read or expanded; stays inside rules/, where it becomes a problem or a text."""


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
    return str(to_time(seconds))


def to_time(value: Any) -> Moment:
    """As in Prometheus, what is less than a millisecond is cut off."""
    nanoseconds = number(value) * 1e9
    if not abs(nanoseconds) < 2.0**63:
        raise TemplateError(f"{show(number(value))} cannot be represented as a nanoseconds timestamp")
    return Moment(EPOCH + timedelta(milliseconds=int(nanoseconds / 1e6)))


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


def sprint(*values: Any) -> str:
    """Go's Sprint: a space between two values of which neither is a text."""
    texts = [show(value) for value in values[:1]]
    for before, value in pairwise(values):
        texts.append(show(value) if isinstance(before, str) or isinstance(value, str) else f" {show(value)}")
    return "".join(texts)


def upper(character: str) -> str:
    """Go has no capital of ß, because it is two letters."""
    return character.upper() if len(character.upper()) == 1 else character


def parse_duration(text: Any) -> float:
    try:
        return durations.parse_ms(str(text)) / 1000
    except ValueError as error:
        raise TemplateError(str(error)) from error


def strip_port(text: Any) -> str:
    host, port = _host_and_port(str(text))
    return str(text) if port is None else host


def strip_domain(text: Any) -> str:
    """The first part of a host name, with its port; an address stays as it is."""
    host, port = _host_and_port(str(text))
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.split(".")[0] + (f":{port}" if port else "")
    return str(text)


def _host_and_port(text: str) -> tuple[str, str | None]:
    """n1:9400 and [::1]:9400 taken apart; anything else is a host alone."""
    match = HOST_AND_PORT.fullmatch(text)
    return (text, None) if match is None else (match[1] or match[2] or "", match[3])


def equal(value: Any, *others: Any) -> bool:
    return any(_comparable(value, other) and value == other for other in others)


def _comparable(left: Any, right: Any) -> bool:
    """Go compares no whole number with another number: `gt $value 5` fails in Prometheus, `gt $value 5.0` does not."""
    kinds = [KINDS.get(type(side)) for side in (left, right)]
    if kinds[0] != kinds[1] and None not in (left, right):
        raise TemplateError(f"incompatible types for comparison: {kinds[0] or 'value'} and {kinds[1] or 'value'}")
    return True


def _ordered(holds: Callable[[Any, Any], bool]) -> Callable[..., bool]:
    def compare(left: Any, right: Any) -> bool:
        return _comparable(left, right) and holds(left, right)

    return compare


def cut(value: Any, start: int = 0, before: int | None = None) -> Any:
    """Go's `slice`: of a text its bytes, of a list its items, from the first place to before the second."""
    whole = value.encode() if isinstance(value, str) else value
    end = len(whole) if before is None else before
    if not 0 <= start <= end <= len(whole):
        raise TemplateError(f"{start} to {end} is not inside of the {len(whole)} that are there")
    return whole[start:end].decode(errors="replace") if isinstance(value, str) else whole[start:end]


def js(*values: Any) -> str:
    """A text for inside of quotes of JavaScript."""
    return "".join(SCRIPT.get(letter, letter) for letter in sprint(*values))


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "humanize": humanize,
    "humanize1024": humanize1024,
    "humanizeDuration": humanize_duration,
    "humanizePercentage": humanize_percentage,
    "humanizeTimestamp": humanize_timestamp,
    "printf": printf,
    "print": sprint,
    "println": lambda *values: " ".join(show(value) for value in values) + "\n",
    "html": lambda *values: html.escape(sprint(*values)).replace("&quot;", "&#34;").replace("&#x27;", "&#39;"),
    "urlquery": lambda *values: quote_plus(sprint(*values)),
    "title": lambda text: WORD.sub(
        lambda word: FIRST_LETTER.sub(lambda one: upper(one[0]), word[0], count=1), show(text)
    ),
    "toUpper": lambda text: "".join(map(upper, show(text))),
    "toLower": lambda text: show(text).lower(),
    "toTime": to_time,
    "parseDuration": parse_duration,
    "graphLink": lambda expr: f"/graph?g0.expr={quote_plus(show(expr))}&g0.tab=0",
    "tableLink": lambda expr: f"/graph?g0.expr={quote_plus(show(expr))}&g0.tab=1",
    "safeHtml": show,
    "args": lambda *values: {f"arg{at}": value for at, value in enumerate(values)},
    "reReplaceAll": re_replace_all,
    "match": matches,
    "stripPort": strip_port,
    "stripDomain": strip_domain,
    "first": first,
    "value": value_of,
    "label": label_of,
    "strvalue": lambda row: label_of("__value__", row),
    "sortByLabel": lambda name, rows: sorted(rows, key=lambda row: label_of(name, row)),
    "index": index,
    "slice": cut,
    "js": js,
    "len": lambda value: len(value.encode() if isinstance(value, str) else value),
    "not": lambda value: not is_true(value),
    "eq": equal,
    "ne": lambda left, right: not equal(left, right),
    "lt": _ordered(lambda left, right: bool(left < right)),
    "le": _ordered(lambda left, right: bool(left <= right)),
    # As Go has them, which matters to NaN.
    "gt": _ordered(lambda left, right: not left <= right),
    "ge": _ordered(lambda left, right: not left < right),
}


def _four(value: float) -> str:
    """Go's %.4g."""
    return f"{value:.4g}" if math.isfinite(value) else show(value)


def _scale(value: float, prefixes: Sequence[str], *, by: int) -> tuple[float, str]:
    for prefix in prefixes[:-1]:
        if abs(value) < by:
            return value, prefix
        value /= by
    return value, prefixes[-1]


def _row(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or "Value" not in value:
        raise TemplateError(f"{show(value)} is not a sample of a query")
    return value


def _compile(pattern: str) -> Any:
    try:
        return re2.compile(pattern)
    except re2.error as error:
        raise TemplateError(f"bad regular expression {pattern!r}: {error}") from error
