"""Create scaling advice from a forecast and the current capacity, as data and as a sentence.

Autoscalers, ticket systems and people read it (`GET /api/capacity/advice`, `watchkeeper capacity forecast --json`);
Watchkeeper does not act on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from watchkeeper.capacity.forecast import Forecast
from watchkeeper.capacity.fullness import Fullness, GpusNeeded
from watchkeeper.capacity.rightsizing import Repartition
from watchkeeper.model.fleet_capacity import FleetCapacity

# With fewer stranded GPUs, moving jobs costs more than it gains.
MIN_STRANDED_GPUS = 8
# If the upper limit of demand stays below this share of the fleet, part of the fleet can be turned off.
SHRINK_BELOW_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """One advice; `action` is add, shrink, defragment, repartition or none."""

    action: str
    gpus: int
    why: str
    confidence: float | None = None


def advise_on_forecast(demand: Forecast, full: Fullness, need: GpusNeeded) -> list[ScalingAdvice]:
    """Return the advice to add GPUs, remove GPUs or keep the fleet."""
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
    """Return the advice that makes more GPUs usable without new ones."""
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
    """Return the result in one sentence, for the first line of every output."""
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
