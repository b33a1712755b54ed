"""When is it full, and how many GPUs would help: the forecast of demand against what the fleet has.

Demand is what is held and what waits, because GPUs that are all taken cannot be taken more often. The answer comes with
how sure it is: the date from the middle of the forecast, the earliest from its upper edge, the latest from its lower.
Advice is data for others (`advice`): nothing here, and nobody who calls it, orders or adds a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.forecast import Forecast

# Above 80 % new work begins to wait, and ordering takes months: the threshold of the alert FleetNearlyFull.
TARGET = 0.8
# Shares of the steps' demand that a target has to hold for: nearly always, without buying for the one highest hour.
NEARLY_ALWAYS = 0.95


@dataclass(frozen=True, slots=True)
class Fullness:
    """When demand reaches `capacity_gpus`; None: not within the horizon. `is_full_now` where it has already.

    `likely` is the chance to be full at the fullest step, 0.1 to 0.9.
    """

    capacity_gpus: float
    is_full_now: bool
    full_at: float | None
    earliest: float | None
    latest: float | None
    likely: float


@dataclass(frozen=True, slots=True)
class GpusNeeded:
    """GPUs to add so that demand stays at or below `target` of the fleet in 95 % of all steps; 0: none.

    `likely_gpus` is by the middle of the forecast, `sure_gpus` by its upper edge: with so many the target holds with
    about 90 %.
    """

    target: float
    likely_gpus: int
    sure_gpus: int


def fullness(demand: Forecast, capacity_gpus: float, *, now_gpus: float | None) -> Fullness:
    """`now_gpus` is what is asked for now; None where the series ends in a gap."""
    return Fullness(
        capacity_gpus,
        now_gpus is not None and now_gpus >= capacity_gpus,
        _first(demand, demand.mean, capacity_gpus),
        _first(demand, demand.high, capacity_gpus),
        _first(demand, demand.low, capacity_gpus),
        _chance(demand, capacity_gpus),
    )


def _first(demand: Forecast, path: Floats, capacity_gpus: float) -> float | None:
    reached = np.flatnonzero(path >= capacity_gpus)
    return float(demand.times[reached[0]]) if len(reached) else None


def _chance(demand: Forecast, capacity_gpus: float) -> float:
    """The highest chance of any step to be full: a tenth lies above `high`, half above `mean`, straight between.

    Beyond the edges of the interval only "a tenth or less" and "nine tenths or more" are known: 0.1 and 0.9 say that.
    """
    points = np.stack([demand.low, demand.mean, demand.high])
    chances = [float(np.interp(capacity_gpus, _rising(column), (0.9, 0.5, 0.1))) for column in points.T]
    return max(chances)


def _rising(column: Floats) -> Floats:
    """np.interp needs values that rise; equal edges, as of a constant series, are a hair apart."""
    return np.maximum.accumulate(column + np.array([0.0, 1e-9, 2e-9]) * max(1.0, float(np.abs(column).max())))


def gpus_needed(demand: Forecast, capacity_gpus: float, *, target: float = TARGET) -> GpusNeeded:
    likely, sure = (
        max(0, math.ceil(float(np.quantile(path, NEARLY_ALWAYS)) / target - capacity_gpus - 1e-9))
        for path in (demand.mean, demand.high)
    )
    return GpusNeeded(target, likely, sure)
