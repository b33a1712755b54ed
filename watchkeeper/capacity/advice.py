"""Predict when demand reaches the capacity of the fleet, and create scaling advice, as data and as a sentence.

Demand is allocated and pending GPUs, because allocation alone cannot exceed the capacity. Autoscalers, ticket systems
and people read the advice (`GET /api/capacity/advice`, `watchkeeper capacity forecast --json`); Watchkeeper does not
act on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from watchkeeper.capacity.forecast import Forecast
from watchkeeper.capacity.rightsizing import Repartition
from watchkeeper.model.fleet_capacity import FleetCapacity

# With fewer stranded GPUs, moving jobs costs more than it gains.
MIN_STRANDED_GPUS = 8
# If the upper limit of demand stays below this share of the fleet, part of the fleet can be turned off.
SHRINK_BELOW_SHARE = 0.5
# Above 80 % new jobs start to wait, and buying GPUs takes months. The alert FleetNearlyFull has the same threshold.
TARGET = 0.8
# The share of steps in which the target must hold; 1 would mean buying GPUs for the single highest hour.
TARGET_QUANTILE = 0.95


@dataclass(frozen=True, slots=True)
class Fullness:
    """When demand reaches `capacity_gpus`; a time is None if it is not within the horizon."""

    capacity_gpus: float
    is_full_now: bool
    full_at: float | None
    earliest: float | None
    latest: float | None
    # The highest probability of any step to be full, 0.1 to 0.9.
    likely: float


@dataclass(frozen=True, slots=True)
class GpusNeeded:
    """GPUs to add so that demand stays at or below the share `target` of the fleet in 95 % of all steps."""

    target: float
    # From the middle of the forecast, and from its upper limit: then the target holds with about 90 %.
    likely_gpus: int
    sure_gpus: int


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """One advice; `action` is add, shrink, defragment, repartition or none."""

    action: str
    gpus: int
    why: str
    confidence: float | None = None


def predict_fullness(demand: Forecast, capacity_gpus: float, *, now_gpus: float | None) -> Fullness:
    """Predict when the fleet is full; `now_gpus` is the current demand, None if the series ends in a gap."""
    reached = [np.flatnonzero(path >= capacity_gpus) for path in (demand.mean, demand.high, demand.low)]
    full_at, earliest, latest = (float(demand.times[steps[0]]) if len(steps) else None for steps in reached)
    is_full_now = now_gpus is not None and now_gpus >= capacity_gpus
    return Fullness(capacity_gpus, is_full_now, full_at, earliest, latest, _highest_chance(demand, capacity_gpus))


def _highest_chance(demand: Forecast, capacity_gpus: float) -> float:
    """Return the highest probability of any step to be full: 0.1 at `high`, 0.5 at `mean`, linear in between."""
    # Outside the interval only "at most 0.1" and "at least 0.9" are known; 0.1 and 0.9 are returned.
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


def advise_on_forecast(demand: Forecast, full: Fullness, need: GpusNeeded) -> list[ScalingAdvice]:
    if need.likely_gpus > 0:
        why = f"expected demand exceeds {100 * need.target:.0f} % of the fleet"
        return [ScalingAdvice("add", need.likely_gpus, why, confidence=0.5)]
    if need.sure_gpus > 0:
        why = f"the upper limit of the forecast exceeds {100 * need.target:.0f} % of the fleet"
        return [ScalingAdvice("add", need.sure_gpus, why, confidence=0.1)]
    highest = float(demand.high.max())
    if full.capacity_gpus > 0 and highest < SHRINK_BELOW_SHARE * full.capacity_gpus:
        spare = int(full.capacity_gpus - highest / need.target)
        why = f"demand stays below {highest:.0f} GPUs with a probability of 90 %"
        return [ScalingAdvice("shrink", spare, why, confidence=0.9)]
    return [ScalingAdvice("none", 0, "demand stays within the fleet for the whole horizon", confidence=1 - full.likely)]


def advise_on_capacity(capacity: FleetCapacity, repartitions: Iterable[Repartition]) -> list[ScalingAdvice]:
    advice = []
    if capacity.shapes:
        largest = capacity.shapes[-1]
        if largest.stranded_gpus >= max(MIN_STRANDED_GPUS, largest.gpus):
            why = f"{largest.stranded_gpus} of {capacity.free_gpus} free GPUs fit no job of {largest.gpus} GPUs"
            advice.append(ScalingAdvice("defragment", largest.stranded_gpus, why))
    for repartition in repartitions:
        if repartition.frees_gpus:
            workloads = f"{repartition.workloads} workloads on {repartition.model}"
            why = f"{workloads} fit into MIG instances, which frees {repartition.frees_gpus} GPUs"
            advice.append(ScalingAdvice("repartition", repartition.gpus_to_cut, why))
    return advice


def summary_sentence(full: Fullness, need: GpusNeeded, *, horizon: str) -> str:
    capacity = f"{full.capacity_gpus:g} GPUs"
    if full.is_full_now:
        status = f"Full now: demand is at or above {capacity}"
    elif full.full_at is not None:
        until = _day(full.latest) if full.latest is not None else f"later than {horizon} from now"
        status = f"Full on {_day(full.full_at)} (80 % interval {_day(full.earliest)} to {until})"
    elif full.earliest is not None:
        chance = f"probability up to {100 * full.likely:.0f} %"
        status = f"Not full within {horizon}, but possibly from {_day(full.earliest)} ({chance})"
    else:
        status = f"Not full within {horizon}: the upper limit of the 80 % interval stays below {capacity}"
    if need.sure_gpus:
        addition = f"add {need.likely_gpus} GPUs, or {need.sure_gpus} for a confidence of 90 %"
        return f"{status}; to stay at or below {100 * need.target:.0f} % {addition}."
    return f"{status}; {100 * need.target:.0f} % needs no more GPUs."


def _day(seconds: float | None) -> str:
    return "unknown" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
