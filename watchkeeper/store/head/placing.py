"""Write samples into slots: the slot of their group, a separate slot, or none, with the reason.

The head resolves labels and ids to series numbers, and passes numbers, times and values. The samples of a scrape share
a slot; a series in another group, or with an older time, is written separately; an out-of-order sample gets a slot
between others if it is within `TimeBounds`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from watchkeeper.store.columns import NEVER_MS, BlockCells, Floats, Ints, Mask, Slab, is_absent
from watchkeeper.store.groups import NO_GROUP, GroupTable, grow_column
from watchkeeper.store.rows import WIDE, MixedTable, fits_narrow

# The limit of cached scrape templates; a hub has a few thousand targets.
MAX_TEMPLATES = 100_000


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """Which times are accepted, also out of order, and before which time slots may be dropped."""

    oldest_ms: int = -NEVER_MS
    late_ms: int = NEVER_MS
    clear_before_ms: int = -NEVER_MS


@dataclass(frozen=True, slots=True, eq=False)
class ScrapeTemplate:
    """The series of a target's last scrape and their slots; the next scrape nearly always has the same series."""

    group: int
    numbers: Ints
    located: list[tuple[Slab, BlockCells]]
    # The positions of the series that have narrow rows.
    narrow: Ints
    version: int


class SamplePlacement:
    """Writes samples into slots of the group table, and tracks the first and newest time of each series."""

    def __init__(self, table: GroupTable) -> None:
        self._table = table
        self.first_ms = np.empty(0, dtype=np.int64)
        self.newest_ms = np.empty(0, dtype=np.int64)
        self.bounds = TimeBounds()
        self._templates: dict[Hashable, ScrapeTemplate] = {}
        # Series whose sample was dropped since this list was last cleared.
        self.refused: list[Ints] = []

    def add_series(self, numbers: Ints | int, now_ms: int, *, kinds: Ints | int, size: int) -> None:
        """Add series with numbers below `size`; without samples they count as new, so that they do not expire."""
        self._table.add_series(numbers, kinds, size)
        self.first_ms = grow_column(self.first_ms, size, fill=NEVER_MS)
        self.newest_ms = grow_column(self.newest_ms, size, fill=0)
        self.first_ms[numbers], self.newest_ms[numbers] = NEVER_MS, now_ms

    def place_scrape(self, key: Hashable, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write a scrape: series of its group share a slot, the others are written separately."""
        if self._write_repeated(key, numbers, at_ms, values=values):
            return
        table = self._table
        group = table.group(key)
        owners = table.group_of[numbers]
        if at_ms >= table.last_ms[group]:
            if (owners == NO_GROUP).any():
                table.add_members(group, np.unique(numbers[owners == NO_GROUP]))
                owners = table.group_of[numbers]
            is_member = owners == group
            if is_member.any():
                self._place_slot(group, numbers[is_member], at_ms, values=values[is_member], dropped=dropped)
            if is_member.all():
                self._save_template(key, group, numbers)
                return
            numbers, values = numbers[~is_member], values[~is_member]
        is_late = (self.newest_ms[numbers] > at_ms) & (self.first_ms[numbers] != NEVER_MS)
        if is_late.any():
            self._place_late(numbers[is_late], at_ms, values=values[is_late], dropped=dropped)
            numbers, values = numbers[~is_late], values[~is_late]
        if len(numbers):
            self.place_singles(numbers, np.full(len(numbers), at_ms, dtype=np.int64), values, dropped=dropped)
        table.drop_if_empty(group)

    def _write_repeated(self, key: Hashable, numbers: Ints, at_ms: int, *, values: Floats) -> bool:
        """Write the next slot of a group if the scrape has the same series as the last one; False otherwise."""
        template, table = self._templates.get(key), self._table
        if template is None or template.version != int(table.versions[template.group]):
            return False
        group = template.group
        slab, slot = int(table.slab_of[group]), int(table.slot_counts[group])
        has_room = slot < table.slabs[slab].capacity
        is_next = at_ms > int(table.last_ms[group]) and at_ms >= self.bounds.oldest_ms
        is_same = template.numbers is numbers or np.array_equal(template.numbers, numbers)
        if not (has_room and is_next and is_same and fits_narrow(values[template.narrow]).all()):
            return False
        table.slabs[slab].put_located(template.located, slot, values)
        table.times[slab].put_time(int(table.time_row[group]), slot, at_ms)
        table.slot_counts[group], table.last_ms[group] = slot + 1, at_ms
        self.newest_ms[numbers] = at_ms
        return True

    def _save_template(self, key: Hashable, group: int, numbers: Ints) -> None:
        """Save a template for the next scrape, if each series occurs once."""
        table = self._table
        if len(self._templates) > MAX_TEMPLATES:
            self._templates.clear()
        if int(table.slot_counts[group]) > 1 and len(np.unique(numbers)) == len(numbers):
            rows = table.row_of[numbers]
            located, narrow_rows = (table.slabs[table.slab_of[group]].locate_rows(rows), np.flatnonzero(rows < WIDE))
            self._templates[key] = ScrapeTemplate(group, numbers, located, narrow_rows, int(table.versions[group]))

    def place_scrapes(self, key: Hashable, numbers: Ints, times: Ints, *, rows: MixedTable) -> bool:
        """Write many scrapes at once, slot k at ascending `times[k]`; False if they must be written one by one."""
        table = self._table
        group = table.group(key)
        owners = table.group_of[numbers]
        is_plain = (
            int(times[0]) > int(table.last_ms[group])
            and int(times[0]) >= self.bounds.oldest_ms
            and bool((np.diff(times) > 0).all())
            and bool(((owners == NO_GROUP) | (owners == group)).all())
            and len(set(numbers.tolist())) == len(numbers)
        )
        if not is_plain:
            table.drop_if_empty(group)
            return False
        is_new = owners == NO_GROUP
        if is_new.any():
            table.add_members(group, numbers[is_new], is_wide=rows.is_wide[is_new])
        table.open_slots(group, len(times), oldest_ms=self.bounds.clear_before_ms)
        table.append_slots(group, numbers, times, table=rows)
        self._update_times(numbers, int(times[0]))
        self._update_times(numbers, int(times[-1]))
        return True

    def place_singles(self, numbers: Ints, times: Ints, values: Floats, *, dropped: Counter[str]) -> None:
        """Write one sample for each of different series, each in a separate group."""
        table, bounds = self._table, self.bounds
        self._separate_groups(numbers)
        groups = table.group_of[numbers]
        last_ms = table.last_ms[groups]
        is_in_time = times >= bounds.oldest_ms
        is_new_slot, is_last_slot = (times > last_ms) & is_in_time, (times == last_ms) & is_in_time
        for group in groups[is_new_slot & (table.slot_counts[groups] >= self._capacities(groups))].tolist():
            table.open_slots(group, 1, oldest_ms=bounds.clear_before_ms)
        slots = table.slot_counts[groups] - is_last_slot
        is_writable = is_new_slot | is_last_slot
        for slab in np.unique(table.slab_of[groups]).tolist():
            rewritten = np.flatnonzero(is_last_slot & (table.slab_of[groups] == slab))
            if len(rewritten):
                differs = self._differs(slab, numbers[rewritten], slots[rewritten], values[rewritten])
                is_writable[rewritten[differs]] = False
            written = np.flatnonzero(is_writable & (table.slab_of[groups] == slab))
            table.put_slots(slab, numbers[written], slots[written], values=values[written])
            table.times[slab].put(table.time_row[groups[written]], slots[written], times[written].view(np.float64))
        table.slot_counts[groups[is_new_slot]] += 1
        table.last_ms[groups[is_new_slot]] = times[is_new_slot]
        self._count_refused(numbers[~is_writable & is_last_slot], "duplicate", dropped)
        self._count_refused(numbers[~is_new_slot & ~is_last_slot & (times >= last_ms)], "too_old", dropped)
        self._update_times(numbers[is_writable], times[is_writable])
        for index in np.flatnonzero(~is_new_slot & ~is_last_slot & (times < last_ms)).tolist():
            sample = slice(index, index + 1)
            self._place_late(numbers[sample], int(times[index]), values=values[sample], dropped=dropped)

    def drop_from(self, at_ms: int) -> None:
        """Drop samples at or after a time; a series that began there counts as without samples."""
        self._table.drop_from(at_ms)
        is_young = (self.first_ms >= at_ms) & (self.first_ms != NEVER_MS)
        self.first_ms[is_young] = NEVER_MS
        np.minimum(self.newest_ms, at_ms - 1, out=self.newest_ms)

    def _place_slot(self, group: int, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Write the last slot, or the next one, of the group of all these series."""
        table = self._table
        if at_ms < self.bounds.oldest_ms:
            self._count_refused(numbers, "too_old", dropped)
            return
        if at_ms > int(table.last_ms[group]):
            table.open_slots(group, 1, oldest_ms=self.bounds.clear_before_ms)
            slot, slab = int(table.slot_counts[group]), int(table.slab_of[group])
            time = np.array([at_ms], dtype=np.int64).view(np.float64)
            table.times[slab].put(table.time_row[group : group + 1], slot, time)
            table.slot_counts[group], table.last_ms[group] = slot + 1, at_ms
            table.put_slots(slab, numbers, slot, values=values)
            self._update_times(numbers, at_ms)
        else:
            slot = int(table.slot_counts[group]) - 1
            self._fill_slot(group, slot, numbers, at_ms=at_ms, values=values, dropped=dropped)

    def _place_late(self, numbers: Ints, at_ms: int, *, values: Floats, dropped: Counter[str]) -> None:
        """Insert out-of-order samples between others, if they are not too old."""
        if at_ms < max(self.bounds.late_ms, self.bounds.oldest_ms):
            self._count_refused(numbers, "out_of_order", dropped)
            return
        owners = self._table.group_of[numbers]
        for group in np.unique(owners).tolist():
            in_group = owners == group
            slot = self._table.insert_slot(group, at_ms, oldest_ms=self.bounds.clear_before_ms)
            self._fill_slot(group, slot, numbers[in_group], at_ms=at_ms, values=values[in_group], dropped=dropped)

    def _fill_slot(
        self, group: int, slot: int, numbers: Ints, *, at_ms: int, values: Floats, dropped: Counter[str]
    ) -> None:
        """Write into a slot that may already have samples; a different value for a series is dropped as a duplicate."""
        table = self._table
        slab = int(table.slab_of[group])
        differs = self._differs(slab, numbers, np.full(len(numbers), slot, dtype=np.int64), values)
        self._count_refused(numbers[differs], "duplicate", dropped)
        numbers, values = numbers[~differs], values[~differs]
        table.put_slots(slab, numbers, slot, values=values)
        self._update_times(numbers, at_ms)

    def _differs(self, slab: int, numbers: Ints, slots: Ints, values: Floats) -> Mask:
        stored = self._table.slabs[slab].get(self._table.row_of[numbers], slots)
        differs: Mask = ~is_absent(stored) & (stored.view(np.int64) != values.view(np.int64))
        return differs

    def _separate_groups(self, numbers: Ints) -> None:
        """Move each series into a group of its own, if it has none or shares one."""
        table = self._table
        for number in numbers.tolist():
            group = int(table.group_of[number])
            if group == NO_GROUP:
                table.add_members(table.group(("series", number)), np.array([number]))
            elif table.member_count(group) > 1:
                table.separate_series(number, ("series", number))

    def _capacities(self, groups: Ints) -> Ints:
        capacities = np.array([slab.capacity for slab in self._table.slabs], dtype=np.int64)
        return capacities[self._table.slab_of[groups]]

    def _update_times(self, numbers: Ints, at_ms: int | Ints) -> None:
        first_ms = self.first_ms[numbers]
        if (first_ms > at_ms).any():
            self.newest_ms[numbers[first_ms == NEVER_MS]] = -NEVER_MS
            self.first_ms[numbers] = np.minimum(first_ms, at_ms)
        self.newest_ms[numbers] = np.maximum(self.newest_ms[numbers], at_ms)

    def _count_refused(self, numbers: Ints, reason: str, dropped: Counter[str]) -> None:
        if len(numbers):
            dropped[reason] += len(numbers)
            self.refused.append(numbers)
