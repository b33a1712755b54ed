"""Events of what the driver says without a kernel line: faults, NVML's own events, violated policies.

`DriverEvents` gives each an id that no other event of this boot has. `XidMerge` makes one event of the two reports
about one Xid: the kernel's line goes out at once, NVML's waits a moment for it and goes out alone if it does not
come. `Standing` says what to report of things that last: when they begin, and again for as long as they hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from watchkeeper.agent.gpus import policies, sampler
from watchkeeper.catalogue import xid
from watchkeeper.model import events, fleet
from watchkeeper.readers.nvml import events as nvml_events

SOURCE = "nvml"
# NVML's return code for each fault that the sampler names; 999 is its word for everything else.
FAULT_CODES = {
    "gpu_missing": 6,
    "driver_not_loaded": 9,
    "driver_call_hung": 10,
    "gpu_fell_off_bus": 15,
    "driver_library_mismatch": 18,
}
UNKNOWN_CODE = 999
# NVML's event types that mean trouble; clocks, power states and single bits are counted and not sent.
EVENT_CAUSES: Mapping[str, str] = {
    "ecc_double_bit": "ecc_uncorrectable",
    "ecc_single_bit_storm": "ecc_correctable_storm",
    "dram_retirement": "row_remap_pending",
    "dram_retirement_failure": "row_remap_failure",
    "poison_fatal": "ecc_uncorrectable",
    "gpu_unavailable": "gpu_fell_off_bus",
    "recovery_action": "gpu_recovery_needed",
}
EVENT_CODES = {kind: code for code, kind in nvml_events.KINDS.items()}
MERGE_SECONDS = 2.0
MAX_REMEMBERED = 1_000
# Half of the quiet time after which the hub takes such a condition for ended.
REPEAT_SECONDS = 300.0
# What blinks is reported once in this time.
SHORTEST_PAUSE_SECONDS = 60.0

Key = TypeVar("Key", bound=Hashable)


class DriverEvents:
    """Makes events of one node; `since_boot` is a clock that counts from the boot and never jumps."""

    def __init__(self, source: events.EventSource, since_boot: Callable[[], float]) -> None:
        self._source = source
        self._since_boot = since_boot
        self._last = 0

    def of_fault(self, fault: sampler.DriverFault) -> events.Event:
        code = FAULT_CODES.get(fault.cause, UNKNOWN_CODE)
        return self._event(
            events.EventKind.DRIVER_FAULT,
            code,
            at=fault.since,
            place=fault.place,
            text=fault.evidence,
            cause=fault.cause,
        )

    def of_violation(self, violation: policies.Violation, at: datetime) -> events.Event:
        policy = violation.policy
        named = {"policy": policy.name, "value": f"{violation.value:g}", "limit": f"{violation.limit:g}"}
        return self._event(
            events.EventKind.POLICY_VIOLATION,
            policy.bit,
            at=at,
            place=self._place(violation.uuid),
            text=violation.text,
            cause=policy.cause,
            **named,
        )

    def of_fact(self, fact: sampler.DriverFact) -> events.Event | None:
        """The event of an NVML event; None for one that is no trouble."""
        place = self._place(fact.uuid, fact.slice_id)
        if fact.kind == "xid":
            text = (
                f"NVML reports Xid {fact.detail} ({xid.lookup(fact.detail).name}); the kernel log has no line about it"
            )
            return self._event(
                events.EventKind.XID, fact.detail, at=fact.at, place=place, text=text, policy=policies.XID
            )
        if fact.kind not in EVENT_CAUSES or (fact.kind == "recovery_action" and fact.detail == 0):
            return None
        code, cause = EVENT_CODES[fact.kind], EVENT_CAUSES[fact.kind]
        text = f"NVML reports {fact.kind.replace('_', ' ')} ({fact.detail})"
        return self._event(events.EventKind.DRIVER_EVENT, code, at=fact.at, place=place, text=text, cause=cause)

    def _place(self, uuid: str | None, slice_id: int | None = None) -> fleet.Place:
        part = str(slice_id) if uuid is not None and slice_id is not None else None
        return fleet.Place(self._source.cluster, node=self._source.node, gpu=uuid, slice=part)

    def _event(
        self,
        kind: events.EventKind,
        code: int,
        *,
        at: datetime,
        place: fleet.Place,
        text: str,
        **named: str,
    ) -> events.Event:
        # The time since boot continues behind whatever an agent before this one has counted to.
        self._last = max(self._last + 1, int(self._since_boot() * 1e6))
        id = self._source.event_id(self._last)
        return events.Event(id, kind, code, place, at, text, fields={"source": SOURCE, **named})


@dataclass(frozen=True, slots=True)
class PendingXid:
    fact: sampler.DriverFact
    until: float


class XidMerge:
    """Two reports about one Xid on one GPU become one. `now` is a clock that never jumps; `at` is wall time."""

    def __init__(self) -> None:
        self._waiting: deque[PendingXid] = deque(maxlen=MAX_REMEMBERED)
        self._lines: deque[tuple[int | None, str | None, datetime]] = deque(maxlen=MAX_REMEMBERED)

    def add_kernel_line(self, event: events.Event) -> bool:
        """Remember a kernel line; True if NVML had reported the same already."""
        line = (event.code, event.place.gpu, event.at)
        self._lines.append(line)
        alike = [waiting for waiting in self._waiting if _is_same(line, waiting.fact)]
        for waiting in alike:
            self._waiting.remove(waiting)
        return bool(alike)

    def add_driver_event(self, fact: sampler.DriverFact, now: float) -> None:
        """Let NVML's report wait for the kernel's line, unless that has come already."""
        if not any(_is_same(line, fact) for line in self._lines):
            self._waiting.append(PendingXid(fact, now + MERGE_SECONDS))

    def take_expired(self, now: float) -> list[sampler.DriverFact]:
        """Reports to which no line has come."""
        found = [waiting for waiting in self._waiting if now >= waiting.until]
        for waiting in found:
            self._waiting.remove(waiting)
        return [waiting.fact for waiting in found]


def _is_same(line: tuple[int | None, str | None, datetime], fact: sampler.DriverFact) -> bool:
    """A line whose GPU is unknown may be about any."""
    code, uuid, at = line
    is_near = abs(at - fact.at) <= timedelta(seconds=MERGE_SECONDS)
    return code == fact.detail and is_near and (uuid is None or fact.uuid is None or uuid == fact.uuid)


class ReportSchedule:
    """Which of the things that hold now are to be reported now."""

    def __init__(self) -> None:
        self._reported: dict[Hashable, float] = {}
        self._held: frozenset[Hashable] = frozenset()

    def due(self, holding: Mapping[Key, object], now: float) -> list[Key]:
        found = []
        for key in holding:
            pause = REPEAT_SECONDS if key in self._held else SHORTEST_PAUSE_SECONDS
            if now - self._reported.get(key, float("-inf")) >= pause:
                found.append(key)
                self._reported[key] = now
        self._held = frozenset(holding)
        self._reported = {
            key: at for key, at in self._reported.items() if key in holding or now - at < SHORTEST_PAUSE_SECONDS
        }
        return found
