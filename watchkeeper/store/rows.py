"""Rows as narrow as their values allow: a slot has four bytes where that loses nothing, else eight.

Most of what GPUs say are whole numbers below 16 million: temperatures, clocks, percentages, mebibytes, errors. Their
rows take half the memory. `groups` moves a row to the wide slab before the first value that needs it, and back once
none is left; a row's number says in which slab it lies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from watchkeeper.store.columns import Floats, Ints, Mask, Places, Slab

# Added to the numbers of wide rows.
WIDE = 1 << 40


def fits(values: Floats) -> Mask:
    """Which values four bytes hold to the last bit, an empty slot among them."""
    return _is_same(values, narrowed(values))


def narrowed(values: Floats) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _is_same(values: Floats, narrow: npt.NDArray[np.float32]) -> Mask:
    found: Mask = narrow.astype(np.float64).view(np.int64) == np.ascontiguousarray(values).view(np.int64)
    return found


def rows_that_fit(values: Floats) -> Mask:
    """Which rows of a matrix have only values that four bytes hold."""
    return np.asarray(fits(values).all(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class MixedTable:
    """A matrix in two: above the rows that fit into narrow ones, below those that do not."""

    narrow: npt.NDArray[np.float32]
    wide: Floats

    def __len__(self) -> int:
        return len(self.narrow) + len(self.wide)

    @property
    def size(self) -> int:
        return self.narrow.size + self.wide.size

    @property
    def is_wide(self) -> Mask:
        return np.arange(len(self)) >= len(self.narrow)

    def only(self, wanted: Mask) -> MixedTable:
        """The rows that are wanted."""
        return MixedTable(self.narrow[wanted[: len(self.narrow)]], self.wide[wanted[len(self.narrow) :]])

    def column(self, slot: int) -> Floats:
        return np.concatenate([self.narrow[:, slot].astype(np.float64), self.wide[:, slot]])


def split(values: Floats) -> tuple[Ints, MixedTable]:
    """A matrix as a table, and which of its rows each row of that is."""
    all_narrow = narrowed(values)
    is_narrow = _is_same(values, all_narrow).all(axis=1)
    narrow, wide = np.flatnonzero(is_narrow), np.flatnonzero(~is_narrow)
    return np.concatenate([narrow, wide]), MixedTable(all_narrow[narrow], values[wide])


class RowStore:
    """All rows of one length; a row number stays valid until it is given back."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._narrow, self._wide = Slab(capacity, np.dtype(np.float32)), Slab(capacity)

    def allocate_rows(self, kinds: Ints, *, is_wide: Mask | None = None) -> Ints:
        """An empty row for each kind, narrow if nothing else is said."""
        if is_wide is None or not is_wide.any():
            return self._narrow.allocate_rows(kinds)
        taken = np.empty(len(kinds), dtype=np.int64)
        taken[~is_wide] = self._narrow.allocate_rows(kinds[~is_wide])
        taken[is_wide] = self._wide.allocate_rows(kinds[is_wide]) + WIDE
        return taken

    def free_rows(self, rows: Ints) -> None:
        for slab, _, own in self._split(rows):
            slab.free_rows(own)

    def move(self, rows: Ints, kinds: Ints, *, is_wide: Mask) -> Ints:
        """The same rows in the slabs that are said, with other numbers."""
        values = self.read_rows(rows)
        taken = self.allocate_rows(kinds, is_wide=is_wide)
        self.write_rows(taken, values)
        self.free_rows(rows)
        return taken

    def gather(self, rows: Ints, first_slots: Ints, *, width: int) -> Floats:
        """`width` slots of each row from its own first slot on; what would lie behind a row's end is ABSENT."""
        out: Floats | None = None
        for slab, where, own in self._split(rows):
            found = slab.gather(own, first_slots[where], width=width)
            if isinstance(where, slice):
                return found
            out = np.empty((len(rows), width)) if out is None else out
            out[where] = found
        return np.empty((0, width)) if out is None else out

    def get(self, rows: Ints, slots: Ints) -> Floats:
        out = np.empty(len(rows))
        for slab, where, own in self._split(rows):
            out[where] = slab.get(own, slots[where])
        return out

    def put(self, rows: Ints, slots: Ints | int, values: Floats) -> None:
        for slab, where, own in self._split(rows):
            slab.put(own, slots if isinstance(slots, int) else slots[where], values[where])

    def places(self, rows: Ints) -> list[tuple[Slab, Places]]:
        """Where the first slots of rows lie, for `put_places`; valid while the rows are taken."""
        found: list[tuple[Slab, Places]] = []
        for slab, where, own in self._split(rows):
            for block, inside, cells in slab.places(own):
                found.append((slab, (block, inside if isinstance(where, slice) else where[inside], cells)))
        return found

    def put_places(self, places: list[tuple[Slab, Places]], slot: int, values: Floats) -> None:
        for slab, place in places:
            slab.put_places([place], slot, values)

    def put_cells(self, rows: Ints, slot: int, values: npt.NDArray[np.floating[Any]]) -> None:
        """Write several slots of each row, from one slot on."""
        for slab, where, own in self._split(rows):
            slab.put_cells(own, slot, values[where])

    def insert_cell(self, rows: Ints, slot: int, *, filled: int) -> None:
        """Make an empty slot in rows of which so many slots are filled; those behind it move by one."""
        for slab, _, own in self._split(rows):
            slab.insert_cell(own, slot, filled=filled)

    def read_rows(self, rows: Ints) -> Floats:
        return self.gather(rows, np.zeros(len(rows), dtype=np.int64), width=self.capacity)

    def write_rows(self, rows: Ints, values: Floats) -> None:
        """Write from the first slot on; slots behind the given ones become empty."""
        for slab, where, own in self._split(rows):
            slab.write_rows(own, values[where])

    def shift_rows(self, rows: Ints, *, by: int) -> None:
        """Drop the first slots of rows; as many at the end become empty."""
        for slab, _, own in self._split(rows):
            slab.shift_rows(own, by=by)

    @property
    def used_bytes(self) -> int:
        return self._narrow.used_bytes + self._wide.used_bytes

    def _split(self, rows: Ints) -> Iterator[tuple[Slab, Ints | slice, Ints]]:
        """For each slab that is concerned: which of the rows are its own, and their numbers there."""
        is_wide = rows >= WIDE
        if not is_wide.any():
            if len(rows):
                yield self._narrow, slice(None), rows
        elif is_wide.all():
            yield self._wide, slice(None), rows - WIDE
        else:
            narrow, wide = (~is_wide).nonzero()[0], is_wide.nonzero()[0]
            yield self._narrow, narrow, rows[narrow]
            yield self._wide, wide, rows[wide] - WIDE
