"""The head: samples of the last hours in memory, in columns.

One lock protects everything: an append changes columns in place, a select copies what it needs, and the query is
evaluated on the copy without the lock. Old slots and stale series are dropped by age, measured by the clock and not by
the samples.
"""

from __future__ import annotations

import threading
import zlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from watchkeeper import errors
from watchkeeper.model import histograms as histogram_model
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, Mask, is_absent, normalise_nans
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.groups import GroupTable, grow_column
from watchkeeper.store.head import sample_locations
from watchkeeper.store.head.placing import MAX_TEMPLATES, SamplePlacement, TimeBounds
from watchkeeper.store.histograms import Cells, HistogramTable, find_histograms
from watchkeeper.store.index import Cardinality, Matchers, Selection, SeriesIndex
from watchkeeper.store.interfaces import Appended
from watchkeeper.store.metadata import Metadata
from watchkeeper.store.rows import MixedTable
from watchkeeper.store.sample_columns import Columns, check_sample_limit
from watchkeeper.store.series import UNKNOWN, SeriesSet, check_label_limits

# Larger than any clock difference between healthy machines; a sample further ahead would hide all later samples.
MAX_AHEAD_MS = 600_000
# How many retentions samples stay in memory if blocks cannot be written.
MAX_UNSAVED_RETENTIONS = 3
# A series id is its number plus how often that number was used before, so that an outdated id is detected.
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _ScrapeIds:
    """The ids of a target's last scrape and their numbers, valid until a series is removed."""

    ids: Ints
    numbers: Ints
    removals: int


class SampleLog(Protocol):
    """The WAL of a head, which gets each accepted sample before `append` returns; called under the head's lock."""

    def add_scrape(self, key: Hashable, ids: Ints, at_ms: int, values: Floats) -> None: ...

    def add_samples(self, ids: Ints, times: Ints, values: Floats) -> None: ...


