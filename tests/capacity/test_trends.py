"""What of a slope goes on: growth that stands out does, wandering and growth that has stopped do not."""

from __future__ import annotations

import numpy as np
import pytest

from watchkeeper.capacity import demand, forecast, trends

DAY, WEEK, MONTH = 24, 168, 672
HOUR = 3600.0


def fleet(dice: np.random.Generator, hours: int, *, weekly: float) -> demand.Floats:
    """500 GPUs in use that grow by so many a week, with days, weekends, a slow wandering and noise."""
    at = np.arange(hours)
    seasons = 60 * np.sin(2 * np.pi * at / DAY) - 50 * (at // DAY % 7 > 4)
    wanders = 0.3 * np.cumsum(dice.normal(0, 3, hours))
    return np.asarray(500 + weekly * at / WEEK + seasons + wanders + dice.normal(0, 10, hours))


@pytest.mark.slow
@pytest.mark.parametrize("weekly", [40.0, -25.0])
@pytest.mark.parametrize("weeks", [4, 8])
def test_a_month_ahead_goes_on_as_the_months_before(weekly: float, weeks: int) -> None:
    followed, held = [], []
    for seed in range(3):
        values = fleet(np.random.default_rng(seed), weeks * WEEK + MONTH, weekly=weekly)
        past, coming = values[:-MONTH], values[-MONTH:]
        made = forecast.forecast(demand.DemandSeries(0.0, HOUR, past), MONTH * HOUR)
        followed.append((made.mean[-WEEK:].mean() - past[-WEEK:].mean()) / (4 * weekly))
        held.append(np.mean((coming >= made.low) & (coming <= made.high)))
        assert any("a week is extrapolated" in note for note in made.notes)
    assert 0.6 < np.mean(followed) < 1.3
    assert np.mean(held) > 0.5


def test_what_only_wanders_is_not_taken_to_go_on() -> None:
    moves = []
    for seed in range(30):
        walk = 1000 + np.cumsum(np.random.default_rng([seed, 14]).normal(0, 4, 6 * WEEK))
        moves.append(trends.estimate_trend(walk, DAY).reliable_slope * WEEK / (4 * np.sqrt(WEEK)))
    # In units of what a walk of a week moves by itself.
    assert np.mean(np.abs(moves)) < 0.1
    assert np.mean(np.array(moves) == 0) > 0.7


def test_growth_that_has_stopped_is_none() -> None:
    dice = np.random.default_rng(3)
    grown = np.append(np.linspace(200, 600, 6 * WEEK), np.full(3 * WEEK, 600.0)) + dice.normal(0, 10, 9 * WEEK)
    assert trends.estimate_trend(grown[: 6 * WEEK], DAY).reliable_slope * WEEK == pytest.approx(400 / 6, rel=0.1)
    assert abs(trends.estimate_trend(grown, DAY).reliable_slope * WEEK) < 2


def test_a_week_of_a_fleet_that_grows_is_no_saw() -> None:
    at = np.arange(6 * WEEK + DAY)
    values = 100 + 60 * at / WEEK + 20 * np.sin(2 * np.pi * at / DAY)
    made = forecast.forecast(demand.DemandSeries(0.0, HOUR, values[:-DAY]), DAY * HOUR)
    assert made.mean == pytest.approx(values[-DAY:], abs=2)


def test_too_few_days_have_no_trend() -> None:
    assert trends.estimate_trend(np.arange(13.0 * DAY), DAY) == trends.Trend()


def test_steps_longer_than_a_day_have_a_trend_too() -> None:
    assert trends.estimate_trend(np.arange(40.0), 1, has_week=False).reliable_slope == pytest.approx(1.0)
