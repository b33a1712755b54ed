"""The memory of samples: rows of slots.

A slab has rows of one length; a row is one series and a slot is one scrape, so the samples of a window are adjacent.
Rows of one kind (a metric) share sections, so that a query reads adjacent rows, and the memory of an unused section is
returned to the system.
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
# A block, the positions of its rows in a list of rows, and the cells of those rows in the block.
BlockCells = tuple[int, Ints | slice, Ints]

# An empty slot; it fits into four bytes too. As an integer it is later than any time, so that unused slots of a row of
# times sort last.
ABSENT_BITS = 0x7FF8_00AB_6000_0000
# An empty slot in files.
FILE_ABSENT_BITS = 0x7FF8_0000_0000_AB5E
ABSENT: float = np.array([ABSENT_BITS], dtype=np.int64).view(np.float64)[0]
NEVER_MS = ABSENT_BITS
# Prometheus' normal NaN: every incoming NaN is stored as this one, so that none looks like an empty slot.
PLAIN_NAN: float = np.array([0x7FF8_0000_0000_0001], dtype=np.int64).view(np.float64)[0]

BLOCK_BYTES = 32 << 20
SLOT_BYTES = 8
FLOAT64 = np.dtype(np.float64)
# From 256 MiB of samples on, another 64 MiB for queries do not matter.
LARGE_BLOCKS = 8
SHORT_CAPACITIES = (16, 64, 96, 128)
# Rows that a kind allocates at once.
SECTION_ROWS = 64


def is_absent(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == ABSENT_BITS
    return mask


def to_file(values: Floats) -> Floats:
    """Replace empty slots by their value in files, in place."""
    bits = values.view(np.int64)
    bits[bits == ABSENT_BITS] = FILE_ABSENT_BITS
    return values


def from_file(values: Floats) -> Floats:
    """Replace empty slots of a file by their value in memory, in place."""
    bits = values.view(np.int64)
    bits[bits == FILE_ABSENT_BITS] = ABSENT_BITS
    return values


def is_stale(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == samples.STALE_BITS
    return mask


def normalise_nans(values: Floats) -> Floats:
    """The values as they are stored: contiguous, with only one NaN besides the stale marker."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    is_nan = np.isnan(values)
    if is_nan.any():
        values = np.where(is_nan & ~is_stale(values), PLAIN_NAN, values)
    return values


def distinct(numbers: Ints, count: int) -> tuple[Ints, Ints]:
    """The distinct values of numbers below `count`, sorted, and the index of each; three times as fast as sorting."""
    is_present = np.zeros(count, dtype=bool)
    is_present[numbers] = True
    return np.flatnonzero(is_present), (np.cumsum(is_present) - 1)[numbers]


def sorted_distinct(numbers: Ints) -> Ints:
    """The distinct values of small numbers, sorted; `np.unique` would import masked arrays, 9 ms of a start."""
    return np.flatnonzero(np.bincount(numbers))


