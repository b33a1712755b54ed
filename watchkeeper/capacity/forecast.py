"""The forecast of a series: a path with intervals, the models behind it, and how wrong it would have been so far.

`forecast` is what `watchkeeper capacity forecast` and the hub's API ask; `fullness` goes on from what it returns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity import backtest, demand, intervals, trends
from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast_models import (
    NAIVE_DAY,
    NAIVE_WEEK,
    SeasonLengths,
    bounds,
    straight_line,
)
from watchkeeper.capacity.holidays import Holidays, take_out
from watchkeeper.errors import CollectError

# What a weekly season needs. Forecasts with less before them are not like the coming one, and are not judged where
# there are others.
ENOUGH_WEEKS = 2
# An origin whose weights rest on fewer outcomes is not yet the procedure that is judged.
LEAST_OUTCOMES = 3
# So many forecasts, spread evenly, tell the share that intervals hold to some percent.
MOST_JUDGED = 24
# Models that together carry less than this are not worth naming.
NAMED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """How the procedure did on the past; None where the history is too short to tell.

    `naive_wape` is that of the better of the two naive forecasts, which repeat the last day or the last week, on the
    same points. Forecasts from `since_seconds` on are judged, over the whole horizon where `is_whole`.
    """

    wape: float | None
    naive_wape: float | None
    naive_day_wape: float | None
    naive_week_wape: float | None
    straight_line_wape: float | None
    covered: float | None
    origins: int
    since_seconds: float | None
    is_whole: bool


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """`mean` is the middle of what is expected, `low` and `high` hold 80 % of it; all by step from `start_seconds`."""

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
    """The next `horizon_seconds` of a series, at its own step; `holidays` are the seconds at which such days begin."""
    steps = max(1, math.ceil(horizon_seconds / series.step_seconds - 1e-9))
    _refuse_what_cannot_be(series, steps)
    days = take_out(series, holidays, steps=steps)
    series = days.series
    scale = SeasonLengths.of(series.step_seconds)
    rolled = backtest.roll(series, steps, scale)
    missed = backtest.errors(rolled)
    weights = [backtest.weights_at(rolled, missed, row) for row in range(len(rolled.origins))]
    said = np.array([backtest.combined(rolled, one, row) for row, one in enumerate(weights)])
    paths = backtest.steadied(rolled, missed, said[:, 1])
    mean = paths[-1]
    rows = _tested_rows(rolled)
    tested = _PastForecasts.of(rolled, rows, paths[rows], said[rows])
    low, high = _interval(mean, tested.track.offsets(len(series)), said[-1])
    lowest, highest = bounds(demand.fill_gaps(series.values, day=scale.day, week=scale.week), scale.day)
    shares = _shares(rolled, weights[-1])
    return Forecast(
        series.end_seconds,
        series.step_seconds,
        days.applied(mean),
        days.applied(np.clip(low, lowest, highest)),
        days.applied(np.clip(high, lowest, highest)),
        _model_name(shares),
        shares,
        tested.judged(series),
        (*series.notes, *_notes(series, rolled, tested), *_holiday_notes(days)),
    )


def _refuse_what_cannot_be(series: demand.DemandSeries, steps: int) -> None:
    if steps > demand.MOST_AHEAD:
        most = f"{steps:,} steps ahead; the most is {demand.MOST_AHEAD:,}"
        raise CollectError(most, remedy="Ask for a shorter horizon, or for a longer --step")
    known = int(np.sum(~np.isnan(series.values)))
    if known < 2:
        true_now = f"The series has {known} in {len(series)} steps"
        remedy = "Look for a time that is far from the others" if len(series) > 2 else None
        raise CollectError("a forecast needs at least 2 values", now=true_now, remedy=remedy)


def _interval(mean: Floats, offsets: tuple[Floats, Floats], said: Floats) -> tuple[Floats, Floats]:
    """Both edges: as far as past forecasts missed, and no nearer than what four fifths of the models' weight says.

    Past errors know nothing of a last hour that is half of the one before; that the models disagree about it does.
    """
    low, high = offsets
    return np.minimum(mean + low, said[0]), np.maximum(mean + high, said[2])


def _tested_rows(rolled: backtest.RolledForecasts) -> list[int]:
    """Origins with some outcome, and with enough of them before."""
    soonest = rolled.edges[1]
    return [
        row
        for row, origin in enumerate(rolled.origins)
        if not np.isnan(rolled.actual[row]).all() and int(np.sum(rolled.origins + soonest <= origin)) >= LEAST_OUTCOMES
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _PastForecasts:
    """What the procedure itself would have said at past origins, and what its models `said` together."""

    rolled: backtest.RolledForecasts
    rows: list[int]
    paths: Floats
    said: Floats
    track: intervals.ForecastResiduals

    @classmethod
    def of(cls, rolled: backtest.RolledForecasts, rows: list[int], paths: Floats, said: Floats) -> _PastForecasts:
        track = intervals.ForecastResiduals.of(rolled.actual[rows] - paths, rolled.origins[rows], rolled)
        return cls(rolled, rows, paths, said, track)

    @property
    def origins(self) -> backtest.Indexes:
        return self.rolled.origins[self.rows]

    @property
    def is_whole(self) -> bool:
        """Whether some forecasts can be judged over the whole horizon."""
        return int(self._learnt(whole=True).sum()) >= LEAST_OUTCOMES

    def _learnt(self, *, whole: bool) -> demand.Mask:
        """Forecasts after two weeks of outcomes, or half of them in a shorter history, and after two weeks at all."""
        first, now = self.rolled.origins[0], self.rolled.origins[-1]
        weeks = ENOUGH_WEEKS * self.rolled.scale.week
        learnt = self.origins - first >= min(weeks, (now - first) // 2)
        seasoned = learnt & (self.origins >= weeks)
        if int(seasoned.sum()) >= LEAST_OUTCOMES:
            learnt = seasoned
        return np.asarray(learnt & (self.origins + (self.rolled.steps if whole else 0) <= now))

    def judged(self, series: demand.DemandSeries) -> BacktestResult:
        judged = np.flatnonzero(self._learnt(whole=self.is_whole))
        rows = [self.rows[at] for at in judged]
        actual, asked = self.rolled.actual[rows], self.rolled.paths[rows]
        naive = {
            name: backtest.wape(asked[:, self.rolled.names.index(name)], actual) for name in (NAIVE_DAY, NAIVE_WEEK)
        }
        first = int(self.origins[judged[0]]) if len(judged) else None
        return BacktestResult(
            backtest.wape(self.paths[judged], actual),
            min((value for value in naive.values() if value is not None), default=None),
            naive[NAIVE_DAY],
            naive[NAIVE_WEEK],
            backtest.wape(self._lines(series, judged), actual),
            self._covered(judged),
            len(judged),
            None if first is None else series.start_seconds + first * series.step_seconds,
            self.is_whole,
        )

    def _lines(self, series: demand.DemandSeries, judged: backtest.Indexes) -> Floats:
        scale = self.rolled.scale
        values = demand.fill_gaps(series.values, day=scale.day, week=scale.week)
        lines = [straight_line(values[:origin], self.rolled.steps) for origin in self.origins[judged]]
        return np.array(lines).reshape(len(judged), self.rolled.steps)

    def _covered(self, judged: backtest.Indexes) -> float | None:
        """The share of outcomes inside intervals that were made of earlier outcomes only."""
        inside = known = 0
        judged = judged[judged >= intervals.LEAST_CALIBRATED]
        for at in judged[:: max(1, len(judged) // MOST_JUDGED)]:
            low, high = _interval(self.paths[at], self.track.offsets(int(self.origins[at])), self.said[at])
            came = self.rolled.actual[self.rows[at]]
            known += int(np.sum(~np.isnan(came)))
            inside += int(np.sum((came >= low) & (came <= high)))
        return inside / known if known else None


def _shares(rolled: backtest.RolledForecasts, weights: Floats) -> dict[str, float]:
    """How much each model has to say over the whole horizon, the most first."""
    lengths = np.diff(rolled.edges)
    total = lengths @ weights / lengths.sum()
    order = np.argsort(-total, kind="stable")
    return {rolled.names[at]: round(float(total[at]), 4) for at in order if total[at] >= 0.001}


def _model_name(shares: dict[str, float]) -> str:
    named: list[str] = []
    for name, _ in list(shares.items())[:4]:
        named.append(name)
        if sum(shares[one] for one in named) >= NAMED_SHARE:
            break
    return f"weighted median of {len(shares)}: mostly {', '.join(named)}"


def _holiday_notes(days: Holidays) -> list[str]:
    if days.share is not None:
        return [f"a holiday has {100 * days.share:.0f} % of an ordinary day's demand"]
    return ["no past holiday is named: coming ones are taken for ordinary days"] if days.coming.any() else []


def _notes(series: demand.DemandSeries, rolled: backtest.RolledForecasts, tested: _PastForecasts) -> list[str]:
    notes = []
    day, week = rolled.scale.day, rolled.scale.week
    gaps = demand.find_outages(demand.fill_gaps(series.values, day=day, week=week), day=day)
    # A gap that is filled with last week's outage is none itself.
    lost = [steps for start, end, _ in gaps if (steps := int(np.sum(~np.isnan(series.values[start:end]))))]
    if lost:
        notes.append(f"falls to nothing that came back count as outages: {len(lost)}, {sum(lost)} steps in all")
    if not rolled.scale.has_day or len(series) < 2 * day:
        notes.append("no daily season can be seen in this series")
    if not rolled.scale.has_week or len(series) < 2 * week:
        notes.append("no weekly season can be seen in this series: two weeks are the least")
    if not tested.is_whole:
        notes.append("the history is too short to test the whole horizon: the far end is a guess")
    trend = trends.estimate_trend(
        demand.fill_gaps(series.values, day=day, week=week), day, has_week=rolled.scale.has_week
    )
    if trend.relied_on and rolled.scale.has_week:
        notes.append(f"a trend of {trend.relied_on * week:+,.1f} a week is taken to go on")
    return notes
