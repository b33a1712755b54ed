"""Where a sample goes: the slot of its group, a slot of its own, or nowhere, with the reason.

The head resolves labels and ids to series numbers and hands over numbers, times and values. Members of a
scrape share a slot; series that lie elsewhere, or lag behind, go alone; a late sample gets a slot between
others while the horizon allows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from watchkeeper.store.columns import NEVER_MS, Floats, Ints, Mask, Places, Slab, is_absent
from watchkeeper.store.groups import NO_GROUP, GroupTable, grow_column
from watchkeeper.store.rows import WIDE, MixedTable, fits

# Targets whose last scrape is remembered; a hub has some thousand.
MAX_HABITS = 100_000


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Which times still count: none before `oldest_ms`, none out of order before `late_ms`; slots before
    `clear_ms` may be cleared away."""

    oldest_ms: int = -NEVER_MS
    late_ms: int = NEVER_MS
    clear_ms: int = -NEVER_MS


@dataclass(frozen=True, slots=True, eq=False)
class ScrapeTemplate:
    """What a scrape of a target looked like, and where its samples went; nearly always the next is the same."""

    group: int
    numbers: Ints
    places: list[tuple[Slab, Places]]
    # Which of them lie in narrow rows.
    narrow: Ints
    stamp: int


class SamplePlacement:
    """Writes samples into the ledger's slots, and knows when each series was born and last seen."""

    def __init__(self, ledger: GroupTable) -> None:
        self._ledger = ledger
        self.born_ms = np.empty(0, dtype=np.int64)
        self.seen_ms = np.empty(0, dtype=np.int64)
        self.horizon = TimeBounds()
        self._habits: dict[Hashable, ScrapeTemplate] = {}
        # Series whose sample was refused since this was last emptied.
        self.refused: list[Ints] = []

    def welcome(self, number: int, now_ms: int, *, kind: int) -> None:
        """A new series: not seen yet, but too young to be forgotten."""
        self._ledger.welcome(number, kind)
        self.born_ms = grow_column(self.born_ms, number + 1, fill=NEVER_MS)
        self.seen_ms = grow_column(self.seen_ms, number + 1, fill=0)
        self.born_ms[number], self.seen_ms[number] = NEVER_MS, now_ms

    def welcome_all(self, numbers: Ints, now_ms: int, *, kinds: Ints) -> None:
        """The same for many new series."""
        self._ledger.welcome_all(numbers, kinds)
        self.born_ms = grow_column(self.born_ms, int(numbers.max(initial=-1)) + 1, fill=NEVER_MS)
        self.seen_ms = grow_column(self.seen_ms, int(numbers.max(initial=-1)) + 1, fill=0)
        self.born_ms[numbers], self.seen_ms[numbers] = NEVER_MS, now_ms

    def place_scrape(self, key: Hashable, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write a scrape: members of the group share a slot; series that lie elsewhere, or lag behind, go alone."""
        if self._repeat(key, numbers, at_ms, values=values):
            return
        ledger = self._ledger
        group = ledger.group(key)
        owners = ledger.group_of[numbers]
        if at_ms >= ledger.last_ms[group]:
            if (owners == NO_GROUP).any():
                ledger.join(group, np.unique(numbers[owners == NO_GROUP]))
                owners = ledger.group_of[numbers]
            own = owners == group
            if own.any():
                self._place_slot(group, numbers[own], at_ms, values=values[own], dropped=dropped)
            if own.all():
                self._remember(key, group, numbers)
                return
            numbers, values = numbers[~own], values[~own]
        late = (self.seen_ms[numbers] > at_ms) & (self.born_ms[numbers] != NEVER_MS)
        if late.any():
            self._place_late(numbers[late], at_ms, values=values[late], dropped=dropped)
            numbers, values = numbers[~late], values[~late]
        if len(numbers):
            self.place_singles(numbers, np.full(len(numbers), at_ms, dtype=np.int64), values, dropped=dropped)
        ledger.drop_if_empty(group)

    def _repeat(self, key: Hashable, numbers: Ints, at_ms: int, *, values: Floats) -> bool:
        """Write the next slot of a group for the series of its scrape before; False where that is not what is asked."""
        habit, ledger = self._habits.get(key), self._ledger
        if habit is None or habit.stamp != int(ledger.stamps[habit.group]) or len(habit.numbers) != len(numbers):
            return False
        group = habit.group
        slab, slot = int(ledger.slab_of[group]), int(ledger.filled[group])
        has_room = slot < ledger.slabs[slab].capacity
        is_next = at_ms > int(ledger.last_ms[group]) and at_ms >= self.horizon.oldest_ms
        is_same = habit.numbers is numbers or bool((habit.numbers == numbers).all())
        if not (has_room and is_next and is_same and fits(values[habit.narrow]).all()):
            return False
        ledger.slabs[slab].put_places(habit.places, slot, values)
        ledger.times[slab].put_time(int(ledger.time_row[group]), slot, at_ms)
        ledger.filled[group], ledger.last_ms[group] = slot + 1, at_ms
        self.seen_ms[numbers] = at_ms
        return True

    def _remember(self, key: Hashable, group: int, numbers: Ints) -> None:
        """Expect the same series next time, each once and each in its group."""
        ledger = self._ledger
        if len(self._habits) > MAX_HABITS:
            self._habits.clear()
        if int(ledger.filled[group]) > 1 and len(np.unique(numbers)) == len(numbers):
            rows = ledger.row_of[numbers]
            places, narrow = ledger.slabs[ledger.slab_of[group]].places(rows), np.flatnonzero(rows < WIDE)
            self._habits[key] = ScrapeTemplate(group, numbers, places, narrow, int(ledger.stamps[group]))

    def place_scrapes(self, key: Hashable, numbers: Ints, times: Ints, *, table: MixedTable) -> bool:
        """Write many scrapes at once, slot k of the table at ascending `times[k]`; False where that needs care."""
        ledger = self._ledger
        group = ledger.group(key)
        owners = ledger.group_of[numbers]
        is_plain = (
            int(times[0]) > int(ledger.last_ms[group])
            and int(times[0]) >= self.horizon.oldest_ms
            and bool((np.diff(times) > 0).all())
            and bool(((owners == NO_GROUP) | (owners == group)).all())
            and len(set(numbers.tolist())) == len(numbers)
        )
        if not is_plain:
            ledger.drop_if_empty(group)
            return False
        new = owners == NO_GROUP
        if new.any():
            ledger.join(group, numbers[new], is_wide=table.is_wide[new])
        ledger.open_slots(group, len(times), oldest_ms=self.horizon.clear_ms)
        ledger.append_slots(group, numbers, times, table=table)
        self._saw(numbers, int(times[0]))
        self._saw(numbers, int(times[-1]))
        return True

    def place_singles(self, numbers: Ints, times: Ints, values: Floats, *, dropped: Counter[str]) -> None:
        """Write one sample for each of different series, each in a group of its own."""
        ledger, horizon = self._ledger, self.horizon
        self._give_own_groups(numbers)
        groups = ledger.group_of[numbers]
        last_ms = ledger.last_ms[groups]
        in_time = times >= horizon.oldest_ms
        fresh, same = (times > last_ms) & in_time, (times == last_ms) & in_time
        for group in groups[fresh & (ledger.filled[groups] >= self._capacities(groups))].tolist():
            ledger.open_slots(group, 1, oldest_ms=horizon.clear_ms)
        slots = ledger.filled[groups] - same
        writable = fresh | same
        for slab in np.unique(ledger.slab_of[groups]).tolist():
            again = np.flatnonzero(same & (ledger.slab_of[groups] == slab))
            if len(again):
                differs = self._differs(slab, numbers[again], slots[again], values[again])
                writable[again[differs]] = False
            here = np.flatnonzero(writable & (ledger.slab_of[groups] == slab))
            ledger.put(slab, numbers[here], slots[here], values=values[here])
            ledger.times[slab].put(ledger.time_row[groups[here]], slots[here], times[here].view(np.float64))
        ledger.filled[groups[fresh]] += 1
        ledger.last_ms[groups[fresh]] = times[fresh]
        self._refuse(numbers[~writable & same], "duplicate", dropped)
        self._refuse(numbers[~fresh & ~same & (times >= last_ms)], "too_old", dropped)
        self._saw(numbers[writable], times[writable])
        for at in np.flatnonzero(~fresh & ~same & (times < last_ms)).tolist():
            self._place_late(numbers[at : at + 1], int(times[at]), values=values[at : at + 1], dropped=dropped)

    def drop_from(self, at_ms: int) -> None:
        """Empty what lies at or after a time; a series that was born there is as if it had not been seen yet."""
        self._ledger.drop_from(at_ms)
        is_young = (self.born_ms >= at_ms) & (self.born_ms != NEVER_MS)
        self.born_ms[is_young] = NEVER_MS
        np.minimum(self.seen_ms, at_ms - 1, out=self.seen_ms)

    def _place_slot(self, group: int, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write the last slot, or the one behind it, of a group that all the series belong to."""
        ledger = self._ledger
        if at_ms < self.horizon.oldest_ms:
            self._refuse(numbers, "too_old", dropped)
            return
        if at_ms > int(ledger.last_ms[group]):
            ledger.open_slots(group, 1, oldest_ms=self.horizon.clear_ms)
            slot, slab = int(ledger.filled[group]), int(ledger.slab_of[group])
            time = np.array([at_ms], dtype=np.int64).view(np.float64)
            ledger.times[slab].put(ledger.time_row[group : group + 1], slot, time)
            ledger.filled[group], ledger.last_ms[group] = slot + 1, at_ms
            ledger.put(slab, numbers, slot, values=values)
            self._saw(numbers, at_ms)
        else:
            self._fill_slot(group, int(ledger.filled[group]) - 1, numbers, at_ms=at_ms, values=values, dropped=dropped)

    def _place_late(self, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write samples between others that came before them, if they are not too late for that."""
        if at_ms < max(self.horizon.late_ms, self.horizon.oldest_ms):
            self._refuse(numbers, "out_of_order", dropped)
            return
        owners = self._ledger.group_of[numbers]
        for group in np.unique(owners).tolist():
            mine = owners == group
            slot = self._ledger.insert_slot(group, at_ms, oldest_ms=self.horizon.clear_ms)
            self._fill_slot(group, slot, numbers[mine], at_ms=at_ms, values=values[mine], dropped=dropped)

    def _fill_slot(
        self, group: int, slot: int, numbers: Ints, *, at_ms: int, values: Floats, dropped: Counter[str]
    ) -> None:
        """Write into a slot that may hold samples already; another value than the one there is a duplicate."""
        ledger = self._ledger
        slab = int(ledger.slab_of[group])
        differs = self._differs(slab, numbers, np.full(len(numbers), slot, dtype=np.int64), values)
        self._refuse(numbers[differs], "duplicate", dropped)
        numbers, values = numbers[~differs], values[~differs]
        ledger.put(slab, numbers, slot, values=values)
        self._saw(numbers, at_ms)

    def _differs(self, slab: int, numbers: Ints, slots: Ints, values: Floats) -> Mask:
        there = self._ledger.slabs[slab].get(self._ledger.row_of[numbers], slots)
        differs: Mask = ~is_absent(there) & (there.view(np.int64) != values.view(np.int64))
        return differs

    def _give_own_groups(self, numbers: Ints) -> None:
        """Let each series be alone in its group: new ones join an empty one, members of a scrape leave theirs."""
        ledger = self._ledger
        for number in numbers.tolist():
            group = int(ledger.group_of[number])
            if group == NO_GROUP:
                ledger.join(ledger.group(("series", number)), np.array([number]))
            elif ledger.size(group) > 1:
                ledger.separate(number, ("series", number))

    def _capacities(self, groups: Ints) -> Ints:
        capacities = np.array([slab.capacity for slab in self._ledger.slabs], dtype=np.int64)
        return capacities[self._ledger.slab_of[groups]]

    def _saw(self, numbers: Ints, at_ms: int | Ints) -> None:
        """The earliest sample of a series is its birth, the newest when it was seen."""
        born = self.born_ms[numbers]
        if (born > at_ms).any():
            self.seen_ms[numbers[born == NEVER_MS]] = -NEVER_MS
            self.born_ms[numbers] = np.minimum(born, at_ms)
        self.seen_ms[numbers] = np.maximum(self.seen_ms[numbers], at_ms)

    def _refuse(self, numbers: Ints, reason: str, dropped: Counter[str]) -> None:
        if len(numbers):
            dropped[reason] += len(numbers)
            self.refused.append(numbers)
