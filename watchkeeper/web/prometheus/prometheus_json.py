"""Write the results of queries as the JSON of Prometheus' HTTP API.

`prometheus_api` calls these functions; the format of numbers is also used by `federation`, `prometheus_status` and
`prometheus_tree`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper.kit import allowance
from watchkeeper.model.exemplars import Exemplar
from watchkeeper.model.labels import Labels
from watchkeeper.query import engine, histogram_json

# Up to here a float represents every integer exactly, and its shortest text is its digits.
MAX_EXACT_INTEGER = 2.0**53
# Cached JSON of label sets, some hundred bytes each.
CACHED_HEADS = 1024
# The texts of the integers below this are cached, 60 kB; a power of ten.
SMALL_INTEGERS = 10_000
# Points of a range query that are written in one batch; each takes about 200 bytes of memory.
BATCH_POINTS = 1 << 16
# A point in the text of a matrix, which is joined and then compressed.
POINT_BYTES = 60

# The parts that a JSON text is joined from.
Text = bytes | memoryview


def write_exemplars(series: Labels, exemplars: Sequence[Exemplar]) -> dict[str, Any]:
    """One series of /api/v1/query_exemplars."""
    rows = [
        {"labels": dict(each.labels.pairs), "value": write_value(each.value), "timestamp": write_time(each.at_ms)}
        for each in exemplars
    ]
    return {"seriesLabels": dict(series.pairs), "exemplars": rows}


def write_value(value: float) -> str:
    """Write a number as Go's strconv and Prometheus' marshaller do."""
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
    """The same as `write_value` of each value, in a tenth of the time."""
    if not len(values):
        return []
    floats = np.asarray(values, dtype=np.float64)
    integers = _as_integers(floats)
    if integers is not None:
        return orjson.dumps(integers, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1].split(",")
    packed = orjson.dumps(floats, option=orjson.OPT_SERIALIZE_NUMPY).decode()[1:-1] + ","
    texts = packed.replace(".0,", ",")[:-1].split(",")
    # orjson writes exponents differently from Prometheus, and null for NaN and infinity.
    if "e" in packed or "n" in packed:
        pairs = zip(texts, floats.tolist(), strict=True)
        return [write_value(value) if "e" in text or "n" in text else text for text, value in pairs]
    return texts


def _as_integers(values: engine.Floats) -> npt.NDArray[np.int64] | None:
    """The values as integers if all are, as in most GPU metrics: integers are written three times faster."""
    with np.errstate(invalid="ignore"):
        integers = values.astype(np.int64)
    if (
        (integers != values).any()
        or np.abs(values).max() > MAX_EXACT_INTEGER
        or np.signbit(values[integers == 0]).any()
    ):
        return None
    return integers


def write_time(at_ms: int) -> float | int:
    """Unix seconds; whole seconds without a fraction."""
    return at_ms // 1000 if at_ms % 1000 == 0 else at_ms / 1000


def limit_series(result: engine.QueryResult, limit: int) -> engine.QueryResult:
    """The result with at most `limit` series; the same object if it has no more."""
    frame = result.frame
    has_points = frame.present.any(axis=1)
    if frame.histograms is not None:
        has_points |= np.not_equal(frame.histograms, np.array(None)).any(axis=1)
    rows = np.flatnonzero(has_points).tolist()
    if result.kind not in (engine.ResultType.VECTOR, engine.ResultType.MATRIX) or len(rows) <= limit:
        return result
    first_rows = rows[:limit]
    cells = None if frame.histograms is None else frame.histograms[first_rows]
    labels = [frame.labels[row] for row in first_rows]
    limited = engine.Frame(labels, frame.times_ms, frame.values[first_rows], frame.present[first_rows], cells)
    return replace(result, frame=limited)


def write_result(query_result: engine.QueryResult, at_ms: int | None) -> dict[str, Any]:
    """Prometheus' `data` object of an instant query (`at_ms` is its time) or a range query (None)."""
    kind, rows = query_result.kind, query_result.frame.rows()
    if kind is engine.ResultType.STRING:
        return {"resultType": kind.value, "result": [write_time(at_ms or 0), query_result.text or ""]}
    if kind is engine.ResultType.SCALAR and at_ms is not None:
        values = [write_value(float(values[-1])) for _, _, values in rows]
        return {"resultType": kind.value, "result": [write_time(at_ms), values[0] if values else "NaN"]}
    if kind is engine.ResultType.VECTOR and at_ms is not None:
        time = write_time(at_ms)
        last_values = list(_last_values(query_result.frame))
        texts = write_values([value for _, value in last_values])
        result: list[dict[str, Any]] = [
            {"metric": dict(labels.pairs), "value": [time, text]}
            for (labels, _), text in zip(last_values, texts, strict=True)
        ]
        if query_result.frame.histograms is not None:
            result += [
                {"metric": dict(labels.pairs), "histogram": [time, histogram_json.write(cells[-1], write_value)]}
                for labels, cells in zip(query_result.frame.labels, query_result.frame.histograms.tolist(), strict=True)
                if cells[-1] is not None
            ]
        return {"resultType": kind.value, "result": result}
    return {"resultType": engine.ResultType.MATRIX.value, "result": orjson.Fragment(_write_matrix(query_result.frame))}


