"""Detect from samples that a broken GPU works again: most resets leave no line in a kernel log.

The pipeline regularly passes the GPUs of `IncidentTracker.broken_gpus`. A recovery becomes an event, so that events
alone decide when a fault has ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import events, fleet
from watchkeeper.query import engine as engines

# A GPU that is off the bus is missing on the next page; four scrapes of 15 s that include it are no accident.
STEADY = timedelta(seconds=60)
MAX_LAG = timedelta(minutes=10)
# The driver sets these at a fault, and only a reset, a reboot or a driver reload clears them.
FAULT_METRICS = (
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ROW_REMAP_PENDING",
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION",
)
# Larger values are the "blank" values of exporters, not readings.
BLANK = 1e12
LOOKBACK = timedelta(hours=1)
STEP_MS = 15_000
# UUIDs in one query: about 2 kB of PromQL.
MAX_UUIDS = 50
SOURCE = "hub"


@dataclass(frozen=True, slots=True)
class BrokenGpu:
    """A GPU with a hardware fault that has not ended; `is_lost` if the GPU fell off the bus.

    `since` is the time of the last event by the clock of the node, which may be minutes behind; `received_at` is by
    the clock of the hub, as samples are.
    """

    place: fleet.Place
    since: datetime
    is_lost: bool
    received_at: datetime

    @property
    def lag(self) -> timedelta:
        """How far the node's clock may be behind the hub's; an event that arrives later than that was in a spool."""
        late = self.received_at - self.since
        return late if timedelta() < late <= MAX_LAG else timedelta()


# The period for which a GPU has been on every page of its node; None if it is missing now.
Presence = Callable[[fleet.Place], tuple[datetime, datetime] | None]


def recovery_events(
    broken_gpus: Sequence[BrokenGpu], *, engine: engines.Engine, presence: Presence, now: datetime
) -> list[events.Event]:
    """Return a reset event for each GPU that was reset since its fault."""
    recoveries = []
    for gpu in [gpu for gpu in broken_gpus if gpu.is_lost]:
        present = presence(gpu.place)
        if present is not None and present[1] - max(present[0], gpu.since, gpu.received_at) >= STEADY:
            recoveries.append(_reset_event(gpu, now, "reports again"))
    present_gpus = [gpu for gpu in broken_gpus if not gpu.is_lost]
    for start in range(0, len(present_gpus), MAX_UUIDS):
        batch = present_gpus[start : start + MAX_UUIDS]
        readings_by_metric = [_query_readings(engine, metric, batch, now=now) for metric in FAULT_METRICS]
        for gpu in batch:
            readings = [series[gpu.place.gpu] for series in readings_by_metric if gpu.place.gpu in series]
            if _was_reset(readings, clock.to_ms(gpu.since)):
                recoveries.append(_reset_event(gpu, now, "reports its fault counters as 0 again"))
    return recoveries


Readings = Sequence[tuple[int, float]]


def _was_reset(readings_by_metric: Iterable[Readings], since_ms: int) -> bool:
    """Whether a metric was set after the fault and all are 0 now; a metric without a current value is not 0."""
    by_metric = [[value for at_ms, value in readings if at_ms >= since_ms] for readings in readings_by_metric]
    return any(map(any, by_metric)) and all(not values or values[-1] == 0 for values in by_metric)


def _query_readings(
    engine: engines.Engine, metric: str, broken_gpus: Sequence[BrokenGpu], *, now: datetime
) -> Mapping[str | None, Readings]:
    """The last hour of a metric by UUID; the readings of a GPU that does not report it now end with NaN."""
    uuids = "|".join(own_metrics.escape(re.escape(gpu.place.gpu or "")) for gpu in broken_gpus)
    query_range = engines.QueryRange(clock.to_ms(now - LOOKBACK), clock.to_ms(now), STEP_MS)
    result = engine.range(f'max by (UUID) ({metric}{{UUID=~"{uuids}"}} < {BLANK:g})', query_range)
    readings: dict[str | None, Readings] = {}
    for labels, times, values in result.frame.rows():
        gap = [] if len(times) and times[-1] == query_range.times[-1] else [(query_range.end_ms, float("nan"))]
        readings[labels.get("UUID")] = [*zip(times.tolist(), values.tolist(), strict=True), *gap]
    return readings


def _reset_event(gpu: BrokenGpu, now: datetime, reason: str) -> events.Event:
    """The reset event of a fault: its id is always the same for the same fault.

    Its time is by the node's clock, so that a later fault of the node does not appear to be before the reset.
    """
    place = fleet.Place(gpu.place.cluster, node=gpu.place.node, gpu=gpu.place.gpu)
    id = f"{place.cluster}/{place.node}/{SOURCE}/recovery/{place.gpu}/{clock.to_ms(gpu.since)}"
    text = f"{place.gpu} {reason}: it was reset, or its node rebooted"
    return events.Event(id, events.EventKind.GPU_RESET, None, place, now - gpu.lag, text, fields={"source": SOURCE})
