"""What a log has, as a head takes it: label sets, whole stretches of scrapes, single samples.

A restart of a large fleet has a hundred million samples to read. So a record is read as a whole: all values that
changed are written at once into one column with the last value of every series, and stretches of that column are copied
into a table, a row for each slot. Rows are handed over many at a time. `wal_replay` takes them into a head;
`wal_ahead` reads in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.groups import grow_column
from watchkeeper.store.rows import MixedTable, split
from watchkeeper.store.series import UNKNOWN, Pairs
from watchkeeper.store.wal import wal_records
from watchkeeper.store.wal.wal import NUMBER_MASK, SUFFIX, Segment
from watchkeeper.store.wal.wal_labels import SharedPairs
from watchkeeper.store.wal.wal_records import Bytes, WalRecord

UNASKED = -2
# Slots of a layout that are handed over at once; of a fleet that is not large four times as many, as long as they take
# no more than so many bytes.
GATHERED_SLOTS = 64
GATHERED_BYTES = 64 << 20
# Room that a target gets at most when it goes on as it began: two hours at 15 s.
MOST_EXPECTED = 512
# A batch ends with the part that makes it so large: about 8 MB.
BATCH_SAMPLES = 1 << 20
NOWHERE = -1
# Series that a target may get without a new place for its last values.
SPARE = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReplayScrapes:
    """Row s of the table has values of `series[s]` at `times`, of a target that may have so many slots in all."""

    key: str
    series: Ints
    times: Ints
    table: MixedTable
    expected: int

    @property
    def size(self) -> int:
        return self.table.size


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySamples:
    """Samples of any series at any times."""

    series: Ints
    times: Ints
    values: Floats

    @property
    def size(self) -> int:
        return len(self.series)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayBatch:
    """What a head takes next, in this order. A series is meant by its place among all label sets so far."""

    labels: list[Pairs]
    parts: list[ReplayScrapes | ReplaySamples]


@dataclass(slots=True)
class SegmentResult:
    """A segment was read to its end: what is to be known about it."""

    segment: Segment
    # False for a file that is not a segment of this version.
    is_ours: bool = True
    damages: list[Corruption] = field(default_factory=list)
    # Bytes of a record that a crash cut short; nobody was told that they are safe.
    torn_bytes: int = 0
    # Samples whose values depend on a damaged record.
    lost: int = 0
    histograms: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Samples from `since_ms` on and before `until_ms`; the log ends at about `ends_ms`."""

    since_ms: int
    until_ms: int
    ends_ms: int


class _LabelSetNumbers:
    """All label sets that samples were met of, in any segment, and which of them are new since the last batch."""

    def __init__(self) -> None:
        self._places: dict[Pairs, int] = {}
        self.fresh: list[Pairs] = []

    def place(self, pairs: Pairs) -> int:
        count = len(self._places)
        place = self._places.setdefault(pairs, count)
        if place == count:
            self.fresh.append(pairs)
        return place


@dataclass(slots=True)
class _ReadLayout:
    """The series of a target's scrapes in one order."""

    number: int
    key: str
    ids: Ints
    # Their places among the label sets, from the first slot that is gathered on.
    places: Ints | None = None
    room: int = 0