def _write_matrix(frame: engine.Frame) -> bytes:
    """The series of a range query as JSON; series without points are omitted.

    Joined from text: building a list and a string for each point takes ten times as long, 1.1 ms for a node's panel of
    two hours.
    """
    points = int(np.count_nonzero(frame.present))
    allowance.require(POINT_BYTES * points)
    axis = _time_axis(frame.times_ms.tobytes())
    rows = max(1, BATCH_POINTS // max(1, len(axis.stamps)))
    parts: list[Text] = []
    for low in range(0, len(frame.labels), rows):
        allowance.check()
        parts += _write_rows(frame, slice(low, low + rows), axis)
    if parts:
        # Each series starts with a comma.
        parts[0] = parts[0][1:]
    return b"".join([b"[", *parts, b"]"])


@dataclass(frozen=True, slots=True, eq=False)
class _RowTemplate:
    """The JSON of one series' points as cells of equal width, with empty values."""

    text: bytes
    dtype: npt.DTypeLike


class _TimeAxis:
    """The timestamps of a range query as text."""

    def __init__(self, times_ms: bytes) -> None:
        self.stamps = write_values(np.frombuffer(times_ms, dtype=np.int64) / 1000)
        self._templates: dict[int, _RowTemplate] = {}

    def row_template(self, digits: int) -> _RowTemplate:
        """A template for integers of up to this many digits; shorter ones are padded with spaces, which JSON allows."""
        template = self._templates.get(digits)
        if template is None:
            width = max(map(len, self.stamps), default=0) + 2
            dtype = np.dtype([("head", f"S{width}"), ("value", f"S{digits + 2}"), ("tail", "S2")])
            row = np.empty(len(self.stamps), dtype=dtype)
            row["head"] = [f"[{stamp},".ljust(width) for stamp in self.stamps]
            row["tail"] = "],"
            template = self._templates[digits] = _RowTemplate(row.tobytes(), dtype)
        return template


@functools.lru_cache(maxsize=8)
def _time_axis(times_ms: bytes) -> _TimeAxis:
    """Cached, because the panels of a page use the same times."""
    return _TimeAxis(times_ms)


def _write_rows(frame: engine.Frame, rows: slice, axis: _TimeAxis) -> Iterator[Text]:
    values, present = frame.values[rows], frame.present[rows]
    integers = _as_small_integers(values) if present.all() else None
    points_by_series = (
        _write_points(values, present, axis.stamps) if integers is None else _write_small_points(integers, axis)
    )
    if frame.histograms is not None:
        yield from _write_histogram_rows(frame, rows, points_by_series, axis)
        return
    for labels, points in zip(frame.labels[rows], points_by_series, strict=True):
        if points:
            yield _series_head(labels)
            yield points
            yield b"]}"


@functools.lru_cache(maxsize=CACHED_HEADS)
def _series_head(labels: Labels) -> bytes:
    """Cached, because a panel repeats the same series at each refresh."""
    return b',{"metric":%b,"values":[' % orjson.dumps(dict(labels.pairs))


def _write_histogram_rows(
    frame: engine.Frame, rows: slice, points_by_series: Iterator[Text], axis: _TimeAxis
) -> Iterator[Text]:
    """Write series that have native histograms."""
    assert frame.histograms is not None
    for labels, points, cells in zip(
        frame.labels[rows], points_by_series, frame.histograms[rows].tolist(), strict=True
    ):
        row: dict[str, Any] = {"metric": dict(labels.pairs)}
        if points:
            row["values"] = orjson.Fragment(b"".join([b"[", points, b"]"]))
        stamped_cells = zip(axis.stamps, cells, strict=True)
        histograms = [
            [orjson.Fragment(stamp), histogram_json.write(cell, write_value)]
            for stamp, cell in stamped_cells
            if cell is not None
        ]
        if histograms:
            row["histograms"] = histograms
        if len(row) > 1:
            yield b"," + orjson.dumps(row)


def _write_points(values: engine.Floats, present: engine.Mask, stamps: list[str]) -> Iterator[Text]:
    """The JSON of the present points of each series."""
    prefixes = [f'"],[{stamp},"' for stamp in stamps] * len(values)
    if not present.all():
        prefixes = list(compress(prefixes, present.ravel().tolist()))
    cells = [""] * (2 * len(prefixes))
    cells[::2], cells[1::2] = prefixes, write_values(values[present])
    end = 0
    for count in np.count_nonzero(present, axis=1).tolist():
        start, end = end, end + 2 * count
        yield ("".join(cells[start:end]).removeprefix('"],') + '"]').encode() if count else b""


def _as_small_integers(values: engine.Floats) -> npt.NDArray[np.int64] | None:
    """The values as integers if all are small ones: temperatures, clocks, utilisation, states."""
    if not values.size or not ((lowest := values.min()) >= 0 and values.max() < SMALL_INTEGERS):
        return None
    integers = values.astype(np.int64)
    is_whole = (integers == values).all() and (lowest > 0 or not np.signbit(values).any())
    return integers if is_whole else None


def _write_small_points(values: npt.NDArray[np.int64], axis: _TimeAxis) -> Iterator[Text]:
    """The JSON of the points of each series, filled into a template with NumPy: 0.02 ms for a panel."""
    digits = len(str(values.max()))
    template = axis.row_template(digits)
    table = bytearray(template.text * len(values))
    cells = np.frombuffer(table, dtype=template.dtype).reshape(values.shape)
    cells["value"] = _small_integer_texts(digits).take(values)
    size, text = len(template.text), memoryview(table)
    yield from (text[low : low + size - 1] for low in range(0, len(table), size))


@functools.cache
def _small_integer_texts(digits: int) -> npt.NDArray[np.bytes_]:
    return np.array([f'"{number}"'.ljust(digits + 2) for number in range(10**digits)], dtype="S")


def _last_values(frame: engine.Frame) -> Iterator[tuple[Labels, float]]:
    """Each series with its last present value; faster for the single column of an instant query."""
    if frame.values.shape[1] != 1:
        yield from ((labels, float(values[-1])) for labels, _, values in frame.rows() if len(values))
        return
    columns = zip(frame.labels, frame.values[:, 0].tolist(), frame.present[:, 0].tolist(), strict=True)
    yield from ((labels, value) for labels, value, is_present in columns if is_present)
