"""Repeating the last week: chosen where it was better by more than chance, from what was known."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from watchkeeper.capacity import backtest, demand, fallback, forecast
from watchkeeper.capacity.forecast_models import NAIVE_WEEK, SeasonLengths, repeat_last

Floats = npt.NDArray[np.float64]
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0
STEPS = 24
# Two origins a day from the third to the eighth week.
ORIGINS = np.arange(14 * 24, 56 * 24 + 1, 12)


def rolled(week_is_off_by: Floats) -> backtest.RolledForecasts:
    """What comes is 100; repeating the week is off by these, one for each origin."""
    actual = np.where(ORIGINS[:, None] + np.arange(1, STEPS + 1) <= ORIGINS[-1], 100.0, np.nan)
    paths = np.broadcast_to((100.0 + week_is_off_by)[:, None, None], (len(ORIGINS), 1, STEPS))
    return backtest.RolledForecasts(
        (NAIVE_WEEK,),
        ORIGINS,
        paths,
        actual,
        np.array([0, STEPS]),
        SeasonLengths.of(HOUR),
        np.zeros(len(ORIGINS)),
        rms_step_change=1.0,
        stride=12,
    )


def last_share(off_by: Floats, week_is_off_by: Floats) -> float:
    """The share of the last week in the newest forecast."""
    own = np.broadcast_to((100.0 + off_by)[:, None], (len(ORIGINS), STEPS))
    return fallback.prefer_last_week(rolled(week_is_off_by), np.asarray(own))[1]


def noise(size: float, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(0, size, len(ORIGINS))


@pytest.mark.parametrize(
    ("off_by", "week_is_off_by", "share"),
    [
        pytest.param(noise(10, 1), noise(20, 2), 0.0, id="better"),
        pytest.param(20 + noise(2, 1), noise(10, 2), 1.0, id="worse"),
        pytest.param(10 + noise(1, 1), -10 + noise(1, 2), 0.5, id="on the other side"),
        pytest.param(noise(10, 1), np.zeros(len(ORIGINS)), 1.0, id="the week repeats exactly"),
        pytest.param(np.where(np.arange(len(ORIGINS)) == 40, 500.0, 8.0), np.full(len(ORIGINS), 10.0), 0.0, id="once"),
    ],
)
def test_the_last_week_is_repeated_where_that_was_better(off_by: Floats, week_is_off_by: Floats, share: float) -> None:
    assert last_share(off_by, week_is_off_by) == share


def test_outcomes_that_were_not_known_at_an_origin_change_nothing_there() -> None:
    original = rolled(noise(10, 2))
    later = int(ORIGINS[50])
    changed = backtest.RolledForecasts(
        original.names,
        original.origins,
        original.paths,
        np.where(ORIGINS[:, None] + np.arange(1, STEPS + 1) > later, 1e6, original.actual),
        original.edges,
        original.scale,
        original.repeated,
        rms_step_change=1.0,
        stride=12,
    )
    own = np.asarray(100.0 + noise(11, 1)[:, None] + np.zeros(STEPS))
    first, second = (fallback.prefer_last_week(world, own)[0] for world in (original, changed))
    np.testing.assert_array_equal(first[:51], second[:51])


def test_a_week_that_repeats_exactly_is_forecast_exactly() -> None:
    values = np.tile(np.round(np.random.default_rng(3).uniform(50, 200, 168)), 5)
    made = forecast.forecast(demand.DemandSeries(0.0, HOUR, values), WEEK)
    np.testing.assert_array_equal(made.mean, values[:168])
    assert any("repeating the last week was more accurate" in note for note in made.notes)


def test_weekly_work_is_known_as_soon_as_its_week_was_seen_twice() -> None:
    """Errors of the first two weeks, before any weekend was seen twice, do not speak for a model without weeks."""
    ours = week = 0.0
    for seed in range(3):
        random, hours = np.random.default_rng([seed, 32]), np.arange(16 * 24) + 24 * seed
        is_office = (hours // 24 % 7 < 5) & (hours % 24 >= 8) & (hours % 24 < 20)
        values = np.where(is_office, 300.0, 60.0) + random.normal(0, 8, len(hours))
        for at in (14 * 24, 14 * 24 + 12, 15 * 24):
            past, actual = values[:at], values[at : at + 24]
            made = forecast.forecast(demand.DemandSeries(0.0, HOUR, past), DAY)
            ours += float(np.abs(made.mean - actual).sum())
            week += float(np.abs(repeat_last(past, 168, 24) - actual).sum())
    assert ours <= 1.02 * week