class Head:
    """Recent samples of up to `max_series` series, kept for `retention_ms`."""

    def __init__(
        self,
        *,
        retention_ms: int = 2 * 3_600_000,
        max_series: int = 1_000_000,
        late_ms: int = 0,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self.retention_ms = retention_ms
        self.max_series = max_series
        self.late_ms = late_ms
        self.newest_ms: int | None = None
        # Set by `durable`: accepted samples go to the log. Samples before `closed_before_ms` are refused, because their
        # block is being written. Samples from `unsaved_from_ms` on are not dropped, because no block has them, unless
        # blocks cannot be written.
        self.log: SampleLog | None = None
        self.has_blocks = True
        self.closed_before_ms = -NEVER_MS
        self.unsaved_from_ms = NEVER_MS
        # Before this time, memory may lack samples that no block has: only the WAL has all of them.
        self.incomplete_before_ms = -NEVER_MS
        self.lock = threading.Lock()
        self.metadata, self.exemplars = Metadata(), Exemplars()
        self.histograms = HistogramTable()
        self._clock_ms = clock_ms
        self._index = SeriesIndex()
        self._table = GroupTable()
        self._placement = SamplePlacement(self._table)
        self._number_uses = np.empty(0, dtype=np.int64)
        self._ids_by_target: dict[Hashable, _ScrapeIds] = {}
        self._removals = 0
        self._expired_at_ms: int | None = None
        self._jump_ms: int | None = None

    def __len__(self) -> int:
        return len(self._index)

    @property
    def used_bytes(self) -> int:
        return self._table.used_bytes

    def series_id(self, labels: label_sets.Labels) -> int:
        """The id of a series; a new series is added. StoreError names the limit that it exceeds."""
        with self.lock:
            number = self._number(labels)
            return int(self._number_uses[number]) << NUMBER_BITS | number

    def series_ids(self, series: Sequence[label_sets.Labels]) -> Ints:
        """The ids of series that were accepted before; new series are added, or UNKNOWN at the limit."""
        with self.lock:
            numbers = self._index.find_all(series)
            new_positions = np.flatnonzero(numbers == UNKNOWN)
            if len(new_positions):
                new_label_sets = dict.fromkeys([series[position] for position in new_positions.tolist()])
                new_numbers = self._add_many(list(new_label_sets)[: max(0, self.max_series - len(self._index))])
                if len(new_label_sets) == len(new_positions):
                    numbers[new_positions[: len(new_numbers)]] = new_numbers
                else:
                    numbers = self._index.find_all(series)
            has_number = numbers != UNKNOWN
            numbers[has_number] |= self._number_uses[numbers[has_number]] << NUMBER_BITS
            return numbers

    def append_scrape(
        self,
        group_key: Hashable,
        series_ids: Sequence[int] | Ints,
        at_ms: int,
        values: Sequence[float] | Floats,
        *,
        now_ms: int | None = None,
    ) -> Appended:
        """Append one scrape: a value for each series id, all at one time; 64-bit arrays are read without a copy.

        A sample whose series was removed is dropped as `forgotten`: call `series_id` again.
        """
        ids, scrape_values = np.asarray(series_ids, dtype=np.int64), normalise_nans(np.asarray(values))
        with self.lock:
            now_ms = self._now_ms(now_ms)
            if self._is_too_far_ahead(at_ms, now_ms):
                return Appended(0, {"future": len(ids)})
            self._advance(at_ms, now_ms)
            dropped: Counter[str] = Counter()
            total, (ids, numbers) = len(ids), self._current_numbers(group_key, ids)
            if len(numbers) < total:
                dropped["forgotten"] = total - len(numbers)
                scrape_values = scrape_values[self._is_current(np.asarray(series_ids, dtype=np.int64))]
            self._place_together(group_key, numbers, at_ms, ids=ids, values=scrape_values, dropped=dropped)
            self._expire_if_due()
            return Appended(total - sum(dropped.values()), dict(dropped))

    def _current_numbers(self, group_key: Hashable, ids: Ints) -> tuple[Ints, Ints]:
        """The ids whose series still exist, and their numbers; the same array objects for the same ids as last time.

        `placing` and the WAL compare the objects, to detect at once that nothing changed.
        """
        previous = self._ids_by_target.get(group_key)
        if previous is not None and previous.removals == self._removals and previous.ids.tobytes() == ids.tobytes():
            return previous.ids, previous.numbers
        is_current = self._is_current(ids)
        # A copy, because the caller may change its array.
        ids = ids[is_current]
        current = _ScrapeIds(ids, ids & NUMBER_MASK, self._removals)
        if len(self._ids_by_target) > MAX_TEMPLATES:
            self._ids_by_target.clear()
        self._ids_by_target[group_key] = current
        return current.ids, current.numbers

    def _is_current(self, ids: Ints) -> Mask:
        is_current: Mask = self._number_uses[ids & NUMBER_MASK] == ids >> NUMBER_BITS
        return is_current

    def active_series(self, group_key: Hashable, since_ms: int) -> dict[int, label_sets.Labels]:
        """The series of a group's newest scrape, if that is after `since_ms`, by id; without stale series."""
        with self.lock:
            numbers = self._table.active_series(("scrape", group_key), since_ms)
            ids = (self._number_uses[numbers] << NUMBER_BITS | numbers).tolist()
            entries = zip(ids, map(self._index.labels.__getitem__, numbers.tolist()), strict=True)
            return {id: labels for id, labels in entries if labels is not None}

    def append(
        self,
        samples: Iterable[sample_model.Sample | histogram_model.HistogramSample],
        *,
        group_key: str | None = None,
        now_ms: int | None = None,
    ) -> Appended:
        """Append samples in the order of time; `group_key` names a source whose series always have the same time."""
        with self.lock:
            dropped: Counter[str] = Counter()
            now_ms = self._now_ms(now_ms)
            numbers, times, values = self._resolve(samples, now_ms, dropped)
            total = len(numbers) + sum(dropped.values())
            if len(numbers):
                self._advance(int(times.max()), now_ms)
            if group_key is not None and len(numbers) and (times == times[0]).all():
                ids = self._number_uses[numbers] << NUMBER_BITS | numbers
                self._place_together(group_key, numbers, int(times[0]), ids=ids, values=values, dropped=dropped)
            else:
                self._place(numbers, times, values, dropped)
            self._expire_if_due()
            return Appended(total - sum(dropped.values()), dict(dropped))

    def select(self, matchers: Matchers, start_ms: int, end_ms: int, *, max_samples: int | None = None) -> Columns:
        """Copy the samples with start < time ≤ end; QueryLimit if there are more than `max_samples`."""
        with self.lock:
            return self._columns(self._index.select(matchers), start_ms, end_ms, max_samples=max_samples)

    def _columns(self, selection: Selection, start_ms: int, end_ms: int, *, max_samples: int | None) -> Columns:
        locations = sample_locations.locate(selection, self._table)
        lows, highs = np.zeros(len(locations.groups), dtype=np.int64), np.zeros(len(locations.groups), dtype=np.int64)
        for part in locations.parts:
            groups = locations.groups[part.groups]
            lows[part.groups] = self._table.slots_up_to(groups, start_ms, slab=part.slab)
            highs[part.groups] = self._table.slots_up_to(groups, end_ms, slab=part.slab)
        counts = highs - lows
        check_sample_limit(int(counts[locations.group_index].sum()), max_samples)
        return self._copy(selection, locations, lows=lows, counts=counts)

    def latest(self, matchers: Matchers, start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]:
        """The newest sample of each series with start < time ≤ end: times, and values (ABSENT without a sample)."""
        with self.lock:
            selection = self._index.select(matchers)
            locations = sample_locations.locate(selection, self._table)
            times, values = np.zeros(len(selection.numbers), dtype=np.int64), np.full(len(selection.numbers), ABSENT)
            # Series of ended jobs stay for the retention, but have no current sample.
            is_recent = self._placement.newest_ms[selection.numbers] > start_ms
            for part in locations.parts:
                for series, at_ms, newest_values in self._newest(
                    locations, part, is_recent[part.series], time_range=(start_ms, end_ms)
                ):
                    times[series], values[series] = at_ms, newest_values
            return selection.series, times, values

    def _newest(
        self,
        locations: sample_locations.SampleLocations,
        part: sample_locations.SlabPart,
        is_pending: Mask,
        *,
        time_range: tuple[int, int],
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Yield times and values of series in one slab, from the newest slot back; the last one of a series counts."""
        (start_ms, end_ms), table = time_range, self._table
        slot_of, time_of = np.zeros_like(locations.groups), np.zeros_like(locations.groups)
        slot_of[part.groups] = table.slots_up_to(locations.groups[part.groups], end_ms, slab=part.slab) - 1
        time_of[part.groups] = table.times[part.slab].get(part.time_rows, slot_of[part.groups]).view(np.int64)
        series, rows, owners = part.series, part.rows, locations.group_index[part.series]
        slots, at_ms = slot_of[owners], time_of[owners]
        # Nearly all series have a sample in the newest slot; the others step back one slot at a time.
        while True:
            is_pending = is_pending & (slots >= 0) & (at_ms > start_ms)
            if not is_pending.all():
                series, rows, owners = series[is_pending], rows[is_pending], owners[is_pending]
                slots, at_ms = slots[is_pending], at_ms[is_pending]
            if not len(series):
                return
            slot_values = table.slabs[part.slab].get(rows, slots)
            yield series, at_ms, slot_values
            missing = np.flatnonzero(is_absent(slot_values))
            series, rows, owners, slots = series[missing], rows[missing], owners[missing], slots[missing] - 1
            at_ms = table.times[part.slab].get(table.time_row[locations.groups[owners]], slots).view(np.int64)
            is_pending = np.ones(len(series), dtype=bool)

    def find_histograms(self, values: Floats) -> Cells | None:
        packed = self.histograms.packed
        return find_histograms(values, packed.get) if packed else None

    def series(self, matchers: Matchers, start_ms: int, end_ms: int) -> list[label_sets.Labels]:
        """Label sets of series whose samples, from the first to the newest, overlap the time range."""
        with self.lock:
            selection = self._index.select(matchers)
            in_range = self._series_in_range(start_ms, end_ms, selection.numbers)
            return selection.series.labels_of(np.flatnonzero(in_range).tolist())

    def cached_series_count(self, matchers: Matchers, start_ms: int) -> int | None:  # noqa: ARG002 (all is in memory)
        """How many series a selector matches, if its selection is cached."""
        with self.lock:
            cached = self._index.cached_selection(matchers)
            return None if cached is None else len(cached.numbers)

    def label_names(self, matchers: Matchers, start_ms: int, end_ms: int) -> list[str]:
        with self.lock:
            return self._index.label_names(matchers, self._series_in_range(start_ms, end_ms))

    def label_values(self, name: str, matchers: Matchers, start_ms: int, *, end_ms: int) -> list[str]:
        with self.lock:
            return self._index.label_values(name, matchers, in_range=self._series_in_range(start_ms, end_ms))

    def cardinality(self, limit: int) -> Cardinality:
        with self.lock:
            return self._index.cardinality(limit)

    def _series_in_range(self, start_ms: int, end_ms: int, numbers: Ints | slice = slice(None)) -> Mask:
        """Whether each series number has samples in the time range."""
        placement = self._placement
        in_range: Mask = (placement.newest_ms[numbers] >= start_ms) & (placement.first_ms[numbers] <= end_ms)
        return in_range

    def load_scrapes(self, key: Hashable, ids: Ints, times: Ints, *, rows: MixedTable, expected_slots: int = 0) -> None:
        """Load scrapes from the WAL, slot k at `times[k]`; a new target gets room for `expected_slots` at once."""
        with self.lock:
            numbers = ids & NUMBER_MASK
            self._table.group(("scrape", key), max(expected_slots, len(times)))
            self._advance(int(times.max()), self._now_ms(None))
            self._allow_late_samples()
            if self._placement.place_scrapes(("scrape", key), numbers, times, rows=rows):
                return
            for slot, at_ms in enumerate(times.tolist()):
                column, dropped = rows.column(slot), Counter[str]()
                self._placement.place_scrape(("scrape", key), numbers, at_ms, values=column, dropped=dropped)
            self._placement.refused = []

    def load_histograms(self, table: Mapping[int, bytes], used_ms: int) -> None:
        with self.lock:
            self.histograms.load(table, used_ms)

    def load_samples(self, ids: Ints, times: Ints, values: Floats) -> None:
        with self.lock:
            if len(times):
                self._advance(int(times.max()), self._now_ms(None))
                self._allow_late_samples()
                self._place(ids & NUMBER_MASK, times, values, Counter())

    def _place(self, numbers: Ints, times: Ints, values: Floats, dropped: Counter[str]) -> None:
        """Write samples in rounds of at most one sample for each series."""
        order = np.argsort(numbers, kind="stable")
        _, firsts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        for round_number in range(int(counts.max()) if len(counts) else 0):
            indexes = order[firsts[counts > round_number] + round_number]
            self._placement.place_singles(numbers[indexes], times[indexes], values[indexes], dropped=dropped)
            indexes = indexes[self._accepted(numbers[indexes])]
            if self.log is not None and len(indexes):
                ids = self._number_uses[numbers[indexes]] << NUMBER_BITS | numbers[indexes]
                self.log.add_samples(ids, times[indexes], values[indexes])

    def _place_together(
        self, key: Hashable, numbers: Ints, at_ms: int, *, ids: Ints, values: Floats, dropped: Counter[str]
    ) -> None:
        self._placement.place_scrape(("scrape", key), numbers, at_ms, values=values, dropped=dropped)
        if self._placement.refused:
            accepted = self._accepted(numbers)
            ids, values = ids[accepted], values[accepted]
        if self.log is not None and len(ids):
            self.log.add_scrape(key, ids, at_ms, values)

    def _accepted(self, numbers: Ints) -> Mask | slice:
        """Which of the samples written last were accepted."""
        refused, self._placement.refused = self._placement.refused, []
        return ~np.isin(numbers, np.concatenate(refused)) if refused else slice(None)

    def close_before(self, at_ms: int) -> None:
        with self.lock:
            self.closed_before_ms = max(self.closed_before_ms, at_ms)
            self._update_bounds()

    def drop_future_samples(self) -> int:
        """Drop samples after the current time, because the clock was set back; return the first dropped time."""
        with self.lock:
            # Under the lock: samples that are accepted meanwhile are current, and stay.
            now_ms = self._now_ms(None)
            assert now_ms is not None, "a head without a clock has no future samples"
            self._placement.drop_from(now_ms + 1)
            self.newest_ms = None if self.newest_ms is None else min(self.newest_ms, now_ms)
            self._expired_at_ms = self._jump_ms = None
            self._update_bounds()
            return now_ms + 1

    def accept_from(self, at_ms: int) -> None:
        """Accept and keep samples from a time on; blocks have everything before it."""
        with self.lock:
            self.closed_before_ms = self.unsaved_from_ms = at_ms
            self._update_bounds()

    def first_ms_from(self, at_ms: int) -> int | None:
        with self.lock:
            return self._table.first_ms_from(at_ms)

    def metric_names(self) -> list[str]:
        """The names of all metrics; the empty name stands for series without a name."""
        with self.lock:
            return ["", *self._index.label_values(label_sets.METRIC_NAME)]

    def metric_columns(self, name: str, start_ms: int, end_ms: int) -> Columns:
        """All samples of one metric with start < time ≤ end, for a block; the selection is not cached."""
        with self.lock:
            return self._columns(self._index.select_metric(name), start_ms, end_ms, max_samples=None)

    def labels_of(self, ids: Ints) -> list[label_sets.Labels | None]:
        """The labels of ids, None for a removed series; the WAL calls this under the lock."""
        entries = zip((ids & NUMBER_MASK).tolist(), self._is_current(ids).tolist(), strict=True)
        return [self._index.labels[number] if is_current else None for number, is_current in entries]

    def warnings(self) -> tuple[str, ...]:
        """No warnings: memory has no damaged files."""
        return ()

    def sync(self) -> int:
        """Nothing to do: this store has no disk."""
        return 0

    def close(self) -> None:
        """Nothing to do: this store has no open files."""

    def expire(self, now_ms: int) -> int:
        """Remove series without samples within the retention before `now_ms`; return how many."""
        with self.lock:
            return self._expire(now_ms)

    def _number(self, labels: label_sets.Labels) -> int:
        number = self._index.find(labels)
        if number is not None:
            return number
        check_label_limits(labels)
        if len(self._index) >= self.max_series:
            raise errors.StoreFull(
                f"series {errors.quote(str(labels))} was dropped: the store is full",
                now=f"{len(self._index)} series, the limit is {self.max_series}",
                remedy="Drop labels that change often, or raise `query.max_series`",
            )
        number = self._index.add(labels)
        self._number_uses = grow_column(self._number_uses, number + 1, fill=0)
        self._number_uses[number] += 1
        self._placement.add_series(number, self.newest_ms or 0, kinds=_metric_kind(labels.name), size=number + 1)
        return number

    def _add_many(self, new_series: Sequence[label_sets.Labels]) -> Ints:
        names = [labels.name for labels in new_series]
        kinds = {name: _metric_kind(name) for name in set(names)}
        numbers = self._index.add_all(new_series, kinds)
        size = int(numbers.max(initial=-1)) + 1
        self._number_uses = grow_column(self._number_uses, size, fill=0)
        self._number_uses[numbers] += 1
        series_kinds = np.array([kinds[name] for name in names], dtype=np.int64)
        self._placement.add_series(numbers, self.newest_ms or 0, kinds=series_kinds, size=size)
        return numbers

    def _resolve(
        self,
        samples: Iterable[sample_model.Sample | histogram_model.HistogramSample],
        now_ms: int | None,
        dropped: Counter[str],
    ) -> tuple[Ints, Ints, Floats]:
        numbers: list[int] = []
        times: list[int] = []
        values: list[float | histogram_model.Histogram] = []
        latest_ms = NEVER_MS if now_ms is None else now_ms + MAX_AHEAD_MS
        for sample in samples:
            if sample.at_ms > latest_ms:
                dropped["future"] += 1
                continue
            try:
                number = self._number(sample.labels)
            except errors.StoreError:
                dropped["limit"] += 1
                continue
            numbers.append(number)
            times.append(sample.at_ms)
            values.append(sample.value)
        series, at_ms, stored = np.array(numbers, dtype=np.int64), np.array(times, dtype=np.int64), np.array(values)
        # With histograms, NumPy makes an array of objects.
        if stored.dtype != object:
            return series, at_ms, normalise_nans(stored)
        stored = self.histograms.marks(series, at_ms, values)
        has_room = ~is_absent(stored)
        if not has_room.all():
            dropped["limit"] += int(np.count_nonzero(~has_room))
        return series[has_room], at_ms[has_room], stored[has_room]

    def _is_too_far_ahead(self, at_ms: int, now_ms: int | None) -> bool:
        """Whether a time is too far ahead of the clock, or without a clock of the newest scrape.

        After a pause, every scrape is ahead of the newest one, so a second scrape near the first one is accepted.
        """
        if now_ms is not None:
            return at_ms > now_ms + MAX_AHEAD_MS
        if self.newest_ms is None or at_ms <= self.newest_ms + MAX_AHEAD_MS:
            self._jump_ms = None
            return False
        is_confirmed = self._jump_ms is not None and abs(at_ms - self._jump_ms) <= MAX_AHEAD_MS
        self._jump_ms = None if is_confirmed else at_ms
        return not is_confirmed

    def _now_ms(self, given_ms: int | None) -> int | None:
        return given_ms if given_ms is not None or self._clock_ms is None else self._clock_ms()

    def _advance(self, at_ms: int, now_ms: int | None) -> None:
        """Update the newest time, but never past the clock: one exporter must not expire the series of others."""
        at_ms = at_ms if now_ms is None else min(at_ms, now_ms)
        self.newest_ms = at_ms if self.newest_ms is None else max(self.newest_ms, at_ms)
        self._update_bounds()

    def _update_bounds(self) -> None:
        if self.newest_ms is None:
            return
        expired_ms = self.newest_ms - self.retention_ms
        unsaved_limit_ms = self.newest_ms - MAX_UNSAVED_RETENTIONS * self.retention_ms
        # A clock that jumps ahead must not expire samples that a block will have within a minute.
        kept_from_ms = self.unsaved_from_ms if self.has_blocks else max(self.unsaved_from_ms, unsaved_limit_ms)
        clear_before_ms = min(expired_ms, kept_from_ms)
        if clear_before_ms > self.unsaved_from_ms:
            self.incomplete_before_ms = max(self.incomplete_before_ms, clear_before_ms)
        self._placement.bounds = TimeBounds(
            oldest_ms=max(expired_ms, self.closed_before_ms),
            late_ms=self.newest_ms - self.late_ms if self.late_ms else NEVER_MS,
            clear_before_ms=clear_before_ms,
        )

    def _allow_late_samples(self) -> None:
        """Allow any order, because loaded samples were accepted before."""
        self._placement.bounds = replace(self._placement.bounds, oldest_ms=self.closed_before_ms, late_ms=-NEVER_MS)

    def _expire_if_due(self) -> None:
        """Remove series without recent samples, once in each eighth of the retention."""
        if self.newest_ms is None:
            return
        if self._expired_at_ms is None:
            self._expired_at_ms = self.newest_ms
        if self.newest_ms - self._expired_at_ms > self.retention_ms // 8:
            self._expire(self.newest_ms)

    def _expire(self, now_ms: int) -> int:
        self._expired_at_ms = now_ms
        count = len(self._index.labels)
        before_ms = min(now_ms - self.retention_ms, self.unsaved_from_ms)
        expired = np.flatnonzero(self._placement.newest_ms[:count] < before_ms)
        expired = np.array([number for number in expired.tolist() if self._index.labels[number] is not None], dtype=int)
        if len(expired):
            self._table.remove_members(expired)
            self._index.remove(expired.tolist())
            # Ids of the removed series become invalid.
            self._number_uses[expired] += 1
            self._removals += 1
        if self.histograms.packed:
            # Slots are dropped only when space is needed, so some outlive the retention.
            self.histograms.drop_before(before_ms - self.retention_ms)
        return len(expired)

    def _copy(
        self, selection: Selection, locations: sample_locations.SampleLocations, *, lows: Ints, counts: Ints
    ) -> Columns:
        table, group_index = self._table, locations.group_index
        width = int(counts.max()) if len(counts) else 0
        times = np.full((len(locations.groups), width), NEVER_MS, dtype=np.int64)
        values: Floats | None = None
        for part in locations.parts:
            part_times = table.times[part.slab].gather(part.time_rows, lows[part.groups], width=width)
            times[part.groups] = part_times.view(np.int64)
            part_values = table.slabs[part.slab].gather(part.rows, lows[group_index[part.series]], width=width)
            if len(part.series) == len(selection.numbers):
                values = part_values
                break
            values = np.full((len(selection.numbers), width), ABSENT) if values is None else values
            values[part.series] = part_values
        if values is None:
            values = np.full((len(selection.numbers), width), ABSENT)
        min_count = int(counts.min()) if len(counts) else width
        if min_count < width:
            unused = np.arange(width) >= counts[:, None]
            times[unused] = NEVER_MS
            # Repeat the row's last value: a matrix without NaN, changes and resets is evaluated faster.
            last = np.take_along_axis(values, np.maximum(counts - 1, 0)[group_index][:, None], axis=1)
            values[:, min_count:] = np.where(unused[:, min_count:][group_index], last, values[:, min_count:])
        return Columns(selection.series, group_index, times, values)


def _metric_kind(name: str) -> int:
    """The kind of a metric's rows: series of one metric are adjacent. Equal checksums of two metrics do no harm."""
    return zlib.crc32(name.encode())
