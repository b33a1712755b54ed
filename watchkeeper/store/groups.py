"""Groups of series that share their times: the series of one target, or a single series.

A group has one row of times, and each of its series one row of values in the same slab; slot k of the values has the
time in slot k. `head` decides what is appended, and this module allocates the slots.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from watchkeeper.store.columns import (
    ABSENT,
    NEVER_MS,
    Floats,
    Ints,
    Mask,
    Slab,
    capacity_for,
    is_absent,
    is_stale,
    sorted_distinct,
)
from watchkeeper.store.rows import WIDE, MixedTable, RowStore, rows_fit_narrow

NO_GROUP = -1
NO_KIND = 0
# The kind of a row of times, for `allocate_rows`.
TIME_KIND = np.zeros(1, dtype=np.int64)
# Expired slots are dropped when they are one in this many of a row: rare enough to be cheap, and a row with 2 h at 15 s
# (480 slots) stays at 512 slots.
EXPIRED_SHARE = 16
# Up to this many groups are searched one by one: 16 µs instead of 110 µs for the single group of a panel.
FEW_GROUPS = 16


def grow_column(column: Ints, size: int, *, fill: int) -> Ints:
    if size <= len(column):
        return column
    longer = np.full(max(size, 2 * len(column), 64), fill, dtype=np.int64)
    longer[: len(column)] = column
    return longer


class GroupTable:
    """Where the samples of each series and group are; columns are indexed by series number or group number."""

    def __init__(self) -> None:
        self.group_of = np.empty(0, dtype=np.int64)
        self.row_of = np.empty(0, dtype=np.int64)
        self.kind_of = np.empty(0, dtype=np.int64)
        self.slab_of = np.empty(0, dtype=np.int64)
        self.time_row = np.empty(0, dtype=np.int64)
        self.slot_counts = np.empty(0, dtype=np.int64)
        self.last_ms = np.empty(0, dtype=np.int64)
        # Changes when a group's series are added, removed or moved, so that their location can be cached.
        self.versions = np.empty(0, dtype=np.int64)
        self._last_version = 0
        self.slabs: list[RowStore] = []
        self.times: list[Slab] = []
        self._slab_by_capacity: dict[int, int] = {}
        self._series_by_group: dict[int, Ints] = {}
        self._key_by_group: dict[int, Hashable] = {}
        self._group_by_key: dict[Hashable, int] = {}
        self._free_groups: list[int] = []

    def add_series(self, numbers: Ints | int, kinds: Ints | int, size: int) -> None:
        """Add series with numbers below `size`, without a group yet; rows of series of one kind are adjacent."""
        self.group_of = grow_column(self.group_of, size, fill=NO_GROUP)
        self.row_of = grow_column(self.row_of, size, fill=NO_GROUP)
        self.kind_of = grow_column(self.kind_of, size, fill=NO_KIND)
        self.kind_of[numbers] = kinds

    def group(self, key: Hashable, slots: int = 1) -> int:
        """The group with this key; a new one is created empty, with room for `slots`."""
        existing = self._group_by_key.get(key)
        if existing is not None:
            return existing
        group = self._free_groups.pop() if self._free_groups else len(self._group_by_key)
        self.slab_of = grow_column(self.slab_of, group + 1, fill=0)
        self.time_row = grow_column(self.time_row, group + 1, fill=NO_GROUP)
        self.slot_counts = grow_column(self.slot_counts, group + 1, fill=0)
        self.last_ms = grow_column(self.last_ms, group + 1, fill=0)
        self.versions = grow_column(self.versions, group + 1, fill=0)
        slab = self._slab_for(capacity_for(slots))
        self.slab_of[group], self.slot_counts[group], self.last_ms[group] = slab, 0, -NEVER_MS
        self.time_row[group] = self.times[slab].allocate_rows(TIME_KIND)[0]
        self._group_by_key[key], self._key_by_group[group] = group, key
        self._series_by_group[group] = np.empty(0, dtype=np.int64)
        self._mark_changed(group)
        return group

    def member_count(self, group: int) -> int:
        return len(self._series_by_group[group])

    def active_series(self, key: Hashable, since_ms: int) -> Ints:
        """The series with a value in the group's newest slot, if it is after `since_ms`; stale markers do not count."""
        group = self._group_by_key.get(key)
        if group is None or self.last_ms[group] <= since_ms:
            return np.empty(0, dtype=np.int64)
        members = self._series_by_group[group]
        slots = np.full(len(members), self.slot_counts[group] - 1)
        values = self.slabs[self.slab_of[group]].get(self.row_of[members], slots)
        return members[~is_absent(values) & ~is_stale(values)]

    def add_members(self, group: int, numbers: Ints, *, is_wide: Mask | None = None) -> None:
        """Add series without a group to a group, each with an empty row; rows are narrow by default."""
        self.row_of[numbers] = self.slabs[self.slab_of[group]].allocate_rows(self.kind_of[numbers], is_wide=is_wide)
        self.group_of[numbers] = group
        self._mark_changed(group)
        self._series_by_group[group] = np.concatenate([self._series_by_group[group], numbers])

    def remove_members(self, numbers: Ints) -> None:
        """Remove series from their groups and free their rows; a group without series is removed."""
        for group in np.unique(self.group_of[numbers]).tolist():
            if group == NO_GROUP:
                continue
            removed = numbers[self.group_of[numbers] == group]
            slab = int(self.slab_of[group])
            self.slabs[slab].free_rows(self.row_of[removed])
            self.group_of[removed] = NO_GROUP
            self._series_by_group[group] = np.setdiff1d(self._series_by_group[group], removed)
            self._mark_changed(group)
            self.drop_if_empty(group)

    def drop_if_empty(self, group: int) -> None:
        if group in self._series_by_group and not len(self._series_by_group[group]):
            self.times[self.slab_of[group]].free_rows(self.time_row[group : group + 1])
            del self._group_by_key[self._key_by_group.pop(group)], self._series_by_group[group]
            self._free_groups.append(group)

    def separate_series(self, number: int, key: Hashable) -> int:
        """Move one series, with its samples, from its group into a new group."""
        old_group = int(self.group_of[number])
        slab = int(self.slab_of[old_group])
        values = self.slabs[slab].read_rows(self.row_of[number : number + 1])
        times = self.times[slab].read_rows(self.time_row[old_group : old_group + 1])
        sample_slots = np.flatnonzero(~is_absent(values[0]))
        slot_count = int(sample_slots[-1]) + 1 if len(sample_slots) else 0
        last_ms = int(times.view(np.int64)[0, slot_count - 1]) if slot_count else -NEVER_MS
        self.remove_members(np.array([number]))
        group = self.group(key)
        self._change_capacity(group, self.slabs[slab].capacity)
        self.add_members(group, np.array([number]))
        self._widen_rows(np.array([number]), values)
        self.slabs[slab].write_rows(self.row_of[number : number + 1], values)
        self.times[slab].write_rows(self.time_row[group : group + 1], times[:, :slot_count])
        self.slot_counts[group], self.last_ms[group] = slot_count, last_ms
        return group

    def open_slots(self, group: int, count: int, *, oldest_ms: int) -> None:
        """Make sure that the group has `count` free slots: drop expired slots, or else move it to longer rows."""
        slab = int(self.slab_of[group])
        capacity, slot_count = self.slabs[slab].capacity, int(self.slot_counts[group])
        if slot_count + count <= capacity:
            return
        times = self.times[slab].read_rows(self.time_row[group : group + 1])
        expired = int(np.count_nonzero(times.view(np.int64)[0] < oldest_ms))
        if expired < count or expired * EXPIRED_SHARE < capacity:
            self._change_capacity(group, capacity_for(slot_count + count))
            return
        self.slabs[slab].shift_rows(self.row_of[self._series_by_group[group]], by=expired)
        self.times[slab].shift_rows(self.time_row[group : group + 1], by=expired)
        self.slot_counts[group] = slot_count - expired
        # Wide rows move back to narrow rows if all values fit, for example after a stale marker expired.
        members = self._series_by_group[group]
        wide_members = members[self.row_of[members] >= WIDE]
        if len(wide_members):
            values = self.slabs[self.slab_of[group]].read_rows(self.row_of[wide_members])
            self._move_rows(wide_members[rows_fit_narrow(values)], is_wide=False)

    def append_slots(self, group: int, numbers: Ints, times: Ints, *, table: MixedTable) -> None:
        """Fill slots after the last one: row s of the table has the values of `numbers[s]` at ascending `times`."""
        slab, slot = int(self.slab_of[group]), int(self.slot_counts[group])
        self.times[slab].put_cells(self.time_row[group : group + 1], slot, times.view(np.float64)[None, :])
        narrow, wide = numbers[: len(table.narrow)], numbers[len(table.narrow) :]
        self._move_rows(wide[self.row_of[wide] < WIDE], is_wide=True)
        self.slabs[slab].put_cells(self.row_of[narrow], slot, table.narrow)
        self.slabs[slab].put_cells(self.row_of[wide], slot, table.wide)
        self.slot_counts[group], self.last_ms[group] = slot + len(times), int(times[-1])

    def put_slots(self, slab: int, numbers: Ints, slots: Ints | int, *, values: Floats) -> None:
        """Write one slot of each series, all in one slab."""
        self._widen_rows(numbers, values[:, None])
        self.slabs[slab].put(self.row_of[numbers], slots, values)

    def _widen_rows(self, numbers: Ints, values: Floats) -> None:
        """Move narrow rows to wide rows where a value does not fit."""
        is_narrow = self.row_of[numbers] < WIDE
        if is_narrow.any():
            self._move_rows(np.unique(numbers[is_narrow & ~rows_fit_narrow(values)]), is_wide=True)

    def _move_rows(self, numbers: Ints, *, is_wide: bool) -> None:
        if not len(numbers):
            return
        groups = self.group_of[numbers]
        slabs = self.slab_of[groups]
        for slab in sorted_distinct(slabs).tolist():
            slab_series = numbers[slabs == slab]
            wide_mask = np.full(len(slab_series), is_wide)
            self.row_of[slab_series] = self.slabs[slab].move_rows(
                self.row_of[slab_series], self.kind_of[slab_series], is_wide=wide_mask
            )
        for group in sorted_distinct(groups).tolist():
            self._mark_changed(group)

    def insert_slot(self, group: int, at_ms: int, *, oldest_ms: int) -> int:
        """The slot of a time before the group's last time; a new slot is inserted empty for every series."""
        self.open_slots(group, 1, oldest_ms=oldest_ms)
        slab, slot_count = int(self.slab_of[group]), int(self.slot_counts[group])
        time_row = self.time_row[group : group + 1]
        slot = int(self.slots_up_to(np.array([group]), at_ms, slab=slab)[0])
        if slot and int(self.times[slab].get(time_row, np.array([slot - 1])).view(np.int64)[0]) == at_ms:
            return slot - 1
        self.times[slab].insert_cell(time_row, slot, filled=slot_count)
        self.times[slab].put(time_row, slot, np.array([at_ms], dtype=np.int64).view(np.float64))
        self.slabs[slab].insert_cell(self.row_of[self._series_by_group[group]], slot, filled=slot_count)
        self.slot_counts[group] = slot_count + 1
        return slot

    def drop_from(self, at_ms: int) -> None:
        for group in [group for group in self._series_by_group if int(self.last_ms[group]) >= at_ms]:
            slab, time_row = int(self.slab_of[group]), self.time_row[group : group + 1]
            kept_slots = int(self.slots_up_to(np.array([group]), at_ms - 1, slab=slab)[0])
            empty = np.full((len(self._series_by_group[group]), int(self.slot_counts[group]) - kept_slots), ABSENT)
            self.slabs[slab].put_cells(self.row_of[self._series_by_group[group]], kept_slots, empty)
            self.times[slab].put_cells(time_row, kept_slots, empty[:1])
            times = self.times[slab].read_times(int(time_row[0]))
            self.slot_counts[group], self.last_ms[group] = (
                kept_slots,
                times[kept_slots - 1] if kept_slots else -NEVER_MS,
            )

    def first_ms_from(self, at_ms: int) -> int | None:
        """The earliest time at or after `at_ms` in any group."""
        groups = np.array(sorted(self._series_by_group), dtype=np.int64)
        earliest = []
        for slab in np.unique(self.slab_of[groups]).tolist():
            slab_groups = groups[self.slab_of[groups] == slab]
            slots = self.slots_up_to(slab_groups, at_ms - 1, slab=slab)
            has_more = slots < self.slot_counts[slab_groups]
            if has_more.any():
                rows = self.time_row[slab_groups[has_more]]
                earliest.append(int(self.times[slab].get(rows, slots[has_more]).view(np.int64).min()))
        return min(earliest, default=None)

    def _change_capacity(self, group: int, capacity: int) -> None:
        """Move a group to the slab with this capacity, which is at least its own."""
        source, target = int(self.slab_of[group]), self._slab_for(capacity)
        members = self._series_by_group[group]
        if source == target:
            return
        rows, time_row = self.row_of[members], self.time_row[group : group + 1].copy()
        values = self.slabs[source].read_rows(rows)
        self.row_of[members] = self.slabs[target].allocate_rows(self.kind_of[members], is_wide=~rows_fit_narrow(values))
        self.time_row[group] = self.times[target].allocate_rows(TIME_KIND)[0]
        self.slabs[target].write_rows(self.row_of[members], values)
        self.times[target].write_rows(self.time_row[group : group + 1], self.times[source].read_rows(time_row))
        self.slabs[source].free_rows(rows)
        self.times[source].free_rows(time_row)
        self.slab_of[group] = target
        self._mark_changed(group)

    def _mark_changed(self, group: int) -> None:
        self._last_version += 1
        self.versions[group] = self._last_version

    def _slab_for(self, capacity: int) -> int:
        slab = self._slab_by_capacity.get(capacity)
        if slab is None:
            slab = self._slab_by_capacity[capacity] = len(self.slabs)
            self.slabs.append(RowStore(capacity))
            self.times.append(Slab(capacity))
        return slab

    def slots_up_to(self, groups: Ints, at_ms: int, *, slab: int) -> Ints:
        """For each group of one slab, how many slots are at or before a time; all groups are bisected together."""
        slot_counts = self.slot_counts[groups]
        # Most queries are about now: then all slots count.
        open_groups = (self.last_ms[groups] > at_ms).nonzero()[0]
        if not len(open_groups):
            return slot_counts
        rows, high = self.time_row[groups[open_groups]], slot_counts[open_groups]
        if len(open_groups) <= FEW_GROUPS:
            for index, row, high_slot in zip(open_groups.tolist(), rows.tolist(), high.tolist(), strict=True):
                slot_counts[index] = self.times[slab].read_times(row)[:high_slot].searchsorted(at_ms, side="right")
            return slot_counts
        low = np.zeros(len(open_groups), dtype=np.int64)
        for _ in range(self.slabs[slab].capacity.bit_length()):
            middle = (low + high) // 2
            is_open = low < high
            is_early = is_open & (self.times[slab].get(rows, middle).view(np.int64) <= at_ms)
            low = np.where(is_early, middle + 1, low)
            high = np.where(is_open & ~is_early, middle, high)
        slot_counts[open_groups] = low
        return slot_counts

    @property
    def used_bytes(self) -> int:
        return sum(slab.used_bytes for slab in self.slabs) + sum(slab.used_bytes for slab in self.times)
