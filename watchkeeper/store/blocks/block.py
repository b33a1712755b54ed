"""Reading a block: which of its series a selector means, and their samples, a chunk at a time.

Opening reads the footer only; labels and places are read when first asked for, and labels forgotten when no new
selector came for a while. A chunk is checked
when it is read. Where the file is damaged, the samples of that chunk are missing from the answer, and
`Damage` says which file and where. The durable store asks its blocks and joins what they say.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from watchkeeper import errors
from watchkeeper.store import codec, histograms
from watchkeeper.store.blocks.block_writer import MAGIC, TAIL, VERSION
from watchkeeper.store.blocks.label_table import LabelTable, Numbers
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, from_file
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.index import MatcherLike, Patterns
from watchkeeper.store.sample_columns import Columns, check_sample_limit
from watchkeeper.store.series import Pairs, SeriesSet

REMEMBERED_SELECTIONS = 64


class ChunkCache:
    """Unpacked chunks, the ones used last, within a number of bytes."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Path, int], Floats | Ints] = OrderedDict()
        self.used_bytes = 0

    def get(self, key: tuple[Path, int]) -> Floats | Ints | None:
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, key: tuple[Path, int], chunk: Floats | Ints) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = chunk
                self.used_bytes += chunk.nbytes
            while self.used_bytes > self._max_bytes:
                _, gone = self._kept.popitem(last=False)
                self.used_bytes -= gone.nbytes

    def forget(self, path: Path) -> None:
        """Nobody will ask for chunks of this file any more."""
        with self._lock:
            for key in [key for key in self._kept if key[0] == path]:
                self.used_bytes -= self._kept.pop(key).nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _Contents:
    """What leads to the columns: for each series its chunk, its row there and its row of times, and where those lie."""

    chunk: Numbers
    row: Numbers
    time: Numbers
    time_chunk: Ints
    time_row: Ints
    chunks: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Directory:
    """Which series a block has, and from when to when; only a selector that is new to the block needs it."""

    labels: LabelTable
    first_ms: Ints
    last_ms: Ints


