"""The write-ahead log: what the head accepted, on disk within a second, until a block has it.

The head notes scrapes and samples here while they are accepted; `sync` writes what was noted since the last time
as a record, compressed and checksummed, and waits for the disk. A segment stands by itself: it defines every
series and scrape layout that it uses, so old segments can go and a damaged one takes nothing with it.
`wal_reader` reads it after a restart; docs/reference/storage.md has the layout.
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
# Stands before each record, so that the next good one is found behind a damaged one.
MARK = b"\xf5WKr"
RECORD = struct.Struct("<4sII")
PARTS = struct.Struct("<6I")
# Level 1 keeps up with any scrape; the bytes live for an hour.
LEVEL = 1
# Each segment names all its series again: of a large fleet smaller ones take longer to read after a restart.
SEGMENT_BYTES = 128 << 20
# Every so many slots a layout is written whole, so that damage before it ends there.
WHOLE_EVERY = 32
# Noted samples that wait for a disk without room: 64 MB. Older ones then go unlogged, and are counted.
MAX_WAITING = 8_000_000
# A segment begins with the labels of every series. In one record those of 36,000 series would take 40 MB for a moment,
# and what a moment takes while series are made stays as holes between them.
MAX_DEFINITIONS = 512
NUMBER_MASK = 0xFFFF_FFFF

Scrape = tuple[str, Ints, int, Floats]
Samples = tuple[Ints, Ints, Floats]


@dataclass(slots=True)
class PendingBatch:
    """What was noted between two syncs."""

    definitions: dict[int, label_sets.Labels] = field(default_factory=dict)
    scrapes: list[Scrape] = field(default_factory=list)
    samples: list[Samples] = field(default_factory=list)
    histograms: dict[int, bytes] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _WrittenLayout:
    """The series of a target's scrapes in one order, and their values in the last one."""

    number: int
    ids: Ints
    last: Floats
    slots: int = 0


@dataclass(slots=True)
class Segment:
    """One file of the log; `newest_ms` is the latest time of any sample in it."""

    path: Path
    newest_ms: int = -NEVER_MS
    bytes: int = 0


