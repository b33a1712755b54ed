"""Predict when demand reaches the capacity of the fleet, and how many GPUs to add.

Demand is allocated and pending GPUs, because allocation alone cannot exceed the capacity. The expected date comes from
the middle of the forecast, the earliest from its upper limit and the latest from its lower limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.forecast import Forecast

# Above 80 % new jobs start to wait, and buying GPUs takes months. The alert FleetNearlyFull has the same threshold.
TARGET = 0.8
# The share of steps in which the target must hold; 1 would mean buying GPUs for the single highest hour.
TARGET_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Fullness:
    """When demand reaches `capacity_gpus`; a time is None if it is not within the horizon.

    `likely` is the highest probability of any step to be full, 0.1 to 0.9.
    """

    capacity_gpus: float
    is_full_now: bool
    full_at: float | None
    earliest: float | None
    latest: float | None
    likely: float


@dataclass(frozen=True, slots=True)
class GpusNeeded:
    """GPUs to add so that demand stays at or below the share `target` of the fleet in 95 % of all steps.

    `likely_gpus` uses the middle of the forecast, `sure_gpus` its upper limit, so the target holds with about 90 %.
    """

    target: float
    likely_gpus: int
    sure_gpus: int


def predict_fullness(demand: Forecast, capacity_gpus: float, *, now_gpus: float | None) -> Fullness:
    """Predict when the fleet is full; `now_gpus` is the current demand, None if the series ends in a gap."""
    reached = [np.flatnonzero(path >= capacity_gpus) for path in (demand.mean, demand.high, demand.low)]
    full_at, earliest, latest = (float(demand.times[steps[0]]) if len(steps) else None for steps in reached)
    is_full_now = now_gpus is not None and now_gpus >= capacity_gpus
    return Fullness(capacity_gpus, is_full_now, full_at, earliest, latest, _highest_chance(demand, capacity_gpus))


def _highest_chance(demand: Forecast, capacity_gpus: float) -> float:
    """Return the highest probability of any step to be full: 0.1 at `high`, 0.5 at `mean`, linear in between.

    Outside the interval only "at most 0.1" and "at least 0.9" are known; 0.1 and 0.9 are returned.
    """
    points = np.stack([demand.low, demand.mean, demand.high])
    # np.interp needs strictly rising values; the limits of a constant series are equal.
    rising = points + np.array([[0.0], [1e-9], [2e-9]]) * np.maximum(1.0, np.abs(points).max(axis=0))
    columns = np.maximum.accumulate(rising, axis=0).T
    return max(float(np.interp(capacity_gpus, column, (0.9, 0.5, 0.1))) for column in columns)


def gpus_needed(demand: Forecast, capacity_gpus: float, *, target: float = TARGET) -> GpusNeeded:
    likely, sure = (
        max(0, math.ceil(float(np.quantile(path, TARGET_QUANTILE)) / target - capacity_gpus - 1e-9))
        for path in (demand.mean, demand.high)
    )
    return GpusNeeded(target, likely, sure)
