"""The head stores samples in order and within its limits, and counts what it drops."""

from __future__ import annotations

import math
from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.durables import named, scraped
from watchkeeper import errors
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import STALE, Sample, is_stale
from watchkeeper.query.engine import Matcher, MatchOp
from watchkeeper.store import columns, interfaces
from watchkeeper.store.head import head

HOUR = 3_600_000


def equals(name: str, value: str) -> Matcher:
    return Matcher(name, MatchOp.EQUAL, value)


def read(store: head.Head, name: str, *, start: int = -1, end: int = 10**15) -> dict[Labels, list[tuple[int, float]]]:
    """Every sample of a metric, series by series."""
    selected = store.select([equals("__name__", name)], start, end)
    out: dict[Labels, list[tuple[int, float]]] = {}
    for row, labels in enumerate(selected.series.labels_of(range(len(selected.series)))):
        times = selected.times[selected.groups[row]]
        absent = columns.is_absent(selected.values[row])
        out[labels] = [
            (int(time), float(value))
            for time, value, empty in zip(times, selected.values[row], absent, strict=True)
            if time != columns.NEVER_MS and not empty
        ]
    return out


def test_a_scrape_gives_every_series_a_sample_at_the_same_time() -> None:
    store = head.Head()
    ids = scraped(store, [named("temp", gpu="0"), named("temp", gpu="1")])
    assert store.append_scrape("node", ids, 1000, np.array([60.0, 61.0])) == interfaces.Appended(2, {})
    assert store.append_scrape("node", ids, 2000, np.array([62.0, 63.0])).kept == 2
    assert read(store, "temp") == {
        named("temp", gpu="0"): [(1000, 60.0), (2000, 62.0)],
        named("temp", gpu="1"): [(1000, 61.0), (2000, 63.0)],
    }


def test_a_series_that_is_missing_from_a_scrape_has_no_sample_there() -> None:
    store = head.Head()
    ids = scraped(store, [named("temp", gpu="0"), named("temp", gpu="1")])
    store.append_scrape("node", ids, 1000, np.array([60.0, 61.0]))
    store.append_scrape("node", ids[:1], 2000, np.array([62.0]))
    assert read(store, "temp")[named("temp", gpu="1")] == [(1000, 61.0)]


def test_a_series_that_joins_later_has_no_sample_before() -> None:
    store = head.Head()
    ids = scraped(store, [named("temp", gpu="0"), named("temp", gpu="1")])
    store.append_scrape("node", ids[:1], 1000, np.array([60.0]))
    store.append_scrape("node", ids, 2000, np.array([62.0, 63.0]))
    assert read(store, "temp")[named("temp", gpu="1")] == [(2000, 63.0)]


def test_nan_is_a_value_and_the_stale_marker_keeps_its_bits() -> None:
    store = head.Head()
    ids = scraped(store, [named("x")])
    for at, value in ((1, math.nan), (2, STALE)):
        store.append_scrape("node", ids, at, np.array([value]))
    (_, nan), (_, stale) = read(store, "x")[named("x")]
    assert math.isnan(nan)
    assert not is_stale(nan)
    assert is_stale(stale)


def test_older_samples_are_counted_as_out_of_order_and_not_kept() -> None:
    store = head.Head()
    store.append([Sample(named("x"), 2000, 1.0)])
    assert store.append([Sample(named("x"), 1000, 5.0)]) == interfaces.Appended(0, {"out_of_order": 1})
    ids = scraped(store, [named("y")])
    store.append_scrape("node", ids, 2000, np.array([1.0]))
    assert store.append_scrape("node", ids, 1000, np.array([5.0])).dropped == {"out_of_order": 1}
    assert read(store, "x")[named("x")] == [(2000, 1.0)]


def test_the_same_sample_again_is_fine_and_another_value_at_the_same_time_is_a_duplicate() -> None:
    store = head.Head()
    store.append([Sample(named("x"), 1000, 1.0)])
    assert store.append([Sample(named("x"), 1000, 1.0)]) == interfaces.Appended(1, {})
    assert store.append([Sample(named("x"), 1000, 2.0)]) == interfaces.Appended(0, {"duplicate": 1})
    ids = scraped(store, [named("y")])
    store.append_scrape("node", ids, 1000, np.array([1.0]))
    assert store.append_scrape("node", ids, 1000, np.array([1.0])) == interfaces.Appended(1, {})
    assert store.append_scrape("node", ids, 1000, np.array([2.0])) == interfaces.Appended(0, {"duplicate": 1})


