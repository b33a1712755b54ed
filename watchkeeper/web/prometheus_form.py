"""Reading the parameters of Prometheus' HTTP API, and writing its numbers.

Pure functions between text and values; `prometheus_api` calls them. A wrong parameter raises
`BadParameter` with Prometheus' own wording, because clients match on it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson

from watchkeeper.errors import QueryError
from watchkeeper.kit import clock, durations
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine
from watchkeeper.query.promql import ast, parser

# Prometheus' own limit on the points of one series; more than a screen has columns.
POINT_LIMIT = 11_000
# Go's time.Time as used by Prometheus ends here; datetime ends in the year 9999.
LAST_SECOND = 253_402_300_799.0

ESCAPED_NAME = "U__"
ESCAPED_PART = re.compile("_([0-9a-fA-F]{1,6})_|__")


class BadParameter(ValueError):
    """A parameter that cannot be used; answered as 400 bad_data."""


class Form:
    """The parameters of one request, from the URL and a form body alike."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._pairs = pairs

    def one(self, name: str) -> str | None:
        return next((value for key, value in self._pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def limit(self, name: str = "limit") -> int | None:
        """How many items to answer with; 0 or absent is all."""
        text = self.one(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise BadParameter(f'invalid parameter "{name}": "{text[:80]}" is not a number of 0 or more')
        return int(text) or None

    def is_true(self, name: str) -> bool:
        return (self.one(name) or "").lower() in ("true", "1")


def read_time(name: str, text: str | None, *, default_ms: int | None = None) -> int:
    """Milliseconds of a time written as seconds since 1970 or RFC 3339."""
    if not text:
        if default_ms is None:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "" to a valid timestamp')
        return default_ms
    try:
        seconds = float(text)
        if not abs(seconds) <= LAST_SECOND:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "{text[:80]}" to a valid timestamp')
        return round(seconds * 1000)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise BadParameter(f'invalid parameter "{name}": cannot parse "{text[:80]}" to a valid timestamp') from error
    if at.tzinfo is None:
        raise BadParameter(f'invalid parameter "{name}": cannot parse "{text[:80]}" to a valid timestamp: no time zone')
    return clock.to_ms(at)


def read_duration(name: str, text: str | None) -> int:
    """Milliseconds of a duration written as seconds or as Prometheus writes it."""
    try:
        seconds = float(text or "")
        if not math.isfinite(seconds) or abs(seconds) > durations.LONGEST_MS / 1000:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "{text}" to a valid duration')
        return round(seconds * 1000)
    except ValueError:
        pass
    try:
        return durations.parse_ms(text or "")
    except ValueError as error:
        raise BadParameter(
            f'invalid parameter "{name}": cannot parse "{(text or "")[:80]}" to a valid duration: {error}'
        ) from error


def read_span(start: str | None, end: str | None, step: str | None) -> engine.Span:
    start_ms, end_ms = read_time("start", start), read_time("end", end)
    if end_ms < start_ms:
        raise BadParameter('invalid parameter "end": end timestamp must not be before start time')
    step_ms = read_duration("step", step)
    if step_ms <= 0:
        raise BadParameter(
            'invalid parameter "step": zero or negative query resolution step widths are not accepted. '
            "Try a positive integer"
        )
    points = (end_ms - start_ms) // step_ms
    if points > POINT_LIMIT:
        raise BadParameter(
            f"exceeded maximum resolution of {POINT_LIMIT:,} points per timeseries ({points:,} asked). "
            "Try decreasing the query resolution (?step=XX)"
        )
    return engine.Span(start_ms, end_ms, step_ms)


def parse(name: str, text: str) -> ast.Expr:
    """The tree of an expression; the caller's fault if it is not PromQL, unlike one that fails while it runs."""
    try:
        return parser.parse(text)
    except QueryError as error:
        raise BadParameter(f'invalid parameter "{name}": {error}') from error


def matchers(name: str, text: str) -> tuple[engine.Matcher, ...]:
    """The conditions of a series selector."""
    tree = parse(name, text)
    if not isinstance(tree, ast.Selector):
        raise BadParameter(f'invalid parameter "{name}": expected a series selector such as up{{job="x"}}')
    return tree.matchers


def read_label_name(text: str) -> str:
    """A label name in a path; Prometheus 3 writes one beyond [a-zA-Z0-9_] as U__, with _2e_ for a dot and __ for _."""
    if not text.startswith(ESCAPED_NAME):
        return text
    try:
        return ESCAPED_PART.sub(lambda part: chr(int(part[1], 16)) if part[1] else "_", text[len(ESCAPED_NAME) :])
    except (ValueError, OverflowError):
        return text


def selectors_in(expr: str) -> list[tuple[engine.Matcher, ...]]:
    """The conditions of every selector in an expression that is known to be PromQL."""

    def of(node: object) -> Iterator[tuple[engine.Matcher, ...]]:
        if isinstance(node, ast.Selector):
            yield node.matchers
        elif isinstance(node, tuple):
            yield from (found for each in node for found in of(each))
        elif is_dataclass(node):
            yield from (found for each in fields(node) for found in of(getattr(node, each.name)))

    return list(of(parser.parse(expr)))


def write_exemplars(series: Labels, kept: Sequence[Exemplar]) -> dict[str, Any]:
    """One series of /api/v1/query_exemplars."""
    rows = [
        {"labels": dict(one.labels.pairs), "value": write_value(one.value), "timestamp": write_time(one.at_ms)}
        for one in kept
    ]
    return {"seriesLabels": dict(series.pairs), "exemplars": rows}


def write_value(value: float) -> str:
    """A number as Go's strconv and Prometheus' marshaller write it."""
    if value != value:  # noqa: PLR0124 (NaN is the only number unequal to itself)
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    if "e" not in text:
        return text.removesuffix(".0")
    # Prometheus writes exponents only below 1e-6 and from 1e21; Python already below 1e-4 and from 1e16.
    return text if abs(value) < 1e-6 or abs(value) >= 1e21 else f"{Decimal(text):f}"


def write_values(values: list[float]) -> list[str]:
    """What `write_value` makes of each; orjson writes them all at once, which takes a tenth of the time."""
    packed = orjson.dumps(values).decode()[1:-1] + ","
    # An exponent, or the `null` that stands for NaN and the infinities: Prometheus writes these in another way.
    if not values or "e" in packed or "n" in packed:
        return [write_value(value) for value in values]
    return packed.replace(".0,", ",")[:-1].split(",")


def write_time(at_ms: int) -> float | int:
    """Seconds since 1970; whole ones without a fraction."""
    return at_ms // 1000 if at_ms % 1000 == 0 else at_ms / 1000


def write_answer(answer: engine.Answer, at_ms: int | None) -> dict[str, Any]:
    """Prometheus' `data` object of an instant query (`at_ms` is its time) or a range query (None)."""
    kind, rows = answer.kind, answer.frame.rows()
    if kind is engine.Kind.STRING:
        return {"resultType": kind.value, "result": [write_time(at_ms or 0), answer.text or ""]}
    if kind is engine.Kind.SCALAR and at_ms is not None:
        values = [write_value(float(values[-1])) for _, _, values in rows]
        return {"resultType": kind.value, "result": [write_time(at_ms), values[0] if values else "NaN"]}
    if kind is engine.Kind.VECTOR and at_ms is not None:
        time = write_time(at_ms)
        found = list(_last_values(answer.frame))
        texts = write_values([value for _, value in found])
        result = [
            {"metric": dict(labels.pairs), "value": [time, text]}
            for (labels, _), text in zip(found, texts, strict=True)
        ]
        return {"resultType": kind.value, "result": result}
    stamps = {at: write_time(at) for at in answer.frame.times_ms.tolist()}
    matrix = [
        {"metric": dict(labels.pairs), "values": _points(map(stamps.__getitem__, times.tolist()), values.tolist())}
        for labels, times, values in rows
        if len(values)
    ]
    return {"resultType": engine.Kind.MATRIX.value, "result": matrix}


def _last_values(frame: engine.Frame) -> Iterator[tuple[Labels, float]]:
    """Each series with the last value that is present; an instant answer has one column and needs no masks."""
    if frame.values.shape[1] != 1:
        yield from ((labels, float(values[-1])) for labels, _, values in frame.rows() if len(values))
        return
    columns = zip(frame.labels, frame.values[:, 0].tolist(), frame.present[:, 0].tolist(), strict=True)
    yield from ((labels, value) for labels, value, is_present in columns if is_present)


def _points(stamps: Iterable[float | int], values: list[float]) -> list[list[float | int | str]]:
    """Times and values of a series."""
    return list(map(list, zip(stamps, write_values(values), strict=True)))
