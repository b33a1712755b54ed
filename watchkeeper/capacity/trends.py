"""The trend of a series over weeks: how steep it was, and how much of that can be relied on to go on.

Seasons are learnt from what is left without the whole slope, since a fleet that grows would seem to fall each Sunday
night. Only the part of it that stands out is taken to go on: how far a series wanders by itself, from day to day and
over weeks, says what slope is nothing but that, and growth that has stopped since is none. `forecast_models` asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.demand import Floats

# Fewer days have no weekdays to take out.
LEAST_DAYS = 14
# What a series wanders is looked at from day to day, and over a quarter of the time: a walk goes on to wander, noise
# does not. A slope has to be this many standard errors of either steep before any of it is taken to go on. Looser ones
# were better on series that grow and worse on walks (docs/reference/performance.md).
DAILY_ERRORS, LONG_ERRORS, LONG_SHARE = 2.0, 1.0, 0.25
# The trend of the last third, and of ten days at least, tells whether it goes on.
LATE_SHARE, LEAST_LATE_DAYS = 1 / 3, 10


@dataclass(frozen=True, slots=True)
class Trend:
    """Slopes by step: as it was, and as it is relied on, which is less or nothing."""

    slope: float = 0.0
    relied_on: float = 0.0


def estimate_trend(past: Floats, day: int, *, has_week: bool = True) -> Trend:
    """The trend of a past without gaps, of which `day` steps are a day; longer steps, without a week, are days here."""
    days = len(past) // day
    if days < LEAST_DAYS:
        return Trend()
    means = past[-days * day :].reshape(days, day).mean(axis=1)
    if has_week:
        means = _without_weekdays(means)
    slope = median_slope(means)
    late = median_slope(means[-max(LEAST_LATE_DAYS, round(days * LATE_SHARE)) :])
    if slope * late <= 0:
        return Trend(slope / day)
    return Trend(slope / day, _trust(means, slope) * min(slope, late, key=abs) / day)


def median_slope(values: Floats) -> float:
    """Theil and Sen's slope by step: one odd value does not turn it."""
    one, other = np.triu_indices(len(values), 1)
    return float(np.median((values[other] - values[one]) / (other - one)))


def _without_weekdays(means: Floats) -> Floats:
    at = np.arange(len(means))
    rest = means - median_slope(means) * at
    usual = np.array([np.median(rest[weekday::7]) for weekday in range(7)])
    return np.asarray(means - (usual - usual.mean())[at % 7])


def _trust(means: Floats, slope: float) -> float:
    """1 for a slope that no wandering explains, 0 for one that it does."""
    long = max(7, int(len(means) * LONG_SHARE))
    wanders = max(DAILY_ERRORS * _error(means, 1), LONG_ERRORS * _error(means, long))
    return max(0.0, 1 - (wanders / slope) ** 2)


def _error(means: Floats, lag: int) -> float:
    """Standard error of a slope, from how much the change over `lag` days varies."""
    changes = means[lag:] - means[:-lag]
    return float(changes.std()) / (lag * math.sqrt(max(1.0, len(means) / lag - 1)))