def test_a_sample_far_ahead_of_the_clock_is_dropped() -> None:
    store = head.Head()
    now = 1_000_000
    assert store.append([Sample(named("x"), now + 600_001, 1.0)], now_ms=now).dropped == {"future": 1}
    ids = scraped(store, [named("y")])
    assert store.append_scrape("node", ids, now + 600_001, np.array([1.0]), now_ms=now).dropped == {"future": 1}
    assert store.append([Sample(named("x"), now + 600_000, 1.0)], now_ms=now).kept == 1


def test_without_a_clock_a_time_jump_is_accepted_after_a_second_scrape() -> None:
    store = head.Head()
    ids = scraped(store, [named("x"), named("y")])
    store.append_scrape("a", ids[:1], 0, np.array([1.0]))
    assert store.append_scrape("b", ids[1:], HOUR, np.array([1.0])).dropped == {"future": 1}
    store.append_scrape("a", ids[:1], 15_000, np.array([1.0]))
    assert store.append_scrape("b", ids[1:], HOUR, np.array([1.0])).dropped == {"future": 1}
    assert store.append_scrape("a", ids[:1], HOUR + 1000, np.array([1.0])).kept == 1


def test_series_of_one_target_may_lag_behind_each_other() -> None:
    store = head.Head()
    ids = scraped(store, [named("x"), named("y")])
    store.append_scrape("timed", ids[1:], 7, array("d", [1.0]))
    store.append_scrape("timed", ids[:1], 10, array("d", [1.0]))
    assert store.append_scrape("timed", array("q", ids[1:].tolist()), 8, array("d", [2.0])) == interfaces.Appended(
        1, {}
    )
    assert read(store, "x") == {named("x"): [(10, 1.0)]}
    assert read(store, "y") == {named("y"): [(7, 1.0), (8, 2.0)]}


def test_a_single_sample_for_a_scraped_series_continues_its_history() -> None:
    store = head.Head()
    ids = scraped(store, [named("temp", gpu="0"), named("temp", gpu="1")])
    store.append_scrape("node", ids, 1000, np.array([60.0, 61.0]))
    store.append([Sample(named("temp", gpu="0"), 1500, 70.0)])
    store.append_scrape("node", ids, 2000, np.array([62.0, 63.0]))
    assert read(store, "temp") == {
        named("temp", gpu="0"): [(1000, 60.0), (1500, 70.0), (2000, 62.0)],
        named("temp", gpu="1"): [(1000, 61.0), (2000, 63.0)],
    }


def test_a_series_above_the_limit_is_refused_with_both_numbers() -> None:
    store = head.Head(max_series=2)
    scraped(store, [named("x", a="1"), named("x", a="2")])
    with pytest.raises(errors.StoreError, match=r"2 series, the limit is 2"):
        store.series_id(named("x", a="3"))
    assert store.append([Sample(named("x", a="3"), 1, 1.0)]).dropped == {"limit": 1}


def test_a_label_value_that_is_too_long_is_refused_with_both_numbers() -> None:
    with pytest.raises(errors.StoreError, match=r"has 4097 characters in a label value. the limit is 4096"):
        head.Head().series_id(named("x", a="v" * 4097))


def test_old_slots_are_dropped_so_that_memory_stays_bounded() -> None:
    store = head.Head(retention_ms=HOUR)
    ids = scraped(store, [named("x"), named("y")])
    sizes = []
    for slot in range(4000):
        store.append_scrape("node", ids, slot * 15_000, np.array([float(slot), 0.0]))
        sizes.append(store.used_bytes)
    # An hour at 15 s is 240 slots; rows of 256 slots hold them, one row of times and two of values in four bytes.
    assert sizes[-1] == 256 * 8 + 2 * 256 * 4
    kept = read(store, "x")[named("x")]
    assert kept[-1] == (3999 * 15_000, 3999.0)
    assert kept[0][0] <= 3999 * 15_000 - HOUR