class Block:
    """One file of samples; StoreError if it is not a block of ours."""

    def __init__(
        self, path: Path, *, cache: ChunkCache, patterns: Patterns, report: Callable[[Corruption], None]
    ) -> None:
        self.path = path
        self._cache, self._patterns, self._report = cache, patterns, report
        self._lock = threading.Lock()
        self._contents: _Contents | None = None
        self._directory: _Directory | None = None
        self._histograms: dict[int, bytes] | None = None
        self._was_asked = False
        self._selections: OrderedDict[tuple[MatcherLike, ...], tuple[Ints, SeriesSet]] = OrderedDict()
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable(str(error.strerror)) from error
        # A query may still read a block that compaction has removed: the file lives as long as this object.
        self.close = weakref.finalize(self, os.close, self._file)
        self.bytes = os.fstat(self._file).st_size
        try:
            footer = self._footer()
        except errors.StoreError:
            self.close()
            raise
        self.start_ms, self.end_ms = int(footer["start_ms"]), int(footer["end_ms"])
        self.samples = int(footer["samples"])
        self.sources: tuple[str, ...] = tuple(footer["sources"])
        self._parts: dict[str, tuple[int, int, int]] = footer["parts"]

    def select(
        self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int, *, max_samples: int | None = None
    ) -> Columns:
        """The samples with start < time ≤ end; QueryLimit if that would be more than `max_samples`."""
        rows, series = self.chosen(matchers)
        return self.read(rows, series, start_ms, end_ms=end_ms, max_samples=max_samples)

    def read(
        self, rows: Ints, series: SeriesSet, start_ms: int, *, end_ms: int, max_samples: int | None = None
    ) -> Columns:
        """The samples of some rows, whose label sets are given, with start < time ≤ end."""
        contents = self.contents
        time_numbers, groups = np.unique(contents.time[rows], return_inverse=True)
        lows, highs, times = self._windows(time_numbers, start_ms, end_ms)
        counts = (highs - lows)[groups] if len(rows) else np.empty(0, dtype=np.int64)
        check_sample_limit(int(counts.sum()), max_samples)
        values = np.full((len(rows), times.shape[1]), ABSENT)
        chunks = contents.chunk[rows]
        for chunk in np.unique(chunks[counts > 0]).tolist():
            inside = np.flatnonzero((chunks == chunk) & (counts > 0))
            cells = self._unpacked(chunk, codec.unpack_floats)
            first = lows[groups[inside]]
            for low in np.unique(first).tolist():
                alike = inside[first == low]
                width = int(counts[alike].max())
                values[alike, :width] = cells[contents.row[rows[alike]], low : low + width]
        return Columns(series, groups, times, values)

    def series(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[Pairs]:
        """The label sets of series with samples in the time."""
        return self.directory.labels.pairs_of(self._lived(matchers, start_ms, end_ms))

    def label_names(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> set[str]:
        return self.directory.labels.names_of(self._lived(matchers, start_ms, end_ms))

    def label_values(self, name: str, matchers: Sequence[MatcherLike], start_ms: int, *, end_ms: int) -> set[str]:
        return self.directory.labels.values_of(name, self._lived(matchers, start_ms, end_ms))

    def chosen(self, matchers: Sequence[MatcherLike]) -> tuple[Ints, SeriesSet]:
        """The rows that a selector means, and their label sets; remembered."""
        key = tuple(matchers)
        with self._lock:
            known = self._selections.get(key)
        if known is None:
            known = self.find(key)
            with self._lock:
                self._selections[key] = known
                if len(self._selections) > REMEMBERED_SELECTIONS:
                    self._selections.popitem(last=False)
        return known

    def find(self, matchers: Sequence[MatcherLike]) -> tuple[Ints, SeriesSet]:
        """The same for someone who asks once; not remembered."""
        labels = self.directory.labels
        rows = labels.matching(matchers, self._patterns.acceptance)
        return rows, SeriesSet(labels.pairs_of(rows))

    def metric_names(self) -> list[str]:
        return self.directory.labels.values.get("__name__", [""])

    @property
    def largest_chunk(self) -> int:
        """Samples, or times, of the largest chunk."""
        *_, rows, slots = self.contents.chunks
        return int((rows * slots).max(initial=0))

    def check(self) -> Iterator[Corruption]:
        """Read every byte, and say which are not what was written."""
        try:
            contents, _, _ = self.contents, self.directory, self.histograms
        except errors.StoreError as error:
            yield Corruption(self.path, 0, str(error))
            return
        for number in range(contents.chunks.shape[1]):
            offset, length, checksum = contents.chunks[:3, number].tolist()
            try:
                self._checked(offset, length, checksum)
            except errors.StoreError as error:
                yield Corruption(self.path, offset, error.problem)

    @property
    def contents(self) -> _Contents:
        with self._lock:
            if self._contents is None:
                self._contents = self._read_contents()
            return self._contents

    @property
    def directory(self) -> _Directory:
        with self._lock:
            self._was_asked = True
            if self._directory is None:
                self._directory = self._read_directory()
            return self._directory

    @property
    def has_histograms(self) -> bool:
        return "histograms" in self._parts

    @property
    def histogram_bytes(self) -> int:
        return self._parts["histograms"][1] if self.has_histograms else 0

    @property
    def histograms(self) -> Mapping[int, bytes]:
        """What the marks among its samples stand for; most blocks have none."""
        with self._lock:
            if self._histograms is None:
                self._histograms = histograms.unpack(self._part("histograms")) if self.has_histograms else {}
            return self._histograms

    def release_unused(self) -> None:
        """Forget the directory unless it was asked for since the last time; it is the largest part, and read anew."""
        with self._lock:
            if not self._was_asked:
                self._directory = None
                self._histograms = None
            self._was_asked = False

    def _read_directory(self) -> _Directory:
        labels, series = LabelTable.unpack(self._part("labels")), codec.unpack_ints(self._part("series"))
        if len(series) != 5 or labels.size != series.shape[1]:
            raise errors.StoreError("labels of the block do not fit its series", where=str(self.path))
        return _Directory(labels, first_ms=series[3].copy(), last_ms=series[4].copy())

    def _read_contents(self) -> _Contents:
        series, times, chunks = (codec.unpack_ints(self._part(name)) for name in ("series", "times", "chunks"))
        if (len(series), len(times), len(chunks)) != (5, 3, 5):
            raise errors.StoreError("tables of the block do not fit together", where=str(self.path))
        return _Contents(
            chunk=_narrow(series[0]),
            row=_narrow(series[1]),
            time=_narrow(series[2]),
            time_chunk=times[0],
            time_row=times[1],
            chunks=chunks,
        )

    def _footer(self) -> dict[str, Any]:
        tail = self._bytes(max(0, self.bytes - TAIL.size), TAIL.size)
        if len(tail) != TAIL.size or self._bytes(0, len(MAGIC)) != MAGIC:
            raise self._unreadable("it is not a block of ours, or cut off")
        length, checksum, magic = TAIL.unpack(tail)
        content = self._bytes(max(0, self.bytes - TAIL.size - length), length)
        if magic != MAGIC or zlib.crc32(content) != checksum:
            raise self._unreadable("its footer does not have the checksum that was written with it")
        footer: dict[str, Any] = json.loads(content)
        if footer["version"] != VERSION:
            raise self._unreadable(f"it has version {footer['version']}, this Watchkeeper knows {VERSION}")
        return footer

    def _unreadable(self, problem: str) -> errors.StoreError:
        return errors.StoreError(
            f"the block cannot be read: {problem}",
            where=str(self.path),
            now="The other blocks are not concerned",
            remedy="Restore the file from a backup, or remove it",
        )

    def _part(self, name: str) -> bytes:
        offset, length, checksum = self._parts[name]
        try:
            return self._checked(offset, length, checksum)
        except errors.StoreError as error:
            raise errors.StoreError(
                f"of the {name} of the block {error.problem}",
                where=f"{self.path} at byte {offset}",
                now="Nothing of this block can be read",
                remedy="Restore the file from a backup, or remove it",
            ) from error

    def _checked(self, offset: int, length: int, checksum: int) -> bytes:
        """Bytes of the file; StoreError where the disk cannot read them, or they are not those that were written."""
        content = self._bytes(offset, length)
        if zlib.crc32(content) != checksum:
            raise errors.StoreError(f"{length} bytes do not have the checksum that was written with them")
        return content

    def _bytes(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._file, length, offset)
        except OSError as error:
            raise errors.StoreError(
                f"{length} bytes cannot be read: {error.strerror}", where=f"{self.path} at byte {offset}"
            ) from error

    def _lived(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> Ints:
        directory = self.directory
        rows = directory.labels.matching(matchers, self._patterns.acceptance)
        return rows[(directory.last_ms[rows] >= start_ms) & (directory.first_ms[rows] <= end_ms)]

    def _windows(self, numbers: Numbers, start_ms: int, end_ms: int) -> tuple[Ints, Ints, Ints]:
        """For some rows of times: the first slot after the start, the first after the end, and the times between."""
        contents = self.contents
        lows, highs = np.zeros(len(numbers), dtype=np.int64), np.zeros(len(numbers), dtype=np.int64)
        found: list[tuple[Ints, Ints]] = []
        for chunk in np.unique(contents.time_chunk[numbers]).tolist():
            inside = np.flatnonzero(contents.time_chunk[numbers] == chunk)
            table = self._unpacked(chunk, codec.unpack_ints)[contents.time_row[numbers[inside]]].astype(np.int64)
            lows[inside] = np.count_nonzero(table <= start_ms, axis=1)
            highs[inside] = np.count_nonzero(table <= end_ms, axis=1)
            found.append((inside, table))
        width = int((highs - lows).max()) if len(numbers) else 0
        times = np.full((len(numbers), width), NEVER_MS, dtype=np.int64)
        for inside, table in found:
            for low, high in {(int(lows[at]), int(highs[at])) for at in inside.tolist()}:
                alike = (lows[inside] == low) & (highs[inside] == high)
                times[inside[alike], : high - low] = table[alike, low:high]
        return lows, highs, times

    def _unpacked(self, number: int, unpack: Callable[[bytes], Any]) -> Any:
        """A chunk's matrix; a damaged one is reported and reads as if nothing had been there."""
        key = (self.path, number)
        known = self._cache.get(key)
        if known is not None:
            return known
        offset, length, checksum, rows, slots = self.contents.chunks[:, number].tolist()
        try:
            packed = self._checked(offset, length, checksum)
        except errors.StoreError as error:
            self._report(Corruption(self.path, offset, error.problem))
            blank = NEVER_MS if unpack is codec.unpack_ints else ABSENT
            matrix = np.full((rows, slots), blank)
        else:
            matrix = unpack(packed)
            if matrix.dtype == np.float64:
                matrix = from_file(matrix)
        self._cache.keep(key, matrix)
        return matrix


def _narrow(numbers: Ints) -> Numbers:
    """The same numbers in as few bytes as they need: a block has a row of them for each series."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
