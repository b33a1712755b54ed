"""Intervals: what parts of the horizon lend each other, and what past intervals teach the next one."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from watchkeeper.capacity import backtest, demand, forecast, intervals
from watchkeeper.capacity.forecast_models import SeasonLengths

Floats = npt.NDArray[np.float64]
HOUR, WEEK = 3600.0, 604_800.0
STEPS = 24
# One origin a day for six weeks.
ORIGINS = np.arange(240, 240 + 42 * 24, 24)


def rolled(steps: int = STEPS) -> backtest.RolledForecasts:
    series = demand.DemandSeries(0.0, HOUR, np.arange(400, dtype=np.float64))
    return backtest.run_backtest(series, steps, SeasonLengths.of(HOUR))


def residuals(size: float = 1.0, *, seed: int = 3) -> Floats:
    return np.random.default_rng(seed).normal(0, size, (len(ORIGINS), STEPS))


def widths(missed: Floats) -> tuple[float, float]:
    """Mean width of the coming interval before and after it is corrected by how past ones did."""
    now = int(ORIGINS[-1]) + STEPS
    plain = intervals.uncorrected_offsets(missed, ORIGINS, rolled(), now=now)
    corrected = intervals.ForecastResiduals.of(missed, ORIGINS, rolled()).offsets(now)
    return float(np.mean(plain[1] - plain[0])), float(np.mean(corrected[1] - corrected[0]))


def test_sizes_that_follow_one_power_stay_as_they_are() -> None:
    centres = np.array([2.0, 10.0, 50.0])
    fitted = intervals.fit_power_law(centres, 3 * centres**0.3, windows=np.array([20.0, 8.0, 1.5]))
    np.testing.assert_allclose(fitted, 3 * centres**0.3)


def test_a_size_of_few_windows_is_drawn_further_towards_the_law_than_one_of_many() -> None:
    centres, sizes = np.array([2.0, 4.0, 8.0, 120.0]), np.array([4.0, 4.0, 4.0, 0.5])
    few, many = (
        intervals.fit_power_law(centres, sizes, windows=np.array([30.0, 30, 30, far]))[-1] for far in (1.0, 30.0)
    )
    assert 0.5 < many < few < 4


def test_the_law_grows_at_most_as_a_random_walk() -> None:
    centres = np.array([1.0, 100.0])
    near, far = intervals.fit_power_law(centres, np.array([1.0, 1000.0]), windows=np.array([1e-9, 1e-9]))
    assert far / near == pytest.approx(10)


def test_a_part_that_never_missed_is_left_as_it_is() -> None:
    sizes = np.array([0.0, 2.0])
    assert intervals.fit_power_law(np.array([1.0, 9.0]), sizes, windows=np.ones(2)) is sizes


def test_within_a_day_both_edges_are_as_far_whatever_side_was_missed_and_a_week_ahead_they_are_not() -> None:
    missed = np.abs(np.random.default_rng(3).normal(0, 1, (len(ORIGINS), 168)))
    low, high = intervals.uncorrected_offsets(missed, ORIGINS, rolled(168), now=int(ORIGINS[-1]) + 168)
    np.testing.assert_allclose(-low[:24], high[:24])
    assert 0 < -low[-1] < 0.5 * high[-1]


def test_errors_that_grow_have_wider_intervals_than_their_own_past_says() -> None:
    growing = residuals() * np.geomspace(1, 100, len(ORIGINS))[:, None]
    plain, corrected = widths(growing)
    assert corrected > 1.1 * plain


def test_errors_that_fade_have_narrower_intervals_than_their_own_past_says() -> None:
    fading = residuals() * np.linspace(8, 1, len(ORIGINS))[:, None]
    plain, corrected = widths(fading)
    assert corrected < 0.95 * plain


def test_a_correction_has_its_limit_where_nothing_was_ever_missed_before() -> None:
    sudden = np.zeros((len(ORIGINS), STEPS))
    sudden[-3:] = residuals()[-3:]
    plain, corrected = widths(sudden)
    assert 0 < plain < corrected <= 2.01 * plain


def test_a_correction_knows_nothing_of_outcomes_that_are_still_to_come() -> None:
    missed, now = residuals(), int(ORIGINS[30])
    other = missed.copy()
    other[ORIGINS[:, None] + np.arange(1, STEPS + 1) > now] = 1e6
    missed_offsets, two = (
        intervals.ForecastResiduals.of(values, ORIGINS, rolled()).offsets(now) for values in (missed, other)
    )
    np.testing.assert_array_equal(missed_offsets, two)


def test_without_any_outcome_an_interval_is_as_wide_as_a_random_walk_goes() -> None:
    nothing = np.full((len(ORIGINS), STEPS), math.nan)
    _, high = intervals.ForecastResiduals.of(nothing, ORIGINS, rolled()).offsets(int(ORIGINS[-1]))
    np.testing.assert_allclose(high, intervals.NORMAL_TENTH * np.sqrt(np.arange(1, STEPS + 1)))


def test_a_week_ahead_intervals_hold_about_80_percent_of_demand_that_wanders() -> None:
    held = []
    for seed in range(3):
        random, level = np.random.default_rng(seed), 0.0
        walked = np.array([level := 0.97 * level + step for step in random.normal(0, 6, 5 * 168)])
        made = forecast.forecast(demand.DemandSeries(0.0, HOUR, np.maximum(0, 200 + walked)), WEEK)
        assert made.backtest.covered is not None
        held.append(made.backtest.covered)
    assert 0.75 <= np.mean(held) <= 0.9
