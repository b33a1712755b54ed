"""The samples of the last hours, in memory, in columns.

The scraper hands over whole scrapes (`append_scrape`), everything else comes sample by sample
(`append`). Queries ask `select` for a block of series × slots, or `latest` for the newest sample of each
series. One lock guards everything: an append changes columns in place, a select copies what it
needs, and evaluation works on that copy without the lock. Old slots and silent series are dropped by age,
which the clock measures, not the samples. `durable` puts a log and blocks on disk behind it.
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
from watchkeeper.store import label_limits
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, Mask, is_absent, normalise_nans
from watchkeeper.store.exemplars import Exemplars
from watchkeeper.store.groups import GroupTable, grow_column
from watchkeeper.store.head import sample_locations
from watchkeeper.store.head.placing import MAX_HABITS, SamplePlacement, TimeBounds
from watchkeeper.store.histograms import Cells, HistogramTable, find_histograms
from watchkeeper.store.index import Cardinality, MatcherLike, Selection, SeriesIndex
from watchkeeper.store.interfaces import Appended
from watchkeeper.store.metadata import Metadata
from watchkeeper.store.rows import MixedTable
from watchkeeper.store.sample_columns import Columns, check_sample_limit
from watchkeeper.store.series import UNKNOWN, SeriesSet

# Above any clock difference between two healthy machines; a sample further ahead would hide all later ones.
MAX_AHEAD_MS = 600_000
# How much longer than the retention samples stay that could not be written into a block.
MAX_RETENTIONS = 3
# A series id is its number plus how often that number was used before, so that an old id is noticed.
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _ScrapeIds:
    """The ids of a target's scrape before, and the numbers behind them while no series has been forgotten since."""

    ids: Ints
    numbers: Ints
    forgets: int


