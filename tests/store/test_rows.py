"""Rows of four and of eight bytes: values are stored without loss, and rows are as narrow as possible."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.store.durables import named, scraped
from watchkeeper.model.samples import STALE
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.store import codec
from watchkeeper.store.columns import ABSENT, FILE_ABSENT_BITS, Floats, from_file, normalise_nans, to_file
from watchkeeper.store.head import head
from watchkeeper.store.rows import fits_narrow, split_by_width

MINUTE, HOUR = 60_000, 3_600_000
VALUES = st.one_of(
    st.floats(), st.integers(-5, 300).map(float), st.sampled_from([STALE, 0.1, -0.0, 1e300, 16_777_217.0])
)


def read(store: head.Head, end_ms: int) -> Floats:
    return store.select([Matcher("__name__", MatchOp.EQUAL, "x")], -1, end_ms).values


def bits(values: Floats) -> list[list[int]]:
    return np.ascontiguousarray(values).view(np.int64).tolist()


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=1, max_size=80))
def test_scraped_values_are_stored_without_loss(scrapes: list[tuple[float, float, float]]) -> None:
    store = head.Head()
    ids = scraped(store, [named("x", gpu=str(gpu)) for gpu in range(3)])
    for slot, values in enumerate(scrapes):
        store.append_scrape("node", ids, slot * 15_000, np.array(values))
    expected = normalise_nans(np.array(scrapes).T)
    assert bits(read(store, HOUR)) == bits(expected)


@given(st.lists(st.lists(VALUES, min_size=4, max_size=4), min_size=1, max_size=6), st.integers(1, 4))
def test_replayed_values_are_stored_without_loss(rows: list[list[float]], at_once: int) -> None:
    store = head.Head()
    ids = scraped(store, [named("x", gpu=str(gpu)) for gpu in range(len(rows))])
    table, times = normalise_nans(np.array(rows)), np.arange(4) * 15_000
    for low in range(0, 4, at_once):
        part = np.ascontiguousarray(table[:, low : low + at_once])
        order, split_part = split_by_width(part)
        store.load_scrapes("node", np.array(ids)[order], times[low : low + at_once], rows=split_part)
    assert bits(read(store, HOUR)) == bits(table)


def test_rows_of_integers_need_half_the_memory() -> None:
    sizes = []
    for value in (76.0, 0.123456):
        store = head.Head()
        ids = scraped(store, [named("x", gpu=str(gpu)) for gpu in range(10)])
        store.append_scrape("node", ids, 0, np.full(10, value))
        sizes.append(store.used_bytes)
    times = 16 * 8
    assert sizes == [times + 10 * 16 * 4, times + 10 * 16 * 8]


def test_a_row_is_wide_only_while_it_has_a_value_that_needs_it() -> None:
    store = head.Head(retention_ms=HOUR)
    ids = scraped(store, [named("x"), named("y")])
    sizes = []
    for minute in range(400):
        # Its target is away for a moment.
        value = STALE if minute == 200 else float(minute)
        store.append_scrape("node", ids, minute * MINUTE, np.array([value, 1.0]))
        sizes.append(store.used_bytes)
    assert sizes[200] > sizes[199]
    assert sizes[-1] == sizes[199]
    assert read(store, 400 * MINUTE)[0, -3:].tolist() == [397.0, 398.0, 399.0]


def test_late_and_single_samples_keep_their_bits() -> None:
    store = head.Head(late_ms=HOUR)
    ids = scraped(store, [named("x", gpu="0"), named("x", gpu="1")])
    for slot in (0, 2, 3):
        store.append_scrape("node", ids, slot * MINUTE, np.array([1.0, 2.0]))
    store.append_scrape("node", ids, MINUTE, np.array([0.1, 7.0]))
    store.append_scrape("other", ids[1:], 4 * MINUTE, np.array([1e300]))
    values_read = store.select([Matcher("gpu", MatchOp.EQUAL, "1")], -1, HOUR).values
    assert values_read[0].tolist() == [2.0, 7.0, 2.0, 2.0, 1e300]
    assert store.select([Matcher("gpu", MatchOp.EQUAL, "0")], -1, HOUR).values[0, :4].tolist() == [1.0, 0.1, 1.0, 1.0]


def test_an_empty_slot_fits_four_bytes_and_its_value_in_files_is_unchanged() -> None:
    assert fits_narrow(np.array([ABSENT, STALE, 0.5, 0.1])).tolist() == [True, False, True, False]
    matrix = np.array([[1.0, ABSENT, 3.0]])
    kept = codec.unpack_floats(codec.pack_floats(to_file(matrix.copy())))
    assert bits(kept)[0][1] == FILE_ABSENT_BITS
    assert bits(from_file(kept)) == bits(matrix)
