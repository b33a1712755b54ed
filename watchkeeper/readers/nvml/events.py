"""NVML's own event set: Xid, ECC, power source and recovery events as they happen.

The reader child waits here in a thread of its own, with a timeout, and sends each fact on. A fact says
what the library said and nothing more; the kernel line about the same Xid says which process it was, and
whoever has both merges them.
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
# Clock and performance-state events are left out: at idle they come several times a second, and waiting for them took
# 0.68 % of a core on an H200 against 0.01 % without (docs/reference/performance.md). The clocks and the reasons that
# hold them down are sampled anyway.
EXCLUDED_EVENTS = 0x4 | 0x10
WATCHED_EVENTS = sum(KINDS) & ~EXCLUDED_EVENTS


class DriverEvent(NamedTuple):
    """One event as NVML gave it; `detail` is its number, for an Xid the code."""

    kind: str
    uuid: str | None
    detail: int
    slice_id: int | None = None


class EventSet:
    """The events of every registered GPU."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._set = nvml.nvmlEventSetCreate()
        self._uuids: dict[int, str] = {}

    def register(self, gpu: Any, uuid: str) -> bool:
        """Watch one more GPU; False if it has no events that we want."""
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
        """The next event, or None after the timeout. What else NVML says is raised as it is."""
        try:
            found = self._nvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except self._nvml.NVMLError_Timeout:
            return None
        kind = KINDS.get(found.eventType, f"event_{found.eventType:#x}")
        # Without MIG both instance ids are all ones.
        slice_id = None if found.gpuInstanceId == 0xFFFFFFFF else int(found.gpuInstanceId)
        return DriverEvent(kind, self._uuids.get(_address(found.device)), int(found.eventData), slice_id)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
