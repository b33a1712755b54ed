"""Find anomalies of loss and gradients, each with the hardware events of the job's GPUs at that time.

A loss that is not a number is caused by the model, or by a GPU that computed wrongly, had memory errors or was
throttled: hardware is easier to exclude.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median

from watchkeeper.model.jobs import HardwareEvent, LossEvent

# An anomaly follows its cause within a few steps; a GPU fault may be reported somewhat later.
BEFORE_ANOMALY, AFTER_ANOMALY = timedelta(minutes=10), timedelta(minutes=2)
# Gradient norms of healthy runs stay within a few times their median; clipping handles three or four times.
SPIKE_FACTOR, MIN_POINTS = 10.0, 8
MAX_ANOMALIES = 16


@dataclass(frozen=True, slots=True)
class LossAnomaly:
    at: datetime
    text: str
    value: float | None = None


Points = Sequence[tuple[float, float]]


def find_anomalies(loss: Points, grad_norm: Points) -> list[LossAnomaly]:
    """Return when the loss or gradient norm became NaN or infinite, and when the gradient norm spiked."""
    not_finite = (*_find_not_finite(loss, "loss"), *_find_not_finite(grad_norm, "gradient norm"))
    return sorted((*not_finite, *_find_spikes(grad_norm)), key=lambda anomaly: anomaly.at)


def merge_anomalies(reported: Iterable[LossAnomaly], detected: Iterable[LossAnomaly]) -> list[LossAnomaly]:
    """Merge the anomalies that the job reported, with exact times, and those in its series; the newest few."""
    merged = list(reported)
    merged += [anomaly for anomaly in detected if all(abs(anomaly.at - other.at) > BEFORE_ANOMALY for other in merged)]
    return sorted(merged, key=lambda anomaly: anomaly.at)[-MAX_ANOMALIES:]


def add_hardware_events(
    anomaly: LossAnomaly, hardware: Sequence[HardwareEvent], counter_events: Sequence[HardwareEvent] = ()
) -> LossEvent:
    """Add the events of the job's GPUs shortly before and after an anomaly, and those from their counters."""
    nearby = [event for event in hardware if anomaly.at - BEFORE_ANOMALY <= event.at <= anomaly.at + AFTER_ANOMALY]
    return LossEvent(anomaly.at, anomaly.text, anomaly.value, (*nearby, *counter_events))


def _find_not_finite(points: Points, name: str) -> Iterable[LossAnomaly]:
    was_finite = True
    for at, value in points:
        is_finite = math.isfinite(value)
        if was_finite and not is_finite:
            yield LossAnomaly(_to_datetime(at), f"{name} is {'not a number' if math.isnan(value) else 'infinite'}")
        was_finite = is_finite


def _find_spikes(points: Points) -> Iterable[LossAnomaly]:
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    if len(finite) < MIN_POINTS:
        return
    typical = median(value for _, value in finite)
    was_normal = True
    for at, value in finite:
        is_normal = value <= SPIKE_FACTOR * typical
        if was_normal and not is_normal:
            yield LossAnomaly(_to_datetime(at), f"gradient norm rose to {value:.3g}, median {typical:.3g}", value)
        was_normal = is_normal


def _to_datetime(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
