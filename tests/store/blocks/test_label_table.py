"""The label table of a block: the same matches as a scan over all label sets, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.errors import StoreError
from watchkeeper.store.blocks.label_table import GrowingTable, LabelTable
from watchkeeper.store.series import Pairs

NAMES = ("__name__", "gpu", "node", "pod")
label_sets = st.dictionaries(st.sampled_from(NAMES), st.sampled_from("abcd"), max_size=len(NAMES))
# Most series lack most labels: those tables are kept in another way than full ones.
tables = st.lists(label_sets | st.just({"node": "a"}), max_size=40)


@dataclass(frozen=True, slots=True)
class Equal:
    name: str
    value: str
    op: str = "="


def table_of(series: list[Pairs]) -> LabelTable:
    growing = GrowingTable()
    growing.extend(series)
    return LabelTable.unpack(growing.finish().pack())


@given(tables, st.sampled_from((*NAMES, "rack")), st.sampled_from(("", "a", "b")))
def test_a_table_matches_like_its_label_sets(label_sets_by_row: list[dict[str, str]], name: str, value: str) -> None:
    series = [tuple(sorted(labels.items())) for labels in label_sets_by_row]
    table, every = table_of(series), np.arange(len(series))
    assert table.pairs_of(every) == series
    expected = [row for row, labels in enumerate(label_sets_by_row) if labels.get(name, "") == value]
    rows = table.find_matching([Equal(name, value)])
    assert rows.tolist() == expected
    both = table.find_matching([Equal(name, value), Equal("node", "a")])
    assert both.tolist() == [row for row in expected if label_sets_by_row[row].get("node") == "a"]
    assert table.pairs_of(rows) == [series[row] for row in rows]
    assert table.names_of(rows) == {label for row in rows for label in label_sets_by_row[row]}
    assert table.values_of(name, rows) == {
        label_sets_by_row[row][name] for row in rows if name in label_sets_by_row[row]
    }


@pytest.mark.parametrize("values", [255, 256, 257, 65_535, 65_536, 65_537])
def test_any_number_of_values_finds_its_width(values: int) -> None:
    series: list[Pairs] = [(("pod", f"p{number}"),) for number in range(values)]
    assert table_of(series).pairs_of(np.array([0, 254, values - 1])) == [series[0], series[254], series[-1]]


def test_labels_that_few_series_have_take_little_memory() -> None:
    table = GrowingTable()
    tracemalloc.start()
    try:
        table.extend(_fleet(series=20_000, rare_names=60))
        grown_bytes, _ = tracemalloc.get_traced_memory()
        packed = table.finish().pack()
        del table
        before, _ = tracemalloc.get_traced_memory()
        kept = LabelTable.unpack(packed)
        kept_bytes = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept.size == 20_000
    # Four bytes for each series and name would be 5 MB.
    assert grown_bytes < 1_800_000
    assert kept_bytes < 300_000


def _fleet(*, series: int, rare_names: int) -> Iterator[Pairs]:
    """Every series has a metric's name and a GPU, one in a hundred one of many rare labels."""
    for number in range(series):
        common = (("__name__", f"metric_{number % 50}"), ("gpu", str(number % 8)))
        rare = ((f"rare_{number // 100 % rare_names:02}", "yes"),) if number % 100 == 0 else ()
        yield (*common, *rare)


def test_a_damaged_table_is_an_error() -> None:
    packed = table_of([(("gpu", "0"),)]).pack()
    with pytest.raises(StoreError, match="cannot be read"):
        LabelTable.unpack(packed[:6])
