"""Functions of single numbers, of labels, of order and of the calendar; classic histograms."""

from __future__ import annotations

import math

import pytest

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("abs(x)", 2.5),
        ("ceil(x)", -2.0),
        ("floor(x)", -3.0),
        ("sgn(x)", -1.0),
        ("round(x)", -2.0),
        ("round(x, 2)", -2.0),
        ("clamp(x, -1, 1)", -1.0),
        ("clamp_min(x, 4)", 4.0),
        ("clamp_max(x, -4)", -4.0),
        ("exp(x * 0)", 1.0),
        ("deg(x * 0 + pi())", 180.0),
        ("-x", 2.5),
    ],
)
def test_a_function_of_one_number_drops_the_name(expr: str, value: float) -> None:
    assert instant(loaded("x -2.5"), expr) == {"{}": pytest.approx(value)}


def test_clamping_between_crossed_limits_leaves_nothing() -> None:
    assert instant(loaded("x 1"), "clamp(x, 5, 1)") == {}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("clamp_max(x, -Inf)", -math.inf),
        ("clamp_min(x, Inf)", math.inf),
        ("clamp_max(x, 1)", math.nan),
        ("clamp_min(x, -Inf)", math.nan),
        ("clamp(y, NaN, 5)", math.nan),
        ("vector(max_of(NaN, Inf))", math.inf),
        ("vector(min_of(NaN, 1))", math.nan),
    ],
)
def test_nan_is_clamped_to_an_infinite_limit(expr: str, value: float) -> None:
    assert instant(loaded("x NaN", "y 1"), expr) == {"{}": pytest.approx(value, nan_ok=True)}


def test_the_calendar_counts_in_utc_and_weeks_start_on_sunday() -> None:
    # 2024-02-29 13:14:15 UTC, a Thursday.
    engine = loaded("x 1709212455")
    expected = {
        "year": 2024,
        "month": 2,
        "day_of_month": 29,
        "day_of_week": 4,
        "day_of_year": 60,
        "days_in_month": 29,
        "hour": 13,
        "minute": 14,
    }
    assert {name: instant(engine, f"{name}(x)")["{}"] for name in expected} == expected
    assert instant(engine, "minute()", "61m") == {"{}": 1.0}


def test_the_calendar_leaves_parts_of_a_second_out_before_1970_too() -> None:
    engine = loaded("a -0.5", "b -1.5")
    assert instant(engine, "year(a)") == {"{}": 1970.0}
    assert instant(engine, "minute(b)") == {"{}": 59.0}


def test_timestamp_is_that_of_the_sample_or_of_the_step() -> None:
    engine = loaded("x 1")
    assert instant(engine, "timestamp(x)", "2m") == {"{}": 0.0}
    assert instant(engine, "timestamp(x + 0)", "2m") == {"{}": 120.0}


def test_scalar_is_nan_unless_there_is_exactly_one_series() -> None:
    engine = loaded("x 4", 'y{a="1"} 1', 'y{a="2"} 2')
    assert instant(engine, "vector(scalar(x))") == {"{}": 4.0}
    assert math.isnan(instant(engine, "vector(scalar(y))")["{}"])
    assert math.isnan(instant(engine, "vector(scalar(nothing))")["{}"])


def test_label_replace_fills_in_groups_and_leaves_others_alone() -> None:
    engine = loaded('x{node="rack7-n3"} 1', 'x{node="other"} 2')
    expr = 'label_replace(x, "rack", "r$1", "node", "rack(\\\\d+)-.*")'
    assert instant(engine, expr) == {'x{node="other"}': 2.0, 'x{node="rack7-n3", rack="r7"}': 1.0}


@pytest.mark.parametrize("name", ["²", "9" * 5000, "nobody"])
def test_label_replace_has_nothing_for_a_group_that_no_pattern_can_have(name: str) -> None:
    assert instant(loaded("x 1"), f'label_replace(x, "a", "<${{{name}}}>", "b", ".*")') == {'x{a="<>"}': 1.0}


