"""Rows of slots: the memory that samples lie in.

A slab holds rows of one length. A row is one series, a slot is one scrape, so that the samples of a
window lie side by side. Rows come from large blocks, which the system commits only as they are
touched. `head` decides which row belongs to whom, and moves rows to a longer slab when they fill up.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from watchkeeper.model import samples

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# An empty slot. Read as an integer it is later than any time, so that unused slots of a row of times sort last.
ABSENT_BITS = 0x7FF8_0000_0000_AB5E
ABSENT: float = np.array([ABSENT_BITS], dtype=np.int64).view(np.float64)[0]
NEVER_MS = ABSENT_BITS
# Prometheus' ordinary NaN; incoming NaNs become this one, so that none of them can look like an empty slot.
PLAIN_NAN: float = np.array([0x7FF8_0000_0000_0001], dtype=np.int64).view(np.float64)[0]

BLOCK_BYTES = 32 << 20
SLOT_BYTES = 8


def is_absent(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == ABSENT_BITS
    return mask


def is_stale(values: Floats) -> Mask:
    mask: Mask = values.view(np.int64) == samples.STALE_BITS
    return mask


def plain(values: Floats) -> Floats:
    """The values as they are stored: contiguous, and with one NaN besides the stale marker."""
    values = np.ascontiguousarray(values, dtype=np.float64)
    odd = np.isnan(values)
    if odd.any():
        values = np.where(odd & ~is_stale(values), PLAIN_NAN, values)
    return values


def capacity_for(slots: int) -> int:
    """The row length to use for this many slots: small for rare series, then about a quarter more each time."""
    capacity = 16
    while capacity < slots:
        capacity = 64 if capacity < 64 else -(-max(capacity * 5 // 4, capacity + 1) // 128) * 128
    return capacity


class Slab:
    """All rows of one length; a row number stays valid until it is given back."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows_per_block = max(1, BLOCK_BYTES // (SLOT_BYTES * capacity))
        self._blocks: list[Floats | None] = []
        self._live: list[int] = []
        self._free: list[int] = []
        self._fresh = 0

    def take_rows(self, count: int) -> Ints:
        """Empty rows, reused or new."""
        reused = min(count, len(self._free))
        rows = [self._free.pop() for _ in range(reused)]
        rows.extend(range(self._fresh, self._fresh + count - reused))
        self._fresh += count - reused
        while self._fresh > len(self._blocks) * self.rows_per_block:
            self._blocks.append(None)
            self._live.append(0)
        taken = np.array(rows, dtype=np.int64)
        for block, where in self._by_block(taken):
            inside = taken[where] % self.rows_per_block
            self._live[block] += len(inside)
            self._table(block)[inside] = ABSENT
        return taken

    def give_rows(self, rows: Ints) -> None:
        """Take rows back; a block that nobody uses returns its memory to the system."""
        self._free.extend(rows.tolist())
        for block, where in self._by_block(rows):
            self._live[block] -= len(rows[where])
            if self._live[block] == 0:
                self._blocks[block] = None

    def gather(self, rows: Ints, first_slots: Ints, *, width: int) -> Floats:
        """`width` slots of each row from its own first slot on; what lies behind a row's end is not its own."""
        out = np.empty((len(rows), width))
        cells = (rows % self.rows_per_block) * self.capacity + first_slots
        steps = np.arange(width)
        for block, where in self._by_block(rows):
            out[where] = self._block(block).take(cells[where][:, None] + steps, mode="clip")
        return out

    def get(self, rows: Ints, slots: Ints) -> Floats:
        return self.gather(rows, slots, width=1)[:, 0]

    def put(self, rows: Ints, slots: Ints | int, values: Floats) -> None:
        cells = (rows % self.rows_per_block) * self.capacity + slots
        for block, where in self._by_block(rows):
            self._block(block)[cells[where]] = values[where]

    def put_cells(self, rows: Ints, slot: int, values: Floats) -> None:
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
        return sum(self._live) * self.capacity * SLOT_BYTES

    def _block(self, number: int) -> Floats:
        block = self._blocks[number]
        if block is None:
            block = self._blocks[number] = np.empty(self.rows_per_block * self.capacity)
        return block

    def _table(self, number: int) -> Floats:
        return self._block(number).reshape(self.rows_per_block, self.capacity)

    def _by_block(self, rows: Ints) -> list[tuple[int, Ints | slice]]:
        """Positions in `rows`, split by the block that each row lies in."""
        if not len(rows):
            return []
        blocks = rows // self.rows_per_block
        if int(blocks.min()) == int(blocks.max()):
            return [(int(blocks[0]), slice(None))]
        return [(int(block), np.flatnonzero(blocks == block)) for block in np.unique(blocks)]
