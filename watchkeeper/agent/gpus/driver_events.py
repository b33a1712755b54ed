"""Builds events from driver reports that have no kernel log line: faults, NVML events and policy violations.

`DriverEvents` gives each event an id that is unique within the boot. `XidMerge` merges the two reports of one Xid: the
kernel log line is sent at once; NVML's report waits for it and is sent alone if no line comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from watchkeeper.agent.gpus import policies, sampler
from watchkeeper.catalogue import xid
from watchkeeper.model import events, fleet
from watchkeeper.readers.nvml import events as nvml_events

SOURCE = "nvml"
# NVML's return code for each fault of the sampler; 999 (NVML_ERROR_UNKNOWN) stands for every other fault.
FAULT_CODES = {
    "gpu_missing": 6,
    "driver_not_loaded": 9,
    "driver_call_hung": 10,
    "gpu_fell_off_bus": 15,
    "driver_library_mismatch": 18,
}
OTHER_FAULT_CODE = 999
# NVML's event types that indicate a fault; events of clocks, power states and single bits are counted and not sent.
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
MAX_PENDING = 1_000
# The hub treats a condition as ended when no report came for twice this time.
REPEAT_SECONDS = 300.0
# A flapping condition is reported at most once in this time.
MIN_REPEAT_SECONDS = 60.0

Key = TypeVar("Key", bound=Hashable)


class DriverEvents:
    """Builds the events of one node; `since_boot` is a monotonic clock that starts at boot."""

    def __init__(self, source: events.EventSource, since_boot: Callable[[], float]) -> None:
        self._source = source
        self._since_boot = since_boot
        self._last_us = 0

    def build_fault_event(self, fault: sampler.DriverFault) -> events.Event:
        kind, code = events.EventKind.DRIVER_FAULT, FAULT_CODES.get(fault.cause, OTHER_FAULT_CODE)
        cause, text = fault.cause, fault.evidence
        return self._build_event(kind, code, at=fault.since, place=fault.place, text=text, cause=cause)

    def build_violation_event(self, violation: policies.Violation, at: datetime) -> events.Event:
        policy = violation.policy
        event_fields = {"policy": policy.name, "value": f"{violation.value:g}", "limit": f"{violation.limit:g}"}
        return self._build_event(
            events.EventKind.POLICY_VIOLATION,
            policy.bit,
            at=at,
            place=self._place(violation.uuid),
            text=violation.text,
            cause=policy.cause,
            **event_fields,
        )

    def build_nvml_event(self, nvml_event: sampler.NvmlEvent) -> events.Event | None:
        """The event for an NVML event; None if it does not indicate a fault."""
        place = self._place(nvml_event.uuid, nvml_event.instance_id)
        kind, detail, at = nvml_event.kind, nvml_event.detail, nvml_event.at
        if kind == "xid":
            text = f"NVML reports Xid {detail} ({xid.lookup(detail).name}); the kernel log has no line about it"
            return self._build_event(events.EventKind.XID, detail, at=at, place=place, text=text, policy=policies.XID)
        if kind not in EVENT_CAUSES or (kind == "recovery_action" and detail == 0):
            return None
        code, cause = EVENT_CODES[kind], EVENT_CAUSES[kind]
        text = f"NVML reports {kind.replace('_', ' ')} ({detail})"
        return self._build_event(events.EventKind.DRIVER_EVENT, code, at=at, place=place, text=text, cause=cause)

    def _place(self, uuid: str | None, instance_id: int | None = None) -> fleet.Place:
        instance = str(instance_id) if uuid is not None and instance_id is not None else None
        return fleet.Place(self._source.cluster, node=self._source.node, gpu=uuid, slice=instance)

    def _build_event(
        self, kind: events.EventKind, code: int, *, at: datetime, place: fleet.Place, text: str, **extra_fields: str
    ) -> events.Event:
        # Counting from the time since boot keeps ids unique across restarts of the agent.
        self._last_us = max(self._last_us + 1, int(self._since_boot() * 1e6))
        id = self._source.event_id(self._last_us)
        return events.Event(id, kind, code, place, at, text, fields={"source": SOURCE, **extra_fields})


class XidMerge:
    """Merges the kernel's and NVML's report of one Xid on one GPU; `now` is monotonic time, `at` is wall time."""

    def __init__(self) -> None:
        # NVML's reports, each with the time until which it waits for the kernel log line.
        self._pending: deque[tuple[sampler.NvmlEvent, float]] = deque(maxlen=MAX_PENDING)
        self._kernel_lines: deque[tuple[int | None, str | None, datetime]] = deque(maxlen=MAX_PENDING)

    def add_kernel_line(self, event: events.Event) -> bool:
        """Record a kernel log line; True if NVML has already reported the same Xid."""
        kernel_line = (event.code, event.place.gpu, event.at)
        self._kernel_lines.append(kernel_line)
        matches = [waiting for waiting in self._pending if _is_same_xid(kernel_line, waiting[0])]
        for waiting in matches:
            self._pending.remove(waiting)
        return bool(matches)

    def add_nvml_event(self, nvml_event: sampler.NvmlEvent, now: float) -> None:
        """Hold NVML's report until the kernel log line comes, unless it has come already."""
        if not any(_is_same_xid(kernel_line, nvml_event) for kernel_line in self._kernel_lines):
            self._pending.append((nvml_event, now + MERGE_SECONDS))

    def take_expired(self, now: float) -> list[sampler.NvmlEvent]:
        expired = [waiting for waiting in self._pending if now >= waiting[1]]
        for waiting in expired:
            self._pending.remove(waiting)
        return [nvml_event for nvml_event, _ in expired]


def _is_same_xid(kernel_line: tuple[int | None, str | None, datetime], nvml_event: sampler.NvmlEvent) -> bool:
    """Whether both report the same Xid; an unknown GPU matches every GPU."""
    code, uuid, at = kernel_line
    is_same_gpu = uuid is None or nvml_event.uuid is None or uuid == nvml_event.uuid
    return code == nvml_event.detail and is_same_gpu and abs(at - nvml_event.at) <= timedelta(seconds=MERGE_SECONDS)


class ReportSchedule:
    def __init__(self) -> None:
        self._reported_at: dict[Hashable, float] = {}
        self._active: frozenset[Hashable] = frozenset()

    def take_due(self, active: Mapping[Key, object], now: float) -> list[Key]:
        due_keys = []
        for key in active:
            repeat_seconds = REPEAT_SECONDS if key in self._active else MIN_REPEAT_SECONDS
            if now - self._reported_at.get(key, float("-inf")) >= repeat_seconds:
                due_keys.append(key)
                self._reported_at[key] = now
        self._active = frozenset(active)
        oldest = now - MIN_REPEAT_SECONDS
        self._reported_at = {key: at for key, at in self._reported_at.items() if key in active or at > oldest}
        return due_keys