class WriteAheadLog:
    """Notes under the head's lock; writes outside of it, one thread at a time."""

    def __init__(
        self, folder: Path, *, lock: Lock, labels_of: Callable[[Ints], Sequence[label_sets.Labels | None]]
    ) -> None:
        self._folder = folder
        self._lock = lock
        # Taken before the head's lock, never after it.
        self._writing = RLock()
        self._labels_of = labels_of
        self._noted = np.empty(0, dtype=np.int64)
        # By target the ids that this segment has defined.
        self._defined: dict[Hashable, Ints] = {}
        self._batch = PendingBatch()
        # What marks among the samples stand for, which the head knows; and those that this segment has.
        self.known_histograms: Mapping[int, bytes] = {}
        self._noted_histograms: set[int] = set()
        self._file = -1
        self._layouts: dict[str, _WrittenLayout] = {}
        self._next_layout = 0
        self._current: Segment | None = None
        self.segments: list[Segment] = []
        self.unlogged = 0

    def note_scrape(self, key: Hashable, ids: Ints, at_ms: int, values: Floats) -> None:
        if not len(ids):
            return
        # The head gives the same array while a target's series stay the same; nobody writes into it.
        if self._defined.get(key) is not ids:
            self._define(ids)
            self._defined[key] = ids
        if self.known_histograms:
            self._define_histograms(values)
        self._batch.scrapes.append((key if isinstance(key, str) else repr(key), ids, at_ms, values.copy()))
        self._batch.count += len(ids)
        if self._batch.count > MAX_WAITING:
            self._forget_oldest()

    def note_samples(self, ids: Ints, times: Ints, values: Floats) -> None:
        self._define(ids)
        if self.known_histograms:
            self._define_histograms(values)
        self._batch.samples.append((ids, times, values))
        self._batch.count += len(ids)
        if self._batch.count > MAX_WAITING:
            self._forget_oldest()

    def sync(self) -> int:
        """Bring everything noted so far to the disk; returns the number of samples. StoreError if it cannot be."""
        with self._writing:
            with self._lock:
                batch, self._batch = self._batch, PendingBatch()
            self._write(batch)
            if self._current is not None and self._current.bytes > SEGMENT_BYTES:
                self.rotate()
            return batch.count

    def rotate(self) -> list[Segment]:
        """End the segment; what is noted from here on is defined anew in the next one. Returns all that have ended."""
        with self._writing:
            with self._lock:
                batch, self._batch = self._batch, PendingBatch()
                self._forget_defined()
            self._write(batch)
            self._end()
            return list(self.segments)

    def forget_before(self, at_ms: int) -> None:
        """Remove the segments in which every sample is older."""
        with self._writing:
            self.forget([one for one in self.segments if one.newest_ms < at_ms and one is not self._current])

    def forget(self, ended: Iterable[Segment]) -> None:
        """Remove segments that have ended: all that is in them is elsewhere."""
        with self._writing:
            for segment in [one for one in ended if one in self.segments]:
                segment.path.unlink(missing_ok=True)
                self.segments.remove(segment)

    def close(self) -> None:
        with self._writing:
            self._end()

    def _define(self, ids: Ints) -> None:
        """Remember the labels of ids that this segment has not seen."""
        numbers = ids & NUMBER_MASK
        if len(numbers) and int(numbers.max()) >= len(self._noted):
            self._noted = grow_column(self._noted, int(numbers.max()) + 1, fill=-1)
        is_fresh = self._noted[numbers] != ids
        if is_fresh.any():
            fresh = np.unique(ids[is_fresh])
            for id, labels in zip(fresh.tolist(), self._labels_of(fresh), strict=True):
                if labels is not None:
                    self._batch.definitions[id] = labels
            self._noted[fresh & NUMBER_MASK] = fresh

    def _forget_defined(self) -> None:
        self._noted[:] = -1
        self._defined, self._noted_histograms = {}, set()

    def _define_histograms(self, values: Floats) -> None:
        for mark in histograms.marks_in(values) - self._noted_histograms:
            histogram = self.known_histograms.get(mark)
            if histogram is not None:
                self._batch.histograms[mark] = histogram
                self._noted_histograms.add(mark)

    def _forget_oldest(self) -> None:
        """Give up half of what waits; the head still has it, and the next block will."""
        batch = self._batch
        half = len(batch.scrapes) // 2
        gone = sum(len(ids) for _, ids, _, _ in batch.scrapes[:half]) + sum(len(ids) for ids, _, _ in batch.samples)
        batch.scrapes, batch.samples = batch.scrapes[half:], []
        batch.count -= gone
        self.unlogged += gone

    def _give_up(self, batch: PendingBatch) -> None:
        """A write failed: keep the batch for the next segment, which must define all that is in it."""
        empty = self._current if self._current is not None and self._current.bytes <= len(MAGIC) else None
        self._end()
        if empty is not None:
            self.segments.remove(empty)
            empty.path.unlink(missing_ok=True)
        with self._lock:
            waiting, self._batch = self._batch, PendingBatch()
            self._forget_defined()
            for key, ids, at_ms, values in [*batch.scrapes, *waiting.scrapes]:
                self.note_scrape(key, ids, at_ms, values)
            for ids, times, values in [*batch.samples, *waiting.samples]:
                self.note_samples(ids, times, values)

    def _begin(self) -> None:
        """Open the next segment."""
        names = [int(path.stem) for path in self._folder.glob(f"*{SUFFIX}") if path.stem.isdigit()]
        path = self._folder / f"{max(names, default=0) + 1:010d}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        self._current = Segment(path)
        self.segments.append(self._current)
        self._layouts, self._next_layout = {}, 0
        self._append(MAGIC)
        files.sync_folder(self._folder)

    def _end(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._current, self._layouts = -1, None, {}

    def _write(self, batch: PendingBatch) -> None:
        # Definitions count by themselves: their samples may have gone unlogged, and those to come rely on them.
        if not (batch.count or batch.definitions or batch.histograms):
            return
        try:
            if self._file < 0:
                self._begin()
            for piece in _pieces(batch):
                packed = codec.compress(self._encode(piece), LEVEL)
                self._append(RECORD.pack(MARK, len(packed), zlib.crc32(packed)) + packed)
        except OSError as error:
            self._give_up(batch)
            raise errors.StoreError(
                f"samples cannot be written: {error.strerror}",
                where=str(self._folder),
                now=f"{self._batch.count} samples wait in memory, where queries see them",
                remedy="Make room on the disk, or shorten [query] retention",
            ) from error

    def _append(self, content: bytes) -> None:
        """Write to the end of the segment and wait for the disk; on failure nothing of it stays."""
        assert self._current is not None
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._file, left) :]
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
        for at, (key, ids, at_ms, values) in enumerate(batch.scrapes):
            layout = self._layouts.get(key)
            if layout is None or not _is_same(layout.ids, ids):
                layout = self._layouts[key] = _WrittenLayout(self._next_layout, ids, values)
                self._next_layout += 1
                layouts.append((layout.number, key, ids.tolist()))
            is_whole = layout.slots % WHOLE_EVERY == 0
            if is_whole:
                differing = values
            else:
                mask = values.view(np.int64) != layout.last.view(np.int64)
                masks.append(np.packbits(mask).tobytes())
                differing = values[mask]
            changed.append(differing)
            table[:, at] = layout.number, at_ms, is_whole, len(differing), len(ids)
            layout.last, layout.slots = values, layout.slots + 1
            self._current.newest_ms = max(self._current.newest_ms, at_ms)
        for _, times, _ in batch.samples:
            self._current.newest_ms = max(self._current.newest_ms, int(times.max()))
        singles = [np.concatenate(column).tobytes() for column in zip(*batch.samples, strict=True)]
        parts = [
            orjson.dumps(definitions),
            orjson.dumps(layouts),
            table.tobytes(),
            b"".join(masks),
            np.concatenate(changed).tobytes() if changed else b"",
            b"".join(singles),
        ]
        # Behind the parts, where earlier versions look for nothing.
        beside = histograms.pack(batch.histograms) if batch.histograms else b""
        return PARTS.pack(*map(len, parts)) + b"".join(parts) + beside


def _is_same(before: Ints, ids: Ints) -> bool:
    return before is ids or (len(before) == len(ids) and bool((before == ids).all()))


def _pieces(batch: PendingBatch) -> Iterator[PendingBatch]:
    """The batch as records of bounded size: definitions first, and with the last of them everything that needs them."""
    defined = list(batch.definitions.items())
    last = max(0, len(defined) - 1) // MAX_DEFINITIONS * MAX_DEFINITIONS
    for at in range(0, last, MAX_DEFINITIONS):
        yield PendingBatch(definitions=dict(defined[at : at + MAX_DEFINITIONS]))
    yield replace(batch, definitions=dict(defined[last:]))
