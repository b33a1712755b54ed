"""Store native histograms in columns of numbers: a cell has a mark, and a table maps each mark to its histogram.

A mark is a NaN that numbers never have, with 50 bits of the histogram's hash, so order, duplicates, retention, WAL and
blocks treat a histogram as a number. The head, each segment of the WAL and each block have a table of their own marks,
which stores histograms as bytes, a tenth of their size as objects.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from watchkeeper import errors
from watchkeeper.model.histograms import Buckets, Histogram, ResetHint
from watchkeeper.model.samples import STALE_BITS
from watchkeeper.store import codec
from watchkeeper.store.columns import ABSENT, ABSENT_BITS, Floats, Ints, Mask, normalise_nans

# The histogram of each cell of a matrix; None for a number or an empty cell.
Cells = npt.NDArray[np.object_]

MARK = 0x7FFC_0000_0000_0000
MARK_BITS = 50
HASH_MASK = (1 << MARK_BITS) - 1
# schema, hint, count, sum, zero threshold, zero count, and the number of positive buckets, negative buckets and bounds
HEADER = struct.Struct("<iB3x4d3I4x")
COUNT, MARK_FIELD = struct.Struct("<I"), struct.Struct("<q")
# The limit of a head: two hours of 1,000 series with 40 buckets every 30 s. Above it, histograms are dropped.
MAX_BYTES = 256 << 20
# Blocks with a larger table are not merged: in memory it is about ten times as large.
MAX_MERGED_BYTES = 16 << 20


def is_histogram(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) >> MARK_BITS == MARK >> MARK_BITS
    return mask


def find_histograms(values: Floats, find: Callable[[int], bytes | None]) -> Cells | None:
    """The histograms of the marks in a matrix, or None; a mark without a histogram becomes ABSENT in place."""
    positions = np.flatnonzero(is_histogram(values))
    if not len(positions):
        return None
    flat_values, cells = values.reshape(-1), np.full(values.size, None, dtype=object)
    histogram_by_mark: dict[int, Histogram | None] = {}
    for position, mark in zip(positions.tolist(), flat_values.view(np.int64)[positions].tolist(), strict=True):
        if mark not in histogram_by_mark:
            packed = find(mark)
            histogram_by_mark[mark] = None if packed is None else unpack_histogram(packed)
        cells[position] = histogram_by_mark[mark]
        if histogram_by_mark[mark] is None:
            flat_values[position] = ABSENT
    return cells.reshape(values.shape)


def marks_in(values: Floats) -> set[int]:
    marks: set[int] = set(values.view(np.int64)[is_histogram(values)].tolist())
    return marks


class HistogramTable:
    """The histograms of a head by mark; used under its lock."""

    def __init__(self) -> None:
        self.packed: dict[int, bytes] = {}
        self.bytes = 0
        self._used_ms: dict[int, int] = {}
        # The newest histogram of each series, to detect counter resets.
        self._newest_by_series: dict[int, tuple[int, Histogram]] = {}

    def marks(self, series: Ints, times: Ints, values: Sequence[float | Histogram]) -> Floats:
        """The values as they are stored: histograms become marks, or ABSENT if the table is full."""
        bits = np.empty(len(values), dtype=np.int64)
        samples = zip(series.tolist(), times.tolist(), values, strict=True)
        for index, (number, at_ms, value) in enumerate(samples):
            if isinstance(value, Histogram):
                bits[index] = self._mark(number, at_ms, value) if self.bytes < MAX_BYTES else ABSENT_BITS
            else:
                bits[index] = normalise_nans(np.array([value])).view(np.int64)[0]
                self._newest_by_series.pop(number, None)
        return bits.view(np.float64)

    def _mark(self, series: int, at_ms: int, histogram: Histogram) -> int:
        if struct.pack("<d", histogram.sum) == struct.pack("<q", STALE_BITS):
            self._newest_by_series.pop(series, None)
            return STALE_BITS
        newest_ms, newest = self._newest_by_series.get(series, (at_ms, None))
        if newest is not None and newest_ms == at_ms and newest.is_same(histogram):
            histogram = newest
        elif at_ms >= newest_ms:
            histogram = replace(histogram, hint=_reset_hint(histogram, newest))
            self._newest_by_series[series] = at_ms, histogram
        elif histogram.hint is not ResetHint.GAUGE:
            histogram = replace(histogram, hint=ResetHint.UNKNOWN)
        packed = pack_histogram(histogram)
        for salt in itertools.count():
            mark = mark_of(packed, salt)
            if self.packed.get(mark, packed) == packed:
                break
        self._add(mark, packed, at_ms)
        return mark

    def _add(self, mark: int, packed: bytes, used_ms: int) -> None:
        if mark not in self.packed:
            self.packed[mark] = packed
            self.bytes += len(packed)
        self._used_ms[mark] = max(used_ms, self._used_ms.get(mark, used_ms))

    def load(self, table: Mapping[int, bytes], used_ms: int) -> None:
        for mark, packed in table.items():
            self._add(mark, packed, used_ms)

    def drop_before(self, at_ms: int) -> None:
        for mark in [mark for mark, used_ms in self._used_ms.items() if used_ms < at_ms]:
            self.bytes -= len(self.packed.pop(mark))
            del self._used_ms[mark]
        for series in [series for series, (used_ms, _) in self._newest_by_series.items() if used_ms < at_ms]:
            del self._newest_by_series[series]


def _reset_hint(histogram: Histogram, previous: Histogram | None) -> ResetHint:
    """The reset hint: gauges keep theirs, for counters it is detected."""
    if histogram.hint is ResetHint.GAUGE:
        return ResetHint.GAUGE
    if previous is None or previous.hint is ResetHint.GAUGE:
        return ResetHint.UNKNOWN
    return ResetHint.RESET if histogram.is_reset_after(previous) else ResetHint.NOT_RESET


def mark_of(packed: bytes, salt: int = 0) -> int:
    """The mark of a histogram; `salt` changes it if another histogram has the same mark."""
    digest = hashlib.blake2b(packed, digest_size=8, salt=salt.to_bytes(8)).digest()
    return MARK | int.from_bytes(digest) & HASH_MASK


def pack_table(table: Mapping[int, bytes]) -> bytes:
    entries = (MARK_FIELD.pack(mark) + packed for mark, packed in table.items())
    return codec.compress(b"".join([COUNT.pack(len(table)), *entries]))


def unpack_table(packed: bytes) -> dict[int, bytes]:
    """Decode a table; StoreError if the bytes are not one."""
    content = codec.decompress(packed)
    table: dict[int, bytes] = {}
    try:
        (count,), offset = COUNT.unpack_from(content), COUNT.size
        for _ in range(count):
            (mark,) = MARK_FIELD.unpack_from(content, offset)
            start = offset + MARK_FIELD.size
            *_, positive, negative, bounds = HEADER.unpack_from(content, start)
            offset = start + HEADER.size + 12 * (positive + negative) + 8 * bounds
            table[mark] = content[start:offset]
    except struct.error as error:
        raise errors.StoreError(f"a table of histograms cannot be read: {error}") from error
    if offset != len(content):
        raise errors.StoreError(f"a table of histograms has {len(content)} bytes, expected {offset}")
    return table


def pack_histogram(histogram: Histogram) -> bytes:
    sizes = len(histogram.positive), len(histogram.negative), len(histogram.bounds)
    numbers = histogram.count, histogram.sum, histogram.zero_threshold, histogram.zero_count
    header = HEADER.pack(histogram.schema, histogram.hint, *numbers, *sizes)
    buckets = histogram.positive + histogram.negative
    indices = struct.pack(f"<{len(buckets)}i", *(index for index, _ in buckets))
    floats = (*(count for _, count in buckets), *histogram.bounds)
    return header + indices + struct.pack(f"<{len(floats)}d", *floats)


def unpack_histogram(packed: bytes) -> Histogram:
    schema, hint, count, total, threshold, zero, positive, negative, bounds = HEADER.unpack_from(packed)
    size = positive + negative
    indices = struct.unpack_from(f"<{size}i", packed, HEADER.size)
    floats = struct.unpack_from(f"<{size + bounds}d", packed, HEADER.size + 4 * size)
    buckets: Buckets = tuple(zip(indices, floats[:size], strict=True))
    return Histogram(
        schema=schema,
        count=count,
        sum=total,
        zero_threshold=threshold,
        zero_count=zero,
        positive=buckets[:positive],
        negative=buckets[positive:],
        bounds=floats[size:],
        hint=ResetHint(hint),
    )