def capacity_for(slots: int) -> int:
    """The row length for this many slots: short rows first, then steps of about a quarter."""
    for capacity in SHORT_CAPACITIES:
        if slots <= capacity:
            return capacity
    capacity = SHORT_CAPACITIES[-1]
    while capacity < slots:
        capacity = -(-max(capacity * 5 // 4, capacity + 1) // 128) * 128
    return capacity


class Slab:
    """All rows of one length and one slot width; a row number is valid until `free_rows`."""

    def __init__(self, capacity: int, slot: np.dtype[Any] = FLOAT64) -> None:
        self.capacity = capacity
        self._slot_type = slot
        self._section_bytes = slot.itemsize * capacity * SECTION_ROWS
        self.rows_per_block = max(1, BLOCK_BYTES // self._section_bytes) * SECTION_ROWS
        self._blocks: list[npt.NDArray[Any] | None] = []
        self._regions: list[mmap.mmap | None] = []
        self._rows_used_by_block: list[int] = []
        # The free rows of each kind; the kind of each section, and how many of its rows are used.
        self._free_rows: dict[int, list[int]] = {}
        self._kind_by_section: list[int] = []
        self._rows_used_by_section: list[int] = []
        self._free_sections: list[int] = []

    def allocate_rows(self, kinds: Ints) -> Ints:
        """An empty row for each kind, reused or new; rows of a kind are adjacent if possible."""
        rows = np.array([self._allocate_row(kind) for kind in kinds.tolist()], dtype=np.int64)
        for block, positions in self._by_block(rows):
            block_rows = rows[positions] % self.rows_per_block
            self._rows_used_by_block[block] += len(block_rows)
            self._table(block)[block_rows] = ABSENT
        return rows

    def _allocate_row(self, kind: int) -> int:
        free_rows = self._free_rows.get(kind)
        if not free_rows:
            section = self._free_sections.pop() if self._free_sections else self._add_section()
            self._kind_by_section[section] = kind
            first_row = section * SECTION_ROWS
            free_rows = self._free_rows[kind] = list(range(first_row + SECTION_ROWS - 1, first_row - 1, -1))
        row = free_rows.pop()
        self._rows_used_by_section[row // SECTION_ROWS] += 1
        return row

    def _add_section(self) -> int:
        self._kind_by_section.append(0)
        self._rows_used_by_section.append(0)
        while len(self._kind_by_section) * SECTION_ROWS > len(self._blocks) * self.rows_per_block:
            self._blocks.append(None)
            self._regions.append(None)
            self._rows_used_by_block.append(0)
        return len(self._kind_by_section) - 1

    def free_rows(self, rows: Ints) -> None:
        """Free rows; the memory of an unused block is returned to the system."""
        for row in rows.tolist():
            section = row // SECTION_ROWS
            self._rows_used_by_section[section] -= 1
            self._free_rows.setdefault(self._kind_by_section[section], []).append(row)
            if not self._rows_used_by_section[section]:
                self._release_section(section)
        for block, positions in self._by_block(rows):
            self._rows_used_by_block[block] -= len(rows[positions])
            if self._rows_used_by_block[block] == 0:
                self._blocks[block] = self._regions[block] = None

    def _release_section(self, section: int) -> None:
        """Return the memory of an unused section to the system, and let any kind use it."""
        kind = self._kind_by_section[section]
        other_rows = [row for row in self._free_rows[kind] if row // SECTION_ROWS != section]
        if other_rows:
            self._free_rows[kind] = other_rows
        else:
            del self._free_rows[kind]
        self._free_sections.append(section)
        block, row = divmod(section * SECTION_ROWS, self.rows_per_block)
        region = self._regions[block]
        if region is not None and self._section_bytes % mmap.PAGESIZE == 0:
            region.madvise(mmap.MADV_DONTNEED, row // SECTION_ROWS * self._section_bytes, self._section_bytes)

    def gather(self, rows: Ints, first_slots: Ints, *, width: int) -> Floats:
        """`width` slots of each row, from its own first slot on; slots after the end of a row are ABSENT."""
        out = np.empty((len(rows), width))
        if not len(rows):
            return out
        edges = [0, len(rows)]
        if len(rows) > 1:
            # Adjacent rows with the same first slot are copied together.
            breaks = (rows[1:] - rows[:-1] != 1) | (first_slots[1:] != first_slots[:-1])
            breaks |= rows[1:] % self.rows_per_block == 0
            edges[1:1] = (breaks.nonzero()[0] + 1).tolist()
        for low, high in pairwise(edges):
            block, row = divmod(int(rows[low]), self.rows_per_block)
            slot = int(first_slots[low])
            stored = min(width, self.capacity - slot)
            out[low:high, :stored] = self._table(block)[row : row + high - low, slot : slot + stored]
            out[low:high, stored:] = ABSENT
        return out

    def get(self, rows: Ints, slots: Ints) -> Floats:
        out = np.empty(len(rows))
        cells = (rows % self.rows_per_block) * self.capacity + slots
        for block, positions in self._by_block(rows):
            out[positions] = self._block(block).take(cells[positions], mode="clip")
        return out

    def put(self, rows: Ints, slots: Ints | int, values: Floats) -> None:
        cells = (rows % self.rows_per_block) * self.capacity + slots
        for block, positions in self._by_block(rows):
            self._block(block)[cells[positions]] = values[positions]

    def locate_rows(self, rows: Ints) -> list[BlockCells]:
        """The cells of the first slots of rows, for `put_located`; valid until the rows are freed."""
        cells = (rows % self.rows_per_block) * self.capacity
        return [(block, positions, cells[positions]) for block, positions in self._by_block(rows)]

    def put_located(self, located: list[BlockCells], slot: int, values: Floats) -> None:
        for block, positions, cells in located:
            self._block(block)[cells + slot] = values[positions]

    def put_time(self, row: int, slot: int, at_ms: int) -> None:
        block, block_row = divmod(row, self.rows_per_block)
        self._block(block).view(np.int64)[block_row * self.capacity + slot] = at_ms

    def read_times(self, row: int) -> Ints:
        """One row of times, without a copy."""
        block, block_row = divmod(row, self.rows_per_block)
        times: Ints = self._table(block)[block_row].view(np.int64)
        return times

    def put_cells(self, rows: Ints, slot: int, values: npt.NDArray[np.floating[Any]]) -> None:
        """Write several slots of each row, starting at one slot."""
        for block, positions in self._by_block(rows):
            self._table(block)[rows[positions] % self.rows_per_block, slot : slot + values.shape[1]] = values[positions]

    def insert_cell(self, rows: Ints, slot: int, *, filled: int) -> None:
        """Insert an empty slot into rows with `filled` slots; the slots after it move by one."""
        for block, positions in self._by_block(rows):
            table, block_rows = self._table(block), rows[positions] % self.rows_per_block
            table[block_rows, slot + 1 : filled + 1] = table[block_rows, slot:filled]
            table[block_rows, slot] = ABSENT

    def read_rows(self, rows: Ints) -> Floats:
        return self.gather(rows, np.zeros(len(rows), dtype=np.int64), width=self.capacity)

    def write_rows(self, rows: Ints, values: Floats) -> None:
        """Write rows from their first slot on; the remaining slots become empty."""
        for block, positions in self._by_block(rows):
            table, block_rows = self._table(block), rows[positions] % self.rows_per_block
            table[block_rows, : values.shape[1]] = values[positions]
            table[block_rows, values.shape[1] :] = ABSENT

    def shift_rows(self, rows: Ints, *, by: int) -> None:
        """Drop the first `by` slots of rows; the last `by` slots become empty."""
        for block, positions in self._by_block(rows):
            table, block_rows = self._table(block), rows[positions] % self.rows_per_block
            first, last = int(block_rows[0]), int(block_rows[-1])
            if last - first + 1 == len(block_rows) and (np.diff(block_rows) == 1).all():
                # Rows of a group are mostly adjacent: then a slice is enough.
                table[first : last + 1, :-by] = table[first : last + 1, by:]
            else:
                table[block_rows, :-by] = table[block_rows, by:]
            table[block_rows, -by:] = ABSENT

    @property
    def used_bytes(self) -> int:
        return sum(self._rows_used_by_block) * self.capacity * self._slot_type.itemsize

    def _block(self, number: int) -> npt.NDArray[Any]:
        block = self._blocks[number]
        if block is None:
            size = self.rows_per_block // SECTION_ROWS * self._section_bytes
            region = self._regions[number] = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if number:
                # For a large fleet, huge pages make queries a fifth faster. The first block has none, because the
                # kernel would fill a huge page again after a section was returned. Not every kernel has them.
                with suppress(OSError):
                    region.madvise(mmap.MADV_HUGEPAGE)
            if number == LARGE_BLOCKS:
                # Range queries over 6,000 GPUs then take half as long.
                memory.keep_query_buffers()
            block = self._blocks[number] = np.frombuffer(region, dtype=self._slot_type)
        return block

    def _table(self, number: int) -> npt.NDArray[Any]:
        return self._block(number).reshape(self.rows_per_block, self.capacity)

    def _by_block(self, rows: Ints) -> list[tuple[int, Ints | slice]]:
        """The positions in `rows`, by the block of each row."""
        if not len(rows):
            return []
        blocks = rows // self.rows_per_block
        if int(blocks.min()) == int(blocks.max()):
            return [(int(blocks[0]), slice(None))]
        return [(block, np.flatnonzero(blocks == block)) for block in sorted_distinct(blocks).tolist()]
