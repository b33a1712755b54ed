"""The write-ahead log: accepted samples, on disk within a second, until a block has them.

`sync` writes the samples that the head accepted as a compressed record with a checksum, and waits for the disk. Each
segment is self-contained: it defines every series and scrape layout that it uses, so old segments can be removed, and a
damaged one does not affect the others (docs/reference/storage.md has the layout).
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock, RLock

import numpy as np
import orjson

from watchkeeper import errors
from watchkeeper.kit import files
from watchkeeper.model import labels as label_sets
from watchkeeper.store import codec, histograms
from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.groups import grow_column

MAGIC = b"WKWAL\x00\x00\x01"
SUFFIX = ".wal"
# The start of each record, so that the next valid record after a damaged one can be found.
RECORD_MARK = b"\xf5WKr"
RECORD = struct.Struct("<4sII")
PARTS = struct.Struct("<6I")
# Level 1 is fast enough for any scrape rate; the data is kept for an hour.
COMPRESSION_LEVEL = 1
# Each segment defines all its series again: for a large fleet, smaller segments take longer to replay.
SEGMENT_BYTES = 128 << 20
# Every this many slots a layout is written in full, so that earlier damage has no effect from there on.
FULL_SLOT_INTERVAL = 32
# Samples that wait while the disk is full: 64 MB. Above it, the oldest are not logged, but counted.
MAX_PENDING_SAMPLES = 8_000_000
# A segment begins with the labels of every series. One record with those of 36,000 series would need 40 MB for a
# moment, and temporary memory between new series stays as holes in the heap.
MAX_DEFINITIONS = 512
NUMBER_MASK = 0xFFFF_FFFF

Scrape = tuple[str, Ints, int, Floats]
Samples = tuple[Ints, Ints, Floats]


@dataclass(slots=True)
class PendingBatch:
    definitions: dict[int, label_sets.Labels] = field(default_factory=dict)
    scrapes: list[Scrape] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    histograms: dict[int, bytes] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _WrittenLayout:
    """The series of a target's scrapes in a fixed order, and their last values."""

    number: int
    ids: Ints
    last: Floats
    slots: int = 0


@dataclass(slots=True)
class Segment:
    """One file of the WAL; `newest_ms` is the newest time of its samples."""

    path: Path
    newest_ms: int = -NEVER_MS
    bytes: int = 0


