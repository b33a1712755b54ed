"""Reading the log after a restart: what was noted goes back into the head, damage is named and stepped over.

Scrapes of one layout are gathered and handed to the head many slots at a time, because a restart of a large
fleet has a hundred million samples to read. `durable` calls `replay` once, before anything is appended.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store import codec, histograms
from watchkeeper.store.block import Damage
from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.groups import grown
from watchkeeper.store.head import Head
from watchkeeper.store.series import Pairs
from watchkeeper.store.wal import MAGIC, MARK, NUMBER_MASK, PARTS, RECORD, SUFFIX, Segment

UNKNOWN, UNASKED = -1, -2
# Slots of a layout that are handed over at once.
GATHERED_SLOTS = 64


@dataclass(slots=True)
class Replayed:
    """What came back from the log, and what did not."""

    samples: int = 0
    segments: list[Segment] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    # Bytes of records that a crash cut short; nobody was told that they are safe.
    torn_bytes: int = 0
    # Samples whose values depend on a damaged record.
    lost: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """One synced batch as columns."""

    definitions: list[tuple[int, list[tuple[str, str]]]]
    layouts: list[tuple[int, str, list[int]]]
    scrapes: Ints
    masks: bytes
    changed: Floats
    ids: Ints
    times: Ints
    values: Floats
    histograms: dict[int, bytes]


def decode(payload: bytes) -> Record:
    """StoreError if the payload is not a record of ours."""
    try:
        sizes = PARTS.unpack_from(payload)
        ends = np.cumsum([PARTS.size, *sizes]).tolist()
        parts = [payload[ends[at] : ends[at + 1]] for at in range(len(sizes))]
        singles = np.frombuffer(parts[5], dtype="<i8").reshape(3, -1)
        return Record(
            definitions=orjson.loads(parts[0]),
            layouts=orjson.loads(parts[1]),
            scrapes=np.frombuffer(parts[2], dtype="<i8").reshape(5, -1),
            masks=parts[3],
            changed=np.frombuffer(parts[4], dtype="<f8"),
            ids=singles[0],
            times=singles[1],
            values=singles[2].view("<f8"),
            histograms=histograms.unpack(payload[ends[-1] :]) if len(payload) > ends[-1] else {},
        )
    except (struct.error, ValueError) as error:
        raise errors.StoreError(f"a record of the log cannot be read: {error}") from error


def records(path: Path) -> Iterator[Record | Damage]:
    """The records of a segment in order, with what is wrong between them; a torn end is a Damage without problem."""
    content = path.read_bytes()
    if not content.startswith(MAGIC):
        problem = "" if len(content) < len(MAGIC) else "this is not a segment of ours, or of a later version"
        yield Damage(path, 0, problem)
        return
    at = len(MAGIC)
    while at < len(content):
        record, end = _record_at(content, at)
        if record is not None:
            yield record
            at = end
            continue
        following = _next_record(content, at + 1)
        if following is None:
            yield Damage(path, at, "" if end > len(content) else f"{len(content) - at} bytes are not a good record")
            return
        yield Damage(path, at, f"{following - at} bytes are not a good record")
        at = following


def _record_at(content: bytes, at: int) -> tuple[Record | None, int]:
    """The record that starts here, or None, and where it ends or would end."""
    if len(content) - at < RECORD.size:
        return None, at + RECORD.size
    mark, length, checksum = RECORD.unpack_from(content, at)
    start, end = at + RECORD.size, at + RECORD.size + length
    if mark != MARK:
        return None, at
    if end > len(content) or zlib.crc32(memoryview(content)[start:end]) != checksum:
        return None, end
    try:
        return decode(codec.decompress(content[start:end])), end
    except errors.StoreError:
        return None, end


def _next_record(content: bytes, at: int) -> int | None:
    while (at := content.find(MARK, at)) >= 0:
        if _record_at(content, at)[0] is not None:
            return at
        at += 1
    return None


@dataclass(slots=True)
class _Gathered:
    """A layout while it is read: its series, their last values, and slots that were not handed over yet."""

    key: str
    ids: Ints
    last: Floats | None = None
    times: list[int] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)


class _Reader:
    """One segment on its way into the head; only samples from `since_ms` on, and before `until_ms`, are handed over."""

    def __init__(self, head: Head, outcome: Replayed, *, since_ms: int, until_ms: int) -> None:
        self._head, self._outcome, self._since_ms, self._until_ms = head, outcome, since_ms, until_ms
        # Labels of series that no sample asked for yet. Pairs are shared at once: a record's own, two strings for each
        # label, would stay until then and leave 2 KiB of holes for each series.
        self._labels: dict[int, Pairs] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        # Indexed by the numbers in the log: the id that a number stands for, its id in the head, and whether it is
        # part of a layout.
        self._old = np.empty(0, dtype=np.int64)
        self._new = np.empty(0, dtype=np.int64)
        self._in_layout = np.empty(0, dtype=np.int64)
        self._layouts: dict[int, _Gathered] = {}
        self._newest: dict[str, _Gathered] = {}
        self.histograms: dict[int, bytes] = {}

    def take(self, record: Record) -> int:
        """Read a record; returns the newest time in it."""
        for old, pairs in record.definitions:
            self._define(old, pairs)
        for number, key, ids in record.layouts:
            if key in self._newest:
                self._hand_over(self._newest[key])
            self._layouts[number] = self._newest[key] = _Gathered(key, np.array(ids, dtype=np.int64))
            self._make_room(max(ids, default=0) & NUMBER_MASK)
            self._in_layout[self._layouts[number].ids & NUMBER_MASK] = 1
        self._take_scrapes(record)
        self.histograms |= record.histograms
        if len(record.ids):
            self._take_samples(record)
        newest = [int(times.max()) for times in (record.scrapes[1], record.times) if len(times)]
        return max(newest, default=-NEVER_MS)

    def lose_track(self) -> None:
        """Bytes are missing here: what follows as a change of a value before means nothing until it is whole again."""
        for layout in self._layouts.values():
            layout.last = None

    def finish(self) -> None:
        for layout in self._layouts.values():
            self._hand_over(layout)

    def _define(self, old: int, pairs: list[tuple[str, str]]) -> None:
        number = old & NUMBER_MASK
        self._make_room(number)
        self._old[number], self._new[number] = old, UNASKED
        own = [(name, value) for name, value in pairs]
        self._labels[number] = tuple([self._pairs.setdefault(pair, pair) for pair in own])

    def _make_room(self, number: int) -> None:
        self._old = grown(self._old, number + 1, fill=UNKNOWN)
        self._new = grown(self._new, number + 1, fill=UNKNOWN)
        self._in_layout = grown(self._in_layout, number + 1, fill=0)

    def _ids_in_head(self, ids: Ints) -> Ints:
        """The head's ids for ids of the log; UNKNOWN where the definition was damaged or the head is full."""
        numbers = ids & NUMBER_MASK
        self._make_room(int(numbers.max()) if len(numbers) else 0)
        for number in np.unique(numbers[self._new[numbers] == UNASKED]).tolist():
            try:
                self._new[number] = self._head.series_id(label_sets.Labels(self._labels.pop(number)))
            except errors.StoreError:
                self._new[number] = UNKNOWN
        return np.where(self._old[numbers] == ids, self._new[numbers], UNKNOWN)

    def _take_scrapes(self, record: Record) -> None:
        mask_at = value_at = 0
        for number, at_ms, is_whole, count, size in record.scrapes.T.tolist():
            values = record.changed[value_at : value_at + count]
            value_at += count
            mask_from, mask_at = mask_at, mask_at if is_whole else mask_at + (size + 7) // 8
            layout = self._layouts.get(number)
            if layout is None or (layout.last is None and not is_whole):
                self._outcome.lost += size
                continue
            if is_whole:
                layout.last = values
            else:
                assert layout.last is not None
                mask = np.unpackbits(np.frombuffer(record.masks, np.uint8, mask_at - mask_from, mask_from), count=size)
                layout.last = layout.last.copy()
                layout.last[mask.view(np.bool_)] = values
            if self._since_ms <= at_ms < self._until_ms:
                layout.times.append(at_ms)
                layout.values.append(layout.last)
                if len(layout.times) >= GATHERED_SLOTS:
                    self._hand_over(layout)

    def _take_samples(self, record: Record) -> None:
        self._make_room(int((record.ids & NUMBER_MASK).max()))
        if self._in_layout[record.ids & NUMBER_MASK].any():
            # A series that is scraped and sampled: its scrapes so far come first.
            self.finish()
        wanted = (record.times >= self._since_ms) & (record.times < self._until_ms)
        ids, times, values = record.ids[wanted], record.times[wanted], record.values[wanted]
        mine = self._ids_in_head(ids)
        known = mine != UNKNOWN
        self._outcome.lost += int(np.count_nonzero(~known))
        self._outcome.samples += int(np.count_nonzero(known))
        self._head.load_samples(mine[known], times[known], values[known])

    def _hand_over(self, layout: _Gathered) -> None:
        if not layout.times:
            return
        mine = self._ids_in_head(layout.ids)
        known = mine != UNKNOWN
        table = np.ascontiguousarray(np.stack(layout.values).T[known])
        times = np.array(layout.times, dtype=np.int64)
        layout.times, layout.values = [], []
        self._outcome.lost += int(np.count_nonzero(~known)) * len(times)
        self._outcome.samples += table.size
        if len(table):
            self._head.load_scrapes(layout.key, mine[known], times, values=table)


