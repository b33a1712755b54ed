"""Read a block: the series that match a selector, and their samples, one chunk at a time.

Opening reads only the footer; labels and the chunk index are read at first use, and labels are dropped if no new
selector needs them for a while. If a chunk is damaged, its samples are missing from the result, and a `Corruption`
names the file and offset.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from watchkeeper import errors
from watchkeeper.store import codec, histograms
from watchkeeper.store.blocks.block_writer import MAGIC, TAIL, VERSION
from watchkeeper.store.blocks.label_table import LabelTable, Numbers
from watchkeeper.store.cache_memory import CACHE_MEMORY
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, from_file
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.index import Matcher, Matchers
from watchkeeper.store.sample_columns import Columns, check_sample_limit
from watchkeeper.store.series import Pairs, SeriesSet

MAX_SELECTIONS = 64
# The memory of a cached selection for each of its series: the row, and a label set.
SELECTED_BYTES = 240


class ChunkCache:
    """Decompressed chunks, the last used ones, up to `max_bytes`."""

    def __init__(self, max_bytes: int = 32 << 20) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._chunks: OrderedDict[tuple[Path, int], Floats | Ints] = OrderedDict()
        self.used_bytes = 0

    def get(self, key: tuple[Path, int]) -> Floats | Ints | None:
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is not None:
                self._chunks.move_to_end(key)
            return chunk

    def add(self, key: tuple[Path, int], chunk: Floats | Ints) -> None:
        with self._lock:
            if key not in self._chunks:
                self._chunks[key] = chunk
                self.used_bytes += chunk.nbytes
            while self.used_bytes > self._max_bytes:
                _, dropped = self._chunks.popitem(last=False)
                self.used_bytes -= dropped.nbytes

    def drop_file(self, path: Path) -> None:
        with self._lock:
            for key in [key for key in self._chunks if key[0] == path]:
                self.used_bytes -= self._chunks.pop(key).nbytes


@dataclass(frozen=True, slots=True, eq=False)
class _ChunkIndex:
    """Where the samples are: chunk, row and time row of each series, chunk and row of each time row, all chunks."""

    chunk: Numbers
    row: Numbers
    time: Numbers
    time_chunk: Ints
    time_row: Ints
    chunks: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _SeriesDirectory:
    """The labels and time range of each series; needed only for a selector that is not cached."""

    labels: LabelTable
    first_ms: Ints
    last_ms: Ints


class Block:
    """One block file; StoreError if the file is not a valid block."""

    def __init__(self, path: Path, *, cache: ChunkCache, report: Callable[[Corruption], None]) -> None:
        self.path = path
        self._cache, self._report = cache, report
        self._lock = threading.Lock()
        self._chunk_index: _ChunkIndex | None = None
        self._directory: _SeriesDirectory | None = None
        self._histograms: dict[int, bytes] | None = None
        self._was_used = False
        self._selections: OrderedDict[tuple[Matcher, ...], tuple[Ints, SeriesSet]] = OrderedDict()
        try:
            self._file = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise self._unreadable_error(str(error.strerror)) from error
        # A query may still read a block that compaction removed: the file stays open as long as this object exists.
        self.close = weakref.finalize(self, os.close, self._file)
        self.bytes, self.checksum = os.fstat(self._file).st_size, 0
        try:
            footer = self._read_footer()
        except errors.StoreError:
            self.close()
            raise
        self.start_ms, self.end_ms = int(footer["start_ms"]), int(footer["end_ms"])
        self.samples = int(footer["samples"])
        self.sources: tuple[str, ...] = tuple(footer["sources"])
        self._part_locations: dict[str, tuple[int, int, int]] = footer["parts"]
        CACHE_MEMORY.register(self)

    def select(self, matchers: Matchers, start_ms: int, end_ms: int, *, max_samples: int | None = None) -> Columns:
        """The samples with start < time ≤ end; QueryLimit if there are more than `max_samples`."""
        rows, series = self.select_rows(matchers)
        return self.read(rows, series, start_ms, end_ms=end_ms, max_samples=max_samples)

    def read(
        self, rows: Ints, series: SeriesSet, start_ms: int, *, end_ms: int, max_samples: int | None = None
    ) -> Columns:
        """The samples of some rows with start < time ≤ end; `series` are their label sets."""
        chunk_index = self.chunk_index
        time_numbers, groups = np.unique(chunk_index.time[rows], return_inverse=True)
        lows, highs, times = self._read_windows(time_numbers, start_ms, end_ms)
        counts = (highs - lows)[groups] if len(rows) else np.empty(0, dtype=np.int64)
        check_sample_limit(int(counts.sum()), max_samples)
        values = np.full((len(rows), times.shape[1]), ABSENT)
        chunks = chunk_index.chunk[rows]
        for chunk in np.unique(chunks[counts > 0]).tolist():
            chunk_rows = np.flatnonzero((chunks == chunk) & (counts > 0))
            cells = self._load_chunk(chunk, codec.unpack_floats)
            first_slots = lows[groups[chunk_rows]]
            for low in np.unique(first_slots).tolist():
                same_start = chunk_rows[first_slots == low]
                width = int(counts[same_start].max())
                values[same_start, :width] = cells[chunk_index.row[rows[same_start]], low : low + width]
        return Columns(series, groups, times, values)

    def series(self, matchers: Matchers, start_ms: int, end_ms: int) -> list[Pairs]:
        return self.directory.labels.pairs_of(self._rows_in_range(matchers, start_ms, end_ms))

    def label_names(self, matchers: Matchers, start_ms: int, end_ms: int) -> set[str]:
        return self.directory.labels.names_of(self._rows_in_range(matchers, start_ms, end_ms))

    def label_values(self, name: str, matchers: Matchers, start_ms: int, *, end_ms: int) -> set[str]:
        return self.directory.labels.values_of(name, self._rows_in_range(matchers, start_ms, end_ms))

    def select_rows(self, matchers: Matchers) -> tuple[Ints, SeriesSet]:
        """The rows that match a selector, and their label sets; cached."""
        key = tuple(matchers)
        with self._lock:
            selected = self._selections.get(key)
        if selected is None:
            generation, selected = CACHE_MEMORY.generation, self.find_rows(key)
            CACHE_MEMORY.charge(SELECTED_BYTES * len(selected[0]))
            with self._lock:
                self._selections[key] = selected
                if len(self._selections) > MAX_SELECTIONS:
                    _, (old_rows, _) = self._selections.popitem(last=False)
                    CACHE_MEMORY.credit(SELECTED_BYTES * len(old_rows), generation)
        return selected

    def drop_results(self) -> None:
        with self._lock:
            self._selections = OrderedDict()

    def __del__(self) -> None:
        for rows, _ in self._selections.values():
            CACHE_MEMORY.credit(SELECTED_BYTES * len(rows), CACHE_MEMORY.generation)

    def find_rows(self, matchers: Matchers) -> tuple[Ints, SeriesSet]:
        """The rows that match a selector, and their label sets; not cached."""
        labels = self.directory.labels
        rows = labels.find_matching(matchers)
        return rows, SeriesSet(labels.pairs_of(rows))

    def metric_names(self) -> list[str]:
        return self.directory.labels.values.get("__name__", [""])

    @property
    def largest_chunk_samples(self) -> int:
        *_, rows, slots = self.chunk_index.chunks
        return int((rows * slots).max(initial=0))

    def check(self) -> Iterator[Corruption]:
        """Read the whole file and yield each damaged place."""
        try:
            chunk_index, _, _ = self.chunk_index, self.directory, self.histograms
        except errors.StoreError as error:
            yield Corruption(self.path, 0, str(error))
            return
        for number in range(chunk_index.chunks.shape[1]):
            offset, length, checksum = chunk_index.chunks[:3, number].tolist()
            try:
                self._read_checked(offset, length, checksum)
            except errors.StoreError as error:
                yield Corruption(self.path, offset, error.problem)

    @property
    def chunk_index(self) -> _ChunkIndex:
        with self._lock:
            if self._chunk_index is None:
                self._chunk_index = self._read_chunk_index()
            return self._chunk_index

    @property
    def directory(self) -> _SeriesDirectory:
        with self._lock:
            self._was_used = True
            if self._directory is None:
                self._directory = self._read_directory()
            return self._directory

    @property
    def has_histograms(self) -> bool:
        return "histograms" in self._part_locations

    @property
    def histogram_bytes(self) -> int:
        return self._part_locations["histograms"][1] if self.has_histograms else 0

    @property
    def histograms(self) -> Mapping[int, bytes]:
        """The native histograms by mark; most blocks have none."""
        with self._lock:
            if self._histograms is None:
                self._histograms = histograms.unpack_table(self._read_part("histograms")) if self.has_histograms else {}
            return self._histograms

    def release_unused(self) -> None:
        """Drop the directory, which is large, if it was not used since the last call; it is read again when needed."""
        with self._lock:
            if not self._was_used:
                self._directory = None
                self._histograms = None
            self._was_used = False

    def _read_directory(self) -> _SeriesDirectory:
        labels, series = LabelTable.unpack(self._read_part("labels")), codec.unpack_ints(self._read_part("series"))
        if len(series) != 5 or labels.size != series.shape[1]:
            raise errors.StoreError("the labels of the block do not match its series", where=str(self.path))
        return _SeriesDirectory(labels, first_ms=series[3].copy(), last_ms=series[4].copy())

    def _read_chunk_index(self) -> _ChunkIndex:
        series, times, chunks = (codec.unpack_ints(self._read_part(name)) for name in ("series", "times", "chunks"))
        if (len(series), len(times), len(chunks)) != (5, 3, 5):
            raise errors.StoreError("the tables of the block do not match each other", where=str(self.path))
        chunk, row, time = map(_to_narrow, series[:3])
        return _ChunkIndex(chunk, row, time, time_chunk=times[0], time_row=times[1], chunks=chunks)

    def _read_footer(self) -> dict[str, Any]:
        tail = self._read_bytes(max(0, self.bytes - TAIL.size), TAIL.size)
        if len(tail) != TAIL.size or self._read_bytes(0, len(MAGIC)) != MAGIC:
            raise self._unreadable_error("it is not a block, or it is truncated")
        length, checksum, magic = TAIL.unpack(tail)
        content = self._read_bytes(max(0, self.bytes - TAIL.size - length), length)
        if magic != MAGIC or zlib.crc32(content) != checksum:
            raise self._unreadable_error("the checksum of its footer does not match")
        self.checksum = checksum
        footer: dict[str, Any] = json.loads(content)
        if footer["version"] != VERSION:
            raise self._unreadable_error(f"it has version {footer['version']}, this Watchkeeper supports {VERSION}")
        return footer

    def _unreadable_error(self, problem: str) -> errors.StoreError:
        return errors.StoreError(
            f"the block cannot be read: {problem}",
            where=str(self.path),
            now="Other blocks are not affected",
            remedy="Restore the file from a backup, or remove it",
        )

    def _read_part(self, name: str) -> bytes:
        offset, length, checksum = self._part_locations[name]
        try:
            return self._read_checked(offset, length, checksum)
        except errors.StoreError as error:
            raise errors.StoreError(
                f"the {name} of the block cannot be read: {error.problem}",
                where=f"{self.path} at byte {offset}",
                now="The whole block is unreadable",
                remedy="Restore the file from a backup, or remove it",
            ) from error

    def _read_checked(self, offset: int, length: int, checksum: int) -> bytes:
        """Bytes of the file; StoreError if they cannot be read or their checksum does not match."""
        content = self._read_bytes(offset, length)
        if zlib.crc32(content) != checksum:
            raise errors.StoreError(f"the checksum of {length} bytes does not match")
        return content

    def _read_bytes(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._file, length, offset)
        except OSError as error:
            raise errors.StoreError(
                f"{length} bytes cannot be read: {error.strerror}", where=f"{self.path} at byte {offset}"
            ) from error

    def _rows_in_range(self, matchers: Matchers, start_ms: int, end_ms: int) -> Ints:
        directory = self.directory
        rows = directory.labels.find_matching(matchers)
        return rows[(directory.last_ms[rows] >= start_ms) & (directory.first_ms[rows] <= end_ms)]

    def _read_windows(self, numbers: Numbers, start_ms: int, end_ms: int) -> tuple[Ints, Ints, Ints]:
        """For each row of times: the first slot after the start, the first after the end, and the times between."""
        chunk_index = self.chunk_index
        lows, highs = np.zeros(len(numbers), dtype=np.int64), np.zeros(len(numbers), dtype=np.int64)
        tables: list[tuple[Ints, Ints]] = []
        for chunk in np.unique(chunk_index.time_chunk[numbers]).tolist():
            chunk_rows = np.flatnonzero(chunk_index.time_chunk[numbers] == chunk)
            chunk_times = self._load_chunk(chunk, codec.unpack_ints)
            table = chunk_times[chunk_index.time_row[numbers[chunk_rows]]].astype(np.int64)
            lows[chunk_rows] = np.count_nonzero(table <= start_ms, axis=1)
            highs[chunk_rows] = np.count_nonzero(table <= end_ms, axis=1)
            tables.append((chunk_rows, table))
        width = int((highs - lows).max()) if len(numbers) else 0
        times = np.full((len(numbers), width), NEVER_MS, dtype=np.int64)
        for chunk_rows, table in tables:
            for low, high in {(int(lows[at]), int(highs[at])) for at in chunk_rows.tolist()}:
                same_window = (lows[chunk_rows] == low) & (highs[chunk_rows] == high)
                times[chunk_rows[same_window], : high - low] = table[same_window, low:high]
        return lows, highs, times

    def _load_chunk(self, number: int, unpack: Callable[[bytes], Any]) -> Any:
        """The matrix of a chunk; a damaged chunk is reported and reads as empty."""
        key = (self.path, number)
        cached = self._cache.get(key)
        if cached is not None:
            return cached
        offset, length, checksum, rows, slots = self.chunk_index.chunks[:, number].tolist()
        try:
            packed = self._read_checked(offset, length, checksum)
        except errors.StoreError as error:
            self._report(Corruption(self.path, offset, error.problem))
            missing_value = NEVER_MS if unpack is codec.unpack_ints else ABSENT
            matrix = np.full((rows, slots), missing_value)
        else:
            matrix = unpack(packed)
            if matrix.dtype == np.float64:
                matrix = from_file(matrix)
        self._cache.add(key, matrix)
        return matrix


def _to_narrow(numbers: Ints) -> Numbers:
    """The numbers in the narrowest type, because a block has one for each series."""
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))
