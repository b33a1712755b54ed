"""Reading the parameters of Prometheus' HTTP API, and writing its numbers.

Pure functions between text and values; `prometheus_api` calls them. A wrong parameter raises
`BadParameter` with Prometheus' own wording, because clients match on it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import datetime
from decimal import Decimal
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper.errors import QueryError
from watchkeeper.kit import clock, durations
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine, histogram_json
from watchkeeper.query.promql import ast, parser, types

# Prometheus' own limit on the points of one series; more than a screen has columns.
POINT_LIMIT = 11_000
# Go's time.Time as used by Prometheus ends here; datetime ends in the year 9999.
LAST_SECOND = 253_402_300_799.0
# How Prometheus' own clients write the beginning and the end of all time.
BOUNDS = {"-292273086-05-16T16:47:06Z": -LAST_SECOND, "292277025-08-18T07:12:54.999999999Z": LAST_SECOND}

# Python reads more as a number or a time than Go does: ` 5`, digits of all scripts, 2026-W07-4.
DIGITS = r"\d+(?:_\d+)*"
NUMBER = re.compile(rf"[-+]?(?:{DIGITS}\.?(?:{DIGITS})?|\.{DIGITS})(?:e[-+]?{DIGITS})?", re.ASCII | re.IGNORECASE)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[-+]\d\d:\d\d)", re.ASCII)

# Up to here every whole number is a float, and its shortest text is its digits.
LARGEST_EXACT = 2.0**53
# Series of panels, some hundred bytes each.
REMEMBERED_HEADS = 1024
# Expressions up to this length are remembered.
REMEMBERED_LENGTH = 1000
# Numbers from 0 on whose texts are kept, 60 kB; a power of ten.
SMALL_NUMBERS = 10_000
# Points of a range query that are written at once; each takes some 200 bytes while it is.
PIECE_POINTS = 1 << 16

# What texts are joined of.
Text = bytes | memoryview

# Go's strconv.ParseBool.
TRUTHS = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
ESCAPED_NAME = "U__"
ESCAPED_PART = re.compile("_([0-9a-fA-F]{1,6})_|__")


class BadParameter(ValueError):
    """A parameter that cannot be used; answered as 400 bad_data."""


class Form:
    """The parameters of one request, from the URL and a form body alike."""

    def __init__(self, pairs: Sequence[tuple[str, str]], *, accept: str = "") -> None:
        self._pairs = pairs
        # The header of that name: which forms of an answer the caller understands.
        self.accept = accept

    def one(self, name: str) -> str | None:
        return next((value for key, value in self._pairs if key == name), None)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def limit(self, name: str = "limit", *, least: int = 0) -> int | None:
        """How many items to answer with; 0, where it may be that, or absent is all."""
        text = self.one(name)
        if not text:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) >= least):
            raise BadParameter(f'invalid parameter "{name}": "{text[:80]}" is not a number of {least} or more')
        return int(text) or None

    def metadata_limit(self, name: str = "limit") -> int | None:
        """As Prometheus has it for metadata alone: 0 is nothing, and less is all."""
        return 0 if self.one(name) == "0" else None if self.one(name) == "-1" else self.limit(name)

    def is_true(self, name: str) -> bool:
        text = (self.one(name) or "false").lower()
        if text not in TRUTHS:
            raise BadParameter(f'invalid parameter "{name}": "{text[:80]}" is not true or false')
        return TRUTHS[text]


def read_time(name: str, text: str | None, *, default_ms: int | None = None) -> int:
    """Milliseconds of a time written as seconds since 1970 or RFC 3339."""
    if not text:
        if default_ms is None:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "" to a valid timestamp')
        return default_ms
    problem = f'invalid parameter "{name}": cannot parse "{text[:80]}" to a valid timestamp'
    if text in BOUNDS or NUMBER.fullmatch(text):
        seconds = BOUNDS.get(text) or float(text)
        if not abs(seconds) <= LAST_SECOND:
            raise BadParameter(problem)
        return round(seconds * 1000)
    if not MOMENT.fullmatch(text):
        raise BadParameter(f"{problem}: expected seconds since 1970 or 2026-02-12T02:14:07Z")
    try:
        return clock.to_ms(datetime.fromisoformat(text))
    except ValueError as error:
        raise BadParameter(f"{problem}: {error}") from error


def read_duration(name: str, text: str | None) -> int:
    """Milliseconds of a duration written as seconds or as Prometheus writes it."""
    if NUMBER.fullmatch(text or ""):
        seconds = float(text or "")
        if abs(seconds) > durations.MAX_MS / 1000:
            raise BadParameter(f'invalid parameter "{name}": cannot parse "{text}" to a valid duration')
        return round(seconds * 1000)
    try:
        return durations.parse_ms(text or "")
    except ValueError as error:
        raise BadParameter(
            f'invalid parameter "{name}": cannot parse "{(text or "")[:80]}" to a valid duration: {error}'
        ) from error


def read_span(start: str | None, end: str | None, step: str | None) -> engine.QueryRange:
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
    return engine.QueryRange(start_ms, end_ms, step_ms)


def parse(name: str, text: str) -> ast.Expr:
    """The tree of an expression; the caller's fault if it is not PromQL, unlike one that fails while it runs."""
    try:
        return _parsed(text) if len(text) <= REMEMBERED_LENGTH else parser.parse(text)
    except QueryError as error:
        raise BadParameter(f'invalid parameter "{name}": {error}') from error


