"""Windows: the short ways to bounds, columns and groups give what the long ways give."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchkeeper.query.evaluate import compensated_sums, windows
from watchkeeper.query.evaluate.grouping import reduce_groups
from watchkeeper.store.columns import NEVER_MS
from watchkeeper.store.series import LabelRegistry, Pairs


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(2, 40), st.integers(1, 5000))
def test_bounds_of_regular_steps_are_what_a_search_finds(seed: int, groups: int, steps: int, step_ms: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 100_000, (groups, 50)), axis=1)
    times[:, 40:] = NEVER_MS
    at_ms = int(rng.integers(-1000, 100_000)) + step_ms * np.arange(steps)
    expected = [np.searchsorted(row, at_ms, side="right").tolist() for row in times]
    assert windows.bounds(times, at_ms).tolist() == expected


@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 100]))
def test_picked_columns_are_those_of_each_group(seed: int, kinds: int) -> None:
    rng = np.random.default_rng(seed)
    values, groups = rng.random((300, 20)), rng.integers(0, 150, 300)
    different = np.sort(rng.integers(0, 20, (kinds, 6)), axis=1)
    slots = different[rng.integers(0, kinds, 150)]
    expected = np.take_along_axis(values, slots[groups], axis=1)
    assert (windows.SlotPicker(slots).pick_rows(values, groups) == expected).all()


@pytest.mark.parametrize("sizes", [[3] * 50, [150], [1, 149], [2, 3, 5, 7, 11, 13, 17, 19, 23, 50]])
@pytest.mark.parametrize("steps", [1, 4])
def test_groups_are_reduced_alike_whatever_their_sizes(sizes: list[int], steps: int) -> None:
    table = np.random.default_rng(7).random((150, steps))
    starts = np.cumsum([0, *sizes[:-1]])
    for reduce in (np.add, np.fmax, np.fmin):
        expected = np.stack([reduce.reduce(part, axis=0) for part in np.split(table, starts[1:])])
        assert reduce_groups(reduce, table, starts) == pytest.approx(expected, rel=1e-14)


def test_a_long_sum_of_groups_keeps_small_numbers() -> None:
    values = np.full((100_000, 2), 0.1)
    assert compensated_sums.sum_groups(values, np.array([0]))[0] == pytest.approx(10_000.0, rel=1e-14)


def test_label_sets_are_not_derived_again_when_series_churn() -> None:
    asked: list[Pairs] = []

    def shout(pairs: Pairs) -> Pairs:
        asked.append(pairs)
        return tuple((name, value.upper()) for name, value in pairs)

    rows: list[Pairs] = [(("node", name),) for name in ("a", "b", "c")]
    register = LabelRegistry()
    numbers = np.array([register.number(pairs) for pairs in rows[:2]])
    assert register.select(numbers).mapped("shout", shout).pairs == [(("node", "A"),), (("node", "B"),)]
    second = register.select(np.array([numbers[1], register.number(rows[2])]))
    assert second.mapped("shout", shout).pairs == [(("node", "B"),), (("node", "C"),)]
    assert asked == rows
