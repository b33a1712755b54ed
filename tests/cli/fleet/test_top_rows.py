"""Filter, sort order and cells of the rows of `watchkeeper top`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.cli.fleet.top_rows import (
    SORT_VALUES,
    SortColumn,
    TopRow,
    TopView,
    format_cells,
    matches_filter,
    page_rows,
    sort_rows,
)
from watchkeeper.cli.fleet.top_screen import shorten_middle

ROW = TopRow("GPU-1", "gpu-r01-02", 3, "NVIDIA H200", "research/llm-70b-0")
READINGS = st.none() | st.floats(0, 1000)
ROWS = st.lists(
    st.builds(
        TopRow,
        uuid=st.uuids().map(str),
        node=st.sampled_from(["n2", "n10", "n1"]),
        index=st.none() | st.integers(0, 7),
        model=st.just("H200"),
        holder=st.sampled_from(["", "a", "b"]),
        util=READINGS,
        watts=READINGS,
    ),
    max_size=8,
)


def test_names_with_numbers_are_sorted_naturally() -> None:
    rows = [replace(ROW, node=name) for name in ("gpu-r10-01", "gpu-r2-01")]
    assert [row.node for row in sort_rows(rows, TopView())] == ["gpu-r2-01", "gpu-r10-01"]


@given(ROWS, st.sampled_from(SortColumn), st.booleans())
def test_sorting_keeps_all_rows(rows: list[TopRow], sort: SortColumn, is_reversed: bool) -> None:
    ordered = sort_rows(rows, TopView(sort, is_reversed))
    assert sorted(row.uuid for row in ordered) == sorted(row.uuid for row in rows)


@given(ROWS, st.booleans())
def test_rows_without_a_value_come_last_in_both_directions(rows: list[TopRow], is_reversed: bool) -> None:
    numbers = [SORT_VALUES[SortColumn.UTIL](row) for row in sort_rows(rows, TopView(SortColumn.UTIL, is_reversed))]
    measured = [value for value in numbers if value is not None]
    assert numbers[: len(measured)] == sorted(measured, reverse=not is_reversed)


@given(ROWS, st.integers(1, 7))
def test_all_pages_together_contain_all_rows(rows: list[TopRow], limit: int) -> None:
    pages = [page_rows(rows, TopView(offset=at, limit=limit)) for at in range(0, len(rows), limit)]
    assert [row for page in pages for row in page] == rows


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [("", True), ("r01 llm", True), ("LLM-70B", True), ("h200", True), ("r01 vision", False), ("gpu-r01-02/3", True)],
)
def test_a_filter_matches_all_of_its_words(text: str, is_shown: bool) -> None:
    assert matches_filter(ROW, text) is is_shown


def test_an_idle_gpu_shows_zero_and_a_silent_gpu_a_dash() -> None:
    assert format_cells(replace(ROW, util=0.0))[1] == "0%"
    assert format_cells(ROW)[1:5] == ("–", "–", "–", "–")


def test_a_problem_is_shown_beside_the_holder() -> None:
    assert format_cells(replace(ROW, problem="gpu_fell_off_bus"))[-1] == "research/llm-70b-0  ! gpu_fell_off_bus"


@given(st.text(), st.integers(3, 40))
def test_a_shortened_name_fits_and_keeps_both_ends(text: str, width: int) -> None:
    short = shorten_middle(text, width)
    assert len(short) <= width
    assert short == text or (short[0], short[-1]) == (text[0], text[-1])