def test_label_replace_that_makes_two_series_one_is_an_error() -> None:
    engine = loaded('x{a="1"} 1', 'x{a="2"} 2')
    with pytest.raises(errors.QueryError, match="same labelset"):
        engine.instant('label_replace(x, "a", "same", "a", ".*")', 0)


def test_label_join_puts_values_together_in_the_order_given() -> None:
    engine = loaded('x{a="1", b="2"} 1')
    assert instant(engine, 'label_join(x, "c", "-", "b", "a")') == {'x{a="1", b="2", c="2-1"}': 1.0}


def test_sorting_puts_nan_last_in_both_directions() -> None:
    engine = loaded('x{a="1"} 2', 'x{a="2"} NaN', 'x{a="3"} 1')
    assert list(instant(engine, "sort(x)")) == ['x{a="3"}', 'x{a="1"}', 'x{a="2"}']
    assert list(instant(engine, "sort_desc(x)")) == ['x{a="1"}', 'x{a="3"}', 'x{a="2"}']


def test_sorting_by_label_counts_numbers_as_numbers() -> None:
    engine = loaded('x{gpu="10"} 1', 'x{gpu="9"} 1')
    assert list(instant(engine, 'sort_by_label(x, "gpu")')) == ['x{gpu="9"}', 'x{gpu="10"}']
    assert list(instant(engine, 'sort_by_label_desc(x, "gpu")')) == ['x{gpu="10"}', 'x{gpu="9"}']


def test_sorting_by_label_counts_no_power_as_a_number_and_no_number_as_too_long() -> None:
    long = "9" * 3000
    engine = loaded('x{area="5²"} 1', f'x{{area="4{long}"}} 1', 'x{area="007"} 1', f'x{{area="3{long}"}} 1')
    longest = 'label_join(x, "area", "", "area", "area")'
    assert list(instant(engine, f'sort_by_label({longest}, "area")')) == [
        'x{area="5²5²"}',
        'x{area="007007"}',
        f'x{{area="3{long}3{long}"}}',
        f'x{{area="4{long}4{long}"}}',
    ]


BUCKETS = ('b{le="1"} 2', 'b{le="2"} 6', 'b{le="4"} 10', 'b{le="+Inf"} 10')


def test_a_histogram_quantile_is_interpolated_within_its_bucket() -> None:
    engine = loaded(*BUCKETS)
    assert instant(engine, "histogram_quantile(0.5, b)") == {"{}": pytest.approx(1.75)}
    assert instant(engine, "histogram_quantile(1, b)") == {"{}": 4.0}
    assert instant(engine, "histogram_quantile(2, b)") == {"{}": math.inf}


def test_a_histogram_fraction_is_the_share_between_two_bounds() -> None:
    assert instant(loaded(*BUCKETS), "histogram_fraction(0, 2, b)") == {"{}": pytest.approx(0.6)}


def test_a_histogram_without_an_infinite_bucket_has_no_quantile() -> None:
    assert math.isnan(instant(loaded(*BUCKETS[:3]), "histogram_quantile(0.5, b)")["{}"])


def test_a_quantile_beyond_0_and_1_is_infinite_whichever_buckets_there_are() -> None:
    engine = loaded('h_bucket{le="1"} 5', 'h_bucket{le="2"} 9')
    assert instant(engine, "histogram_quantile(2, h_bucket)") == {"{}": math.inf}
    assert instant(engine, "histogram_quantile(-1, h_bucket)") == {"{}": -math.inf}


def test_a_bucket_that_appears_later_counts_only_from_then_on() -> None:
    engine = loaded('b{le="1"} 2 2', 'b{le="2"} _ 2', 'b{le="4"} 4 4', 'b{le="+Inf"} 4 4')
    found = ranged(engine, "histogram_quantile(0.75, b)", "1m")["{}"]
    assert found == {0: pytest.approx(2.5), 60: pytest.approx(3.0)}


def test_buckets_of_two_metrics_do_not_mix() -> None:
    engine = loaded(*BUCKETS, *(line.replace("b{", "c{") for line in BUCKETS))
    with pytest.raises(errors.QueryError, match="same labelset"):
        engine.instant('histogram_quantile(0.5, {__name__=~"b|c"})', 0)