# A page asks the same again and again; a tree takes some hundred times its text.
@functools.lru_cache(maxsize=256)
def _parsed(text: str) -> ast.Expr:
    return parser.parse(text)


def refuse_ranges(text: str) -> None:
    """A range query answers a number or a vector at each step."""
    got = types.value_type(parse("query", text))
    if got not in (ast.ValueType.SCALAR, ast.ValueType.INSTANT):
        why = f'invalid expression type "{got}" for range query, must be Scalar or instant Vector'
        raise BadParameter(f'invalid parameter "query": {why}')


def matchers(name: str, text: str) -> tuple[engine.Matcher, ...]:
    """The conditions of a series selector."""
    tree = parse(name, text)
    if not isinstance(tree, ast.Selector) or tree != ast.Selector(tree.name, tree.matchers):
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


def write_values(values: list[float] | engine.Floats) -> list[str]:
    """What `write_value` makes of each; orjson writes them all at once, which takes a tenth of the time."""
    if not len(values):
        return []
    floats = np.asarray(values, dtype=np.float64)
    whole = _whole(floats)
    if whole is not None:
        return orjson.dumps(whole, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    packed = orjson.dumps(floats, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1] + ","
    texts = packed.replace(".0,", ",")[:-1].split(",")
    # An exponent, or the `null` that stands for NaN and the infinities: Prometheus writes these in another way.
    if "e" in packed or "n" in packed:
        pairs = zip(texts, floats.tolist(), strict=True)
        return [write_value(value) if "e" in text or "n" in text else text for text, value in pairs]
    return texts


def _whole(values: engine.Floats) -> npt.NDArray[np.int64] | None:
    """The values as integers where all are, as of most GPU metrics: these are written in a third of the time."""
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    if (whole != values).any() or np.abs(values).max() > LARGEST_EXACT or np.signbit(values[whole == 0]).any():
        return None
    return whole


def write_time(at_ms: int) -> float | int:
    """Seconds since 1970; whole ones without a fraction."""
    return at_ms // 1000 if at_ms % 1000 == 0 else at_ms / 1000


def first_series(answer: engine.QueryResult, limit: int) -> engine.QueryResult:
    """The answer with at most so many series; the same object where it has no more."""
    frame = answer.frame
    has_points = frame.present.any(axis=1)
    if frame.histograms is not None:
        has_points |= np.not_equal(frame.histograms, np.array(None)).any(axis=1)
    rows = np.flatnonzero(has_points).tolist()
    if answer.kind not in (engine.ResultType.VECTOR, engine.ResultType.MATRIX) or len(rows) <= limit:
        return answer
    kept = rows[:limit]
    cells = None if frame.histograms is None else frame.histograms[kept]
    labels = [frame.labels[row] for row in kept]
    shown = engine.Frame(labels, frame.times_ms, frame.values[kept], frame.present[kept], cells)
    return replace(answer, frame=shown)


def write_answer(answer: engine.QueryResult, at_ms: int | None) -> dict[str, Any]:
    """Prometheus' `data` object of an instant query (`at_ms` is its time) or a range query (None)."""
    kind, rows = answer.kind, answer.frame.rows()
    if kind is engine.ResultType.STRING:
        return {"resultType": kind.value, "result": [write_time(at_ms or 0), answer.text or ""]}
    if kind is engine.ResultType.SCALAR and at_ms is not None:
        values = [write_value(float(values[-1])) for _, _, values in rows]
        return {"resultType": kind.value, "result": [write_time(at_ms), values[0] if values else "NaN"]}
    if kind is engine.ResultType.VECTOR and at_ms is not None:
        time = write_time(at_ms)
        found = list(_last_values(answer.frame))
        texts = write_values([value for _, value in found])
        result: list[dict[str, Any]] = [
            {"metric": dict(labels.pairs), "value": [time, text]}
            for (labels, _), text in zip(found, texts, strict=True)
        ]
        if answer.frame.histograms is not None:
            result += [
                {"metric": dict(labels.pairs), "histogram": [time, histogram_json.write(cells[-1], write_value)]}
                for labels, cells in zip(answer.frame.labels, answer.frame.histograms.tolist(), strict=True)
                if cells[-1] is not None
            ]
        return {"resultType": kind.value, "result": result}
    return {"resultType": engine.ResultType.MATRIX.value, "result": orjson.Fragment(_write_matrix(answer.frame))}


def _write_matrix(frame: engine.Frame) -> bytes:
    """The series of a range query as JSON, those without a point left out.

    Written as text: a list and a string for each point take ten times as long, 1.1 ms for a node's panel of two hours.
    """
    axis = _axis(frame.times_ms.tobytes())
    rows = max(1, PIECE_POINTS // max(1, len(axis.stamps)))
    parts: list[Text] = []
    for low in range(0, len(frame.labels), rows):
        parts += _write_rows(frame, slice(low, low + rows), axis)
    if parts:
        # Each series comes with a comma before it.
        parts[0] = parts[0][1:]
    return b"".join([b"[", *parts, b"]"])


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """The points of one series as a row of cells of one width, complete but for the values."""

    text: bytes
    dtype: npt.DTypeLike


class _Axis:
    """The times of a range query as they are written."""

    def __init__(self, times_ms: bytes) -> None:
        self.stamps = write_values(np.frombuffer(times_ms, dtype=np.int64) / 1000)
        self._cells: dict[int, _Cells] = {}

    def cells(self, digits: int) -> _Cells:
        """Cells for whole numbers of so many digits; what is narrower is filled up with spaces, which JSON allows."""
        known = self._cells.get(digits)
        if known is None:
            width = max(map(len, self.stamps), default=0) + 2
            dtype = np.dtype([("head", f"S{width}"), ("value", f"S{digits + 2}"), ("tail", "S2")])
            row = np.empty(len(self.stamps), dtype=dtype)
            row["head"] = [f"[{stamp},".ljust(width) for stamp in self.stamps]
            row["tail"] = "],"
            known = self._cells[digits] = _Cells(row.tobytes(), dtype)
        return known


@functools.lru_cache(maxsize=8)
def _axis(times_ms: bytes) -> _Axis:
    """Remembered, because the panels of a page ask about the same times."""
    return _Axis(times_ms)


def _write_rows(frame: engine.Frame, rows: slice, axis: _Axis) -> Iterator[Text]:
    """Some series as parts of a text."""
    values, present = frame.values[rows], frame.present[rows]
    small = _small_whole(values) if present.all() else None
    written = _points(values, present, axis.stamps) if small is None else _small_points(small, axis)
    if frame.histograms is not None:
        yield from _write_native(frame, rows, written, axis)
        return
    for labels, points in zip(frame.labels[rows], written, strict=True):
        if points:
            yield _series_head(labels)
            yield points
            yield b"]}"


@functools.lru_cache(maxsize=REMEMBERED_HEADS)
def _series_head(labels: Labels) -> bytes:
    """Remembered, because a panel shows the same series again and again."""
    return b',{"metric":%b,"values":[' % orjson.dumps(dict(labels.pairs))


def _write_native(frame: engine.Frame, rows: slice, written: Iterator[Text], axis: _Axis) -> Iterator[Text]:
    """Series of which some points are native histograms."""
    assert frame.histograms is not None
    for labels, points, cells in zip(frame.labels[rows], written, frame.histograms[rows].tolist(), strict=True):
        row: dict[str, Any] = {"metric": dict(labels.pairs)}
        if points:
            row["values"] = orjson.Fragment(b"".join([b"[", points, b"]"]))
        found = zip(axis.stamps, cells, strict=True)
        histograms = [
            [orjson.Fragment(stamp), histogram_json.write(cell, write_value)]
            for stamp, cell in found
            if cell is not None
        ]
        if histograms:
            row["histograms"] = histograms
        if len(row) > 1:
            yield b"," + orjson.dumps(row)


def _points(values: engine.Floats, present: engine.Mask, stamps: list[str]) -> Iterator[Text]:
    """The points of each series, as far as they are there."""
    before = [f'"],[{stamp},"' for stamp in stamps] * len(values)
    if not present.all():
        before = list(compress(before, present.ravel().tolist()))
    cells = [""] * (2 * len(before))
    cells[::2], cells[1::2] = before, write_values(values[present])
    end = 0
    for count in np.count_nonzero(present, axis=1).tolist():
        start, end = end, end + 2 * count
        yield ("".join(cells[start:end]).removeprefix('"],') + '"]').encode() if count else b""


def _small_whole(values: engine.Floats) -> npt.NDArray[np.int64] | None:
    """The values as integers where all are small ones: temperatures, clocks, utilisation, states."""
    if not values.size or not ((lowest := values.min()) >= 0 and values.max() < SMALL_NUMBERS):
        return None
    whole = values.astype(np.int64)
    is_whole = (whole == values).all() and (lowest > 0 or not np.signbit(values).any())
    return whole if is_whole else None


def _small_points(values: npt.NDArray[np.int64], axis: _Axis) -> Iterator[Text]:
    """The points of each series as a table of cells whose values NumPy fills in at once: 0.02 ms for a panel."""
    digits = len(str(values.max()))
    cells = axis.cells(digits)
    table = bytearray(cells.text * len(values))
    np.frombuffer(table, dtype=cells.dtype).reshape(values.shape)["value"] = _small_texts(digits).take(values)
    size, text = len(cells.text), memoryview(table)
    yield from (text[low : low + size - 1] for low in range(0, len(table), size))


@functools.cache
def _small_texts(digits: int) -> npt.NDArray[np.bytes_]:
    return np.array([f'"{number}"'.ljust(digits + 2) for number in range(10**digits)], dtype="S")


def _last_values(frame: engine.Frame) -> Iterator[tuple[Labels, float]]:
    """Each series with the last value that is present; an instant answer has one column and needs no masks."""
    if frame.values.shape[1] != 1:
        yield from ((labels, float(values[-1])) for labels, _, values in frame.rows() if len(values))
        return
    columns = zip(frame.labels, frame.values[:, 0].tolist(), frame.present[:, 0].tolist(), strict=True)
    yield from ((labels, value) for labels, value, is_present in columns if is_present)
