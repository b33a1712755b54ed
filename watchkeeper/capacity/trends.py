"""Estimate the trend of a series over weeks, and the part of it that is reliable enough for a forecast.

Seasons are learnt without the full slope, because a growing fleet would otherwise seem to shrink each Sunday. Only
the significant part of the slope is extrapolated. The random drift of the series, from day to day and over weeks, sets
the threshold, and growth that has stopped does not count. `forecast_models` calls it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.demand import Floats

# With fewer days, the effect of weekdays cannot be removed.
MIN_DAYS = 14
# Drift is measured from day to day and over a quarter of the time, because a random walk keeps drifting and noise does
# not. A slope below this many standard errors of either is not extrapolated. Lower thresholds were better on growing
# series and worse on random walks (docs/reference/performance.md).
DAILY_ERRORS, LONG_ERRORS, LONG_SHARE = 2.0, 1.0, 0.25
# The trend must also hold in the last third of the history, at least ten days.
LATE_SHARE, MIN_LATE_DAYS = 1 / 3, 10


@dataclass(frozen=True, slots=True)
class Trend:
    """Slopes per step: the measured slope, and the part that is extrapolated, which can be 0."""

    slope: float = 0.0
    reliable_slope: float = 0.0


def estimate_trend(past: Floats, day: int, *, has_week: bool = True) -> Trend:
    """Estimate the trend of a history without gaps; `day` is the number of steps in a day, 1 for longer steps."""
    days = len(past) // day
    if days < MIN_DAYS:
        return Trend()
    means = past[-days * day :].reshape(days, day).mean(axis=1)
    if has_week:
        at = np.arange(days)
        rest = means - median_slope(means) * at
        usual = np.array([np.median(rest[weekday::7]) for weekday in range(7)])
        means = np.asarray(means - (usual - usual.mean())[at % 7])
    slope = median_slope(means)
    late = median_slope(means[-max(MIN_LATE_DAYS, round(days * LATE_SHARE)) :])
    if slope * late <= 0:
        return Trend(slope / day)
    return Trend(slope / day, _reliability(means, slope) * min(slope, late, key=abs) / day)


def median_slope(values: Floats) -> float:
    """Return the Theil–Sen slope per step, which is robust against outliers."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.median((values[second] - values[first]) / (second - first)))


def _reliability(means: Floats, slope: float) -> float:
    """Return how reliable a slope is: near 1 if random drift cannot explain it, 0 if it can."""
    long = max(7, int(len(means) * LONG_SHARE))
    drift = max(DAILY_ERRORS * _slope_error(means, 1), LONG_ERRORS * _slope_error(means, long))
    return max(0.0, 1 - (drift / slope) ** 2)


def _slope_error(means: Floats, lag: int) -> float:
    """Return the standard error of a slope, from the variation of changes over `lag` days."""
    changes = means[lag:] - means[:-lag]
    return float(changes.std()) / (lag * math.sqrt(max(1.0, len(means) / lag - 1)))
