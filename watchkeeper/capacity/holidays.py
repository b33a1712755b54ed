"""Remove holidays from the history of a forecast, and scale the forecast of future holidays.

The user lists the holidays. Past holidays become gaps, so that they do not affect the seasons, and give the ratio of
holiday demand to normal demand. The forecast of a future holiday is multiplied by that ratio. `forecast` calls it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from watchkeeper.capacity import demand
from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast_models import SeasonLengths

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class Holidays:
    """A series without holidays; `share` is the demand of a holiday as a share of normal, None without past holidays.

    `is_future` marks the steps ahead that are on a holiday.
    """

    series: demand.DemandSeries
    share: float | None
    is_future: demand.Mask

    def apply(self, path: Floats) -> Floats:
        return np.where(self.is_future, path * self.share, path) if self.share is not None else path


def remove_holidays(series: demand.DemandSeries, days: Iterable[float], *, steps: int) -> Holidays:
    """Replace past holidays by gaps; `days` are the start times of the holidays, in seconds."""
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
    remaining = demand.DemandSeries(series.start_seconds, series.step_seconds, without_holidays, series.notes)
    return Holidays(remaining, float(np.median(shares)) if shares else None, is_future)


def _is_on_days(times: npt.NDArray[np.floating], starts: list[float]) -> demand.Mask:
    is_inside = np.zeros(len(times), dtype=np.bool_)
    for start in starts:
        is_inside |= (times >= start) & (times < start + DAY_SECONDS)
    return is_inside