class WriteAheadLog:
    """Samples are added under the head's lock, and written without it, one thread at a time."""

    def __init__(
        self, folder: Path, *, lock: Lock, labels_of: Callable[[Ints], Sequence[label_sets.Labels | None]]
    ) -> None:
        self._folder = folder
        self._lock = lock
        # Acquired before the head's lock, never after it.
        self._writing = RLock()
        self._labels_of = labels_of
        self._defined_ids = np.empty(0, dtype=np.int64)
        # The ids of each target that this segment has defined.
        self._ids_by_target: dict[Hashable, Ints] = {}
        self._batch = PendingBatch()
        # The native histograms of the head by mark, and the marks that this segment has defined.
        self.packed_histograms: Mapping[int, bytes] = {}
        self._defined_histograms: set[int] = set()
        self._file = -1
        self._layouts: dict[str, _WrittenLayout] = {}
        self._next_layout = 0
        self._current: Segment | None = None
        self.segments: list[Segment] = []
        self.before_remove: Callable[[Sequence[Path]], None] = lambda _: None
        self.unlogged = 0

    def add_scrape(self, key: Hashable, ids: Ints, at_ms: int, values: Floats) -> None:
        if not len(ids):
            return
        # The head passes the same array while a target's series do not change; it is never modified.
        if self._ids_by_target.get(key) is not ids:
            self._define(ids)
            self._ids_by_target[key] = ids
        if self.packed_histograms:
            self._define_histograms(values)
        self._batch.scrapes.append((key if isinstance(key, str) else repr(key), ids, at_ms, values.copy()))
        self._count_pending(len(ids))

    def add_samples(self, ids: Ints, times: Ints, values: Floats) -> None:
        self._define(ids)
        if self.packed_histograms:
            self._define_histograms(values)
        self._batch.samples.append((ids, times, values))
        self._count_pending(len(ids))

    def sync(self) -> int:
        with self._writing:
            with self._lock:
                batch, self._batch = self._batch, PendingBatch()
            self._write(batch)
            if self._current is not None and self._current.bytes > SEGMENT_BYTES:
                self.rotate()
            return batch.count

    def rotate(self) -> list[Segment]:
        """End the segment, so that later samples go to a new one; return all ended segments."""
        with self._writing:
            with self._lock:
                batch, self._batch = self._batch, PendingBatch()
                self._reset_defined()
            self._write(batch)
            self._close_segment()
            return list(self.segments)

    def remove_before(self, at_ms: int) -> None:
        with self._writing:
            old = [segment for segment in self.segments if segment.newest_ms < at_ms and segment is not self._current]
            self.remove(old)

    def remove(self, ended: Iterable[Segment]) -> None:
        """Remove ended segments whose samples are in blocks or in quarantine."""
        with self._writing:
            removed = [segment for segment in ended if segment in self.segments]
            self.segments = [segment for segment in self.segments if segment not in removed]
            if removed:
                self.before_remove([segment.path for segment in removed])
            for segment in removed:
                segment.path.unlink(missing_ok=True)

    def close(self) -> None:
        with self._writing:
            self._close_segment()

    def _define(self, ids: Ints) -> None:
        numbers = ids & NUMBER_MASK
        if len(numbers) and int(numbers.max()) >= len(self._defined_ids):
            self._defined_ids = grow_column(self._defined_ids, int(numbers.max()) + 1, fill=-1)
        is_undefined = self._defined_ids[numbers] != ids
        if is_undefined.any():
            undefined = np.unique(ids[is_undefined])
            for id, labels in zip(undefined.tolist(), self._labels_of(undefined), strict=True):
                if labels is not None:
                    self._batch.definitions[id] = labels
            self._defined_ids[undefined & NUMBER_MASK] = undefined

    def _reset_defined(self) -> None:
        self._defined_ids[:] = -1
        self._ids_by_target, self._defined_histograms = {}, set()

    def _define_histograms(self, values: Floats) -> None:
        for mark in histograms.marks_in(values) - self._defined_histograms:
            histogram = self.packed_histograms.get(mark)
            if histogram is not None:
                self._batch.histograms[mark] = histogram
                self._defined_histograms.add(mark)

    def _count_pending(self, added: int) -> None:
        """At the limit, drop half of the pending samples from the WAL; the head has them, and the next block will."""
        batch = self._batch
        batch.count += added
        if batch.count <= MAX_PENDING_SAMPLES:
            return
        half = len(batch.scrapes) // 2
        dropped = sum(len(ids) for _, ids, _, _ in batch.scrapes[:half]) + sum(len(ids) for ids, _, _ in batch.samples)
        batch.scrapes, batch.samples = batch.scrapes[half:], []
        batch.count -= dropped
        self.unlogged += dropped

    def _requeue(self, batch: PendingBatch) -> None:
        """After a failed write, add the batch to the next segment again, with all its definitions."""
        empty_segment = self._current if self._current is not None and self._current.bytes <= len(MAGIC) else None
        self._close_segment()
        if empty_segment is not None:
            self.segments.remove(empty_segment)
            empty_segment.path.unlink(missing_ok=True)
        with self._lock:
            pending, self._batch = self._batch, PendingBatch()
            self._reset_defined()
            for key, ids, at_ms, values in [*batch.scrapes, *pending.scrapes]:
                self.add_scrape(key, ids, at_ms, values)
            for ids, times, values in [*batch.samples, *pending.samples]:
                self.add_samples(ids, times, values)

    def _open_segment(self) -> None:
        names = [int(path.stem) for path in self._folder.glob(f"*{SUFFIX}") if path.stem.isdigit()]
        path = self._folder / f"{max(names, default=0) + 1:010d}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        self._current = Segment(path)
        self.segments.append(self._current)
        self._layouts, self._next_layout = {}, 0
        self._append(MAGIC)
        files.sync_folder(self._folder)

    def _close_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._current, self._layouts = -1, None, {}

    def _write(self, batch: PendingBatch) -> None:
        # Definitions are written even without samples, which may have been dropped: later samples need them.
        if not (batch.count or batch.definitions or batch.histograms):
            return
        try:
            if self._file < 0:
                self._open_segment()
            for part in _split_batch(batch):
                packed = codec.compress(self._encode(part), COMPRESSION_LEVEL)
                self._append(RECORD.pack(RECORD_MARK, len(packed), zlib.crc32(packed)) + packed)
        except OSError as error:
            self._requeue(batch)
            raise errors.StoreError(
                f"samples cannot be written: {error.strerror}",
                where=str(self._folder),
                now=f"{self._batch.count} samples wait in memory, and queries include them",
                remedy="Free disk space, or shorten [query] retention",
            ) from error

    def _append(self, content: bytes) -> None:
        """Append to the segment and wait for the disk; a failed write is truncated."""
        assert self._current is not None
        try:
            remaining = memoryview(content)
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self._current.bytes)
            raise
        self._current.bytes += len(content)

    def _encode(self, batch: PendingBatch) -> bytes:
        assert self._current is not None
        definitions = [(id, labels.pairs) for id, labels in batch.definitions.items()]
        layouts: list[tuple[int, str, list[int]]] = []
        table = np.empty((5, len(batch.scrapes)), dtype="<i8")
        masks: list[bytes] = []
        changed: list[Floats] = []
        for column, (key, ids, at_ms, values) in enumerate(batch.scrapes):
            layout = self._layouts.get(key)
            if layout is None or not (layout.ids is ids or np.array_equal(layout.ids, ids)):
                layout = self._layouts[key] = _WrittenLayout(self._next_layout, ids, values)
                self._next_layout += 1
                layouts.append((layout.number, key, ids.tolist()))
            is_full = layout.slots % FULL_SLOT_INTERVAL == 0
            if is_full:
                changed_values = values
            else:
                is_changed = values.view(np.int64) != layout.last.view(np.int64)
                masks.append(np.packbits(is_changed).tobytes())
                changed_values = values[is_changed]
            changed.append(changed_values)
            table[:, column] = layout.number, at_ms, is_full, len(changed_values), len(ids)
            layout.last, layout.slots = values, layout.slots + 1
            self._current.newest_ms = max(self._current.newest_ms, at_ms)
        for _, times, _ in batch.samples:
            self._current.newest_ms = max(self._current.newest_ms, int(times.max()))
        single_columns = [np.concatenate(column).tobytes() for column in zip(*batch.samples, strict=True)]
        parts = [
            orjson.dumps(definitions),
            orjson.dumps(layouts),
            table.tobytes(),
            b"".join(masks),
            np.concatenate(changed).tobytes() if changed else b"",
            b"".join(single_columns),
        ]
        # After the parts, where earlier versions do not read.
        histogram_part = histograms.pack_table(batch.histograms) if batch.histograms else b""
        return PARTS.pack(*map(len, parts)) + b"".join(parts) + histogram_part


def _split_batch(batch: PendingBatch) -> Iterator[PendingBatch]:
    """Split a batch into records of limited size: definitions first, and all samples with the last of them."""
    definitions = list(batch.definitions.items())
    last_start = max(0, len(definitions) - 1) // MAX_DEFINITIONS * MAX_DEFINITIONS
    for start in range(0, last_start, MAX_DEFINITIONS):
        yield PendingBatch(definitions=dict(definitions[start : start + MAX_DEFINITIONS]))
    yield replace(batch, definitions=dict(definitions[last_start:]))