def first_ms_from(folder: Path, at_ms: int) -> int | None:
    """The earliest time not before `at_ms` of which the log has a sample."""
    found = [
        int(times[times >= at_ms].min())
        for path in sorted(folder.glob(f"*{SUFFIX}"))
        for record in records(path)
        if isinstance(record, Record)
        for times in (record.scrapes[1], record.times)
        if (times >= at_ms).any()
    ]
    return min(found, default=None)


def replay(folder: Path, head: Head, *, since_ms: int, until_ms: int = NEVER_MS) -> Replayed:
    """Read every segment into the head, except what blocks have already; no file is changed.

    A file that is not a segment of this version is named, and left to whoever can read it.
    """
    outcome = Replayed()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        segment, is_ours = Segment(path, bytes=path.stat().st_size), True
        reader = _Reader(head, outcome, since_ms=since_ms, until_ms=until_ms)
        for found in records(path):
            if isinstance(found, Record):
                segment.newest_ms = max(segment.newest_ms, reader.take(found))
            elif found.problem:
                outcome.damages.append(found)
                is_ours = is_ours and found.offset > 0
                reader.lose_track()
            else:
                outcome.torn_bytes += segment.bytes - found.offset
        reader.finish()
        if reader.histograms:
            head.load_histograms(reader.histograms, segment.newest_ms)
        if is_ours:
            outcome.segments.append(segment)
    return outcome
