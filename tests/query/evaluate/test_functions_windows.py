"""Functions over windows: rates, *_over_time, trends, subqueries, offset and @."""

from __future__ import annotations

import math

import pytest

from tests.query.loading import instant, loaded, ranged
from watchkeeper import errors


def test_a_rate_is_extrapolated_to_the_window_and_divided_by_it() -> None:
    engine = loaded("c 0+60x10")
    assert instant(engine, "rate(c[5m])", "10m") == {"{}": 1.0}
    assert instant(engine, "increase(c[5m])", "10m") == {"{}": 300.0}


def test_a_counter_reset_adds_what_was_counted_before_it() -> None:
    engine = loaded("c 0 100 200 50 150")
    # 50, 100, 100 and 50 after the reset at 3m: 350 in 4 minutes, from the first sample to the last.
    assert instant(engine, "increase(c[4m1ms])", "4m")["{}"] == pytest.approx(350.0)
    assert instant(engine, "resets(c[5m])", "4m") == {"{}": 1.0}


@pytest.mark.parametrize(
    ("samples", "increase"),
    [
        # What was lost is added to -1e308, which the last sample is below the first.
        ("1e308 0 1e308 0", 1.5e308),
        ("1e308 -1e308 1e308 -1e308 0", 1.125e308),
        # Here the first fall already is too much, and the next one, from below zero, does not bring it back.
        ("0 1e308 -1e308 -1.5e308 1e308", math.inf),
    ],
)
def test_falls_near_the_largest_float_are_added_one_after_the_other(samples: str, increase: float) -> None:
    # The answers of Prometheus 3.5 to the same samples.
    engine = loaded(f"c {samples}")
    assert instant(engine, "increase(c[1h])", "4m") == {"{}": pytest.approx(increase)}
    assert instant(engine, "rate(c[1h])", "4m") == {"{}": pytest.approx(increase / 3600)}


def test_a_rate_does_not_reach_back_below_zero() -> None:
    # The counter was 10 at its first sample and rises 600 a minute, so it was 0 just one second before.
    engine = loaded("c _ 10 610")
    assert instant(engine, "increase(c[3m])", "2m")["{}"] == pytest.approx(610.0)


def test_a_delta_may_fall_and_needs_two_samples() -> None:
    engine = loaded("g 100 80 60", "h _ _ 5")
    assert instant(engine, "delta(g[2m])", "2m")["{}"] == pytest.approx(-40.0)
    assert instant(engine, "delta(h[2m])", "2m") == {}


def test_irate_uses_the_last_two_samples_and_restarts_at_a_reset() -> None:
    engine = loaded("c 0 60 180 30")
    assert instant(engine, "irate(c[5m])", "2m") == {"{}": 2.0}
    assert instant(engine, "irate(c[5m])", "3m") == {"{}": 0.5}
    assert instant(engine, "idelta(c[5m])", "3m") == {"{}": -150.0}


def test_a_window_leaves_out_its_left_edge() -> None:
    engine = loaded("x 1 2 3")
    assert instant(engine, "count_over_time(x[2m])", "2m") == {"{}": 2.0}
    assert instant(engine, "sum_over_time(x[2m1ms])", "2m") == {"{}": 6.0}


def test_small_numbers_survive_beside_huge_ones() -> None:
    engine = loaded("x 1 1e100 1 -1e100")
    assert instant(engine, "sum_over_time(x[5m])", "3m") == {"{}": 2.0}
    assert instant(engine, "avg_over_time(x[5m])", "3m") == {"{}": 0.5}


def test_an_average_too_large_to_add_up_is_still_found() -> None:
    engine = loaded("x 1.7e308 1.7e308")
    assert instant(engine, "avg_over_time(x[5m])", "1m")["{}"] == pytest.approx(1.7e308)
    assert instant(engine, "sum_over_time(x[5m])", "1m") == {"{}": math.inf}


def test_an_infinite_sum_stays_infinite_beside_large_numbers() -> None:
    engine = loaded("x -Inf 1e308 1e308 -5", 'y{n="1"} -Inf', 'y{n="2"} 1e308', 'y{n="3"} 1e308')
    for expr in ("sum_over_time(x[5m])", "avg_over_time(x[5m])"):
        assert instant(engine, expr, "3m") == {"{}": -math.inf}
    assert instant(engine, "sum(y)") == {"{}": -math.inf}


def test_the_time_of_an_extreme_among_nothing_but_nan_is_that_of_the_last_sample() -> None:
    engine = loaded("x NaN NaN NaN", "y NaN 3 3 NaN")
    assert instant(engine, "ts_of_max_over_time(x[5m])", "3m") == {"{}": 120.0}
    assert instant(engine, "ts_of_min_over_time(y[5m])", "3m") == {"{}": 120.0}


