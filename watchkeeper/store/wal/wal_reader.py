"""Read a WAL into batches for a head: label sets, tables of scrapes, and single samples.

A restart of a large fleet reads a hundred million samples, so each record is processed as a whole: all changed values
are written to one array with the last value of every series, and ranges of that array are copied to a table with a row
for each slot. `wal_replay` loads the batches into a head; `wal_prefetch` reads in another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from watchkeeper.store.columns import NEVER_MS, Floats, Ints
from watchkeeper.store.corruption import Corruption
from watchkeeper.store.groups import grow_column
from watchkeeper.store.rows import MixedTable, split_by_width
from watchkeeper.store.series import UNKNOWN, Pairs
from watchkeeper.store.wal import wal_records
from watchkeeper.store.wal.wal import NUMBER_MASK, SUFFIX, Segment
from watchkeeper.store.wal.wal_records import Bytes, SharedPairs, WalRecord

UNRESOLVED = -2
# Slots of a layout that are buffered before they are passed on; four times as many for a small fleet, within
# MAX_BUFFERED_BYTES.
BUFFERED_SLOTS = 64
MAX_BUFFERED_BYTES = 64 << 20
# The most slots that a target is expected to have: two hours at 15 s.
MAX_EXPECTED_SLOTS = 512
# A batch ends when it has at least this many samples: about 8 MB.
BATCH_SAMPLES = 1 << 20
NO_POSITION = -1
# Series that may be added to a target without moving its last values.
SPARE_SERIES = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReplayScrapes:
    """Scrapes of a target: row s of the table has the values of `series[s]` at `times`."""

    key: str
    series: Ints
    times: Ints
    table: MixedTable
    expected_slots: int

    @property
    def size(self) -> int:
        return self.table.size


@dataclass(frozen=True, slots=True, eq=False)
class ReplaySamples:
    series: Ints
    times: Ints
    values: Floats

    @property
    def size(self) -> int:
        return len(self.series)


@dataclass(frozen=True, slots=True, eq=False)
class ReplayBatch:
    """The next label sets and samples for a head, in this order; series are numbers of label sets so far."""

    labels: list[Pairs]
    parts: list[ReplayScrapes | ReplaySamples]


@dataclass(slots=True)
class SegmentResult:
    segment: Segment
    # False for a file that is not a WAL segment of this version.
    is_ours: bool = True
    damages: list[Corruption] = field(default_factory=list)
    # Bytes of an incomplete record after a crash; they were never confirmed as written.
    torn_bytes: int = 0
    # Samples whose values depend on a damaged record.
    lost: int = 0
    histograms: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Which samples to read: since ≤ time < until. The WAL ends at about `end_ms`."""

    since_ms: int
    until_ms: int
    end_ms: int


class _LabelSetNumbers:
    """Numbers the label sets of all segments; `new_label_sets` are new since the last batch."""

    def __init__(self) -> None:
        self._number_by_label_set: dict[Pairs, int] = {}
        self.new_label_sets: list[Pairs] = []

    def number_of(self, pairs: Pairs) -> int:
        count = len(self._number_by_label_set)
        number = self._number_by_label_set.setdefault(pairs, count)
        if number == count:
            self.new_label_sets.append(pairs)
        return number


@dataclass(slots=True)
class _ReadLayout:
    """The series of a target's scrapes in a fixed order."""

    number: int
    key: str
    ids: Ints
    # The numbers of their label sets, set at the first buffered slot.
    label_numbers: Ints | None = None
    capacity: int = 0


