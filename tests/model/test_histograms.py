"""What must hold of native histograms whatever is in them."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support import native_strategies as native
from watchkeeper.model.histograms import (
    CUSTOM,
    Bucket,
    Histogram,
    IncompatibleHistograms,
    ResetHint,
    average_histograms,
    subtract_histograms,
    sum_histograms,
)

SCHEMA_ZERO = Histogram(count=4.0, sum=5.0, positive=((0, 1.0), (1, 2.0), (2, 1.0)))
pairs = st.tuples(native.exponential(), native.exponential()) | st.tuples(native.custom(), native.custom())


def populated(histogram: Histogram) -> float:
    return sum(bucket.population for bucket in histogram.buckets())


@given(pairs)
def test_a_sum_is_the_same_both_ways_and_loses_nothing(two: tuple[Histogram, Histogram]) -> None:
    left, right = sum_histograms(two).histogram, sum_histograms(two[::-1]).histogram
    assert left.compacted().is_same(right.compacted())
    assert left.count == two[0].count + two[1].count
    assert populated(left) == populated(two[0]) + populated(two[1])


@given(pairs)
def test_subtracting_an_added_histogram_gives_the_same_count_and_sum(two: tuple[Histogram, Histogram]) -> None:
    back = subtract_histograms(sum_histograms(two).histogram, two[1]).histogram
    assert (back.count, back.sum) == (two[0].count, two[0].sum)
    assert all(bucket.population >= 0 for bucket in back.buckets())


@given(pairs)
def test_a_counter_that_only_increases_was_not_reset(two: tuple[Histogram, Histogram]) -> None:
    grown = sum_histograms(two).histogram
    assert not grown.is_reset_after(two[0])
    assert two[0].is_reset_after(grown) or two[1].count == 0


@given(native.exponential(), st.integers(0, 6))
def test_coarser_buckets_contain_as_much_and_begin_no_later(histogram: Histogram, steps: int) -> None:
    coarse = histogram.coarsened(histogram.schema - steps)
    assert populated(coarse) == populated(histogram)
    assert len(coarse.positive) <= len(histogram.positive)
    reach = [[bucket.upper for bucket in scaled.buckets() if bucket.population] for scaled in (histogram, coarse)]
    assert max(reach[1], default=0.0) >= max(reach[0], default=0.0)


@given(native.exponential(), st.sampled_from([0.75, 1.0, 3.7, 100.0]))
def test_a_wider_zero_bucket_takes_whole_buckets(histogram: Histogram, threshold: float) -> None:
    wide = histogram.with_zero_bucket(threshold)
    assert wide.zero_threshold >= threshold
    assert populated(wide) == populated(histogram)
    assert all(bucket.lower >= wide.zero_threshold for bucket in wide.buckets() if bucket.lower > 0)


def test_buckets_are_named_by_their_bounds() -> None:
    histogram = Histogram(zero_threshold=0.1, zero_count=3.0, positive=((1, 2.0),), negative=((0, 4.0),))
    assert histogram.buckets() == [Bucket(-1.0, -0.5, 4.0), Bucket(-0.1, 0.1, 3.0), Bucket(1.0, 2.0, 2.0)]
    assert [histogram.bound_inclusion(bucket) for bucket in histogram.buckets()] == [
        (True, False),
        (True, True),
        (False, True),
    ]
    custom = Histogram(CUSTOM, bounds=(5.0,), positive=((0, 1.0), (1, 2.0)))
    assert custom.buckets() == [Bucket(-math.inf, 5.0, 1.0), Bucket(5.0, math.inf, 2.0)]


@pytest.mark.parametrize(
    ("schema", "index", "upper"),
    [(0, 0, 1.0), (0, 3, 8.0), (-1, 1, 4.0), (1, 1, math.sqrt(2)), (3, 8, 2.0), (0, -2, 0.25), (0, 1025, math.inf)],
)
def test_a_bucket_ends_at_a_power_of_two(schema: int, index: int, upper: float) -> None:
    assert Histogram(schema).edges(index)[1] == pytest.approx(upper, rel=1e-15)


def test_exponential_and_custom_buckets_have_no_sum() -> None:
    with pytest.raises(IncompatibleHistograms):
        sum_histograms([SCHEMA_ZERO, Histogram(CUSTOM, bounds=(1.0,))])


def test_common_custom_bounds_are_used_and_reported() -> None:
    narrow = Histogram(CUSTOM, 3.0, 9.0, bounds=(2.0, 4.0), positive=((0, 1.0), (1, 1.0), (2, 1.0)))
    wide = Histogram(CUSTOM, 1.0, 3.0, bounds=(4.0,), positive=((0, 1.0),))
    total = sum_histograms([narrow, wide])
    assert total.is_reconciled
    assert (total.histogram.bounds, total.histogram.positive) == ((4.0,), ((0, 3.0), (1, 1.0)))


@given(native.histograms, st.sampled_from([0.5, 2.0, -1.0]))
def test_a_negative_factor_makes_a_gauge(histogram: Histogram, factor: float) -> None:
    scaled = histogram.scaled(factor)
    assert scaled.count == histogram.count * factor
    assert scaled.hint is (ResetHint.GAUGE if factor < 0 else histogram.hint)


def test_an_average_survives_a_sum_that_no_float_holds() -> None:
    large = Histogram(count=1.5e308, sum=1.0)
    assert average_histograms([large, large]).histogram.count == 1.5e308


def test_divided_by_zero_only_count_and_sum_are_left() -> None:
    divided = SCHEMA_ZERO.divided(0.0)
    assert (divided.count, divided.sum, divided.positive) == (math.inf, math.inf, ())


@given(native.histograms)
def test_a_histogram_is_the_same_as_itself_and_as_nothing_else(histogram: Histogram) -> None:
    assume(histogram.count > 0)
    assert histogram.is_same(histogram)
    assert not histogram.is_same(histogram.scaled(2.0))