def test_extremes_pass_over_nan_unless_there_is_nothing_else() -> None:
    engine = loaded("x NaN 3 NaN 1", "y NaN NaN")
    assert instant(engine, "max_over_time(x[5m])", "3m") == {"{}": 3.0}
    assert instant(engine, "min_over_time(x[5m])", "3m") == {"{}": 1.0}
    assert math.isnan(instant(engine, "max_over_time(y[5m])", "3m")["{}"])


def test_equal_samples_have_no_deviation_at_all() -> None:
    engine = loaded("x 1.5990505637277868x3")
    assert instant(engine, "stddev_over_time(x[5m])", "3m") == {"{}": 0.0}


def test_quantiles_are_interpolated_and_out_of_range_ones_are_infinite() -> None:
    engine = loaded("x 0 1 2 3")
    assert instant(engine, "quantile_over_time(0.5, x[5m])", "3m") == {"{}": 1.5}
    assert instant(engine, "quantile_over_time(-1, x[5m])", "3m") == {"{}": -math.inf}
    assert instant(engine, "quantile_over_time(2, x[5m])", "3m") == {"{}": math.inf}


def test_changes_count_differences_and_nan_equals_nan() -> None:
    engine = loaded("x 1 1 2 NaN NaN 2")
    assert instant(engine, "changes(x[10m])", "5m") == {"{}": 3.0}


def test_a_line_is_fitted_and_followed_into_the_future() -> None:
    engine = loaded("x 0+60x10")
    assert instant(engine, "deriv(x[10m])", "10m")["{}"] == pytest.approx(1.0)
    assert instant(engine, "predict_linear(x[10m], 600)", "10m")["{}"] == pytest.approx(1200.0)


def test_smoothing_factors_must_lie_between_zero_and_one() -> None:
    engine = loaded("x 0+60x10")
    assert instant(engine, "double_exponential_smoothing(x[10m], 0.5, 0.5)", "10m")["{}"] == pytest.approx(600.0)
    with pytest.raises(errors.QueryError, match="invalid trend factor 2"):
        engine.instant("double_exponential_smoothing(x[10m], 0.5, 2)", 600_000)
    assert instant(engine, "double_exponential_smoothing(nothing[10m], 0.5, 2)", "10m") == {}


def test_last_over_time_keeps_the_name_and_others_drop_it() -> None:
    engine = loaded('x{a="1"} 1 2')
    assert instant(engine, "last_over_time(x[5m])", "1m") == {'x{a="1"}': 2.0}
    assert instant(engine, "max_over_time(x[5m])", "1m") == {'{a="1"}': 2.0}


def test_two_metrics_that_become_one_series_are_an_error() -> None:
    engine = loaded("x 1 2", "y 1 2")
    with pytest.raises(errors.QueryError, match="cannot contain metrics with the same labelset"):
        engine.instant('rate({__name__=~"x|y"}[5m])', 60_000)


def test_stale_markers_are_no_samples_of_a_window() -> None:
    engine = loaded("x 1 stale 3")
    assert instant(engine, "count_over_time(x[5m])", "2m") == {"{}": 2.0}


def test_a_subquery_steps_at_multiples_of_its_step() -> None:
    engine = loaded("x 0+1x10")
    # Steps at 4m, 6m and 8m; 2m is the open left edge.
    assert instant(engine, "sum_over_time(x[7m30s:2m])", "9m30s") == {"{}": 18.0}
    assert instant(engine, "count_over_time(vector(1)[6m:2m])", "8m") == {"{}": 3.0}


def test_offset_and_at_move_the_time() -> None:
    engine = loaded("x 0+1x10")
    assert instant(engine, "x offset 3m", "10m") == {"x": 7.0}
    assert instant(engine, "x offset -3m", "5m") == {"x": 8.0}
    assert instant(engine, "x @ 120", "10m") == {"x": 2.0}
    assert ranged(engine, "x @ end() - x @ start()", "2m") == {"{}": {0: 2.0, 60: 2.0, 120: 2.0}}
    assert instant(engine, "sum_over_time(x[2m] @ 300 offset 1m)", "10m") == {"{}": 7.0}


def test_absence_is_reported_under_the_labels_that_are_certain() -> None:
    engine = loaded("x 1")
    assert instant(engine, 'absent(y{a="1", b=~"2.*"})') == {'{a="1"}': 1.0}
    assert instant(engine, "absent(x)") == {}
    assert instant(engine, 'absent_over_time(x{a="1"}[5m])') == {'{a="1"}': 1.0}
    assert ranged(engine, "absent(x)", "6m") == {"{}": {300: 1.0, 360: 1.0}}