class _SegmentReader:
    def __init__(self, label_sets: _LabelSetNumbers, result: SegmentResult, time_range: ReplayRange) -> None:
        self._label_sets, self._result, self._time_range = label_sets, result, time_range
        self.parts: list[ReplayScrapes | ReplaySamples] = []
        # Labels of series without a sample so far.
        self._labels: dict[int, Pairs] = {}
        # Indexed by series number: the current id, the number of its label set, and whether the series is in a layout.
        self._ids = np.empty(0, dtype=np.int64)
        self._label_numbers = np.empty(0, dtype=np.int64)
        self._in_layout = np.empty(0, dtype=np.int64)
        self._layouts: dict[int, _ReadLayout] = {}
        self._newest_layouts: dict[str, _ReadLayout] = {}
        self._target_numbers: dict[str, int] = {}
        # Indexed by layout number: the number of the target, how many series the layout has, where their last values
        # are, whether those are valid (not lost to damage), and how many slots are buffered.
        self._targets = np.empty(0, dtype=np.int64)
        self._sizes = np.empty(0, dtype=np.int64)
        self._starts = np.empty(0, dtype=np.int64)
        self._is_valid = np.empty(0, dtype=np.int64)
        self._slot_counts = np.empty(0, dtype=np.int64)
        # The bits of the last values of all layouts, how many are in use, and buffered copies of them.
        self._last_bits = np.empty(0, dtype=np.int64)
        self._used_capacity = 0
        self._buffered_bits = np.empty((4 * BUFFERED_SLOTS, 0), dtype=np.int64)
        self._buffered_times = np.empty((4 * BUFFERED_SLOTS, 0), dtype=np.int64)

    def add_record(self, record: WalRecord) -> None:
        if record.definitions:
            self._define(record.definitions)
        for number, key, ids in record.layouts:
            layout = _ReadLayout(number, key, np.array(ids, dtype=np.int64))
            self._layouts[layout.number] = layout
            self._grow_numbers(int((layout.ids & NUMBER_MASK).max(initial=0)))
            self._in_layout[layout.ids & NUMBER_MASK] = 1
            self._grow_layouts(layout.number)
            self._targets[layout.number] = self._target_numbers.setdefault(layout.key, len(self._target_numbers))
            self._sizes[layout.number] = len(layout.ids)
        mask_offset = value_offset = 0
        for scrapes in self._split_rounds(record.scrapes):
            masked = int(((scrapes[4] + 7) // 8)[scrapes[2] == 0].sum())
            changed = int(scrapes[3].sum())
            self._add_scrapes(
                scrapes,
                record.masks[mask_offset : mask_offset + masked],
                record.changed[value_offset : value_offset + changed],
            )
            mask_offset, value_offset = mask_offset + masked, value_offset + changed
        self._result.histograms |= record.histograms
        if len(record.ids):
            self._add_samples(record)

    def _split_rounds(self, scrapes: Ints) -> Iterator[Ints]:
        """Split scrapes into rounds in which each target occurs at most once."""
        if not scrapes.shape[1]:
            return
        self._grow_layouts(int(scrapes[0].max()))
        targets = self._targets[scrapes[0]].tolist()
        if len(set(targets)) == len(targets):
            yield scrapes
            return
        start, seen_targets = 0, set[int]()
        for index, target in enumerate(targets):
            if target in seen_targets:
                yield scrapes[:, start:index]
                start, seen_targets = index, set()
            seen_targets.add(target)
        yield scrapes[:, start:]

    def mark_gap(self) -> None:
        """Mark last values as invalid after missing bytes: changes have no base until the next full slot."""
        self._is_valid[:] = 0

    def flush(self) -> None:
        self._flush_layouts(self._slot_counts.nonzero()[0])

    def drain(self) -> Iterator[None]:
        """Flush the rest; yield for each batch, so that the caller need not wait for all."""
        for number in self._slot_counts.nonzero()[0].tolist():
            self._flush_layouts(np.array([number]))
            if sum(part.size for part in self.parts) >= BATCH_SAMPLES:
                yield
        yield

    def _define(self, definitions: dict[int, Pairs]) -> None:
        ids = np.fromiter(definitions, dtype=np.int64, count=len(definitions))
        numbers = ids & NUMBER_MASK
        self._grow_numbers(int(numbers.max()))
        if (self._ids[numbers] != UNKNOWN).any():
            # The number belonged to another series: its buffered slots come first.
            self.flush()
        self._ids[numbers], self._label_numbers[numbers] = ids, UNRESOLVED
        self._labels.update(zip(numbers.tolist(), definitions.values(), strict=True))

    def _grow_numbers(self, number: int) -> None:
        self._ids = grow_column(self._ids, number + 1, fill=UNKNOWN)
        self._label_numbers = grow_column(self._label_numbers, number + 1, fill=UNKNOWN)
        self._in_layout = grow_column(self._in_layout, number + 1, fill=0)

    def _grow_layouts(self, number: int) -> None:
        if number < len(self._sizes):
            return
        self._targets = grow_column(self._targets, number + 1, fill=NO_POSITION)
        self._sizes = grow_column(self._sizes, number + 1, fill=NO_POSITION)
        self._starts = grow_column(self._starts, number + 1, fill=NO_POSITION)
        self._is_valid = grow_column(self._is_valid, number + 1, fill=0)
        self._slot_counts = grow_column(self._slot_counts, number + 1, fill=0)
        self._buffered_times = _widen(self._buffered_times, len(self._sizes))

    def _label_numbers_of(self, ids: Ints) -> Ints:
        """The label set numbers of ids; UNKNOWN if the definition was damaged."""
        numbers = ids & NUMBER_MASK
        self._grow_numbers(int(numbers.max(initial=0)))
        unresolved = list(dict.fromkeys(numbers[self._label_numbers[numbers] == UNRESOLVED].tolist()))
        if unresolved:
            labels, number_of = self._labels, self._label_sets.number_of
            self._label_numbers[unresolved] = [number_of(labels.pop(number)) for number in unresolved]
        return np.where(self._ids[numbers] == ids, self._label_numbers[numbers], UNKNOWN)

    def _add_scrapes(self, scrapes: Ints, masks: Bytes, changed: Ints) -> None:
        """Update the last values and buffer them; each target occurs at most once."""
        numbers, times, full_flags, counts, sizes = scrapes
        is_full = full_flags != 0
        # False if damage lost the values that a scrape depends on.
        is_readable = (self._sizes[numbers] == sizes) & (is_full | (self._is_valid[numbers] != 0))
        started = numbers[is_full & is_readable]
        for number in started[self._starts[started] == NO_POSITION].tolist():
            self._start_layout(self._layouts[number])
        self._is_valid[started] = 1
        starts = np.where(is_readable, self._starts[numbers], NO_POSITION)
        if is_full.any():
            has_values = np.repeat(is_full, counts) if not is_full.all() else slice(None)
            self._write_last(
                _concatenate_ranges(starts[is_full], sizes[is_full]),
                changed[has_values],
                starts[is_full],
                sizes[is_full],
            )
        if len(masks):
            has_mask = ~is_full
            has_values = np.repeat(has_mask, counts) if is_full.any() else slice(None)
            mask_starts, counts, mask_sizes = starts[has_mask], counts[has_mask], sizes[has_mask]
            # Each mask begins at a new byte.
            widths = (mask_sizes + 7) // 8 * 8
            shifts = mask_starts - (np.cumsum(widths) - widths)
            positions = np.flatnonzero(np.unpackbits(masks).view(np.bool_)) + np.repeat(shifts, counts)
            self._write_last(positions, changed[has_values], mask_starts, counts)
        self._result.lost += int(sizes[~is_readable].sum())
        is_in_range = is_readable & (times >= self._time_range.since_ms) & (times < self._time_range.until_ms)
        self._buffer_slots(numbers[is_in_range], times[is_in_range])

    def _write_last(self, positions: Ints, bits: Ints, starts: Ints, counts: Ints) -> None:
        """Write last values, except those of layouts without a position."""
        if (starts == NO_POSITION).any():
            has_position = np.repeat(starts != NO_POSITION, counts)
            positions, bits = positions[has_position], bits[has_position]
        self._last_bits[positions] = bits

    def _start_layout(self, layout: _ReadLayout) -> None:
        """Start to use a layout with full values; it replaces the previous layout of its target."""
        previous = self._newest_layouts.get(layout.key)
        self._newest_layouts[layout.key] = layout
        if previous is not None:
            self._flush_layouts(np.array([previous.number]))
            self._sizes[previous.number] = NO_POSITION
            del self._layouts[previous.number]
            if len(layout.ids) <= previous.capacity:
                self._starts[layout.number], layout.capacity = (self._starts[previous.number], previous.capacity)
                return
        self._starts[layout.number], layout.capacity = self._used_capacity, len(layout.ids) + SPARE_SERIES
        self._used_capacity += layout.capacity
        self._last_bits = grow_column(self._last_bits, self._used_capacity, fill=0)

    def _buffer_slots(self, numbers: Ints, times: Ints) -> None:
        """Copy the last values of layouts to the buffer; adjacent layouts with equal slots are copied together."""
        if not len(numbers):
            return
        for layout in [self._layouts[number] for number in numbers[self._slot_counts[numbers] == 0].tolist()]:
            if layout.label_numbers is None:
                layout.label_numbers = self._label_numbers_of(layout.ids)
        if self._buffered_bits.shape[1] < len(self._last_bits):
            self._buffered_bits = _widen(self._buffered_bits, len(self._last_bits))
        starts, slots = self._starts[numbers], self._slot_counts[numbers]
        ends = starts + self._sizes[numbers]
        gaps = starts[1:] - ends[:-1]
        edges = np.flatnonzero((gaps < 0) | (gaps > SPARE_SERIES) | (slots[1:] != slots[:-1]))
        firsts, lasts = [0, *(edges + 1).tolist()], [*edges.tolist(), len(numbers) - 1]
        for slot, low, high in zip(slots[firsts].tolist(), starts[firsts].tolist(), ends[lasts].tolist(), strict=True):
            self._buffered_bits[slot, low:high] = self._last_bits[low:high]
        self._buffered_times[slots, numbers] = times
        self._slot_counts[numbers] += 1
        slot_limit = max(BUFFERED_SLOTS, min(4 * BUFFERED_SLOTS, MAX_BUFFERED_BYTES // self._last_bits.nbytes))
        if int(slots.max()) >= slot_limit - 1:
            # Layouts with at least half as many slots are flushed too, so that there are fewer batches.
            self._flush_layouts(np.flatnonzero(self._slot_counts >= slot_limit // 2))

    def _add_samples(self, record: WalRecord) -> None:
        self._grow_numbers(int((record.ids & NUMBER_MASK).max()))
        if self._in_layout[record.ids & NUMBER_MASK].any():
            # The series is also scraped: its buffered scrapes come first.
            self.flush()
        is_in_range = (record.times >= self._time_range.since_ms) & (record.times < self._time_range.until_ms)
        label_numbers = self._label_numbers_of(record.ids[is_in_range])
        has_label_set = label_numbers != UNKNOWN
        self._result.lost += int(np.count_nonzero(~has_label_set))
        if has_label_set.any():
            self.parts.append(
                ReplaySamples(
                    label_numbers[has_label_set],
                    record.times[is_in_range][has_label_set],
                    record.values[is_in_range][has_label_set],
                )
            )

    def _flush_layouts(self, numbers: Ints) -> None:
        for number, slot_count in zip(numbers.tolist(), self._slot_counts[numbers].tolist(), strict=True):
            layout = self._layouts[number]
            if not slot_count or layout.label_numbers is None:
                continue
            has_label_set, start = layout.label_numbers != UNKNOWN, int(self._starts[number])
            times = self._buffered_times[:slot_count, number].copy()
            rows = self._buffered_bits[:slot_count, start : start + len(layout.ids)].view(np.float64).T
            self._result.lost += int(np.count_nonzero(~has_label_set)) * slot_count
            if has_label_set.any():
                order, table = split_by_width(np.array(rows if has_label_set.all() else rows[has_label_set], order="C"))
                series = layout.label_numbers[has_label_set][order]
                self.parts.append(ReplayScrapes(layout.key, series, times, table, self._expected_slots(times)))
        self._slot_counts[numbers] = 0

    def _expected_slots(self, times: Ints) -> int:
        """How many slots a target will have in total at its current interval."""
        if len(times) < max(2, BUFFERED_SLOTS // 2):
            return 0
        step_ms = max(1, int(times[-1] - times[0]) // (len(times) - 1))
        remaining_ms = min(self._time_range.end_ms, self._time_range.until_ms) - int(times[-1])
        return min(len(times) + remaining_ms // step_ms + 1, MAX_EXPECTED_SLOTS)


def _widen(table: Ints, columns: int) -> Ints:
    wider = np.empty((len(table), columns), dtype=np.int64)
    wider[:, : table.shape[1]] = table
    return wider


def _concatenate_ranges(starts: Ints, sizes: Ints) -> Ints:
    """The concatenated ranges from each start, with the given sizes."""
    ends = np.cumsum(sizes)
    positions: Ints = np.arange(int(ends[-1])) + np.repeat(starts - (ends - sizes), sizes)
    return positions


def read(folder: Path, *, since_ms: int, until_ms: int = NEVER_MS) -> Iterator[ReplayBatch | SegmentResult]:
    """Read all segments without changing them; a file of another version is reported as damaged and skipped."""
    label_sets, shared, paths = _LabelSetNumbers(), SharedPairs(), sorted(folder.glob(f"*{SUFFIX}"))
    time_range = ReplayRange(since_ms, until_ms, max(map(wal_records.last_sample_ms, paths[-1:]), default=since_ms))
    for path in paths:
        result = SegmentResult(Segment(path, bytes=path.stat().st_size))
        reader = _SegmentReader(label_sets, result, time_range)
        for record in wal_records.records(path, shared):
            if isinstance(record, WalRecord):
                reader.add_record(record)
                result.segment.newest_ms = max(result.segment.newest_ms, wal_records.newest_sample_ms(record))
            elif record.problem:
                result.damages.append(record)
                result.is_ours = result.is_ours and record.offset > 0
                reader.mark_gap()
            else:
                result.torn_bytes += result.segment.bytes - record.offset
            yield from _batches(label_sets, reader)
        for _ in reader.drain():
            yield from _batches(label_sets, reader)
        yield result


def _batches(label_sets: _LabelSetNumbers, reader: _SegmentReader) -> Iterator[ReplayBatch]:
    """Labels are sent before their samples, so that the receiver can process them while samples are buffered."""
    while reader.parts or label_sets.new_label_sets:
        count = samples = 0
        while count < len(reader.parts) and samples < BATCH_SAMPLES:
            samples += reader.parts[count].size
            count += 1
        batch = ReplayBatch(label_sets.new_label_sets, reader.parts[:count])
        label_sets.new_label_sets, reader.parts = [], reader.parts[count:]
        yield batch
