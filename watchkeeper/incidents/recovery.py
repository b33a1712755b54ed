"""A GPU that works again, told by its samples: most resets leave no line in a kernel log.

`Incidents.broken_gpus` says which hardware faults last; the pipeline asks here about each of them now and
then. The answer is an event like any other, so that what is over follows from the events alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import events, fleet
from watchkeeper.query import engine as engines

# A GPU that is off the bus is off the next page; four scrapes of 15 s with it are no accident.
STEADY = timedelta(seconds=60)
MOST_LAG = timedelta(minutes=10)
# The driver sets these at a fault, and only a reset, a reboot or a new driver takes them back.
MARKS = ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION")
# Values from here on are the "blank" marks of exporters, not readings.
BLANK = 1e12
LOOK_BACK = timedelta(hours=1)
STEP_MS = 15_000
# UUIDs in one question: some 2 kB of PromQL.
ASKED_AT_ONCE = 50
SOURCE = "hub"


@dataclass(frozen=True, slots=True)
class BrokenGpu:
    """A GPU with a hardware fault that lasts; `since` is the fault's last event, `is_lost` that it was off the bus.

    `since` is by the clock of the machine, which may be minutes behind ours; `heard_at` is by ours, as samples are.
    """

    place: fleet.Place
    since: datetime
    is_lost: bool
    received_at: datetime

    @property
    def lag(self) -> timedelta:
        """How far the machine's clock may be behind ours; what came later than that was kept in a spool."""
        late = self.received_at - self.since
        return late if timedelta() < late <= MOST_LAG else timedelta()


# From when to when a GPU has been on every page of its node, without a gap; None if it is not there now.
Presence = Callable[[fleet.Place], tuple[datetime, datetime] | None]


def recovery_events(
    broken: Sequence[BrokenGpu], *, engine: engines.Engine, presence: Presence, now: datetime
) -> list[events.Event]:
    """An event for each GPU that shows to have been reset since its fault."""
    found = [_reset(one, now, "reports again") for one in broken if one.is_lost and _is_steady(one, presence)]
    others = [one for one in broken if not one.is_lost]
    for some in _in_parts(others):
        marks = [_readings(engine, metric, some, now=now) for metric in MARKS]
        for one in some:
            seen = [series[one.place.gpu] for series in marks if one.place.gpu in series]
            if _was_reset(seen, clock.to_ms(one.since)):
                found.append(_reset(one, now, "no longer shows what the driver had marked"))
    return found


def _in_parts(broken: Sequence[BrokenGpu]) -> Iterator[Sequence[BrokenGpu]]:
    return (broken[at : at + ASKED_AT_ONCE] for at in range(0, len(broken), ASKED_AT_ONCE))


def _is_steady(one: BrokenGpu, presence: Presence) -> bool:
    there = presence(one.place)
    return there is not None and there[1] - max(there[0], one.since, one.received_at) >= STEADY


Readings = Sequence[tuple[int, float]]


def _was_reset(marks: Iterable[Readings], since_ms: int) -> bool:
    """Something was set after the fault, and nothing is any more; what is not read now is not known to be gone."""
    after = [[value for at_ms, value in one if at_ms >= since_ms] for one in marks]
    return any(any(values) for values in after) and all(not values or values[-1] == 0 for values in after)


def _readings(
    engine: engines.Engine, metric: str, broken: Sequence[BrokenGpu], *, now: datetime
) -> Mapping[str | None, Readings]:
    """The last hour of one metric by UUID; a GPU that does not show it at this moment ends with NaN."""
    uuids = "|".join(own_metrics.escape(re.escape(one.place.gpu or "")) for one in broken)
    span = engines.QueryRange(clock.to_ms(now - LOOK_BACK), clock.to_ms(now), STEP_MS)
    answer = engine.range(f'max by (UUID) ({metric}{{UUID=~"{uuids}"}} < {BLANK:g})', span)
    found: dict[str | None, Readings] = {}
    for labels, times, values in answer.frame.rows():
        gap = [] if len(times) and times[-1] == span.times[-1] else [(span.end_ms, float("nan"))]
        found[labels.get("UUID")] = [*zip(times.tolist(), values.tolist(), strict=True), *gap]
    return found


def _reset(one: BrokenGpu, now: datetime, why: str) -> events.Event:
    """The same fault gives the same id, however often it is told to be over.

    The time is as the machine's own clock shows it, so that a fault after the reset does not seem to be one before it.
    """
    place = fleet.Place(one.place.cluster, node=one.place.node, gpu=one.place.gpu)
    id = f"{place.cluster}/{place.node}/{SOURCE}/recovery/{place.gpu}/{clock.to_ms(one.since)}"
    text = f"{place.gpu} {why}: it was reset, or its node rebooted"
    at = now - one.lag
    return events.Event(id, events.EventKind.GPU_RESET, None, place, at, text, fields={"source": SOURCE})
