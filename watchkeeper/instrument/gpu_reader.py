"""The process beside a program that reads its GPUs: a driver that hangs holds this one up, and never the program.

    python gpu_reader.py FD SECONDS PARENT
    python gpu_reader.py list

`log_context` runs it as a file, so it imports nothing of Watchkeeper. It writes what it read into the shared memory FD,
again and again, until its parent is gone: length and checksum, then JSON. `read` is how the other side takes it out.
`list` prints index and UUID of each GPU once, for `placement`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

MEMORY_BYTES = 64 * 1024
HEAD = struct.Struct("<II")
EVENT_WAIT_MS = 5_000
# How often is looked whether the parent is still there.
LOOK_SECONDS = 1.0
XID_EVENT = 0x8
MIB = 1024 * 1024


def read(memory: mmap.mmap) -> dict[str, Any] | None:
    """What was last written there; None before the first time, and while it is being written."""
    size, check = HEAD.unpack_from(memory, 0)
    body = memory[HEAD.size : HEAD.size + min(size, MEMORY_BYTES - HEAD.size)]
    if not size or zlib.crc32(body) != check:
        return None
    found: dict[str, Any] = json.loads(body)
    return found


def write(memory: mmap.mmap, found: dict[str, Any]) -> None:
    body = json.dumps(found, separators=(",", ":")).encode()
    if len(body) <= MEMORY_BYTES - HEAD.size:
        memory[HEAD.size : HEAD.size + len(body)] = body
        HEAD.pack_into(memory, 0, len(body), zlib.crc32(body))


class Gpus:
    """Every GPU that NVML shows to this process."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles]
        self._xids: dict[str, int] = {}
        threading.Thread(target=self._count_xids, daemon=True).start()

    def states(self) -> list[dict[str, Any]]:
        return [self._state(index) for index in range(len(self._handles))]

    def _state(self, index: int) -> dict[str, Any]:
        nvml, gpu, uuid = self._nvml, self._handles[index], self._uuids[index]
        calls: dict[str, Callable[[], Any]] = {
            "temperature_celsius": lambda: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
            "utilisation_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "memory_used_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2).used // MIB,
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
        }
        state: dict[str, Any] = {"index": index, "uuid": uuid, "xid_count": self._xids.get(uuid)}
        for name, call in calls.items():
            try:
                state[name] = call()
            except (nvml.NVMLError, AttributeError, TypeError):
                # The last two: an nvidia-ml-py older than this call.
                state[name] = None
        return state

    def _count_xids(self) -> None:
        """None stays for a GPU that reports no events: nobody knows how many there were."""
        nvml, by_handle = self._nvml, {}
        events = nvml.nvmlEventSetCreate()
        for handle, uuid in zip(self._handles, self._uuids, strict=True):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, events)
            except nvml.NVMLError:
                continue
            by_handle[uuid] = self._xids[uuid] = 0
        while by_handle:
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
                uuid = _text(nvml.nvmlDeviceGetUUID(event.device))
                self._xids[uuid] = self._xids.get(uuid, 0) + 1
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    time.sleep(LOOK_SECONDS)


def _text(answer: Any) -> str:
    return answer.decode() if isinstance(answer, bytes) else str(answer)


def serve(memory: mmap.mmap, seconds: float, parent: int) -> None:
    gpus: Gpus | None = None
    while os.getppid() == parent:
        found: dict[str, Any] = {"at": time.monotonic(), "gpus": [], "problem": ""}
        try:
            import pynvml

            gpus = gpus or Gpus(pynvml)
            found["gpus"] = gpus.states()
        except ImportError:
            found["problem"] = "the Python package nvidia-ml-py is not installed"
        except pynvml.NVMLError as error:
            found["problem"] = f"NVML says: {error}"
        write(memory, found)
        until = time.monotonic() + seconds
        while os.getppid() == parent and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))


def uuids() -> list[tuple[int, str]]:
    import pynvml as nvml

    nvml.nvmlInit()
    indexes = range(nvml.nvmlDeviceGetCount())
    return [(index, _text(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))) for index in indexes]


def main() -> None:
    if sys.argv[1:] == ["list"]:
        sys.stdout.write(json.dumps(uuids()))
        return
    fd, seconds, parent = sys.argv[1:4]
    serve(mmap.mmap(int(fd), MEMORY_BYTES), float(seconds), int(parent))
    # Not sys.exit: the thread that waits for events may sit in the driver.
    os._exit(0)


if __name__ == "__main__":
    main()
