"""The samples of the last hours, in memory, in columns.

The scraper hands over whole scrapes (`append_scrape`), everything else comes sample by sample
(`append`). Queries ask `select` for a block of series × slots, or `latest` for the newest sample of each
series. One lock guards everything: an append changes columns in place, a select copies what it
needs, and evaluation works on that copy without the lock. Old slots and silent series are dropped by age.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.model import labels as label_sets
from watchkeeper.model import samples as sample_model
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints, is_absent, plain
from watchkeeper.store.groups import NOBODY, Ledger, grown
from watchkeeper.store.index import MatcherLike, Selection, SeriesIndex, SeriesSet

# Above any clock difference between two healthy machines; a sample further ahead would hide all later ones.
MAX_AHEAD_MS = 600_000
MAX_LABELS = 64
MAX_NAME_LENGTH = 512
MAX_VALUE_LENGTH = 4096
# A series id is its number plus how often that number was used before, so that an old id is noticed.
NUMBER_BITS = 32
NUMBER_MASK = (1 << NUMBER_BITS) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Samples of some series: `values[s, k]` was taken at `times[groups[s], k]`.

    Times of a row ascend; unused slots at its end are NEVER_MS, and their values mean nothing. A value may be
    ABSENT, where a series had no sample in a scrape, or the stale marker.
    """

    series: SeriesSet
    groups: Ints
    times: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many samples were kept, and why others were not."""

    kept: int
    dropped: dict[str, int]


class Head:
    """Recent samples of up to `max_series` series, kept for `retention_ms`."""

    def __init__(self, *, retention_ms: int = 2 * 3_600_000, max_series: int = 1_000_000) -> None:
        self.retention_ms = retention_ms
        self.max_series = max_series
        self.newest_ms: int | None = None
        self._index = SeriesIndex()
        self._ledger = Ledger()
        self._uses = np.empty(0, dtype=np.int64)
        self._born_ms = np.empty(0, dtype=np.int64)
        self._seen_ms = np.empty(0, dtype=np.int64)
        self._expired_at_ms: int | None = None
        self._leap_ms: int | None = None
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._index)

    @property
    def used_bytes(self) -> int:
        return self._ledger.used_bytes

    def series_id(self, labels: label_sets.Labels) -> int:
        """The id of a series, created when it is new; StoreError says which limit it breaks."""
        with self._lock:
            number = self._number(labels)
            return int(self._uses[number]) << NUMBER_BITS | number

    def append_scrape(
        self,
        group_key: Hashable,
        series_ids: Sequence[int] | Ints,
        at_ms: int,
        values: Sequence[float] | Floats,
        *,
        now_ms: int | None = None,
    ) -> Outcome:
        """Keep one scrape: a value for each series id, all at one time; arrays of 64 bits are read without copying.

        An id whose series was forgotten meanwhile is dropped as `forgotten`: ask `series_id` again.
        """
        ids, numbers_read = np.asarray(series_ids, dtype=np.int64), plain(np.asarray(values, dtype=np.float64))
        with self._lock:
            if self._is_too_far_ahead(at_ms, now_ms):
                return Outcome(0, {"future": len(ids)})
            self._advance(at_ms)
            dropped: Counter[str] = Counter()
            numbers = ids & NUMBER_MASK
            is_current = self._uses[numbers] == ids >> NUMBER_BITS
            if not is_current.all():
                dropped["forgotten"] = int(np.count_nonzero(~is_current))
                numbers, numbers_read = numbers[is_current], numbers_read[is_current]
            self._append_group(("scrape", group_key), numbers, at_ms, values=numbers_read, dropped=dropped)
            self._expire_sometimes()
            return Outcome(len(ids) - sum(dropped.values()), dict(dropped))

    def append(self, samples: Iterable[sample_model.Sample], *, now_ms: int | None = None) -> Outcome:
        """Keep samples of any series at any times; those of one series come in the order of time."""
        with self._lock:
            dropped: Counter[str] = Counter()
            numbers, times, values = self._resolve(samples, now_ms, dropped)
            total = len(numbers) + sum(dropped.values())
            if len(numbers):
                self._advance(int(times.max()))
            # Each round holds at most one sample of each series, so that a round can be written at once.
            order = np.argsort(numbers, kind="stable")
            _, firsts, counts = np.unique(numbers[order], return_index=True, return_counts=True)
            for turn in range(int(counts.max()) if len(counts) else 0):
                chosen = order[firsts[counts > turn] + turn]
                self._append_singles(numbers[chosen], times[chosen], values[chosen], dropped=dropped)
            self._expire_sometimes()
            return Outcome(total - sum(dropped.values()), dict(dropped))

    def select(
        self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int, *, max_samples: int | None = None
    ) -> Columns:
        """Copy the samples with start < time ≤ end; QueryLimit if that would be more than `max_samples`."""
        with self._lock:
            chosen = self._index.select(matchers)
            groups, group_index, slabs = self._grouped(chosen)
            lows, highs = np.zeros(len(groups), dtype=np.int64), np.zeros(len(groups), dtype=np.int64)
            for slab in np.unique(slabs[slabs != NOBODY]).tolist():
                inside = slabs == slab
                lows[inside] = self._ledger.slots_up_to(groups[inside], start_ms, slab=slab)
                highs[inside] = self._ledger.slots_up_to(groups[inside], end_ms, slab=slab)
            counts = highs - lows
            _refuse_above(int(counts[group_index].sum()), max_samples)
            return self._copy(chosen, group_index, groups=groups, slabs=slabs, lows=lows, counts=counts)

    def latest(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> tuple[SeriesSet, Ints, Floats]:
        """For each series its newest sample with start < time ≤ end: times, and values (ABSENT where there is none)."""
        with self._lock:
            chosen = self._index.select(matchers)
            groups, group_index, slabs = self._grouped(chosen)
            times, values = np.zeros(len(chosen.numbers), dtype=np.int64), np.full(len(chosen.numbers), ABSENT)
            for slab in np.unique(slabs[slabs != NOBODY]).tolist():
                inside = slabs == slab
                highs, lows = np.zeros_like(groups), np.zeros_like(groups)
                highs[inside] = self._ledger.slots_up_to(groups[inside], end_ms, slab=slab)
                lows[inside] = self._ledger.slots_up_to(groups[inside], start_ms, slab=slab)
                rows = np.flatnonzero(inside[group_index])
                slots, floors = highs[group_index[rows]] - 1, lows[group_index[rows]]
                # Nearly all series have a sample in the newest slot; the others step back one slot at a time.
                while len(rows):
                    reachable = slots >= floors
                    rows, slots, floors = rows[reachable], slots[reachable], floors[reachable]
                    numbers = chosen.numbers[rows]
                    found = self._ledger.slabs[slab].get(self._ledger.row_of[numbers], slots)
                    missing = is_absent(found)
                    values[rows] = found
                    time_rows = self._ledger.time_row[groups[group_index[rows]]]
                    times[rows] = self._ledger.times[slab].get(time_rows, slots).view(np.int64)
                    rows, slots, floors = rows[missing], slots[missing] - 1, floors[missing]
            return chosen.series, times, values

    def series(self, matchers: Sequence[MatcherLike], start_ms: int, end_ms: int) -> list[label_sets.Labels]:
        """Label sets of series that lived in the time, from their first sample to their newest one."""
        with self._lock:
            chosen = self._index.select(matchers)
            lived = (self._seen_ms[chosen.numbers] >= start_ms) & (self._born_ms[chosen.numbers] <= end_ms)
            return chosen.series.labels_of(np.flatnonzero(lived).tolist())

    def expire(self, now_ms: int) -> int:
        """Forget series without samples in the retention before `now_ms`; returns how many."""
        with self._lock:
            return self._expire(now_ms)

    def _number(self, labels: label_sets.Labels) -> int:
        known = self._index.find(labels)
        if known is not None:
            return known
        _check_labels(labels)
        if len(self._index) >= self.max_series:
            raise errors.StoreError(
                f"series {errors.quote(str(labels))} is one too many",
                now=f"{len(self._index)} series are kept, the limit is {self.max_series}",
                remedy="Drop labels that change often, or raise the limit",
            )
        number = self._index.add(labels)
        self._ledger.make_room_for_series(number + 1)
        self._uses = grown(self._uses, number + 1, fill=0)
        self._born_ms = grown(self._born_ms, number + 1, fill=NEVER_MS)
        self._seen_ms = grown(self._seen_ms, number + 1, fill=0)
        self._uses[number] += 1
        # Not seen yet, but too young to be forgotten.
        self._born_ms[number], self._seen_ms[number] = NEVER_MS, self.newest_ms or 0
        return number

    def _resolve(
        self, samples: Iterable[sample_model.Sample], now_ms: int | None, dropped: Counter[str]
    ) -> tuple[Ints, Ints, Floats]:
        numbers: list[int] = []
        times: list[int] = []
        values: list[float] = []
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
        return np.array(numbers, dtype=np.int64), np.array(times, dtype=np.int64), plain(np.array(values))

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

    def _advance(self, at_ms: int) -> None:
        self.newest_ms = at_ms if self.newest_ms is None else max(self.newest_ms, at_ms)

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
        silent = np.flatnonzero(self._seen_ms[:count] < now_ms - self.retention_ms)
        silent = np.array([number for number in silent.tolist() if self._index.labels[number] is not None], dtype=int)
        if len(silent):
            self._ledger.leave(silent)
            self._index.remove(silent.tolist())
            # An id given out for the old series no longer fits.
            self._uses[silent] += 1
        return len(silent)

    def _oldest_ms(self) -> int:
        return -NEVER_MS if self.newest_ms is None else self.newest_ms - self.retention_ms

    def _append_group(self, key: Hashable, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write a scrape: members of the group share a slot; series that lie elsewhere, or lag behind, go alone."""
        ledger = self._ledger
        group = ledger.group(key)
        owners = ledger.group_of[numbers]
        if at_ms >= ledger.last_ms[group]:
            if (owners == NOBODY).any():
                ledger.join(group, np.unique(numbers[owners == NOBODY]))
                owners = ledger.group_of[numbers]
            own = owners == group
            if own.any():
                self._append_slot(group, numbers[own], at_ms, values=values[own], dropped=dropped)
            if own.all():
                return
            numbers, values = numbers[~own], values[~own]
        late = (self._seen_ms[numbers] > at_ms) & (self._born_ms[numbers] != NEVER_MS)
        dropped.update({"out_of_order": int(np.count_nonzero(late))} if late.any() else {})
        numbers, values = numbers[~late], values[~late]
        if len(numbers):
            self._append_singles(numbers, np.full(len(numbers), at_ms, dtype=np.int64), values, dropped=dropped)
        ledger.drop_if_empty(group)

    def _append_slot(self, group: int, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write one slot of a group that all the series belong to."""
        ledger = self._ledger
        last_ms = int(ledger.last_ms[group])
        if at_ms < self._oldest_ms():
            dropped["too_old"] += len(numbers)
            return
        if at_ms > last_ms:
            ledger.open_slot(group, oldest_ms=self._oldest_ms())
            slot, slab = int(ledger.filled[group]), int(ledger.slab_of[group])
            time = np.array([at_ms], dtype=np.int64).view(np.float64)
            ledger.times[slab].put(ledger.time_row[group : group + 1], slot, time)
            ledger.filled[group], ledger.last_ms[group] = slot + 1, at_ms
        else:
            slot, slab = int(ledger.filled[group]) - 1, int(ledger.slab_of[group])
            there = ledger.slabs[slab].get(ledger.row_of[numbers], np.full(len(numbers), slot, dtype=np.int64))
            differs = ~is_absent(there) & (there.view(np.int64) != values.view(np.int64))
            dropped.update({"duplicate": int(np.count_nonzero(differs))} if differs.any() else {})
            numbers, values = numbers[~differs], values[~differs]
        ledger.slabs[slab].put(ledger.row_of[numbers], slot, values)
        self._saw(numbers, at_ms)

    def _append_singles(self, numbers: Ints, times: Ints, values: Floats, *, dropped: Counter[str]) -> None:
        """Write one sample for each of different series, each in a group of its own."""
        ledger = self._ledger
        self._give_own_groups(numbers)
        groups = ledger.group_of[numbers]
        last_ms, oldest_ms = ledger.last_ms[groups], self._oldest_ms()
        fresh = (times > last_ms) & (times >= oldest_ms)
        for group in groups[fresh & (ledger.filled[groups] >= self._capacities(groups))].tolist():
            ledger.open_slot(group, oldest_ms=oldest_ms)
        same = (times == last_ms) & (times >= oldest_ms)
        slots = ledger.filled[groups] - same
        writable, duplicates = fresh | same, 0
        for slab in np.unique(ledger.slab_of[groups]).tolist():
            again = np.flatnonzero(same & (ledger.slab_of[groups] == slab))
            if len(again):
                there = ledger.slabs[slab].get(ledger.row_of[numbers[again]], slots[again])
                differs = ~is_absent(there) & (there.view(np.int64) != values[again].view(np.int64))
                writable[again[differs]] = False
                duplicates += int(np.count_nonzero(differs))
            here = np.flatnonzero(writable & (ledger.slab_of[groups] == slab))
            ledger.slabs[slab].put(ledger.row_of[numbers[here]], slots[here], values[here])
            ledger.times[slab].put(ledger.time_row[groups[here]], slots[here], times[here].view(np.float64))
        ledger.filled[groups[fresh]] += 1
        ledger.last_ms[groups[fresh]] = times[fresh]
        late = ~fresh & ~same
        for reason, count in (
            ("out_of_order", int(np.count_nonzero(late & (times < last_ms)))),
            ("too_old", int(np.count_nonzero(late & (times >= last_ms)))),
            ("duplicate", duplicates),
        ):
            dropped.update({reason: count} if count else {})
        self._saw(numbers[writable], times[writable])

    def _give_own_groups(self, numbers: Ints) -> None:
        """Let each series be alone in its group: new ones join an empty one, members of a scrape leave theirs."""
        ledger = self._ledger
        for number in numbers.tolist():
            group = int(ledger.group_of[number])
            if group == NOBODY:
                ledger.join(ledger.group(("series", number)), np.array([number]))
            elif ledger.size(group) > 1:
                ledger.separate(number, ("series", number))

    def _capacities(self, groups: Ints) -> Ints:
        capacities = np.array([slab.capacity for slab in self._ledger.slabs], dtype=np.int64)
        return capacities[self._ledger.slab_of[groups]]

    def _saw(self, numbers: Ints, at_ms: int | Ints) -> None:
        """Samples of a series come in the order of time: the first is its birth, the newest when it was seen."""
        born = self._born_ms[numbers]
        if (born == NEVER_MS).any():
            self._born_ms[numbers] = np.minimum(born, at_ms)
        self._seen_ms[numbers] = at_ms

    def _grouped(self, chosen: Selection) -> tuple[Ints, Ints, Ints]:
        """The groups of the chosen series, each series' place among them, and their slabs; NOBODY without samples."""
        groups, index = chosen.series.derive(
            ("groups", self._ledger.version),
            lambda _: np.unique(self._ledger.group_of[chosen.numbers], return_inverse=True),
        )
        slabs = np.full(len(groups), NOBODY, dtype=np.int64)
        slabs[groups != NOBODY] = self._ledger.slab_of[groups[groups != NOBODY]]
        return groups, index, slabs

    def _copy(
        self, chosen: Selection, group_index: Ints, *, groups: Ints, slabs: Ints, lows: Ints, counts: Ints
    ) -> Columns:
        ledger = self._ledger
        width = int(counts.max()) if len(counts) else 0
        times = np.full((len(groups), width), NEVER_MS, dtype=np.int64)
        values = np.full((len(chosen.numbers), width), ABSENT)
        for slab in np.unique(slabs[slabs != NOBODY]).tolist():
            inside = np.flatnonzero(slabs == slab)
            times[inside] = (
                ledger.times[slab].gather(ledger.time_row[groups[inside]], lows[inside], width=width).view(np.int64)
            )
            rows = np.flatnonzero((slabs == slab)[group_index])
            values[rows] = ledger.slabs[slab].gather(
                ledger.row_of[chosen.numbers[rows]], lows[group_index[rows]], width=width
            )
        if len(counts) and int(counts.min()) < width:
            unused = np.arange(width) >= counts[:, None]
            times[unused] = NEVER_MS
            # The row's last value again: a block without a NaN, a change or a reset is evaluated faster.
            last = np.take_along_axis(values, np.maximum(counts - 1, 0)[group_index][:, None], axis=1)
            values = np.where(unused[group_index], last, values)
        return Columns(chosen.series, group_index, times, values)


def _check_labels(labels: label_sets.Labels) -> None:
    """Refuse a label set that would make the index the largest thing in memory."""
    for what, found, limit in (
        ("labels", len(labels), MAX_LABELS),
        ("characters in a label name", max((len(name) for name in labels), default=0), MAX_NAME_LENGTH),
        ("characters in a label value", max((len(value) for value in labels.values()), default=0), MAX_VALUE_LENGTH),
    ):
        if found > limit:
            raise errors.StoreError(
                f"series {errors.quote(str(labels))} has {found} {what}",
                now=f"the limit is {limit}",
                remedy="Drop or shorten the label where it is collected",
            )


def _refuse_above(samples: int, limit: int | None) -> None:
    if limit is not None and samples > limit:
        raise errors.QueryLimit(
            f"the query would read {samples} samples, the limit is {limit}",
            remedy="Select fewer series or a shorter time",
        )
