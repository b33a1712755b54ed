"""Wait for NVML events: Xid, ECC, power source and recovery events as they happen.

The reader child waits in a separate thread, with a timeout, and sends each event to the agent. An event has only what
NVML reports; the kernel log line of the same Xid names the process, and the agent merges the two.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

# nvmlEventType* of nvml.h.
KINDS: Mapping[int, str] = {
    0x1: "ecc_single_bit",
    0x2: "ecc_double_bit",
    0x4: "pstate",
    0x8: "xid",
    0x10: "clock",
    0x80: "power_source",
    0x200: "ecc_single_bit_storm",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "poison_non_fatal",
    0x2000: "poison_fatal",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}
# Clock and performance-state events are excluded: on an idle GPU they come several times a second, and waiting for them
# used 0.68 % of a core on an H200, compared with 0.01 % without (docs/reference/performance.md). Clocks and clock event
# reasons are sampled anyway.
EXCLUDED_EVENTS = 0x4 | 0x10
WATCHED_EVENTS = sum(KINDS) & ~EXCLUDED_EVENTS


class DriverEvent(NamedTuple):
    """One NVML event; `detail` is its event data, for an Xid the code."""

    kind: str
    uuid: str | None
    detail: int
    slice_id: int | None = None


class EventSet:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set = nvml.nvmlEventSetCreate()
        self._uuids: dict[int, str] = {}

    def register(self, gpu: Any, uuid: str) -> bool:
        """Watch a GPU; False if it supports none of the watched events."""
        try:
            types = WATCHED_EVENTS & self._nvml.nvmlDeviceGetSupportedEventTypes(gpu)
            if types == 0:
                return False
            self._nvml.nvmlDeviceRegisterEvents(gpu, types, self._set)
        except self._nvml.NVMLError:
            return False
        self._uuids[_address(gpu)] = uuid
        return True

    def wait(self, timeout_ms: int) -> DriverEvent | None:
        """The next event, or None after the timeout; other NVML errors are raised."""
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except self._nvml.NVMLError_Timeout:
            return None
        kind = KINDS.get(event.eventType, f"event_{event.eventType:#x}")
        # Without MIG both instance ids have all bits set.
        slice_id = None if event.gpuInstanceId == 0xFFFFFFFF else int(event.gpuInstanceId)
        return DriverEvent(kind, self._uuids.get(_address(event.device)), int(event.eventData), slice_id)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
