"""Losses and gradients that went wrong, each with what the GPUs of its ranks did around then.

A loss that is not a number has two sorts of cause: the model, or a GPU that computed wrongly, lost memory or was slowed
down. The hardware is the cheaper one to rule out, so each event carries the Xid, ECC and throttle events of its ranks'
GPUs, and says so where there was none. `report` asks for the points of a job and calls `find` and `join`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from watchkeeper.model.jobs import HardwareEvent, LossEvent

# A bad number shows within a few steps of its cause; a GPU that fails may be heard of somewhat later.
BEFORE, AFTER = timedelta(minutes=10), timedelta(minutes=2)
# Gradients of healthy runs stay within a few times their middle; clipping takes care of three or four.
SPIKE, LEAST_POINTS = 10.0, 8
MOST = 16


@dataclass(frozen=True, slots=True)
class LossAnomaly:
    at: datetime
    what: str
    value: float | None = None


Points = Sequence[tuple[float, float]]


def find_anomalies(loss: Points, grad_norm: Points) -> list[LossAnomaly]:
    """When a loss stopped being a number, and when a gradient leapt; the beginning of each, not its length."""
    found = [*_not_finite(loss, "loss"), *_not_finite(grad_norm, "gradient norm"), *_spikes(grad_norm)]
    return sorted(found, key=lambda one: one.at)


def merge_anomalies(told: Iterable[LossAnomaly], seen: Iterable[LossAnomaly]) -> list[LossAnomaly]:
    """What the job itself told, exactly in time, and what its series show beyond that; the newest few."""
    kept = list(told)
    kept += [one for one in seen if all(abs(one.at - other.at) > BEFORE for other in kept)]
    return sorted(kept, key=lambda one: one.at)[-MOST:]


def with_hardware_events(
    one: LossAnomaly, hardware: Sequence[HardwareEvent], counted: Sequence[HardwareEvent] = ()
) -> LossEvent:
    """With the events of the job's own GPUs shortly before and after, and what their counters say about that time."""
    near = [event for event in hardware if one.at - BEFORE <= event.at <= one.at + AFTER]
    return LossEvent(one.at, one.what, one.value, (*near, *counted))


def _not_finite(points: Points, what: str) -> Iterable[LossAnomaly]:
    was_fine = True
    for at, value in points:
        is_fine = math.isfinite(value)
        if was_fine and not is_fine:
            yield LossAnomaly(_time(at), f"{what} is {'not a number' if math.isnan(value) else 'infinite'}")
        was_fine = is_fine


def _spikes(points: Points) -> Iterable[LossAnomaly]:
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if len(finite) < LEAST_POINTS:
        return
    usual = median(value for _, value in finite)
    was_fine = True
    for at, value in finite:
        is_fine = value <= SPIKE * usual
        if was_fine and not is_fine:
            yield LossAnomaly(_time(at), f"gradient norm leapt to {value:.3g}, usually {usual:.3g}", value)
        was_fine = is_fine


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