def test_an_expired_series_is_removed_and_its_old_id_is_refused() -> None:
    store = head.Head(retention_ms=HOUR)
    ids = scraped(store, [named("old"), named("live")])
    store.append_scrape("node", ids, 0, np.array([1.0, 1.0]))
    for at in (2 * HOUR, 2 * HOUR):
        store.append_scrape("node", ids[1:], at, np.array([1.0]))
    assert len(store) == 1
    newcomer = store.series_id(named("new"))
    assert newcomer != ids[0]
    assert store.append_scrape("node", ids, 2 * HOUR + 1, np.array([5.0, 1.0])).dropped == {"forgotten": 1}
    assert read(store, "new") == {named("new"): []}


def test_a_repeated_scrape_detects_a_series_that_was_removed() -> None:
    store = head.Head(retention_ms=HOUR)
    ids = scraped(store, [named("old"), named("live")])
    for at in (0, 1):
        assert store.append_scrape("node", ids, at, np.array([1.0, 1.0])).kept == 2
    assert store.expire(2 * HOUR) == 2
    newcomer = store.series_id(named("new"))
    assert newcomer & head.NUMBER_MASK in (ids & head.NUMBER_MASK)
    taken = store.append_scrape("node", ids, 2 * HOUR + 1, np.array([5.0, 5.0]), now_ms=2 * HOUR)
    assert taken.dropped == {"forgotten": 2}
    assert read(store, "new") == {named("new"): []}


def test_an_array_of_ids_that_the_caller_changes_is_read_again() -> None:
    store = head.Head()
    ids = scraped(store, [named("a"), named("b")])
    for at in (0, 1):
        store.append_scrape("node", ids, at, np.array([1.0, 2.0]))
    ids[:] = ids[::-1].copy()
    store.append_scrape("node", ids, 2, np.array([3.0, 4.0]))
    assert read(store, "a")[named("a")][-1] == (2, 4.0)


def test_selecting_more_samples_than_allowed_is_refused_with_both_numbers() -> None:
    store = head.Head()
    store.append(Sample(named("x"), at, 1.0) for at in range(100))
    with pytest.raises(errors.QueryLimit, match="100 samples, the limit is 99"):
        store.select([equals("__name__", "x")], -1, 1000, max_samples=99)


def test_a_window_is_open_on_the_left_and_closed_on_the_right() -> None:
    store = head.Head()
    store.append(Sample(named("x"), at, float(at)) for at in (10, 20, 30, 40))
    assert read(store, "x", start=10, end=30)[named("x")] == [(20, 20.0), (30, 30.0)]


def test_the_latest_sample_steps_back_over_scrapes_that_missed_the_series() -> None:
    store = head.Head()
    ids = scraped(store, [named("x", a="1"), named("x", a="2")])
    store.append_scrape("node", ids, 1000, np.array([1.0, 2.0]))
    for at in (2000, 3000):
        store.append_scrape("node", ids[:1], at, np.array([3.0]))
    series, times, values = store.latest([equals("__name__", "x")], 0, 3500)
    assert [labels["a"] for labels in series.labels_of([0, 1])] == ["1", "2"]
    assert times.tolist() == [3000, 1000]
    assert values.tolist() == [3.0, 2.0]
    _, _, later = store.latest([equals("__name__", "x")], 1000, 3500)
    assert columns.is_absent(later).tolist() == [False, True]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.floats()), max_size=120))
def test_accepted_samples_are_read_in_order(moves: list[tuple[str, int, float]]) -> None:
    """Samples of three series, each a number of seconds after its own last one, through both ways in."""
    store = head.Head(retention_ms=10**12)
    expected: dict[Labels, list[tuple[int, str]]] = {}
    clock = dict.fromkeys("abc", 0)
    for turn, (key, wait, value) in enumerate(moves):
        clock[key] += wait
        labels = named("x", key=key)
        if turn % 3:
            store.append([Sample(labels, clock[key], value)])
        else:
            store.append_scrape(key, np.array([store.series_id(labels)]), clock[key], np.array([value]))
        expected.setdefault(labels, []).append((clock[key], repr(value)))
    samples_read = {labels: [(at, repr(value)) for at, value in rows] for labels, rows in read(store, "x").items()}
    assert samples_read == expected
