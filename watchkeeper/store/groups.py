"""Groups of series that share their times: the series of one target, or one series alone.

A group has one row of times, and each of its series one row of values in the same slab; slot k of both
belong together. The ledger knows for each series its group and row, and for each group its slab,
its row of times and how many slots are filled. `head` decides what is appended; here it finds room.
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
from watchkeeper.store.rows import WIDE, MixedTable, RowStore, rows_that_fit

NO_GROUP = -1
NO_KIND = 0
# The kinds of one row of times.
TIMES = np.zeros(1, dtype=np.int64)
# Expired slots are cleared away once they are this part of a row: rarely enough to be cheap, and a row
# that holds 2 h at 15 s (480 slots) then stays at 512.
EXPIRED_SHARE = 16
# The times of so many groups are counted faster than bisected: 16 µs instead of 110 for the one group of a panel.
FEW_GROUPS = 16


def grow_column(column: Ints, size: int, *, fill: int) -> Ints:
    """The column with room for `size` entries."""
    if size <= len(column):
        return column
    longer = np.full(max(size, 2 * len(column), 64), fill, dtype=np.int64)
    longer[: len(column)] = column
    return longer


class GroupTable:
    """Where each series and each group lies; all columns are indexed by series number or group number."""

    def __init__(self) -> None:
        self.group_of = np.empty(0, dtype=np.int64)
        self.row_of = np.empty(0, dtype=np.int64)
        self.kind_of = np.empty(0, dtype=np.int64)
        self.slab_of = np.empty(0, dtype=np.int64)
        self.time_row = np.empty(0, dtype=np.int64)
        self.filled = np.empty(0, dtype=np.int64)
        self.last_ms = np.empty(0, dtype=np.int64)
        # Another number for a group whenever its series come, go or move, so that where they lie can be remembered.
        self.stamps = np.empty(0, dtype=np.int64)
        self._stamp = 0
        self.slabs: list[RowStore] = []
        self.times: list[Slab] = []
        self._slab_by_capacity: dict[int, int] = {}
        self._members: dict[int, Ints] = {}
        self._keys: dict[int, Hashable] = {}
        self._groups: dict[Hashable, int] = {}
        self._free: list[int] = []

    def welcome(self, number: int, kind: int) -> None:
        """A new series, which lies nowhere yet; series of one kind will lie together."""
        self.group_of = grow_column(self.group_of, number + 1, fill=NO_GROUP)
        self.row_of = grow_column(self.row_of, number + 1, fill=NO_GROUP)
        self.kind_of = grow_column(self.kind_of, number + 1, fill=NO_KIND)
        self.kind_of[number] = kind

    def welcome_all(self, numbers: Ints, kinds: Ints) -> None:
        """The same for many new series."""
        size = int(numbers.max(initial=-1)) + 1
        self.group_of = grow_column(self.group_of, size, fill=NO_GROUP)
        self.row_of = grow_column(self.row_of, size, fill=NO_GROUP)
        self.kind_of = grow_column(self.kind_of, size, fill=NO_KIND)
        self.kind_of[numbers] = kinds

    def group(self, key: Hashable, slots: int = 1) -> int:
        """The group with this key, created empty when it is new, with room for so many slots."""
        known = self._groups.get(key)
        if known is not None:
            return known
        group = self._free.pop() if self._free else len(self._groups)
        self.slab_of = grow_column(self.slab_of, group + 1, fill=0)
        self.time_row = grow_column(self.time_row, group + 1, fill=NO_GROUP)
        self.filled = grow_column(self.filled, group + 1, fill=0)
        self.last_ms = grow_column(self.last_ms, group + 1, fill=0)
        self.stamps = grow_column(self.stamps, group + 1, fill=0)
        slab = self._slab(capacity_for(slots))
        self.slab_of[group], self.filled[group], self.last_ms[group] = slab, 0, -NEVER_MS
        self.time_row[group] = self.times[slab].allocate_rows(TIMES)[0]
        self._groups[key], self._keys[group] = group, key
        self._members[group] = np.empty(0, dtype=np.int64)
        self._changed(group)
        return group

    def size(self, group: int) -> int:
        return len(self._members[group])

    def active_series(self, key: Hashable, since_ms: int) -> Ints:
        """The series with a value in the group's newest slot, where that is after a time; an end is no value."""
        group = self._groups.get(key)
        if group is None or self.last_ms[group] <= since_ms:
            return np.empty(0, dtype=np.int64)
        members = self._members[group]
        slots = np.full(len(members), self.filled[group] - 1)
        values = self.slabs[self.slab_of[group]].get(self.row_of[members], slots)
        return members[~is_absent(values) & ~is_stale(values)]

    def join(self, group: int, numbers: Ints, *, is_wide: Mask | None = None) -> None:
        """Give series that lie nowhere yet a row in the group, narrow if nothing else is said; it is empty."""
        self.row_of[numbers] = self.slabs[self.slab_of[group]].allocate_rows(self.kind_of[numbers], is_wide=is_wide)
        self.group_of[numbers] = group
        self._changed(group)
        self._members[group] = np.concatenate([self._members[group], numbers])

    def leave(self, numbers: Ints) -> None:
        """Take series out of their groups and free their rows; a group without series ends."""
        for group in np.unique(self.group_of[numbers]).tolist():
            if group == NO_GROUP:
                continue
            gone = numbers[self.group_of[numbers] == group]
            slab = int(self.slab_of[group])
            self.slabs[slab].free_rows(self.row_of[gone])
            self.group_of[gone] = NO_GROUP
            self._members[group] = np.setdiff1d(self._members[group], gone)
            self._changed(group)
            self.drop_if_empty(group)

    def drop_if_empty(self, group: int) -> None:
        if group in self._members and not len(self._members[group]):
            self.times[self.slab_of[group]].free_rows(self.time_row[group : group + 1])
            del self._groups[self._keys.pop(group)], self._members[group]
            self._free.append(group)

    def separate(self, number: int, key: Hashable) -> int:
        """Move one series, with its history up to its own last sample, into a group of its own."""
        old = int(self.group_of[number])
        slab = int(self.slab_of[old])
        values = self.slabs[slab].read_rows(self.row_of[number : number + 1])
        times = self.times[slab].read_rows(self.time_row[old : old + 1])
        held = np.flatnonzero(~is_absent(values[0]))
        filled = int(held[-1]) + 1 if len(held) else 0
        last_ms = int(times.view(np.int64)[0, filled - 1]) if filled else -NEVER_MS
        self.leave(np.array([number]))
        group = self.group(key)
        self._resettle(group, self.slabs[slab].capacity)
        self.join(group, np.array([number]))
        self._make_fit(np.array([number]), values)
        self.slabs[slab].write_rows(self.row_of[number : number + 1], values)
        self.times[slab].write_rows(self.time_row[group : group + 1], times[:, :filled])
        self.filled[group], self.last_ms[group] = filled, last_ms
        return group

    def open_slots(self, group: int, count: int, *, oldest_ms: int) -> None:
        """Make sure the group has that many free slots: clear away what is older, else move to longer rows."""
        slab = int(self.slab_of[group])
        capacity, filled = self.slabs[slab].capacity, int(self.filled[group])
        if filled + count <= capacity:
            return
        times = self.times[slab].read_rows(self.time_row[group : group + 1])
        expired = int(np.count_nonzero(times.view(np.int64)[0] < oldest_ms))
        if expired < count or expired * EXPIRED_SHARE < capacity:
            self._resettle(group, capacity_for(filled + count))
            return
        self.slabs[slab].shift_rows(self.row_of[self._members[group]], by=expired)
        self.times[slab].shift_rows(self.time_row[group : group + 1], by=expired)
        self.filled[group] = filled - expired
        self._make_narrow(group)

    def append_slots(self, group: int, numbers: Ints, times: Ints, *, table: MixedTable) -> None:
        """Fill free slots behind the last one: row s of the table for a member, slot k at ascending `times[k]`."""
        slab, slot = int(self.slab_of[group]), int(self.filled[group])
        self.times[slab].put_cells(self.time_row[group : group + 1], slot, times.view(np.float64)[None, :])
        narrow, wide = numbers[: len(table.narrow)], numbers[len(table.narrow) :]
        self._move(wide[self.row_of[wide] < WIDE], is_wide=True)
        self.slabs[slab].put_cells(self.row_of[narrow], slot, table.narrow)
        self.slabs[slab].put_cells(self.row_of[wide], slot, table.wide)
        self.filled[group], self.last_ms[group] = slot + len(times), int(times[-1])

    def put(self, slab: int, numbers: Ints, slots: Ints | int, *, values: Floats) -> None:
        """Write one slot of each of some series in one slab."""
        self._make_fit(numbers, values[:, None])
        self.slabs[slab].put(self.row_of[numbers], slots, values)

    def _make_fit(self, numbers: Ints, values: Floats) -> None:
        """Move narrow rows that some of these values do not fit into to wide ones."""
        is_narrow = self.row_of[numbers] < WIDE
        if is_narrow.any():
            self._move(np.unique(numbers[is_narrow & ~rows_that_fit(values)]), is_wide=True)

    def _make_narrow(self, group: int) -> None:
        """Move wide rows without a value that needs it to narrow ones: a stale marker has been cleared away."""
        members = self._members[group]
        wide = members[self.row_of[members] >= WIDE]
        if len(wide):
            values = self.slabs[self.slab_of[group]].read_rows(self.row_of[wide])
            self._move(wide[rows_that_fit(values)], is_wide=False)

    def _move(self, numbers: Ints, *, is_wide: bool) -> None:
        if not len(numbers):
            return
        groups = self.group_of[numbers]
        slabs = self.slab_of[groups]
        for slab in sorted_distinct(slabs).tolist():
            mine = numbers[slabs == slab]
            to = np.full(len(mine), is_wide)
            self.row_of[mine] = self.slabs[slab].move(self.row_of[mine], self.kind_of[mine], is_wide=to)
        for group in sorted_distinct(groups).tolist():
            self._changed(group)

    def insert_slot(self, group: int, at_ms: int, *, oldest_ms: int) -> int:
        """The slot of a time before the group's last one; made, empty for every member, where there is none."""
        self.open_slots(group, 1, oldest_ms=oldest_ms)
        slab, filled = int(self.slab_of[group]), int(self.filled[group])
        time_row = self.time_row[group : group + 1]
        slot = int(self.slots_up_to(np.array([group]), at_ms, slab=slab)[0])
        if slot and int(self.times[slab].get(time_row, np.array([slot - 1])).view(np.int64)[0]) == at_ms:
            return slot - 1
        self.times[slab].insert_cell(time_row, slot, filled=filled)
        self.times[slab].put(time_row, slot, np.array([at_ms], dtype=np.int64).view(np.float64))
        self.slabs[slab].insert_cell(self.row_of[self._members[group]], slot, filled=filled)
        self.filled[group] = filled + 1
        return slot

    def drop_from(self, at_ms: int) -> None:
        """Empty every slot at or after a time."""
        for group in [group for group in self._members if int(self.last_ms[group]) >= at_ms]:
            slab, time_row = int(self.slab_of[group]), self.time_row[group : group + 1]
            left = int(self.slots_up_to(np.array([group]), at_ms - 1, slab=slab)[0])
            empty = np.full((len(self._members[group]), int(self.filled[group]) - left), ABSENT)
            self.slabs[slab].put_cells(self.row_of[self._members[group]], left, empty)
            self.times[slab].put_cells(time_row, left, empty[:1])
            last = self.times[slab].get(time_row, np.array([left - 1])).view(np.int64)[0] if left else -NEVER_MS
            self.filled[group], self.last_ms[group] = left, last

    def first_ms_from(self, at_ms: int) -> int | None:
        """The earliest time that is not before `at_ms`, of all groups."""
        groups = np.array(sorted(self._members), dtype=np.int64)
        earliest = []
        for slab in np.unique(self.slab_of[groups]).tolist():
            mine = groups[self.slab_of[groups] == slab]
            slots = self.slots_up_to(mine, at_ms - 1, slab=slab)
            has_more = slots < self.filled[mine]
            if has_more.any():
                rows = self.time_row[mine[has_more]]
                earliest.append(int(self.times[slab].get(rows, slots[has_more]).view(np.int64).min()))
        return min(earliest, default=None)

    def _resettle(self, group: int, capacity: int) -> None:
        """Move a group to the slab with rows of this capacity, which is not smaller than its own."""
        old, new = int(self.slab_of[group]), self._slab(capacity)
        members = self._members[group]
        if old == new:
            return
        rows, time_row = self.row_of[members], self.time_row[group : group + 1].copy()
        values = self.slabs[old].read_rows(rows)
        self.row_of[members] = self.slabs[new].allocate_rows(self.kind_of[members], is_wide=~rows_that_fit(values))
        self.time_row[group] = self.times[new].allocate_rows(TIMES)[0]
        self.slabs[new].write_rows(self.row_of[members], values)
        self.times[new].write_rows(self.time_row[group : group + 1], self.times[old].read_rows(time_row))
        self.slabs[old].free_rows(rows)
        self.times[old].free_rows(time_row)
        self.slab_of[group] = new
        self._changed(group)

    def _changed(self, group: int) -> None:
        self._stamp += 1
        self.stamps[group] = self._stamp

    def _slab(self, capacity: int) -> int:
        known = self._slab_by_capacity.get(capacity)
        if known is None:
            known = self._slab_by_capacity[capacity] = len(self.slabs)
            self.slabs.append(RowStore(capacity))
            self.times.append(Slab(capacity))
        return known

    def slots_up_to(self, groups: Ints, at_ms: int, *, slab: int) -> Ints:
        """For each group of one slab, how many of its slots are at or before a time (bisection over all at once)."""
        found = self.filled[groups]
        # Most questions are about now: then all that a group has counts.
        asked = (self.last_ms[groups] > at_ms).nonzero()[0]
        if not len(asked):
            return found
        rows, high = self.time_row[groups[asked]], found[asked]
        if len(asked) <= FEW_GROUPS:
            for at, row, filled in zip(asked.tolist(), rows.tolist(), high.tolist(), strict=True):
                found[at] = self.times[slab].row_of_times(row)[:filled].searchsorted(at_ms, side="right")
            return found
        low = np.zeros(len(asked), dtype=np.int64)
        for _ in range(self.slabs[slab].capacity.bit_length()):
            middle = (low + high) // 2
            is_open = low < high
            is_early = is_open & (self.times[slab].get(rows, middle).view(np.int64) <= at_ms)
            low = np.where(is_early, middle + 1, low)
            high = np.where(is_open & ~is_early, middle, high)
        found[asked] = low
        return found

    @property
    def used_bytes(self) -> int:
        return sum(slab.used_bytes for slab in self.slabs) + sum(slab.used_bytes for slab in self.times)
