"""Rows of slots: the memory that samples lie in.

A slab holds rows of one length. A row is one series, a slot is one scrape, so that the samples of a
window lie side by side. Rows come from large blocks, which the system commits only as they are
touched. Rows of one kind (a metric) share shelves, so that a query reads whole stretches of rows; a shelf that nobody
uses goes back to the system, though a few rows of its block stay. `head` decides which row belongs to whom, and
moves rows to a longer slab when they fill up.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from watchkeeper.kit import memory
from watchkeeper.model import samples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# A block, which of some rows lie in it, and their cells there.
Places = tuple[int, Ints | slice, Ints]

# An empty slot, which four bytes hold as well. Read as an integer it is later than any time, so that unused slots of a
# row of times sort last.
ABSENT_BITS = 0x7FF8_00AB_6000_0000
# An empty slot in files.
KEPT_ABSENT_BITS = 0x7FF8_0000_0000_AB5E
ABSENT: float = np.array([ABSENT_BITS], dtype=np.int64).view(np.float64)[0]
NEVER_MS = ABSENT_BITS
# Prometheus' ordinary NaN; incoming NaNs become this one, so that none of them can look like an empty slot.
PLAIN_NAN: float = np.array([0x7FF8_0000_0000_0001], dtype=np.int64).view(np.float64)[0]

BLOCK_BYTES = 32 << 20
SLOT_BYTES = 8
EIGHT_BYTES = np.dtype(np.float64)
# From a quarter of a gibibyte on, 64 MiB more for queries do not matter.
LARGE_BLOCKS = 8
SHORT_ROWS = (16, 64, 96, 128)
# Rows that a kind takes at once.
SHELF = 64


def is_absent(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == ABSENT_BITS
    return mask


def to_file(values: Floats) -> Floats:
    """A matrix as files have it; empty slots of this one are changed."""
    bits = values.view(np.int64)
    bits[bits == ABSENT_BITS] = KEPT_ABSENT_BITS
    return values


def from_file(values: Floats) -> Floats:
    """A matrix of a file as memory has it; empty slots of this one are changed."""
    bits = values.view(np.int64)
    bits[bits == KEPT_ABSENT_BITS] = ABSENT_BITS
    return values


def is_stale(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == samples.STALE_BITS
    return mask


def normalise_nans(values: Floats) -> Floats:
    """The values as they are stored: contiguous, and with one NaN besides the stale marker."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    odd = np.isnan(values)
    if odd.any():
        values = np.where(odd & ~is_stale(values), PLAIN_NAN, values)
    return values


def distinct(numbers: Ints, count: int) -> tuple[Ints, Ints]:
    """Each of some numbers below `count` once, in their order, and the place of each there.

    By marks, which for as many numbers as can occur takes a third of the time of sorting.
    """
    is_there = np.zeros(count, dtype=bool)
    is_there[numbers] = True
    return np.flatnonzero(is_there), (np.cumsum(is_there) - 1)[numbers]


def sorted_distinct(numbers: Ints) -> Ints:
    """Each of some small numbers once, in their order; `np.unique` would import masked arrays, 9 ms of a start."""
    return np.flatnonzero(np.bincount(numbers))


