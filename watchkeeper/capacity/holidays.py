"""Days that are not like others: left out of what is learnt, and put back where they come.

Which days these are only the users know; they name them. Past ones become gaps, so that no season learns them, and
show how much of an ordinary day's demand a holiday has; coming ones get that share of their forecast. `forecast` calls.
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
    """`share` is a holiday's part of an ordinary day, None where no past holiday was named; `coming` marks steps."""

    series: demand.DemandSeries
    share: float | None
    coming: demand.Mask

    def applied(self, path: Floats) -> Floats:
        return np.where(self.coming, path * self.share, path) if self.share is not None else path


def take_out(series: demand.DemandSeries, days: Iterable[float], *, steps: int) -> Holidays:
    """`days` are the moments, in seconds, at which holidays begin."""
    starts = sorted(set(days))
    ahead = series.end_seconds + series.step_seconds * np.arange(steps)
    times = series.start_seconds + series.step_seconds * np.arange(len(series))
    past, coming = _inside(times, starts), _inside(ahead, starts)
    if not past.any():
        return Holidays(series, None, coming)
    ordinary = np.where(past, math.nan, series.values)
    scale = SeasonLengths.of(series.step_seconds)
    expected = demand.fill_gaps(ordinary, day=scale.day, week=scale.week)
    shares = []
    for start in starts:
        on = _inside(times, [start]) & ~np.isnan(series.values)
        if on.any() and float(expected[on].sum()) > 0:
            shares.append(float(series.values[on].sum() / expected[on].sum()))
    kept = demand.DemandSeries(series.start_seconds, series.step_seconds, ordinary, series.notes)
    return Holidays(kept, float(np.median(shares)) if shares else None, coming)


def _inside(times: npt.NDArray[np.floating], starts: list[float]) -> demand.Mask:
    found = np.zeros(len(times), dtype=np.bool_)
    for start in starts:
        found |= (times >= start) & (times < start + DAY_SECONDS)
    return found
