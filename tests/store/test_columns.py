"""Rows of slots: each has one owner, and rows of a kind are adjacent."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.store.columns import ABSENT, SECTION_ROWS, Slab, is_absent


def kinds(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_rows_of_one_kind_are_adjacent_when_kinds_alternate() -> None:
    slab = Slab(16)
    taken = np.stack([slab.allocate_rows(kinds(1, 2)) for _ in range(SECTION_ROWS)])
    assert (np.diff(taken, axis=0) == 1).all()
    assert abs(int(taken[0, 0]) - int(taken[0, 1])) == SECTION_ROWS


def test_an_unused_section_can_be_used_by_another_kind() -> None:
    slab = Slab(16)
    first = slab.allocate_rows(np.full(SECTION_ROWS, 1))
    slab.free_rows(first)
    assert sorted(slab.allocate_rows(np.full(SECTION_ROWS, 2))) == sorted(first)
    assert slab.used_bytes == SECTION_ROWS * 16 * 8


def test_a_kind_whose_sections_were_full_reuses_its_freed_rows() -> None:
    slab = Slab(16)
    rows = slab.allocate_rows(np.full(2 * SECTION_ROWS, 1))
    slab.free_rows(rows[:SECTION_ROWS])
    slab.free_rows(rows[SECTION_ROWS : SECTION_ROWS + 1])
    assert slab.allocate_rows(kinds(1)).tolist() == rows[SECTION_ROWS : SECTION_ROWS + 1].tolist()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.integers(1, 90)), max_size=30))
def test_no_row_has_two_owners_and_an_allocated_row_is_empty(turns: list[tuple[bool, int, int]]) -> None:
    slab, held = Slab(16), list[int]()
    for takes, kind, count in turns:
        if takes:
            rows = slab.allocate_rows(np.full(count, kind))
            assert not set(held).intersection(rows.tolist())
            assert is_absent(slab.read_rows(rows)).all()
            slab.put(rows, 3, rows.astype(np.float64))
            held += rows.tolist()
        else:
            slab.free_rows(np.array(held[:count], dtype=np.int64))
            held = held[count:]
    rows = np.array(held, dtype=np.int64)
    assert slab.get(rows, np.full(len(rows), 3)).tolist() == rows.tolist()


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15)), min_size=1, max_size=20), st.integers(1, 16))
def test_gathered_slots_are_those_of_their_rows_and_end_with_them(requested: list[tuple[int, int]], width: int) -> None:
    slab = Slab(16)
    all_rows = slab.allocate_rows(np.zeros(41, dtype=np.int64))
    table = np.arange(41.0 * 16).reshape(41, 16)
    slab.write_rows(all_rows, table)
    rows, slots = np.array(requested, dtype=np.int64).T
    padded = np.concatenate([table, np.full((41, 16), ABSENT)], axis=1)
    expected = np.stack([padded[row, slot : slot + width] for row, slot in requested])
    gathered = slab.gather(all_rows[rows], slots, width=width)
    assert gathered.view(np.int64).tolist() == expected.view(np.int64).tolist()


def test_unused_sections_return_their_memory_while_a_row_of_their_block_is_used() -> None:
    slab = Slab(512)
    rows = slab.allocate_rows(np.repeat(np.arange(64), SECTION_ROWS))
    before = resident_bytes()
    slab.free_rows(rows[1:])
    assert before - resident_bytes() > 50 * SECTION_ROWS * 512 * 8
    assert is_absent(slab.read_rows(slab.allocate_rows(np.repeat(np.arange(64), 10)))).all()
