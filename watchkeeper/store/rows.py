"""Rows in the narrowest lossless width: four bytes for each slot if all values fit, else eight.

Most values of GPUs are integers below 16 million, and their rows need half the memory. `groups` moves a row to the wide
slab before the first value that needs it, and back when no such value is left; the row number says which slab it is in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from watchkeeper.store.columns import BlockCells, Floats, Ints, Mask, Slab

# Added to the row numbers of the wide slab.
WIDE = 1 << 40


def fits_narrow(values: Floats) -> Mask:
    """Which values four bytes hold without loss; empty slots do."""
    return _has_same_bits(values, to_narrow(values))


def to_narrow(values: Floats) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32)


def _has_same_bits(values: Floats, narrow: npt.NDArray[np.float32]) -> Mask:
    mask: Mask = narrow.astype(np.float64).view(np.int64) == np.ascontiguousarray(values).view(np.int64)
    return mask


def rows_fit_narrow(values: Floats) -> Mask:
    """Which rows of a matrix have only values that four bytes hold without loss."""
    return np.asarray(fits_narrow(values).all(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class MixedTable:
    """A matrix in two parts: first the rows that fit into narrow rows, then the others."""

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

    def filter(self, mask: Mask) -> MixedTable:
        return MixedTable(self.narrow[mask[: len(self.narrow)]], self.wide[mask[len(self.narrow) :]])

    def column(self, slot: int) -> Floats:
        return np.concatenate([self.narrow[:, slot].astype(np.float64), self.wide[:, slot]])


def split_by_width(values: Floats) -> tuple[Ints, MixedTable]:
    """The order of the rows in the table, and the table itself."""
    all_narrow = to_narrow(values)
    is_narrow = _has_same_bits(values, all_narrow).all(axis=1)
    narrow, wide = np.flatnonzero(is_narrow), np.flatnonzero(~is_narrow)
    return np.concatenate([narrow, wide]), MixedTable(all_narrow[narrow], values[wide])


class RowStore:
    """All rows of one length, narrow and wide; the methods of `Slab`, which documents them, for both."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._narrow, self._wide = Slab(capacity, np.dtype(np.float32)), Slab(capacity)

    def allocate_rows(self, kinds: Ints, *, is_wide: Mask | None = None) -> Ints:
        """An empty row for each kind, narrow by default."""
        if is_wide is None or not is_wide.any():
            return self._narrow.allocate_rows(kinds)
        rows = np.empty(len(kinds), dtype=np.int64)
        rows[~is_wide] = self._narrow.allocate_rows(kinds[~is_wide])
        rows[is_wide] = self._wide.allocate_rows(kinds[is_wide]) + WIDE
        return rows

    def free_rows(self, rows: Ints) -> None:
        for slab, _, slab_rows in self._by_slab(rows):
            slab.free_rows(slab_rows)

    def move_rows(self, rows: Ints, kinds: Ints, *, is_wide: Mask) -> Ints:
        """Move rows to the narrow or wide slab and return their new numbers."""
        values = self.read_rows(rows)
        moved = self.allocate_rows(kinds, is_wide=is_wide)
        self.write_rows(moved, values)
        self.free_rows(rows)
        return moved

    def gather(self, rows: Ints, first_slots: Ints, *, width: int) -> Floats:
        out: Floats | None = None
        for slab, positions, slab_rows in self._by_slab(rows):
            cells = slab.gather(slab_rows, first_slots[positions], width=width)
            if isinstance(positions, slice):
                return cells
            out = np.empty((len(rows), width)) if out is None else out
            out[positions] = cells
        return np.empty((0, width)) if out is None else out

    def get(self, rows: Ints, slots: Ints) -> Floats:
        out = np.empty(len(rows))
        for slab, positions, slab_rows in self._by_slab(rows):
            out[positions] = slab.get(slab_rows, slots[positions])
        return out

    def put(self, rows: Ints, slots: Ints | int, values: Floats) -> None:
        for slab, positions, slab_rows in self._by_slab(rows):
            slab.put(slab_rows, slots if isinstance(slots, int) else slots[positions], values[positions])

    def locate_rows(self, rows: Ints) -> list[tuple[Slab, BlockCells]]:
        located: list[tuple[Slab, BlockCells]] = []
        for slab, positions, slab_rows in self._by_slab(rows):
            for block, block_positions, cells in slab.locate_rows(slab_rows):
                block_positions = block_positions if isinstance(positions, slice) else positions[block_positions]
                located.append((slab, (block, block_positions, cells)))
        return located

    def put_located(self, located: list[tuple[Slab, BlockCells]], slot: int, values: Floats) -> None:
        for slab, block_cells in located:
            slab.put_located([block_cells], slot, values)

    def put_cells(self, rows: Ints, slot: int, values: npt.NDArray[np.floating[Any]]) -> None:
        for slab, positions, slab_rows in self._by_slab(rows):
            slab.put_cells(slab_rows, slot, values[positions])

    def insert_cell(self, rows: Ints, slot: int, *, filled: int) -> None:
        for slab, _, slab_rows in self._by_slab(rows):
            slab.insert_cell(slab_rows, slot, filled=filled)

    def read_rows(self, rows: Ints) -> Floats:
        return self.gather(rows, np.zeros(len(rows), dtype=np.int64), width=self.capacity)

    def write_rows(self, rows: Ints, values: Floats) -> None:
        for slab, positions, slab_rows in self._by_slab(rows):
            slab.write_rows(slab_rows, values[positions])

    def shift_rows(self, rows: Ints, *, by: int) -> None:
        for slab, _, slab_rows in self._by_slab(rows):
            slab.shift_rows(slab_rows, by=by)

    @property
    def used_bytes(self) -> int:
        return self._narrow.used_bytes + self._wide.used_bytes

    def _by_slab(self, rows: Ints) -> Iterator[tuple[Slab, Ints | slice, Ints]]:
        """Each slab that has some of the rows, with their positions and their numbers in the slab."""
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
