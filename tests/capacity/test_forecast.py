"""Forecasts on series whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from watchkeeper.capacity import advice, backtest, demand, forecast
from watchkeeper.capacity.forecast_models import (
    NAIVE_DAY,
    NAIVE_WEEK,
    PLAIN,
    PLAIN_OF_WEEKS,
    USUAL_DAY,
    SeasonLengths,
    build_candidates,
    repeat_last,
    repeated_share,
)
from watchkeeper.errors import CollectError

Floats = npt.NDArray[np.float64]
HOUR, DAY, WEEK = 3600.0, 86_400.0, 604_800.0


def hourly(values: Floats) -> demand.DemandSeries:
    return demand.DemandSeries(0.0, HOUR, values)


def seasons(hours: int, *, seed: int = 1, noise: float = 8.0) -> Floats:
    at = np.arange(hours)
    random = np.random.default_rng(seed)
    day = 60 * np.sin(2 * np.pi * (at % 24) / 24)
    week = np.where(at // 24 % 7 >= 5, -80.0, 20.0)
    return np.asarray(300 + day + week + random.normal(0, noise, hours))


def missed(path: Floats, actual: Floats) -> float:
    return float(np.abs(path - actual).sum() / np.abs(actual).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("hours", "best_naive"), [(24, 168), (168, 168)])
def test_a_series_with_seasons_is_forecast_a_quarter_better_than_by_repeating_it(hours: int, best_naive: int) -> None:
    values = seasons(10 * 168)
    ours = naive = 0.0
    for at in range(8 * 168, len(values) - hours + 1, 30):
        past, actual = values[:at], values[at : at + hours]
        ours += missed(forecast.forecast(hourly(past), hours * HOUR).mean, actual)
        naive += missed(repeat_last(past, best_naive, hours), actual)
    assert ours <= 0.75 * naive


@pytest.mark.slow
@pytest.mark.parametrize("hours", [24, 168])
def test_four_weeks_tell_office_hours_from_noise(hours: int) -> None:
    at = np.arange(7 * 168)
    usual = np.where((at // 24 % 7 < 5) & (at % 24 >= 9) & (at % 24 < 18), 520.0, 400.0)
    ours = naive = truth = 0.0
    for seed in range(2):
        values = usual + np.random.default_rng([seed, 7]).normal(0, 24, len(at))
        for now in range(4 * 168, len(at) - hours + 1, 60):
            past, actual = values[:now], values[now : now + hours]
            ours += missed(forecast.forecast(hourly(past), hours * HOUR).mean, actual)
            naive += missed(repeat_last(past, 168, hours), actual)
            truth += missed(usual[now : now + hours], actual)
    # Nobody can know the noise; of what can be known, repeating the week misses far more.
    assert ours - truth <= 0.14 * (naive - truth)


def test_a_constant_series_goes_on_without_doubt() -> None:
    made = forecast.forecast(hourly(np.full(500, 64.0)), DAY)
    assert set(made.mean) == set(made.low) == set(made.high) == {64.0}
    assert (made.backtest.wape, made.backtest.covered) == (0.0, 1.0)


def test_nobody_asking_for_anything_is_a_forecast_of_nothing() -> None:
    made = forecast.forecast(hourly(np.zeros(500)), DAY)
    assert not made.mean.any()
    assert made.backtest.wape == 0.0


def test_a_trend_is_followed_for_a_week() -> None:
    at = np.arange(5 * 168, dtype=np.float64)
    made = forecast.forecast(hourly(100 + 0.5 * at), WEEK)
    assert made.mean[-1] == pytest.approx(100 + 0.5 * (len(at) + 167), rel=0.05)


def test_after_a_level_shift_the_forecast_is_at_the_new_level_within_days() -> None:
    values = seasons(5 * 168)
    values[4 * 168 :] += 200
    made = forecast.forecast(hourly(values), DAY)
    assert made.mean.mean() == pytest.approx(values[-168:].mean(), rel=0.15)


def test_an_outage_that_is_over_is_no_demand_that_went_away() -> None:
    values = seasons(4 * 168)
    whole = forecast.forecast(hourly(values), DAY)
    values[-72:-48] = 0.0
    made = forecast.forecast(hourly(values), DAY)
    assert missed(made.mean, whole.mean) < 0.1
    assert any("outages: 1, 24 steps" in note for note in made.notes)


def test_a_gap_a_week_after_an_outage_is_not_counted_as_another() -> None:
    values = seasons(4 * 168)
    values[-300:-276] = 0.0
    values[-132:-108] = math.nan
    assert any("outages: 1, 24 steps" in note for note in forecast.forecast(hourly(values), DAY).notes)


def test_demand_that_stops_for_good_is_not_waited_for() -> None:
    values = np.append(seasons(4 * 168), np.zeros(5 * 24))
    assert forecast.forecast(hourly(values), DAY).mean.max() < 30


def test_a_holiday_that_is_named_gets_the_share_that_past_ones_had() -> None:
    values = seasons(5 * 168, noise=2.0)
    for day in (10, 25):
        values[24 * day : 24 * day + 24] *= 0.5
    holidays = [day * DAY for day in (10, 25, 36)]
    plain, made = (forecast.forecast(hourly(values), 3 * DAY, holidays=days) for days in ((), holidays))
    assert made.mean[24:48].mean() == pytest.approx(0.5 * plain.mean[24:48].mean(), rel=0.1)
    assert made.mean[:24].mean() == pytest.approx(plain.mean[:24].mean(), rel=0.1)


def test_days_without_samples_are_bridged_and_counted() -> None:
    values = seasons(4 * 168)
    values[300:348] = math.nan
    made = forecast.forecast(hourly(values), DAY)
    assert not np.isnan(made.mean).any()


@pytest.mark.parametrize("hours", [2, 5, 30, 60, 200])
def test_a_short_history_gives_a_forecast_that_says_how_little_it_knows(hours: int) -> None:
    made = forecast.forecast(hourly(seasons(hours)), WEEK)
    assert len(made.mean) == 168
    assert (made.low <= made.mean).all()
    assert (made.mean <= made.high).all()
    assert made.high[-1] - made.low[-1] > 0
    assert any("too short" in note for note in made.notes)


def test_one_value_is_refused_with_both_numbers() -> None:
    with pytest.raises(CollectError, match="at least 2 values"):
        forecast.forecast(hourly(np.array([1.0])), DAY)


@pytest.mark.slow
def test_intervals_hold_about_80_percent_of_what_comes() -> None:
    values = seasons(10 * 168, noise=20.0)
    inside: list[float] = []
    for at in range(6 * 168, len(values) - 24, 54):
        made = forecast.forecast(hourly(values[:at]), DAY)
        actual = values[at : at + 24]
        inside.append(float(np.mean((actual >= made.low) & (actual <= made.high))))
    assert 0.75 <= np.mean(inside) <= 0.90


def test_the_back_test_of_the_past_knows_nothing_of_the_future() -> None:
    values = seasons(4 * 168)
    scale = SeasonLengths.of(HOUR)
    original, other = (
        backtest.run_backtest(hourly(past), 24, scale) for past in (values, np.append(values[:-24], np.full(24, 1e6)))
    )
    same = original.origins <= len(values) - 24
    np.testing.assert_array_equal(original.paths[same], other.paths[same])


@pytest.mark.slow
@pytest.mark.parametrize("hours", [24, 168])
def test_the_reported_error_is_what_asking_again_and_again_would_have_shown(hours: int) -> None:
    values = seasons(25 * 24, noise=25.0)
    result = forecast.forecast(hourly(values), hours * HOUR).backtest
    assert result.since_seconds is not None
    assert result.covers_horizon
    since = int(result.since_seconds / HOUR)
    origins = range(since, len(values) - hours + 1, 12)
    made = np.array([forecast.forecast(hourly(values[:at]), hours * HOUR).mean for at in origins])
    day = np.array([repeat_last(values[:at], 24, hours) for at in origins])
    actual = np.array([values[at : at + hours] for at in origins])
    assert result.origins == len(origins)
    assert result.wape == pytest.approx(missed(made, actual))
    assert result.naive_day_wape == pytest.approx(missed(day, actual))


def test_forecasts_that_had_little_to_learn_from_are_not_judged() -> None:
    random = np.random.default_rng(2)
    values = np.append(random.uniform(0, 1000, 10 * 24), np.full(20 * 24, 64.0))
    result = forecast.forecast(hourly(values), DAY).backtest
    assert result.since_seconds is not None
    assert result.since_seconds >= 15 * DAY
    assert result.wape is not None
    assert result.wape < 0.2


def test_forecasts_before_a_week_was_seen_twice_are_not_judged_where_others_are() -> None:
    result = forecast.forecast(hourly(seasons(16 * 24)), DAY).backtest
    assert (result.since_seconds, result.origins, result.covers_horizon) == (14 * DAY, 3, True)


def test_a_horizon_that_no_past_forecast_reached_is_judged_in_part_and_said() -> None:
    made = forecast.forecast(hourly(seasons(10 * 24)), WEEK)
    assert not made.backtest.covers_horizon
    assert made.backtest.wape is not None
    assert any("too short to test the whole horizon" in note for note in made.notes)


@examples(30)
@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1e5)), min_size=2, max_size=120),
    st.sampled_from([300.0, HOUR, DAY, 30 * DAY]),
    st.integers(1, 40),
)
def test_whatever_the_series_the_forecast_is_finite_ordered_and_never_negative(
    drawn: list[float | None], step: float, steps: int
) -> None:
    values = np.array([math.nan if value is None else value for value in drawn])
    if np.sum(~np.isnan(values)) < 2:
        return
    made = forecast.forecast(demand.DemandSeries(0.0, step, values), steps * step)
    assert len(made.mean) == steps
    assert np.isfinite([made.low, made.mean, made.high]).all()
    assert (made.low >= 0).all()
    assert (made.low <= made.mean + 1e-9).all()
    assert (made.mean <= made.high + 1e-9).all()


def test_a_weighted_median_is_that_of_as_many_copies() -> None:
    values = np.array([[1.0], [5.0], [9.0]])
    for weights, middle in (((1, 1, 3), 9), ((3, 1, 1), 1), ((1, 1, 1), 5)):
        assert backtest.quantiles_by_column(values, np.array(weights, dtype=float)[:, None], (0.5,)) == middle


def test_a_fleet_that_fills_up_has_a_date_and_a_number_of_gpus() -> None:
    at = np.arange(5 * 168, dtype=np.float64)
    made = forecast.forecast(hourly(100 + 0.5 * at), WEEK)
    full = advice.predict_fullness(made, 560.0, now_gpus=519.5)
    assert full.full_at == pytest.approx((len(at) + 80) * HOUR, abs=30 * HOUR)
    assert full.full_at is not None
    assert full.earliest is not None
    assert full.earliest <= full.full_at
    need = advice.gpus_needed(made, 560.0, target=0.8)
    assert need.likely_gpus == pytest.approx(600 / 0.8 - 560, abs=30)
    assert need.sure_gpus >= need.likely_gpus


def test_a_fleet_with_room_needs_nothing() -> None:
    made = forecast.forecast(hourly(np.full(500, 64.0)), DAY)
    assert advice.predict_fullness(made, 512.0, now_gpus=64.0) == advice.Fullness(512.0, False, None, None, None, 0.1)
    assert advice.gpus_needed(made, 512.0).sure_gpus == 0


def plain_shares(values: Floats, names: Collection[str] = PLAIN) -> Floats:
    """How much of a forecast of a week the plain forecasts are, or some of them, by part of the horizon."""
    rolled = backtest.run_backtest(hourly(values), 168, SeasonLengths.of(HOUR))
    weights = backtest.weights_at(rolled, backtest.measure_errors(rolled), len(rolled.origins) - 1)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0)
    return np.asarray(weights[:, np.isin(rolled.names, list(names))].sum(axis=1))


def test_a_forecast_leans_on_plain_ones_until_weeks_have_shown_what_is_better() -> None:
    weekless = [name for name in PLAIN if "week" not in name]
    few, many = (plain_shares(seasons(weeks * 168), {*PLAIN, *PLAIN_OF_WEEKS}) for weeks in (2, 10))
    assert few[-1] > 0.75 > many[-1]
    assert plain_shares(seasons(10 * 168), weekless)[-1] < 0.1


def test_the_coming_hours_lean_less_on_plain_forecasts_than_the_coming_week() -> None:
    shares = plain_shares(seasons(4 * 168))
    assert shares[0] < 0.2 < shares[-1]


def test_with_nothing_seen_all_weight_is_with_the_plain_forecasts() -> None:
    rolled = backtest.run_backtest(hourly(seasons(4 * 168)), 24, SeasonLengths.of(HOUR))
    weights = backtest.weights_at(rolled, backtest.measure_errors(rolled), 0)
    assert {name for name, weight in zip(rolled.names, weights[0], strict=True) if weight} == set(PLAIN)


@pytest.mark.parametrize(("step", "now"), [(HOUR, 60.0), (300.0, 20.0), (DAY, 60.0)])
def test_where_a_series_is_now_is_its_last_hour_or_its_last_step(step: float, now: float) -> None:
    past = np.append(np.full(30 * round(DAY / step), 10.0), [20.0, 40.0, 40.0, 60.0])
    assert set(build_candidates(past, 2, SeasonLengths.of(step))["now"]) == {now}


def test_the_weekend_of_one_week_is_expected_again_by_half() -> None:
    past = np.tile(np.repeat([100.0] * 5 + [30.0] * 2, 24), 2)[: 11 * 24]
    path = build_candidates(past, 168, SeasonLengths.of(HOUR))["last day + week"]
    assert path[:24].mean() - path[24:72].mean() == pytest.approx(35, abs=10)


def test_one_odd_day_does_not_move_the_usual_day() -> None:
    past = np.full(10 * 24, 10.0)
    past[-24:] = 100.0
    paths = build_candidates(past, 48, SeasonLengths.of(HOUR))
    assert set(paths[USUAL_DAY]) == {10.0}
    assert set(paths["naive day"]) == {100.0}


def test_a_level_goes_back_to_where_it_usually_is_and_not_to_a_mean_that_remembers_a_burst() -> None:
    past = np.full(21 * 24, 10.0)
    past[-12 * 24 : -5 * 24] = 100.0
    past[-1] = 50.0
    paths = build_candidates(past, 168, SeasonLengths.of(HOUR))
    ends = {path[-1] for name, path in paths.items() if name.startswith("back in 0.5 d") and " + " not in name}
    assert max(ends) == pytest.approx(10, abs=0.1)
    assert paths["back in 6 d to 3 d"][0] == pytest.approx(50, abs=1)


def test_after_a_last_hour_unlike_all_others_the_interval_holds_both_levels() -> None:
    values = 3300 + np.cumsum(np.random.default_rng(3).normal(0, 2, 31 * 24))
    values[-1] = 2500
    made = forecast.forecast(hourly(values), WEEK)
    assert (made.low[24:] < 2550).all()
    assert (made.high[24:] > 3250).all()


def test_where_weeks_repeat_themselves_plain_forecasts_are_those_that_know_weeks() -> None:
    scale, walk = SeasonLengths.of(HOUR), np.cumsum(np.random.default_rng(5).normal(0, 3, 3 * 168))
    assert repeated_share(seasons(3 * 168), scale) > 0.7
    assert repeated_share(300 + walk, scale) < 0.2
    assert repeated_share(seasons(167 * 2), scale) == 0
    weekless = [name for name in PLAIN if "week" not in name]
    assert plain_shares(seasons(3 * 168), weekless)[-1] < 0.25 < plain_shares(300 + walk, weekless)[-1]


def test_a_path_does_not_jump_where_two_parts_of_the_horizon_meet() -> None:
    says = np.repeat(np.arange(11.0)[:, None], 48, axis=1)
    edges, origins = np.array([0, 12, 24, 48]), np.array([72])
    rolled = backtest.RolledForecasts(
        tuple("abcdefghijk"),
        origins,
        says[None],
        says[:1],
        edges,
        SeasonLengths.of(HOUR),
        np.zeros(1),
        rms_step_change=1.0,
        stride=12,
    )
    low, high = np.linspace(1, 0, 11), np.linspace(0, 1, 11)
    path = backtest.combine_paths(rolled, np.array([low, low, high]), 0)[1]
    assert path[0] < 4
    assert path[-1] > 6
    assert np.diff(path).max() <= 1


def rolled_beside_naive(own_is_off_by: float) -> tuple[backtest.RolledForecasts, Floats]:
    """Twelve origins half a day apart, of a day each: what comes is 10, the naive ones said 12 and 14."""
    origins, steps = np.arange(72, 72 + 12 * 12, 12), 24
    actual = np.full((len(origins), steps), 10.0)
    actual[origins + steps > origins[-1]] = np.nan
    paths = np.stack([np.full((len(origins), steps), value) for value in (12.0, 14.0)], axis=1)
    edges, scale = np.array([0, steps]), SeasonLengths.of(HOUR)
    rolled = backtest.RolledForecasts(
        (NAIVE_DAY, NAIVE_WEEK),
        origins,
        paths,
        actual,
        edges,
        scale,
        np.zeros(len(origins)),
        rms_step_change=1.0,
        stride=12,
    )
    return rolled, np.full((len(origins), steps), 10.0 + own_is_off_by)


@pytest.mark.parametrize(
    ("off_by", "drawn"),
    [
        pytest.param(-1.0, 9.0, id="better"),
        pytest.param(-3.0, 10.75, id="worse"),
        pytest.param(3.0, 13.0, id="between"),
    ],
)
def test_a_forecast_without_skill_goes_three_quarters_of_the_way_to_the_naive_ones(off_by: float, drawn: float) -> None:
    rolled, own = rolled_beside_naive(off_by)
    made = backtest.pull_to_naive(rolled, backtest.measure_errors(rolled), own)
    assert made[-1] == pytest.approx(drawn)
    # The first origins have seen no outcome, so nothing tells whether they have skill.
    assert made[:4] == pytest.approx(own[:4])