class SampleLog(Protocol):
    """Where a head writes what it accepts, before anyone is told; called under the head's lock."""

    def note_scrape(self, key: Hashable, ids: Ints, at_ms: int, values: Floats) -> None: ...

    def note_samples(self, ids: Ints, times: Ints, values: Floats) -> None: ...


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
        # Set by `durable`: everything accepted goes to the log; nothing before `closed_ms` is accepted, because it
        # is on its way to a block; nothing from `unsaved_ms` on is cleared away, because no block has it, unless blocks
        # cannot be written.
        self.log: SampleLog | None = None
        self.has_blocks = True
        self.closed_ms = -NEVER_MS
        self.unsaved_ms = NEVER_MS
        # Before this time memory may lack samples that no block has: only the log has all of them.
        self.lacking_ms = -NEVER_MS
        self.lock = threading.Lock()
        self.metadata, self.exemplars = Metadata(), Exemplars()
        self.histograms = HistogramTable()
        self._clock_ms = clock_ms
        self._index = SeriesIndex()
        self._ledger = GroupTable()
        self._placing = SamplePlacement(self._ledger)
        self._uses = np.empty(0, dtype=np.int64)
        self._asked: dict[Hashable, _ScrapeIds] = {}
        self._forgets = 0
        self._expired_at_ms: int | None = None
        self._leap_ms: int | None = None

    def __len__(self) -> int:
        return len(self._index)

    @property
    def used_bytes(self) -> int:
        return self._ledger.used_bytes

    def series_id(self, labels: label_sets.Labels) -> int:
        """The id of a series, created when it is new; StoreError says which limit it breaks."""
        with self.lock:
            number = self._number(labels)
            return int(self._uses[number]) << NUMBER_BITS | number

    def series_ids(self, kept: Sequence[label_sets.Labels]) -> Ints:
        """The ids of series that were accepted before, created where they are new; UNKNOWN where there is no room."""
        with self.lock:
            numbers = self._index.find_all(kept)
            at = np.flatnonzero(numbers == UNKNOWN)
            if len(at):
                new = dict.fromkeys([kept[place] for place in at.tolist()])
                made = self._welcome(list(new)[: max(0, self.max_series - len(self._index))])
                if len(new) == len(at):
                    numbers[at[: len(made)]] = made
                else:
                    numbers = self._index.find_all(kept)
            known = numbers != UNKNOWN
            numbers[known] |= self._uses[numbers[known]] << NUMBER_BITS
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
        """Keep one scrape: a value for each series id, all at one time; arrays of 64 bits are read without copying.

        An id whose series was forgotten meanwhile is dropped as `forgotten`: ask `series_id` again.
        """
        ids, numbers_read = np.asarray(series_ids, dtype=np.int64), normalise_nans(np.asarray(values, dtype=np.float64))
        with self.lock:
            now_ms = self._now_ms(now_ms)
            if self._is_too_far_ahead(at_ms, now_ms):
                return Appended(0, {"future": len(ids)})
            self._advance(at_ms, now_ms)
            dropped: Counter[str] = Counter()
            total, (ids, numbers) = len(ids), self._known(group_key, ids)
            if len(numbers) < total:
                dropped["forgotten"] = total - len(numbers)
                numbers_read = numbers_read[self._is_current(np.asarray(series_ids, dtype=np.int64))]
            self._place_together(group_key, numbers, at_ms, ids=ids, values=numbers_read, dropped=dropped)
            self._expire_sometimes()
            return Appended(total - sum(dropped.values()), dict(dropped))

    def _known(self, group_key: Hashable, ids: Ints) -> tuple[Ints, Ints]:
        """Ids of series that are not forgotten, and their numbers; for the ids of the scrape before the same arrays.

        Whoever gets an array again knows at once that nothing in it has changed, and so do placing and log.
        """
        before = self._asked.get(group_key)
        if before is not None and before.forgets == self._forgets and before.ids.tobytes() == ids.tobytes():
            return before.ids, before.numbers
        is_current = self._is_current(ids)
        # A copy: what the caller does with his array is his business.
        ids = ids[is_current]
        found = _ScrapeIds(ids, ids & NUMBER_MASK, self._forgets)
        if len(self._asked) > MAX_HABITS:
            self._asked.clear()
        self._asked[group_key] = found
        return found.ids, found.numbers

    def _is_current(self, ids: Ints) -> Mask:
        is_current: Mask = self._uses[ids & NUMBER_MASK] == ids >> NUMBER_BITS
        return is_current

    def active_series(self, group_key: Hashable, since_ms: int) -> dict[int, label_sets.Labels]:
        """The series of a group's newest scrape, where that is after a time, by their ids; not those that it ended."""
        with self.lock:
            numbers = self._ledger.active_series(("scrape", group_key), since_ms)
            ids = (self._uses[numbers] << NUMBER_BITS | numbers).tolist()
            named = zip(ids, map(self._index.labels.__getitem__, numbers.tolist()), strict=True)
            return {id: labels for id, labels in named if labels is not None}

    def append(
        self,
        samples: Iterable[sample_model.Sample | histogram_model.HistogramSample],
        *,
        group_key: str | None = None,
        now_ms: int | None = None,
    ) -> Appended:
        """Keep samples of any series at any times; those of one series come in the order of time.

        `together` names who brings these series again and again at one time: they share a clock, as a target's do.
        """
        with self.lock:
            dropped: Counter[str] = Counter()
            now_ms = self._now_ms(now_ms)
            numbers, times, values = self._resolve(samples, now_ms, dropped)
            total = len(numbers) + sum(dropped.values())
            if len(numbers):
                self._advance(int(times.max()), now_ms)
            if group_key is not None and len(numbers) and (times == times[0]).all():
                ids = self._uses[numbers] << NUMBER_BITS | numbers
                self._place_together(group_key, numbers, int(times[0]), ids=ids, values=values, dropped=dropped)
            else:
                self._place(numbers, times, values, dropped)
            self._expire_sometimes()
            return Appended(total - sum(dropped.values()), dict(dropped))

    def select(
        self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int, *, max_samples: int | None = None
    ) -> Columns:
        """Copy the samples with start < time ≤ end; QueryLimit if that would be more than `max_samples`."""
        with self.lock:
            return self._columns(self._index.select(matchers), start_ms, end_ms, max_samples=max_samples)

    def _columns(self, chosen: Selection, start_ms: int, end_ms: int, *, max_samples: int | None) -> Columns:
        lying = sample_locations.locate(chosen, self._ledger)
        lows, highs = np.zeros(len(lying.groups), dtype=np.int64), np.zeros(len(lying.groups), dtype=np.int64)
        for part in lying.parts:
            groups = lying.groups[part.groups]
            lows[part.groups] = self._ledger.slots_up_to(groups, start_ms, slab=part.slab)
            highs[part.groups] = self._ledger.slots_up_to(groups, end_ms, slab=part.slab)
        counts = highs - lows
        check_sample_limit(int(counts[lying.group_index].sum()), max_samples)
        return self._copy(chosen, lying, lows=lows, counts=counts)

    def latest(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]:
        """For each series its newest sample with start < time ≤ end: times, and values (ABSENT where there is none)."""
        with self.lock:
            chosen = self._index.select(matchers)
            lying = sample_locations.locate(chosen, self._ledger)
            times, values = np.zeros(len(chosen.numbers), dtype=np.int64), np.full(len(chosen.numbers), ABSENT)
            # Series of jobs that ended are kept as long as the others, and have nothing to say.
            is_recent = self._placing.seen_ms[chosen.numbers] > start_ms
            for part in lying.parts:
                for series, at_ms, found in self._newest(lying, part, is_recent[part.series], span=(start_ms, end_ms)):
                    times[series], values[series] = at_ms, found
            return chosen.series, times, values

    def _newest(
        self,
        lying: sample_locations.SampleLocations,
        part: sample_locations.SlabPart,
        is_asked: Mask,
        *,
        span: tuple[int, int],
    ) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Times and values of series in one slab, from the newest slot back; the last answer counts for a series."""
        (start_ms, end_ms), ledger = span, self._ledger
        slot_of, time_of = np.zeros_like(lying.groups), np.zeros_like(lying.groups)
        slot_of[part.groups] = ledger.slots_up_to(lying.groups[part.groups], end_ms, slab=part.slab) - 1
        time_of[part.groups] = ledger.times[part.slab].get(part.time_rows, slot_of[part.groups]).view(np.int64)
        series, rows, owners = part.series, part.rows, lying.group_index[part.series]
        slots, at_ms = slot_of[owners], time_of[owners]
        # Nearly all series have a sample in the newest slot; the others step back one slot at a time.
        while True:
            is_asked = is_asked & (slots >= 0) & (at_ms > start_ms)
            if not is_asked.all():
                series, rows, owners = series[is_asked], rows[is_asked], owners[is_asked]
                slots, at_ms = slots[is_asked], at_ms[is_asked]
            if not len(series):
                return
            found = ledger.slabs[part.slab].get(rows, slots)
            yield series, at_ms, found
            missing = np.flatnonzero(is_absent(found))
            series, rows, owners, slots = series[missing], rows[missing], owners[missing], slots[missing] - 1
            at_ms = ledger.times[part.slab].get(ledger.time_row[lying.groups[owners]], slots).view(np.int64)
            is_asked = np.ones(len(series), dtype=bool)

    def find_histograms(self, values: Floats) -> Cells | None:
        """The histograms among values that were read here; None where there are none."""
        known = self.histograms.known
        return find_histograms(values, known.get) if known else None

    def series(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[label_sets.Labels]:
        """Label sets of series that lived in the time, from their first sample to their newest one."""
        with self.lock:
            chosen = self._index.select(matchers)
            lived = (self._placing.seen_ms[chosen.numbers] >= start_ms) & (
                self._placing.born_ms[chosen.numbers] <= end_ms
            )
            return chosen.series.labels_of(np.flatnonzero(lived).tolist())

    def cached_series_count(self, matchers: Sequence[MatcherLike], start_ms: int) -> int | None:  # noqa: ARG002 (all is in memory)
        """How many series a selector means, where that was asked before and all since `start_ms` is in memory."""
        with self.lock:
            known = self._index.remembered(matchers)
            return None if known is None else len(known.numbers)

    def label_names(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[str]:
        """Names of labels of the series that lived in the time, from the index."""
        with self.lock:
            return self._index.label_names(matchers, self._lived(start_ms, end_ms))

    def label_values(self, name: str, matchers: Sequence[MatcherLike], start_ms: int, *, end_ms: int) -> list[str]:
        with self.lock:
            return self._index.label_values(name, matchers, lived=self._lived(start_ms, end_ms))

    def cardinality(self, limit: int) -> Cardinality:
        with self.lock:
            return self._index.cardinality(limit)

    def _lived(self, start_ms: int, end_ms: int) -> Mask:
        """For each series number whether it had samples in the time."""
        lived: Mask = (self._placing.seen_ms >= start_ms) & (self._placing.born_ms <= end_ms)
        return lived

    def load_scrapes(self, key: Hashable, ids: Ints, times: Ints, *, table: MixedTable, expected: int = 0) -> None:
        """Take over scrapes that were kept before, slot k of the table at `times[k]`: what a restart reads.

        A target that is new here begins with room for the scrapes that are expected in all.
        """
        with self.lock:
            numbers = ids & NUMBER_MASK
            self._ledger.group(("scrape", key), max(expected, len(times)))
            self._advance(int(times.max()), self._now_ms(None))
            self._welcome_late()
            if self._placing.place_scrapes(("scrape", key), numbers, times, table=table):
                return
            for slot, at_ms in enumerate(times.tolist()):
                column, dropped = table.column(slot), Counter[str]()
                self._placing.place_scrape(("scrape", key), numbers, at_ms, values=column, dropped=dropped)
            self._placing.refused = []

    def load_histograms(self, found: Mapping[int, bytes], used_ms: int) -> None:
        """Take over what marks among samples up to a time stand for."""
        with self.lock:
            self.histograms.load(found, used_ms)

    def load_samples(self, ids: Ints, times: Ints, values: Floats) -> None:
        """Take over samples that were kept before."""
        with self.lock:
            if len(times):
                self._advance(int(times.max()), self._now_ms(None))
                self._welcome_late()
                self._place(ids & NUMBER_MASK, times, values, Counter())

    def _place(self, numbers: Ints, times: Ints, values: Floats, dropped: Counter[str]) -> None:
        """Each round holds at most one sample of each series, so that a round can be written at once."""
        order = np.argsort(numbers, kind="stable")
        _, firsts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
        for turn in range(int(counts.max()) if len(counts) else 0):
            chosen = order[firsts[counts > turn] + turn]
            self._placing.place_singles(numbers[chosen], times[chosen], values[chosen], dropped=dropped)
            chosen = chosen[self._accepted(numbers[chosen])]
            if self.log is not None and len(chosen):
                ids = self._uses[numbers[chosen]] << NUMBER_BITS | numbers[chosen]
                self.log.note_samples(ids, times[chosen], values[chosen])

    def _place_together(
        self, key: Hashable, numbers: Ints, at_ms: int, *, ids: Ints, values: Floats, dropped: Counter[str]
    ) -> None:
        self._placing.place_scrape(("scrape", key), numbers, at_ms, values=values, dropped=dropped)
        if self._placing.refused:
            accepted = self._accepted(numbers)
            ids, values = ids[accepted], values[accepted]
        if self.log is not None and len(ids):
            self.log.note_scrape(key, ids, at_ms, values)

    def _accepted(self, numbers: Ints) -> Mask | slice:
        """Which of the samples placed last found a place."""
        refused, self._placing.refused = self._placing.refused, []
        return ~np.isin(numbers, np.concatenate(refused)) if refused else slice(None)

    def refuse_before(self, at_ms: int) -> None:
        """Accept nothing before a time any more."""
        with self.lock:
            self.closed_ms = max(self.closed_ms, at_ms)
            self._look_out()

    def drop_future_samples(self) -> int:
        """Drop what lies after the clock, which was put back; returns the first time that is ahead of it."""
        with self.lock:
            # Under the lock: what is accepted meanwhile is of now, and stays.
            now_ms = self._now_ms(None)
            assert now_ms is not None, "without a clock nothing is ahead"
            self._placing.drop_from(now_ms + 1)
            self.newest_ms = None if self.newest_ms is None else min(self.newest_ms, now_ms)
            self._expired_at_ms = self._leap_ms = None
            self._look_out()
            return now_ms + 1

    def accept_from(self, at_ms: int) -> None:
        """Blocks have what lies before a time, and nothing else: accept, and keep, what comes from there on."""
        with self.lock:
            self.closed_ms = self.unsaved_ms = at_ms
            self._look_out()

    def first_ms_from(self, at_ms: int) -> int | None:
        """The earliest time not before `at_ms` at which something was scraped or sampled."""
        with self.lock:
            return self._ledger.first_ms_from(at_ms)

    def metric_names(self) -> list[str]:
        """Names of the metrics that are there; the empty one stands for series without a name."""
        with self.lock:
            return ["", *self._index.label_values(label_sets.METRIC_NAME)]

    def metric_columns(self, name: str, start_ms: int, end_ms: int) -> Columns:
        """All samples of one metric with start < time ≤ end, for a block; nobody remembers the selection."""
        with self.lock:
            return self._columns(self._index.of_metric(name), start_ms, end_ms, max_samples=None)

    def labels_of(self, ids: Ints) -> list[label_sets.Labels | None]:
        """The labels behind ids; None where the series was forgotten. Called under the lock, by the log."""
        return [
            self._index.labels[id & NUMBER_MASK] if int(self._uses[id & NUMBER_MASK]) == id >> NUMBER_BITS else None
            for id in ids.tolist()
        ]

    def warnings(self) -> tuple[str, ...]:
        """What an answer may lack: memory lacks nothing."""
        return ()

    def sync(self) -> int:
        """Memory has no disk to bring anything to."""
        return 0

    def close(self) -> None:
        """Memory holds nothing open."""

    def expire(self, now_ms: int) -> int:
        """Forget series without samples in the retention before `now_ms`; returns how many."""
        with self.lock:
            return self._expire(now_ms)

    def _number(self, labels: label_sets.Labels) -> int:
        known = self._index.find(labels)
        if known is not None:
            return known
        label_limits.check_label_limits(labels)
        if len(self._index) >= self.max_series:
            raise errors.StoreFull(
                f"series {errors.quote(str(labels))} is one too many",
                now=f"{len(self._index)} series are kept, the limit is {self.max_series}",
                remedy="Drop labels that change often, or raise `query.max_series`",
            )
        number = self._index.add(labels)
        self._uses = grow_column(self._uses, number + 1, fill=0)
        self._uses[number] += 1
        self._placing.welcome(number, self.newest_ms or 0, kind=_kind(labels.name))
        return number

    def _welcome(self, fresh: Sequence[label_sets.Labels]) -> Ints:
        """What `_number` does for series that are new, many at once."""
        names = [labels.name for labels in fresh]
        kinds = {name: _kind(name) for name in set(names)}
        numbers = self._index.add_all(fresh, kinds)
        self._uses = grow_column(self._uses, len(self._index.labels), fill=0)
        self._uses[numbers] += 1
        found = np.array([kinds[name] for name in names], dtype=np.int64)
        self._placing.welcome_all(numbers, self.newest_ms or 0, kinds=found)
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
        series, at_ms, found = np.array(numbers, dtype=np.int64), np.array(times, dtype=np.int64), np.array(values)
        # NumPy has no numbers for them where there are histograms.
        if found.dtype != object:
            return series, at_ms, normalise_nans(found)
        stored = self.histograms.marks(series, at_ms, values)
        has_room = ~is_absent(stored)
        if not has_room.all():
            dropped["limit"] += int(np.count_nonzero(~has_room))
        return series[has_room], at_ms[has_room], stored[has_room]

    def _is_too_far_ahead(self, at_ms: int, now_ms: int | None) -> bool:
        """Compared with the clock, or else with the newest scrape.

        After a pause everything is ahead of the newest scrape, so a second scrape near the first such one is taken.
        """
        if now_ms is not None:
            return at_ms > now_ms + MAX_AHEAD_MS
        if self.newest_ms is None or at_ms <= self.newest_ms + MAX_AHEAD_MS:
            self._leap_ms = None
            return False
        is_confirmed = self._leap_ms is not None and abs(at_ms - self._leap_ms) <= MAX_AHEAD_MS
        self._leap_ms = None if is_confirmed else at_ms
        return not is_confirmed

    def _now_ms(self, told_ms: int | None) -> int | None:
        return told_ms if told_ms is not None or self._clock_ms is None else self._clock_ms()

    def _advance(self, at_ms: int, now_ms: int | None) -> None:
        """Move on to the newest time, but never past the clock: an exporter must not make others expire."""
        at_ms = at_ms if now_ms is None else min(at_ms, now_ms)
        self.newest_ms = at_ms if self.newest_ms is None else max(self.newest_ms, at_ms)
        self._look_out()

    def _look_out(self) -> None:
        if self.newest_ms is None:
            return
        expired_ms = self.newest_ms - self.retention_ms
        longest_ms = self.newest_ms - MAX_RETENTIONS * self.retention_ms
        # A clock that leaps ahead makes nothing old that a block will have in a minute.
        kept_ms = self.unsaved_ms if self.has_blocks else max(self.unsaved_ms, longest_ms)
        clear_ms = min(expired_ms, kept_ms)
        if clear_ms > self.unsaved_ms:
            self.lacking_ms = max(self.lacking_ms, clear_ms)
        self._placing.horizon = TimeBounds(
            oldest_ms=max(expired_ms, self.closed_ms),
            late_ms=self.newest_ms - self.late_ms if self.late_ms else NEVER_MS,
            clear_ms=clear_ms,
        )

    def _welcome_late(self) -> None:
        """What is loaded was accepted once, in whatever order."""
        self._placing.horizon = replace(self._placing.horizon, oldest_ms=self.closed_ms, late_ms=-NEVER_MS)

    def _expire_sometimes(self) -> None:
        """Forget silent series each eighth of the retention."""
        if self.newest_ms is None:
            return
        if self._expired_at_ms is None:
            self._expired_at_ms = self.newest_ms
        if self.newest_ms - self._expired_at_ms > self.retention_ms // 8:
            self._expire(self.newest_ms)

    def _expire(self, now_ms: int) -> int:
        self._expired_at_ms = now_ms
        count = len(self._index.labels)
        before_ms = min(now_ms - self.retention_ms, self.unsaved_ms)
        silent = np.flatnonzero(self._placing.seen_ms[:count] < before_ms)
        silent = np.array([number for number in silent.tolist() if self._index.labels[number] is not None], dtype=int)
        if len(silent):
            self._ledger.leave(silent)
            self._index.remove(silent.tolist())
            # An id given out for the old series no longer fits.
            self._uses[silent] += 1
            self._forgets += 1
        if self.histograms.known:
            # Slots are cleared when room is needed, so some outlive the retention.
            self.histograms.forget_before(before_ms - self.retention_ms)
        return len(silent)

    def _copy(self, chosen: Selection, lying: sample_locations.SampleLocations, *, lows: Ints, counts: Ints) -> Columns:
        ledger, group_index = self._ledger, lying.group_index
        width = int(counts.max()) if len(counts) else 0
        times = np.full((len(lying.groups), width), NEVER_MS, dtype=np.int64)
        values: Floats | None = None
        for part in lying.parts:
            found_times = ledger.times[part.slab].gather(part.time_rows, lows[part.groups], width=width)
            times[part.groups] = found_times.view(np.int64)
            found = ledger.slabs[part.slab].gather(part.rows, lows[group_index[part.series]], width=width)
            if len(part.series) == len(chosen.numbers):
                values = found
                break
            values = np.full((len(chosen.numbers), width), ABSENT) if values is None else values
            values[part.series] = found
        if values is None:
            values = np.full((len(chosen.numbers), width), ABSENT)
        least = int(counts.min()) if len(counts) else width
        if least < width:
            unused = np.arange(width) >= counts[:, None]
            times[unused] = NEVER_MS
            # The row's last value again: a block without a NaN, a change or a reset is evaluated faster.
            last = np.take_along_axis(values, np.maximum(counts - 1, 0)[group_index][:, None], axis=1)
            values[:, least:] = np.where(unused[:, least:][group_index], last, values[:, least:])
        return Columns(chosen.series, group_index, times, values)


def _kind(name: str) -> int:
    """Queries ask for one metric: its series lie together. Two metrics with the same checksum do no harm."""
    return zlib.crc32(name.encode())
