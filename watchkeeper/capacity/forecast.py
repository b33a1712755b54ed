"""Forecast a series: a path with prediction intervals, the model weights, and the errors of past forecasts.

Past holidays become gaps and give the ratio of holiday demand to normal demand, by which the forecast of a future
holiday is multiplied. `watchkeeper capacity forecast` and the API call `forecast`; `fullness` uses the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from watchkeeper.capacity import backtest, demand, fallback, intervals, trends
from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast_models import NAIVE_DAY, NAIVE_WEEK, SeasonLengths, find_bounds, straight_line
from watchkeeper.errors import CollectError

# A weekly season needs two weeks. Past forecasts with less history are evaluated only if there are no others.
MIN_WEEKS = 2
# Origins with fewer earlier outcomes are not evaluated, because their weights are not yet meaningful.
MIN_OUTCOMES = 3
# So many evenly spaced forecasts measure the coverage of intervals to within a few per cent.
MAX_EVALUATED = 24
# The model name lists the top models until they have this share of the weight.
NAMED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """The errors of past forecasts from `since_seconds` on; None if the history is too short."""

    wape: float | None
    # Of the better naive forecast, which repeats the last day or the last week, on the same points.
    naive_wape: float | None
    naive_day_wape: float | None
    naive_week_wape: float | None
    straight_line_wape: float | None
    covered: float | None
    origins: int
    since_seconds: float | None
    # Whether they are evaluated over the whole horizon.
    covers_horizon: bool


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """The expected values and the 80 % interval from `low` to `high`, by step from `start_seconds`."""

    start_seconds: float
    step_seconds: float
    mean: Floats
    low: Floats
    high: Floats
    model: str
    weights: dict[str, float]
    backtest: BacktestResult
    notes: tuple[str, ...]

    @property
    def times(self) -> Floats:
        return np.asarray(self.start_seconds + self.step_seconds * np.arange(len(self.mean)))


def forecast(series: demand.DemandSeries, horizon_seconds: float, *, holidays: Iterable[float] = ()) -> Forecast:
    """Forecast the next `horizon_seconds` of a series; `holidays` are the start times of holidays in seconds."""
    steps = _count_steps(series, horizon_seconds)
    adjusted = remove_holidays(series, holidays, steps=steps)
    series = adjusted.series
    scale = SeasonLengths.of(series.step_seconds)
    rolled = backtest.run_backtest(series, steps, scale)
    model_errors = backtest.measure_errors(rolled)
    weights = [backtest.weights_at(rolled, model_errors, row) for row in range(len(rolled.origins))]
    combined = np.array([backtest.combine_paths(rolled, row_weights, row) for row, row_weights in enumerate(weights)])
    paths = backtest.pull_to_naive(rolled, model_errors, combined[:, 1])
    paths, week_share = fallback.prefer_last_week(rolled, paths)
    past_forecasts = _PastForecasts.of(rolled, paths, combined)
    low, high = _interval(paths[-1], past_forecasts.residuals.offsets(len(series)), combined[-1])
    lowest, highest = find_bounds(demand.fill_gaps(series.values, day=scale.day, week=scale.week), scale.day)
    shares, model_name = _model_shares(rolled, weights[-1])
    return Forecast(
        series.end_seconds,
        series.step_seconds,
        adjusted.apply(paths[-1]),
        adjusted.apply(np.clip(low, lowest, highest)),
        adjusted.apply(np.clip(high, lowest, highest)),
        model_name,
        shares,
        past_forecasts.evaluate(series),
        (*series.notes, *_notes(series, rolled, past_forecasts, week_share=week_share), *adjusted.notes),
    )


def _count_steps(series: demand.DemandSeries, horizon_seconds: float) -> int:
    """Return the number of steps to forecast; raise CollectError if they are too many, or the values too few."""
    steps = max(1, math.ceil(horizon_seconds / series.step_seconds - 1e-9))
    if steps > demand.MAX_STEPS_AHEAD:
        most = f"{steps:,} steps ahead; the limit is {demand.MAX_STEPS_AHEAD:,}"
        raise CollectError(most, remedy="Set a shorter horizon or a longer --step")
    value_count = int(np.sum(~np.isnan(series.values)))
    if value_count < 2:
        state = f"The series has {value_count} values in {len(series)} steps"
        remedy = "Check the table for a time that is far from the others" if len(series) > 2 else None
        raise CollectError("a forecast needs at least 2 values", now=state, remedy=remedy)
    return steps


def _model_shares(rolled: backtest.RolledForecasts, weights: Floats) -> tuple[dict[str, float], str]:
    """Return the weight of each model over the whole horizon, the largest first, and the name of the combination."""
    lengths = np.diff(rolled.edges)
    total = lengths @ weights / lengths.sum()
    order = np.argsort(-total, kind="stable")
    shares = {rolled.names[at]: round(float(total[at]), 4) for at in order if total[at] >= 0.001}
    named: list[str] = []
    while len(named) < min(4, len(shares)) and sum(shares[name] for name in named) < NAMED_SHARE:
        named.append(list(shares)[len(named)])
    return shares, f"weighted median of {len(shares)}: mostly {', '.join(named)}"


def _interval(mean: Floats, offsets: tuple[Floats, Floats], model_range: Floats) -> tuple[Floats, Floats]:
    """Return both limits of the interval: from past errors, and at least as wide as the middle 80 % of the models."""
    # Past errors do not reflect a sudden change in the last hour, but the models then disagree.
    low, high = offsets
    return np.minimum(mean + low, model_range[0]), np.maximum(mean + high, model_range[2])


@dataclass(frozen=True, slots=True, eq=False)
class _PastForecasts:
    """The forecasts at past origins; `combined` has the weighted quantiles of the models."""

    rolled: backtest.RolledForecasts
    rows: list[int]
    paths: Floats
    combined: Floats
    residuals: intervals.ForecastResiduals

    @classmethod
    def of(cls, rolled: backtest.RolledForecasts, paths: Floats, combined: Floats) -> _PastForecasts:
        """Select the origins with at least one outcome and enough earlier outcomes."""
        outcome_times = rolled.origins + rolled.edges[1]
        rows = [
            row
            for row, origin in enumerate(rolled.origins)
            if not np.isnan(rolled.actual[row]).all() and int(np.sum(outcome_times <= origin)) >= MIN_OUTCOMES
        ]
        residuals = intervals.ForecastResiduals.of(rolled.actual[rows] - paths[rows], rolled.origins[rows], rolled)
        return cls(rolled, rows, paths[rows], combined[rows], residuals)

    @property
    def origins(self) -> backtest.Indexes:
        return self.rolled.origins[self.rows]

    @property
    def covers_horizon(self) -> bool:
        return int(self._is_evaluated(whole_horizon=True).sum()) >= MIN_OUTCOMES

    def _is_evaluated(self, *, whole_horizon: bool) -> demand.Mask:
        """Select the forecasts to evaluate."""
        # They have two weeks of earlier outcomes (half of them in a shorter history) and, if possible, two weeks of
        # data.
        first, now = self.rolled.origins[0], self.rolled.origins[-1]
        weeks = MIN_WEEKS * self.rolled.scale.week
        is_trained = self.origins - first >= min(weeks, (now - first) // 2)
        has_season = is_trained & (self.origins >= weeks)
        if int(has_season.sum()) >= MIN_OUTCOMES:
            is_trained = has_season
        return np.asarray(is_trained & (self.origins + (self.rolled.steps if whole_horizon else 0) <= now))

    def evaluate(self, series: demand.DemandSeries) -> BacktestResult:
        evaluated = np.flatnonzero(self._is_evaluated(whole_horizon=self.covers_horizon))
        rows = [self.rows[index] for index in evaluated]
        actual, model_paths = self.rolled.actual[rows], self.rolled.paths[rows]
        naive_day, naive_week = (
            backtest.wape(model_paths[:, self.rolled.names.index(name)], actual) for name in (NAIVE_DAY, NAIVE_WEEK)
        )
        values = demand.fill_gaps(series.values, day=self.rolled.scale.day, week=self.rolled.scale.week)
        lines = [straight_line(values[:origin], self.rolled.steps) for origin in self.origins[evaluated]]
        first = int(self.origins[evaluated[0]]) if len(evaluated) else None
        return BacktestResult(
            backtest.wape(self.paths[evaluated], actual),
            min((value for value in (naive_day, naive_week) if value is not None), default=None),
            naive_day,
            naive_week,
            backtest.wape(np.array(lines).reshape(actual.shape), actual),
            self._covered(evaluated),
            len(evaluated),
            None if first is None else series.start_seconds + first * series.step_seconds,
            self.covers_horizon,
        )

    def _covered(self, evaluated: backtest.Indexes) -> float | None:
        """Return the share of outcomes inside their interval; each interval uses only earlier outcomes."""
        covered = outcomes = 0
        evaluated = evaluated[evaluated >= intervals.MIN_CALIBRATED]
        for index in evaluated[:: max(1, len(evaluated) // MAX_EVALUATED)]:
            offsets = self.residuals.offsets(int(self.origins[index]))
            low, high = _interval(self.paths[index], offsets, self.combined[index])
            actual = self.rolled.actual[self.rows[index]]
            outcomes += int(np.sum(~np.isnan(actual)))
            covered += int(np.sum((actual >= low) & (actual <= high)))
        return covered / outcomes if outcomes else None


def _notes(
    series: demand.DemandSeries,
    rolled: backtest.RolledForecasts,
    past_forecasts: _PastForecasts,
    *,
    week_share: float,
) -> list[str]:
    notes = []
    if week_share:
        notes.append(
            f"repeating the last week was more accurate so far: it is {100 * week_share:.0f} % of the forecast"
        )
    day, week = rolled.scale.day, rolled.scale.week
    values = demand.fill_gaps(series.values, day=day, week=week)
    gaps = demand.find_outages(values, day=day)
    # A gap that is filled with last week's outage is not an outage.
    outage_steps = [steps for start, end, _ in gaps if (steps := int(np.sum(~np.isnan(series.values[start:end]))))]
    if outage_steps:
        notes.append(f"outages: {len(outage_steps)}, {sum(outage_steps)} steps in total; they count as gaps")
    if not rolled.scale.has_day or len(series) < 2 * day:
        notes.append("no daily season: the series is too short or its steps too long")
    if not rolled.scale.has_week or len(series) < 2 * week:
        notes.append("no weekly season: the series has less than two weeks or its steps are too long")
    if not past_forecasts.covers_horizon:
        notes.append("the history is too short to test the whole horizon: the far end is uncertain")
    trend = trends.estimate_trend(values, day, has_week=rolled.scale.has_week)
    if trend.reliable_slope and rolled.scale.has_week:
        notes.append(f"a trend of {trend.reliable_slope * week:+,.1f} a week is extrapolated")
    return notes


@dataclass(frozen=True, slots=True, eq=False)
class Holidays:
    """A series without holidays; `share` is the demand of a holiday divided by normal, None without past holidays."""

    series: demand.DemandSeries
    share: float | None
    is_future: demand.Mask

    @property
    def notes(self) -> list[str]:
        if self.share is not None:
            return [f"a holiday has {100 * self.share:.0f} % of the demand of a normal day"]
        return ["no past holiday is set: future holidays are forecast as normal days"] if self.is_future.any() else []

    def apply(self, path: Floats) -> Floats:
        return np.where(self.is_future, path * self.share, path) if self.share is not None else path


def remove_holidays(series: demand.DemandSeries, days: Iterable[float], *, steps: int) -> Holidays:
    starts = sorted(set(days))
    future_times = series.end_seconds + series.step_seconds * np.arange(steps)
    times = series.start_seconds + series.step_seconds * np.arange(len(series))
    is_past, is_future = _is_on_days(times, starts), _is_on_days(future_times, starts)
    if not is_past.any():
        return Holidays(series, None, is_future)
    without_holidays = np.where(is_past, math.nan, series.values)
    scale = SeasonLengths.of(series.step_seconds)
    expected = demand.fill_gaps(without_holidays, day=scale.day, week=scale.week)
    shares = []
    for start in starts:
        is_holiday = _is_on_days(times, [start]) & ~np.isnan(series.values)
        if is_holiday.any() and float(expected[is_holiday].sum()) > 0:
            shares.append(float(series.values[is_holiday].sum() / expected[is_holiday].sum()))
    remaining = replace(series, values=without_holidays)
    return Holidays(remaining, float(np.median(shares)) if shares else None, is_future)


def _is_on_days(times: npt.NDArray[np.floating], starts: list[float]) -> demand.Mask:
    is_inside = np.zeros(len(times), dtype=np.bool_)
    for start in starts:
        is_inside |= (times >= start) & (times < start + demand.DAY_SECONDS)
    return is_inside
