"""Scaling advice as data: what a forecast and a fleet's standing come to, in one shape for programs and in words.

Autoscalers, ticket systems and people read it (`GET /api/capacity/advice`, `watchkeeper capacity forecast --json`);
nothing of ours acts on it. Each piece says what, how much, why, and how sure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from watchkeeper.capacity.forecast import Forecast
from watchkeeper.capacity.fullness import Fullness, GpusNeeded
from watchkeeper.capacity.rightsizing import Repartition
from watchkeeper.model.fleet_capacity import FleetCapacity

# Below this many stranded GPUs a reshuffle costs more than it brings.
WORTH_MOVING = 8
# Less than this of the fleet asked for, at the upper edge and nearly always: some of it could be turned off.
HARDLY_ASKED = 0.5


@dataclass(frozen=True, slots=True)
class ScalingAdvice:
    """One piece of advice. `action` is a word for programs: add, shrink, defragment, repartition or none."""

    action: str
    gpus: int
    why: str
    confidence: float | None = None


def advise_on_forecast(demand: Forecast, full: Fullness, need: GpusNeeded) -> list[ScalingAdvice]:
    """Grow, shrink or stay."""
    stay = ScalingAdvice("none", 0, "demand stays within the fleet for the whole horizon", confidence=1 - full.likely)
    return _grow(demand, full, need) or [stay]


def advise_on_capacity(now: FleetCapacity, cuts: Iterable[Repartition]) -> list[ScalingAdvice]:
    """What could be had without a new GPU."""
    found = []
    if now.shapes:
        largest = now.shapes[-1]
        if largest.stranded_gpus >= max(WORTH_MOVING, largest.gpus):
            free = f"{largest.stranded_gpus} of {now.free_gpus} free GPUs"
            found.append(
                ScalingAdvice("defragment", largest.stranded_gpus, f"{free} can be used by no job of {largest.gpus}")
            )
    for cut in cuts:
        if cut.frees_gpus:
            why = f"{cut.workloads} workloads on {cut.model} would fit into slices: {cut.frees_gpus} GPUs would be free"
            found.append(ScalingAdvice("repartition", cut.gpus_to_cut, why))
    return found


def _grow(demand: Forecast, full: Fullness, need: GpusNeeded) -> list[ScalingAdvice]:
    if need.likely_gpus > 0:
        why = f"demand would take more than {100 * need.target:.0f} % of the fleet"
        return [ScalingAdvice("add", need.likely_gpus, why, confidence=0.5)]
    if need.sure_gpus > 0:
        why = f"demand may take more than {100 * need.target:.0f} % of the fleet: at the upper edge of the forecast"
        return [ScalingAdvice("add", need.sure_gpus, why, confidence=0.1)]
    highest = float(demand.high.max())
    if full.capacity_gpus > 0 and highest < HARDLY_ASKED * full.capacity_gpus:
        spare = int(full.capacity_gpus - highest / need.target)
        return [ScalingAdvice("shrink", spare, f"demand stays below {highest:.0f} GPUs with 90 %", confidence=0.9)]
    return []


def summary_sentence(full: Fullness, need: GpusNeeded, *, horizon: str) -> str:
    """The answer in one sentence, for the first line of every output."""
    capacity = f"{full.capacity_gpus:g} GPUs"
    if full.is_full_now:
        head = f"Full now: demand is at or above {capacity}"
    elif full.full_at is not None:
        until = _day(full.latest) if full.latest is not None else f"later than {horizon} from now"
        head = f"Full on {_day(full.full_at)} (80 % interval {_day(full.earliest)} to {until})"
    elif full.earliest is not None:
        chance = f"chance {100 * full.likely:.0f} % at its fullest"
        head = f"Not full within {horizon}, but it may be from {_day(full.earliest)} on ({chance})"
    else:
        head = f"Not full within {horizon}: even the upper edge of the 80 % interval stays below {capacity}"
    if need.sure_gpus:
        goal = f"to stay at or below {100 * need.target:.0f} %"
        more = f"{goal} add {need.likely_gpus} GPUs, or {need.sure_gpus} to be 90 % sure"
        return f"{head}; {more}."
    return f"{head}; {100 * need.target:.0f} % is kept without more GPUs."


def _day(seconds: float | None) -> str:
    return "unknown" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
