"""Native histograms beside the columns of numbers: a cell holds a mark, and a table says what the mark stands for.

A mark is a NaN that no number is, with 50 bits of a hash of the histogram in it. So order, duplicates, retention, log
and blocks treat a histogram as they treat a number, and equal histograms are kept once. The head keeps a table for what
it holds; each segment of the log and each block carries the table of its own marks. Tables hold histograms as bytes, a
tenth of what they take as values. Histograms are rare, and a store without one pays nothing for them.
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

# For each cell of a matrix its histogram; None where there is a number or nothing.
Cells = npt.NDArray[np.object_]

MARK = 0x7FFC_0000_0000_0000
MARK_BITS = 50
HASH_MASK = (1 << MARK_BITS) - 1
# schema, hint, count, sum, zero threshold, zero count, and how many buckets of each sign and bounds follow
HEADER = struct.Struct("<iB3x4d3I4x")
COUNT, NAMED = struct.Struct("<I"), struct.Struct("<q")
# What a head keeps at most: two hours of 1,000 series with 40 buckets each 30 s. Further ones are refused.
MAX_BYTES = 256 << 20
# Blocks with a larger table, which is some ten times as large in memory, are not merged.
MAX_MERGED_BYTES = 16 << 20


def is_histogram(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) >> MARK_BITS == MARK >> MARK_BITS
    return mask


def find_histograms(values: Floats, find: Callable[[int], bytes | None]) -> Cells | None:
    """The histograms that marks in a matrix stand for, or None if it has no mark.

    A mark whose histogram is lost, because bytes on disk were damaged, becomes ABSENT in place.
    """
    places = np.flatnonzero(is_histogram(values))
    if not len(places):
        return None
    flat, cells = values.reshape(-1), np.full(values.size, None, dtype=object)
    read: dict[int, Histogram | None] = {}
    for place, mark in zip(places.tolist(), flat.view(np.int64)[places].tolist(), strict=True):
        if mark not in read:
            found = find(mark)
            read[mark] = None if found is None else unpack_one(found)
        cells[place] = read[mark]
        if read[mark] is None:
            flat[place] = ABSENT
    return cells.reshape(values.shape)


def marks_in(values: Floats) -> set[int]:
    found: set[int] = set(values.view(np.int64)[is_histogram(values)].tolist())
    return found


class HistogramTable:
    """What the marks of a head stand for; called under its lock."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}
        self.bytes = 0
        self._used_ms: dict[int, int] = {}
        # The newest histogram of each series, which tells whether the next one is a counter reset.
        self._newest: dict[int, tuple[int, Histogram]] = {}

    def marks(self, series: Ints, times: Ints, values: Sequence[float | Histogram]) -> Floats:
        """Values as they are stored: numbers as they are, histograms as marks; ABSENT where there is no room."""
        bits = np.empty(len(values), dtype=np.int64)
        rows = zip(series.tolist(), times.tolist(), values, strict=True)
        for at, (number, at_ms, value) in enumerate(rows):
            if isinstance(value, Histogram):
                bits[at] = self._mark(number, at_ms, value) if self.bytes < MAX_BYTES else ABSENT_BITS
            else:
                bits[at] = normalise_nans(np.array([value])).view(np.int64)[0]
                self._newest.pop(number, None)
        return bits.view(np.float64)

    def _mark(self, series: int, at_ms: int, histogram: Histogram) -> int:
        if struct.pack("<d", histogram.sum) == struct.pack("<q", STALE_BITS):
            self._newest.pop(series, None)
            return STALE_BITS
        known_ms, known = self._newest.get(series, (at_ms, None))
        if known is not None and known_ms == at_ms and known.is_same(histogram):
            histogram = known
        elif at_ms >= known_ms:
            histogram = replace(histogram, hint=_hint(histogram, known))
            self._newest[series] = at_ms, histogram
        elif histogram.hint is not ResetHint.GAUGE:
            histogram = replace(histogram, hint=ResetHint.UNKNOWN)
        packed = pack_one(histogram)
        for salt in itertools.count():
            mark = mark_of(packed, salt)
            if self.known.get(mark, packed) == packed:
                break
        self._keep(mark, packed, at_ms)
        return mark

    def _keep(self, mark: int, packed: bytes, used_ms: int) -> None:
        if mark not in self.known:
            self.known[mark] = packed
            self.bytes += len(packed)
        self._used_ms[mark] = max(used_ms, self._used_ms.get(mark, used_ms))

    def load(self, found: Mapping[int, bytes], used_ms: int) -> None:
        """Take over what a log has kept."""
        for mark, packed in found.items():
            self._keep(mark, packed, used_ms)

    def forget_before(self, at_ms: int) -> None:
        """Nothing before this time is in the columns any more."""
        for mark in [mark for mark, used_ms in self._used_ms.items() if used_ms < at_ms]:
            self.bytes -= len(self.known.pop(mark))
            del self._used_ms[mark]
        for series in [series for series, (used_ms, _) in self._newest.items() if used_ms < at_ms]:
            del self._newest[series]


def _hint(histogram: Histogram, before: Histogram | None) -> ResetHint:
    """Gauges say so themselves; of counters it is seen."""
    if histogram.hint is ResetHint.GAUGE:
        return ResetHint.GAUGE
    if before is None or before.hint is ResetHint.GAUGE:
        return ResetHint.UNKNOWN
    return ResetHint.RESET if histogram.is_reset_after(before) else ResetHint.NOT_RESET


def mark_of(packed: bytes, salt: int = 0) -> int:
    """The mark of a histogram; another salt where a different one has it already."""
    digest = hashlib.blake2b(packed, digest_size=8, salt=salt.to_bytes(8)).digest()
    return MARK | int.from_bytes(digest) & HASH_MASK


def pack(table: Mapping[int, bytes]) -> bytes:
    named = (NAMED.pack(mark) + packed for mark, packed in table.items())
    return codec.compress(b"".join([COUNT.pack(len(table)), *named]))


def unpack(packed: bytes) -> dict[int, bytes]:
    """StoreError if the bytes are no table of ours."""
    content = codec.decompress(packed)
    found: dict[int, bytes] = {}
    try:
        (count,), place = COUNT.unpack_from(content), COUNT.size
        for _ in range(count):
            (mark,) = NAMED.unpack_from(content, place)
            start = place + NAMED.size
            *_, positive, negative, bounds = HEADER.unpack_from(content, start)
            place = start + HEADER.size + 12 * (positive + negative) + 8 * bounds
            found[mark] = content[start:place]
    except struct.error as error:
        raise errors.StoreError(f"a table of histograms cannot be read: {error}") from error
    if place != len(content):
        raise errors.StoreError(f"a table of histograms has {len(content)} bytes, {place} belong there")
    return found


def pack_one(one: Histogram) -> bytes:
    sizes = len(one.positive), len(one.negative), len(one.bounds)
    head = HEADER.pack(one.schema, one.hint, one.count, one.sum, one.zero_threshold, one.zero_count, *sizes)
    buckets = one.positive + one.negative
    indices = struct.pack(f"<{len(buckets)}i", *(index for index, _ in buckets))
    floats = (*(count for _, count in buckets), *one.bounds)
    return head + indices + struct.pack(f"<{len(floats)}d", *floats)


def unpack_one(packed: bytes) -> Histogram:
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
