"""Reading the log after a restart: what was noted goes back into the head, damage is named and stepped over.

A restart of a large fleet has a hundred million samples to read. So a record is read as a whole: all values that
changed are written at once into one column with the last value of every series, and each layout takes a copy of its
part. Copies are gathered and handed to the head many slots at a time. `durable` calls `replay` once, before anything is
appended.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.store import codec, histograms, wal_labels
from watchkeeper.store.block import Damage
from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.groups import grown
from watchkeeper.store.head import Head
from watchkeeper.store.index import UNKNOWN
from watchkeeper.store.series import Pairs
from watchkeeper.store.wal import MAGIC, MARK, NUMBER_MASK, PARTS, RECORD, SUFFIX, Segment
from watchkeeper.store.wal_labels import SharedPairs

UNASKED = -2
# Slots of a layout that are handed over at once.
GATHERED_SLOTS = 64
# A target that goes on as it began gets room for up to so many times its first slots: two hours at 15 s.
MOST_EXPECTED = 8 * GATHERED_SLOTS
# A record of a large fleet has some hundred kB.
LOOKED_AT_BYTES = 4 << 20
NOWHERE = -1
# Series that a target may get without a new place for its last values.
SPARE = 8
Bytes = npt.NDArray[np.uint8]


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

    definitions: dict[int, Pairs]
    layouts: list[tuple[int, str, list[int]]]
    scrapes: Ints
    masks: Bytes
    # The bits of floats.
    changed: Ints
    ids: Ints
    times: Ints
    values: Floats
    histograms: dict[int, bytes]


def decode(payload: bytes, shared: SharedPairs) -> Record:
    """StoreError if the payload is not a record of ours."""
    try:
        sizes = PARTS.unpack_from(payload)
        ends = list(itertools.accumulate(sizes, initial=PARTS.size))
        parts = [memoryview(payload)[start:end] for start, end in itertools.pairwise(ends)]
        singles = np.frombuffer(parts[5], dtype="<i8").reshape(3, -1)
        return Record(
            definitions=wal_labels.read(bytes(parts[0]), shared),
            layouts=orjson.loads(parts[1]),
            scrapes=np.frombuffer(parts[2], dtype="<i8").reshape(5, -1),
            masks=np.frombuffer(parts[3], dtype=np.uint8),
            changed=np.frombuffer(parts[4], dtype="<i8"),
            ids=singles[0],
            times=singles[1],
            values=singles[2].view("<f8"),
            histograms=histograms.unpack(payload[ends[-1] :]) if len(payload) > ends[-1] else {},
        )
    except (struct.error, ValueError) as error:
        raise errors.StoreError(f"a record of the log cannot be read: {error}") from error


def records(path: Path, shared: SharedPairs | None = None) -> Iterator[Record | Damage]:
    """The records of a segment in order, with what is wrong between them; a torn end is a Damage without problem."""
    content, shared = path.read_bytes(), SharedPairs() if shared is None else shared
    if not content.startswith(MAGIC):
        problem = "" if len(content) < len(MAGIC) else "this is not a segment of ours, or of a later version"
        yield Damage(path, 0, problem)
        return
    at = len(MAGIC)
    while at < len(content):
        record, end = _record_at(content, at, shared)
        if record is not None:
            yield record
            at = end
            continue
        following = _next_record(content, at + 1, shared)
        if following is None:
            yield Damage(path, at, "" if end > len(content) else f"{len(content) - at} bytes are not a good record")
            return
        yield Damage(path, at, f"{following - at} bytes are not a good record")
        at = following


def _record_at(content: bytes, at: int, shared: SharedPairs) -> tuple[Record | None, int]:
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
        return decode(codec.decompress(content[start:end]), shared), end
    except errors.StoreError:
        return None, end


def _next_record(content: bytes, at: int, shared: SharedPairs) -> int | None:
    while (at := content.find(MARK, at)) >= 0:
        if _record_at(content, at, shared)[0] is not None:
            return at
        at += 1
    return None


def _newest_ms(record: Record) -> int:
    newest = [int(times.max()) for times in (record.scrapes[1], record.times) if len(times)]
    return max(newest, default=-NEVER_MS)


def _ends_ms(path: Path) -> int:
    """The newest time in the last good record of a segment, as far as one is found near its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOOKED_AT_BYTES))
        content = file.read()
    at = len(content)
    while (at := content.rfind(MARK, 0, at)) >= 0:
        record, _ = _record_at(content, at, SharedPairs())
        if record is not None and _newest_ms(record) > -NEVER_MS:
            return _newest_ms(record)
    return -NEVER_MS