def capacity_for(slots: int) -> int:
    """The row length to use for this many slots: small for rare series, then about a quarter more each time."""
    for capacity in SHORT_ROWS:
        if slots <= capacity:
            return capacity
    capacity = SHORT_ROWS[-1]
    while capacity < slots:
        capacity = -(-max(capacity * 5 // 4, capacity + 1) // 128) * 128
    return capacity


class Slab:
    """All rows of one length and one width; a row number stays valid until it is given back."""

    def __init__(self, capacity: int, slot: np.dtype[Any] = EIGHT_BYTES) -> None:
        self.capacity = capacity
        self._slot = slot
        self._shelf_bytes = slot.itemsize * capacity * SHELF
        self.rows_per_block = max(1, BLOCK_BYTES // self._shelf_bytes) * SHELF
        self._blocks: list[npt.NDArray[Any] | None] = []
        self._regions: list[mmap.mmap | None] = []
        self._live: list[int] = []
        # For each kind its free rows, for each shelf its kind and how many of its rows are in use.
        self._free: dict[int, list[int]] = {}
        self._kinds: list[int] = []
        self._used: list[int] = []
        self._free_shelves: list[int] = []

    def allocate_rows(self, kinds: Ints) -> Ints:
        """An empty row for each kind, reused or new; rows of a kind lie together as far as possible."""
        taken = np.array([self._take_row(kind) for kind in kinds.tolist()], dtype=np.int64)
        for block, where in self._by_block(taken):
            inside = taken[where] % self.rows_per_block
            self._live[block] += len(inside)
            self._table(block)[inside] = ABSENT
        return taken

    def _take_row(self, kind: int) -> int:
        free = self._free.get(kind)
        if not free:
            shelf = self._free_shelves.pop() if self._free_shelves else self._new_shelf()
            self._kinds[shelf] = kind
            free = self._free[kind] = list(range((shelf + 1) * SHELF - 1, shelf * SHELF - 1, -1))
        row = free.pop()
        self._used[row // SHELF] += 1
        return row

    def _new_shelf(self) -> int:
        self._kinds.append(0)
        self._used.append(0)
        while len(self._kinds) * SHELF > len(self._blocks) * self.rows_per_block:
            self._blocks.append(None)
            self._regions.append(None)
            self._live.append(0)
        return len(self._kinds) - 1

    def free_rows(self, rows: Ints) -> None:
        """Take rows back; a block that nobody uses returns its memory to the system."""
        for row in rows.tolist():
            shelf = row // SHELF
            self._used[shelf] -= 1
            self._free.setdefault(self._kinds[shelf], []).append(row)
            if not self._used[shelf]:
                self._give_shelf(shelf)
        for block, where in self._by_block(rows):
            self._live[block] -= len(rows[where])
            if self._live[block] == 0:
                self._blocks[block] = self._regions[block] = None

    def _give_shelf(self, shelf: int) -> None:
        """Nobody uses the shelf: any kind may have it, and until then the system has its memory."""
        kind = self._kinds[shelf]
        left = [row for row in self._free[kind] if row // SHELF != shelf]
        if left:
            self._free[kind] = left
        else:
            del self._free[kind]
        self._free_shelves.append(shelf)
        block, row = divmod(shelf * SHELF, self.rows_per_block)
        region = self._regions[block]
        if region is not None and self._shelf_bytes % mmap.PAGESIZE == 0:
            region.madvise(mmap.MADV_DONTNEED, row // SHELF * self._shelf_bytes, self._shelf_bytes)

    def gather(self, rows: Ints, first_slots: Ints, *, width: int) -> Floats:
        """`width` slots of each row from its own first slot on; what would lie behind a row's end is ABSENT."""
        out = np.empty((len(rows), width))
        if not len(rows):
            return out
        edges = [0, len(rows)]
        if len(rows) > 1:
            # Rows in a row that begin at the same slot are copied at once.
            breaks = (rows[1:] - rows[:-1] != 1) | (first_slots[1:] != first_slots[:-1])
            breaks |= rows[1:] % self.rows_per_block == 0
            edges[1:1] = (breaks.nonzero()[0] + 1).tolist()
        for low, high in pairwise(edges):
            block, row = divmod(int(rows[low]), self.rows_per_block)
            slot = int(first_slots[low])
            held = min(width, self.capacity - slot)
            out[low:high, :held] = self._table(block)[row : row + high - low, slot : slot + held]
            out[low:high, held:] = ABSENT
        return out

    def get(self, rows: Ints, slots: Ints) -> Floats:
        out = np.empty(len(rows))
        cells = (rows % self.rows_per_block) * self.capacity + slots
        for block, where in self._by_block(rows):
            out[where] = self._block(block).take(cells[where], mode="clip")
        return out

    def put(self, rows: Ints, slots: Ints | int, values: Floats) -> None:
        cells = (rows % self.rows_per_block) * self.capacity + slots
        for block, where in self._by_block(rows):
            self._block(block)[cells[where]] = values[where]

    def places(self, rows: Ints) -> list[Places]:
        """Where the first slots of rows lie, for `put_places`; valid while the rows are taken."""
        cells = (rows % self.rows_per_block) * self.capacity
        return [(block, where, cells[where]) for block, where in self._by_block(rows)]

    def put_places(self, places: list[Places], slot: int, values: Floats) -> None:
        for block, where, cells in places:
            self._block(block)[cells + slot] = values[where]

    def put_time(self, row: int, slot: int, at_ms: int) -> None:
        """Write one slot of one row of times."""
        block, inside = divmod(row, self.rows_per_block)
        self._block(block).view(np.int64)[inside * self.capacity + slot] = at_ms

    def row_of_times(self, row: int) -> Ints:
        """One row of times, as it lies here."""
        block, inside = divmod(row, self.rows_per_block)
        times: Ints = self._table(block)[inside].view(np.int64)
        return times

    def put_cells(self, rows: Ints, slot: int, values: npt.NDArray[np.floating[Any]]) -> None:
        """Write several slots of each row, from one slot on."""
        for block, where in self._by_block(rows):
            self._table(block)[rows[where] % self.rows_per_block, slot : slot + values.shape[1]] = values[where]

    def insert_cell(self, rows: Ints, slot: int, *, filled: int) -> None:
        """Make an empty slot in rows of which so many slots are filled; those behind it move by one."""
        for block, where in self._by_block(rows):
            table, inside = self._table(block), rows[where] % self.rows_per_block
            table[inside, slot + 1 : filled + 1] = table[inside, slot:filled]
            table[inside, slot] = ABSENT

    def read_rows(self, rows: Ints) -> Floats:
        return self.gather(rows, np.zeros(len(rows), dtype=np.int64), width=self.capacity)

    def write_rows(self, rows: Ints, values: Floats) -> None:
        """Write from the first slot on; slots behind the given ones become empty."""
        for block, where in self._by_block(rows):
            table, inside = self._table(block), rows[where] % self.rows_per_block
            table[inside, : values.shape[1]] = values[where]
            table[inside, values.shape[1] :] = ABSENT

    def shift_rows(self, rows: Ints, *, by: int) -> None:
        """Drop the first slots of rows; as many at the end become empty."""
        for block, where in self._by_block(rows):
            table, inside = self._table(block), rows[where] % self.rows_per_block
            first, last = int(inside[0]), int(inside[-1])
            if last - first + 1 == len(inside) and (np.diff(inside) == 1).all():
                # Rows of a group mostly lie together: then nothing has to be picked out.
                table[first : last + 1, :-by] = table[first : last + 1, by:]
            else:
                table[inside, :-by] = table[inside, by:]
            table[inside, -by:] = ABSENT

    @property
    def used_bytes(self) -> int:
        return sum(self._live) * self.capacity * self._slot.itemsize

    def _block(self, number: int) -> npt.NDArray[Any]:
        block = self._blocks[number]
        if block is None:
            size = self.rows_per_block // SHELF * self._shelf_bytes
            region = self._regions[number] = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if number:
                # A large fleet: huge pages make its queries a fifth faster. The first block does without them, because
                # the system fills a huge page up again of which a shelf was given back. Not every kernel has them.
                with suppress(OSError):
                    region.madvise(mmap.MADV_HUGEPAGE)
            if number == LARGE_BLOCKS:
                # Range queries over 6,000 GPUs then take half the time.
                memory.keep_query_buffers()
            block = self._blocks[number] = np.frombuffer(region, dtype=self._slot)
        return block

    def _table(self, number: int) -> npt.NDArray[Any]:
        return self._block(number).reshape(self.rows_per_block, self.capacity)

    def _by_block(self, rows: Ints) -> list[tuple[int, Ints | slice]]:
        """Positions in `rows`, split by the block that each row lies in."""
        if not len(rows):
            return []
        blocks = rows // self.rows_per_block
        if int(blocks.min()) == int(blocks.max()):
            return [(int(blocks[0]), slice(None))]
        return [(block, np.flatnonzero(blocks == block)) for block in sorted_distinct(blocks).tolist()]