class _SegmentReader:
    """One segment on its way into batches."""

    def __init__(self, met: _LabelSetNumbers, ended: SegmentResult, wanted: ReplayRange) -> None:
        self._met, self._ended, self._wanted = met, ended, wanted
        self.parts: list[ReplayScrapes | ReplaySamples] = []
        # Labels of series that no sample asked for yet.
        self._labels: dict[int, Pairs] = {}
        # Indexed by the numbers in the log: the id that a number stands for, its place among the label sets, and
        # whether it is part of a layout.
        self._old = np.empty(0, dtype=np.int64)
        self._place = np.empty(0, dtype=np.int64)
        self._in_layout = np.empty(0, dtype=np.int64)
        self._layouts: dict[int, _ReadLayout] = {}
        self._newest: dict[str, _ReadLayout] = {}
        self._target_numbers: dict[str, int] = {}
        # Indexed by the numbers of layouts: a number for its target, how many series it has, where their last values
        # lie, whether those are known or damage may have taken some of them, and how many slots are gathered.
        self._targets = np.empty(0, dtype=np.int64)
        self._sizes = np.empty(0, dtype=np.int64)
        self._starts = np.empty(0, dtype=np.int64)
        self._is_known = np.empty(0, dtype=np.int64)
        self._filled = np.empty(0, dtype=np.int64)
        # The bits of the last values of all layouts, how many of them are given out, and gathered copies of them.
        self._last = np.empty(0, dtype=np.int64)
        self._taken = 0
        self._gathered = np.empty((4 * GATHERED_SLOTS, 0), dtype=np.int64)
        self._times = np.empty((4 * GATHERED_SLOTS, 0), dtype=np.int64)

    def take(self, record: WalRecord) -> None:
        if record.definitions:
            self._define(record.definitions)
        for number, key, ids in record.layouts:
            self._lay_out(_ReadLayout(number, key, np.array(ids, dtype=np.int64)))
        mask_at = value_at = 0
        for scrapes in self._rounds(record.scrapes):
            masked = int(((scrapes[4] + 7) // 8)[scrapes[2] == 0].sum())
            changed = int(scrapes[3].sum())
            self._take_scrapes(
                scrapes, record.masks[mask_at : mask_at + masked], record.changed[value_at : value_at + changed]
            )
            mask_at, value_at = mask_at + masked, value_at + changed
        self._ended.histograms |= record.histograms
        if len(record.ids):
            self._take_samples(record)

    def _rounds(self, scrapes: Ints) -> Iterator[Ints]:
        """Scrapes in their order, cut where a target would come a second time."""
        if not scrapes.shape[1]:
            return
        self._make_layout_room(int(scrapes[0].max()))
        targets = self._targets[scrapes[0]].tolist()
        if len(set(targets)) == len(targets):
            yield scrapes
            return
        low, seen = 0, set[int]()
        for at, target in enumerate(targets):
            if target in seen:
                yield scrapes[:, low:at]
                low, seen = at, set()
            seen.add(target)
        yield scrapes[:, low:]

    def lose_track(self) -> None:
        """Bytes are missing here: what follows as a change of a value before means nothing until it is whole again."""
        self._is_known[:] = 0

    def finish(self) -> None:
        self._hand_over(self._filled.nonzero()[0])

    def leave(self) -> Iterator[None]:
        """Hand over the rest, a batch at a time: whoever takes one need not wait for all."""
        for number in self._filled.nonzero()[0].tolist():
            self._hand_over(np.array([number]))
            if sum(part.size for part in self.parts) >= BATCH_SAMPLES:
                yield
        yield

    def _define(self, definitions: dict[int, Pairs]) -> None:
        ids = np.fromiter(definitions, dtype=np.int64, count=len(definitions))
        numbers = ids & NUMBER_MASK
        self._make_room(int(numbers.max()))
        if (self._old[numbers] != UNKNOWN).any():
            # A number that another series had: what was gathered of that one comes first.
            self.finish()
        self._old[numbers], self._place[numbers] = ids, UNASKED
        self._labels.update(zip(numbers.tolist(), definitions.values(), strict=True))

    def _make_room(self, number: int) -> None:
        self._old = grow_column(self._old, number + 1, fill=UNKNOWN)
        self._place = grow_column(self._place, number + 1, fill=UNKNOWN)
        self._in_layout = grow_column(self._in_layout, number + 1, fill=0)

    def _lay_out(self, layout: _ReadLayout) -> None:
        self._layouts[layout.number] = layout
        self._make_room(int((layout.ids & NUMBER_MASK).max(initial=0)))
        self._in_layout[layout.ids & NUMBER_MASK] = 1
        self._make_layout_room(layout.number)
        self._targets[layout.number] = self._target_numbers.setdefault(layout.key, len(self._target_numbers))
        self._sizes[layout.number] = len(layout.ids)

    def _make_layout_room(self, number: int) -> None:
        if number < len(self._sizes):
            return
        self._targets = grow_column(self._targets, number + 1, fill=NOWHERE)
        self._sizes = grow_column(self._sizes, number + 1, fill=NOWHERE)
        self._starts = grow_column(self._starts, number + 1, fill=NOWHERE)
        self._is_known = grow_column(self._is_known, number + 1, fill=0)
        self._filled = grow_column(self._filled, number + 1, fill=0)
        self._times = _wider(self._times, len(self._sizes))

    def _places(self, ids: Ints) -> Ints:
        """The places of ids of the log among the label sets; UNKNOWN where the definition was damaged."""
        numbers = ids & NUMBER_MASK
        self._make_room(int(numbers.max(initial=0)))
        asked = list(dict.fromkeys(numbers[self._place[numbers] == UNASKED].tolist()))
        if asked:
            labels, place = self._labels, self._met.place
            self._place[asked] = [place(labels.pop(number)) for number in asked]
        return np.where(self._old[numbers] == ids, self._place[numbers], UNKNOWN)

    def _take_scrapes(self, scrapes: Ints, masks: Bytes, changed: Ints) -> None:
        """Bring the last values up to date, and gather them; each target is there once at most."""
        numbers, times, wholes, counts, sizes = scrapes
        is_whole = wholes != 0
        # Unless damage took what a scrape depends on.
        is_readable = (self._sizes[numbers] == sizes) & (is_whole | (self._is_known[numbers] != 0))
        begun = numbers[is_whole & is_readable]
        for number in begun[self._starts[begun] == NOWHERE].tolist():
            self._begin(self._layouts[number])
        self._is_known[begun] = 1
        starts = np.where(is_readable, self._starts[numbers], NOWHERE)
        if is_whole.any():
            has_values = np.repeat(is_whole, counts) if not is_whole.all() else slice(None)
            self._write(
                _ranges(starts[is_whole], sizes[is_whole]), changed[has_values], starts[is_whole], sizes[is_whole]
            )
        if len(masks):
            has_mask = ~is_whole
            has_values = np.repeat(has_mask, counts) if is_whole.any() else slice(None)
            starts_masked, counts, sizes_masked = starts[has_mask], counts[has_mask], sizes[has_mask]
            # A mask begins with a byte of its own.
            widths = (sizes_masked + 7) // 8 * 8
            shifts = starts_masked - (np.cumsum(widths) - widths)
            at = np.flatnonzero(np.unpackbits(masks).view(np.bool_)) + np.repeat(shifts, counts)
            self._write(at, changed[has_values], starts_masked, counts)
        self._ended.lost += int(sizes[~is_readable].sum())
        is_wanted = is_readable & (times >= self._wanted.since_ms) & (times < self._wanted.until_ms)
        self._gather(numbers[is_wanted], times[is_wanted])

    def _write(self, at: Ints, bits: Ints, starts: Ints, counts: Ints) -> None:
        """Write last values, except those of layouts without a place."""
        if (starts == NOWHERE).any():
            has_place = np.repeat(starts != NOWHERE, counts)
            at, bits = at[has_place], bits[has_place]
        self._last[at] = bits

    def _begin(self, layout: _ReadLayout) -> None:
        """The layout is whole: it takes the place of the one that its target had before."""
        before = self._newest.get(layout.key)
        self._newest[layout.key] = layout
        if before is not None:
            self._hand_over(np.array([before.number]))
            self._sizes[before.number] = NOWHERE
            del self._layouts[before.number]
            if len(layout.ids) <= before.room:
                self._starts[layout.number], layout.room = self._starts[before.number], before.room
                return
        self._starts[layout.number], layout.room = self._taken, len(layout.ids) + SPARE
        self._taken += layout.room
        self._last = grow_column(self._last, self._taken, fill=0)

    def _gather(self, numbers: Ints, times: Ints) -> None:
        """Copy the last values of layouts, of neighbours that have as many slots at once."""
        if not len(numbers):
            return
        for layout in [self._layouts[number] for number in numbers[self._filled[numbers] == 0].tolist()]:
            if layout.places is None:
                layout.places = self._places(layout.ids)
        if self._gathered.shape[1] < len(self._last):
            self._gathered = _wider(self._gathered, len(self._last))
        starts, slots = self._starts[numbers], self._filled[numbers]
        ends = starts + self._sizes[numbers]
        edges = np.flatnonzero((starts[1:] < ends[:-1]) | (starts[1:] > ends[:-1] + SPARE) | (slots[1:] != slots[:-1]))
        firsts, lasts = [0, *(edges + 1).tolist()], [*edges.tolist(), len(numbers) - 1]
        for slot, low, high in zip(slots[firsts].tolist(), starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
            self._gathered[slot, low:high] = self._last[low:high]
        self._times[slots, numbers] = times
        self._filled[numbers] += 1
        most = max(GATHERED_SLOTS, min(4 * GATHERED_SLOTS, GATHERED_BYTES // self._last.nbytes))
        if int(slots.max()) >= most - 1:
            # Those that are not far behind go along: so there are few batches.
            self._hand_over(np.flatnonzero(self._filled >= most // 2))

    def _take_samples(self, record: WalRecord) -> None:
        self._make_room(int((record.ids & NUMBER_MASK).max()))
        if self._in_layout[record.ids & NUMBER_MASK].any():
            # A series that is scraped and sampled: its scrapes so far come first.
            self.finish()
        wanted = (record.times >= self._wanted.since_ms) & (record.times < self._wanted.until_ms)
        places = self._places(record.ids[wanted])
        known = places != UNKNOWN
        self._ended.lost += int(np.count_nonzero(~known))
        if known.any():
            self.parts.append(ReplaySamples(places[known], record.times[wanted][known], record.values[wanted][known]))

    def _hand_over(self, numbers: Ints) -> None:
        for number, filled in zip(numbers.tolist(), self._filled[numbers].tolist(), strict=True):
            layout = self._layouts[number]
            if not filled or layout.places is None:
                continue
            known, low = layout.places != UNKNOWN, int(self._starts[number])
            times = self._times[:filled, number].copy()
            rows = self._gathered[:filled, low : low + len(layout.ids)].view(np.float64).T
            self._ended.lost += int(np.count_nonzero(~known)) * filled
            if known.any():
                order, table = split(np.array(rows if known.all() else rows[known], order="C"))
                series = layout.places[known][order]
                self.parts.append(ReplayScrapes(layout.key, series, times, table, self._expected(times)))
        self._filled[numbers] = 0

    def _expected(self, times: Ints) -> int:
        """How many slots a target will have in all that goes on as it began."""
        if len(times) < max(2, GATHERED_SLOTS // 2):
            return 0
        step_ms = max(1, int(times[-1] - times[0]) // (len(times) - 1))
        left_ms = min(self._wanted.ends_ms, self._wanted.until_ms) - int(times[-1])
        return min(len(times) + left_ms // step_ms + 1, MOST_EXPECTED)


def _wider(table: Ints, columns: int) -> Ints:
    wider = np.empty((len(table), columns), dtype=np.int64)
    wider[:, : table.shape[1]] = table
    return wider


def _ranges(starts: Ints, sizes: Ints) -> Ints:
    """The numbers from each start on, as many as its size says."""
    ends = np.cumsum(sizes)
    found: Ints = np.arange(int(ends[-1])) + np.repeat(starts - (ends - sizes), sizes)
    return found


def read(folder: Path, *, since_ms: int, until_ms: int = NEVER_MS) -> Iterator[ReplayBatch | SegmentResult]:
    """Everything in every segment, except what blocks have already; no file is changed.

    A file that is not a segment of this version is named, and left to whoever can read it.
    """
    met, shared, paths = _LabelSetNumbers(), SharedPairs(), sorted(folder.glob(f"*{SUFFIX}"))
    wanted = ReplayRange(since_ms, until_ms, max(map(wal_records.last_sample_ms, paths[-1:]), default=since_ms))
    for path in paths:
        ended = SegmentResult(Segment(path, bytes=path.stat().st_size))
        reader = _SegmentReader(met, ended, wanted)
        for found in wal_records.records(path, shared):
            _take(found, reader, ended)
            yield from _batches(met, reader)
        for _ in reader.leave():
            yield from _batches(met, reader)
        yield ended


def _take(found: WalRecord | Corruption, reader: _SegmentReader, ended: SegmentResult) -> None:
    if isinstance(found, WalRecord):
        reader.take(found)
        ended.segment.newest_ms = max(ended.segment.newest_ms, wal_records.newest_ms(found))
    elif found.problem:
        ended.damages.append(found)
        ended.is_ours = ended.is_ours and found.offset > 0
        reader.lose_track()
    else:
        ended.torn_bytes += ended.segment.bytes - found.offset


def _batches(met: _LabelSetNumbers, reader: _SegmentReader) -> Iterator[ReplayBatch]:
    """What was handed over, in batches of bounded size; nobody holds what has been given.

    Labels go ahead of their samples: whoever takes them has work while those are gathered.
    """
    while reader.parts or met.fresh:
        count = samples = 0
        while count < len(reader.parts) and samples < BATCH_SAMPLES:
            samples += reader.parts[count].size
            count += 1
        batch = ReplayBatch(met.fresh, reader.parts[:count])
        met.fresh, reader.parts = [], reader.parts[count:]
        yield batch