@dataclass(slots=True)
class _Layout:
    """A layout while it is read: its series, and slots that were not handed over yet."""

    number: int
    key: str
    ids: Ints
    # Their ids in the head, once that is asked.
    mine: Ints | None = None
    # Where its last values lie among those of all layouts, once it had some.
    start: int = NOWHERE
    room: int = 0
    # Whether those are its last values: damage may have taken some of them.
    is_known: bool = False
    times: list[int] = field(default_factory=list)
    gathered: Ints | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Samples from `since_ms` on and before `until_ms`; the log ends at about `ends_ms`."""

    since_ms: int
    until_ms: int
    ends_ms: int


class _Reader:
    """One segment on its way into the head."""

    def __init__(self, head: Head, outcome: Replayed, wanted: Wanted) -> None:
        self._head, self._outcome, self._wanted = head, outcome, wanted
        # Labels of series that no sample asked for yet.
        self._labels: dict[int, Pairs] = {}
        # Indexed by the numbers in the log: the id that a number stands for, its id in the head, and whether it is
        # part of a layout.
        self._old = np.empty(0, dtype=np.int64)
        self._new = np.empty(0, dtype=np.int64)
        self._in_layout = np.empty(0, dtype=np.int64)
        self._layouts: dict[int, _Layout] = {}
        self._newest: dict[str, _Layout] = {}
        # The bits of the last values of all layouts, and how many of them are given out.
        self._last = np.empty(0, dtype=np.int64)
        self._taken = 0
        self.histograms: dict[int, bytes] = {}

    def take(self, record: Record) -> int:
        """Read a record; returns the newest time in it."""
        if record.definitions:
            self._define(record.definitions)
        for number, key, ids in record.layouts:
            self._layouts[number] = _Layout(number, key, np.array(ids, dtype=np.int64))
            self._make_room(max(ids, default=0) & NUMBER_MASK)
            self._in_layout[self._layouts[number].ids & NUMBER_MASK] = 1
        mask_at = value_at = 0
        for scrapes in _rounds(record.scrapes):
            masked = int(((scrapes[4] + 7) // 8)[scrapes[2] == 0].sum())
            changed = int(scrapes[3].sum())
            self._take_scrapes(
                scrapes, record.masks[mask_at : mask_at + masked], record.changed[value_at : value_at + changed]
            )
            mask_at, value_at = mask_at + masked, value_at + changed
        self.histograms |= record.histograms
        if len(record.ids):
            self._take_samples(record)
        return _newest_ms(record)

    def lose_track(self) -> None:
        """Bytes are missing here: what follows as a change of a value before means nothing until it is whole again."""
        for layout in self._layouts.values():
            layout.is_known = False

    def finish(self) -> None:
        for layout in self._layouts.values():
            self._hand_over(layout)

    def _define(self, definitions: dict[int, Pairs]) -> None:
        ids = np.fromiter(definitions, dtype=np.int64, count=len(definitions))
        numbers = ids & NUMBER_MASK
        self._make_room(int(numbers.max()))
        if (self._old[numbers] != UNKNOWN).any():
            # A number that another series had: what was gathered of that one comes first.
            self.finish()
        self._old[numbers], self._new[numbers] = ids, UNASKED
        self._labels.update(zip(numbers.tolist(), definitions.values(), strict=True))

    def _make_room(self, number: int) -> None:
        self._old = grown(self._old, number + 1, fill=UNKNOWN)
        self._new = grown(self._new, number + 1, fill=UNKNOWN)
        self._in_layout = grown(self._in_layout, number + 1, fill=0)

    def _ids_in_head(self, ids: Ints) -> Ints:
        """The head's ids for ids of the log; UNKNOWN where the definition was damaged or the head is full."""
        numbers = ids & NUMBER_MASK
        self._make_room(int(numbers.max()) if len(numbers) else 0)
        asked = np.unique(numbers[self._new[numbers] == UNASKED])
        if len(asked):
            self._new[asked] = self._head.series_ids(
                [label_sets.Labels.kept(self._labels.pop(number)) for number in asked.tolist()]
            )
        return np.where(self._old[numbers] == ids, self._new[numbers], UNKNOWN)

    def _take_scrapes(self, scrapes: Ints, masks: Bytes, changed: Ints) -> None:
        """Bring the last values up to date, and gather them; each layout is there once at most."""
        numbers, times, wholes, counts, sizes = scrapes.tolist()
        layouts = [self._readable(*scrape) for scrape in zip(numbers, wholes, sizes, strict=True)]
        if len(masks):
            self._change(scrapes, masks, changed, layouts=layouts)
        end = 0
        for layout, at_ms, is_whole, count, size in zip(layouts, times, wholes, counts, sizes, strict=True):
            end += count
            if layout is None:
                self._outcome.lost += size
                continue
            if is_whole:
                self._begin(layout)
                self._last[layout.start : layout.start + size] = changed[end - count : end]
            if self._wanted.since_ms <= at_ms < self._wanted.until_ms:
                self._gather(layout, at_ms)

    def _readable(self, number: int, is_whole: int, size: int) -> _Layout | None:
        """The layout of a scrape, unless damage took what it depends on."""
        layout = self._layouts.get(number)
        if layout is None or len(layout.ids) != size or not (is_whole or layout.is_known):
            return None
        return layout

    def _change(self, scrapes: Ints, masks: Bytes, changed: Ints, *, layouts: list[_Layout | None]) -> None:
        """Write what changed into the last values, for all layouts at once."""
        _, _, wholes, counts, sizes = scrapes
        starts = np.array([NOWHERE if layout is None else layout.start for layout in layouts], dtype=np.int64)
        has_mask = wholes == 0
        if not has_mask.all():
            changed = changed[np.repeat(has_mask, counts)]
            starts, counts, sizes = starts[has_mask], counts[has_mask], sizes[has_mask]
        # A mask begins with a byte of its own.
        widths = (sizes + 7) // 8 * 8
        shifts = starts - (np.cumsum(widths) - widths)
        at = np.flatnonzero(np.unpackbits(masks).view(np.bool_)) + np.repeat(shifts, counts)
        if (starts == NOWHERE).any():
            has_place = np.repeat(starts != NOWHERE, counts)
            at, changed = at[has_place], changed[has_place]
        self._last[at] = changed

    def _begin(self, layout: _Layout) -> None:
        """The layout is whole: it takes the place of the one that its target had before."""
        layout.is_known = True
        before = self._newest.get(layout.key)
        if before is layout:
            return
        self._newest[layout.key] = layout
        if before is not None:
            self._hand_over(before)
            del self._layouts[before.number]
            if len(layout.ids) <= before.room:
                layout.start, layout.room = before.start, before.room
                return
        layout.start, layout.room = self._taken, len(layout.ids) + SPARE
        self._taken += layout.room
        self._last = grown(self._last, self._taken, fill=0)

    def _gather(self, layout: _Layout, at_ms: int) -> None:
        if layout.gathered is None:
            layout.gathered = np.empty((GATHERED_SLOTS, len(layout.ids)), dtype=np.int64)
        layout.gathered[len(layout.times)] = self._last[layout.start : layout.start + len(layout.ids)]
        layout.times.append(at_ms)
        if len(layout.times) == GATHERED_SLOTS:
            self._hand_over(layout)

    def _take_samples(self, record: Record) -> None:
        self._make_room(int((record.ids & NUMBER_MASK).max()))
        if self._in_layout[record.ids & NUMBER_MASK].any():
            # A series that is scraped and sampled: its scrapes so far come first.
            self.finish()
        wanted = (record.times >= self._wanted.since_ms) & (record.times < self._wanted.until_ms)
        ids, times, values = record.ids[wanted], record.times[wanted], record.values[wanted]
        mine = self._ids_in_head(ids)
        known = mine != UNKNOWN
        self._outcome.lost += int(np.count_nonzero(~known))
        self._outcome.samples += int(np.count_nonzero(known))
        self._head.load_samples(mine[known], times[known], values[known])

    def _hand_over(self, layout: _Layout) -> None:
        if not layout.times or layout.gathered is None:
            return
        if layout.mine is None:
            layout.mine = self._ids_in_head(layout.ids)
        mine, known = layout.mine, layout.mine != UNKNOWN
        rows = layout.gathered[: len(layout.times)].view(np.float64).T
        table = np.ascontiguousarray(rows if known.all() else rows[known])
        times = np.array(layout.times, dtype=np.int64)
        layout.times = []
        self._outcome.lost += int(np.count_nonzero(~known)) * len(times)
        self._outcome.samples += table.size
        if len(table):
            self._head.load_scrapes(layout.key, mine[known], times, values=table, expected=self._expected(times))

    def _expected(self, times: Ints) -> int:
        """How many slots a target will have in all that goes on as it began."""
        if len(times) < GATHERED_SLOTS:
            return 0
        step_ms = max(1, int(times[-1] - times[0]) // (len(times) - 1))
        left_ms = min(self._wanted.ends_ms, self._wanted.until_ms) - int(times[-1])
        return min(len(times) + left_ms // step_ms + 1, MOST_EXPECTED)


def _rounds(scrapes: Ints) -> Iterator[Ints]:
    """Scrapes in their order, cut where a layout would come a second time."""
    low, seen = 0, set[int]()
    for at, number in enumerate(scrapes[0].tolist()):
        if number in seen:
            yield scrapes[:, low:at]
            low, seen = at, set()
        seen.add(number)
    if low < scrapes.shape[1]:
        yield scrapes[:, low:]


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
    outcome, shared = Replayed(), SharedPairs()
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    wanted = Wanted(since_ms, until_ms, max(map(_ends_ms, paths[-1:]), default=since_ms))
    for path in paths:
        segment, is_ours = Segment(path, bytes=path.stat().st_size), True
        reader = _Reader(head, outcome, wanted)
        for found in records(path, shared):
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
