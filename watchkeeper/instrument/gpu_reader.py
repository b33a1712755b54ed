"""Reads GPUs in a separate process, so that a hung driver never blocks the program.

    python gpu_reader.py FD SECONDS PARENT
    python gpu_reader.py list

`log_context` runs this file directly, so it imports nothing of Watchkeeper. It writes its readings to the shared memory
FD until its parent exits: length and checksum, then JSON. `list` prints the index and UUID of each GPU once.
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
HEADER = struct.Struct("<II")
EVENT_WAIT_MS = 5_000
# How often to check that the parent still runs.
PARENT_CHECK_SECONDS = 1.0
XID_EVENT = 0x8
MIB = 1024 * 1024


def read(memory: mmap.mmap) -> dict[str, Any] | None:
    """The last reading; None if there is none yet, or while it is being written."""
    size, checksum = HEADER.unpack_from(memory, 0)
    body = memory[HEADER.size : HEADER.size + min(size, MEMORY_BYTES - HEADER.size)]
    if not size or zlib.crc32(body) != checksum:
        return None
    content: dict[str, Any] = json.loads(body)
    return content


def write(memory: mmap.mmap, content: dict[str, Any]) -> None:
    body = json.dumps(content, separators=(",", ":")).encode()
    if len(body) <= MEMORY_BYTES - HEADER.size:
        memory[HEADER.size : HEADER.size + len(body)] = body
        HEADER.pack_into(memory, 0, len(body), zlib.crc32(body))


class NvmlGpus:
    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        self.count = int(nvml.nvmlDeviceGetCount())
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(self.count)]
        self._uuids = [_decode(nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles]
        self._xids: dict[str, int] = {}
        threading.Thread(target=self._count_xids, daemon=True).start()

    def read_state(self, index: int) -> dict[str, Any]:
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
                # The last two: this nvidia-ml-py is older than the call.
                state[name] = None
        return state

    def _count_xids(self) -> None:
        """Count Xid events; for a GPU that reports no events the count stays None: unknown."""
        nvml, counts_by_uuid = self._nvml, {}
        events = nvml.nvmlEventSetCreate()
        for handle, uuid in zip(self._handles, self._uuids, strict=True):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, XID_EVENT, events)
            except nvml.NVMLError:
                continue
            counts_by_uuid[uuid] = self._xids[uuid] = 0
        while counts_by_uuid:
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
                uuid = _decode(nvml.nvmlDeviceGetUUID(event.device))
                self._xids[uuid] = self._xids.get(uuid, 0) + 1
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    time.sleep(PARENT_CHECK_SECONDS)


def _decode(text: Any) -> str:
    return text.decode() if isinstance(text, bytes) else str(text)


def serve(memory: mmap.mmap, seconds: float, parent: int) -> None:
    gpus: NvmlGpus | None = None
    while os.getppid() == parent:
        content: dict[str, Any] = {"at": time.monotonic(), "gpus": [], "problem": ""}
        try:
            import pynvml

            gpus = gpus or NvmlGpus(pynvml)
            content["gpus"] = [gpus.read_state(index) for index in range(gpus.count)]
        except ImportError:
            content["problem"] = "the Python package nvidia-ml-py is not installed"
        except pynvml.NVMLError as error:
            content["problem"] = f"NVML reports: {error}"
        write(memory, content)
        deadline = time.monotonic() + seconds
        while os.getppid() == parent and (seconds_left := deadline - time.monotonic()) > 0:
            time.sleep(min(seconds_left, PARENT_CHECK_SECONDS))


def list_uuids() -> list[tuple[int, str]]:
    import pynvml as nvml

    nvml.nvmlInit()
    indices = range(nvml.nvmlDeviceGetCount())
    return [(index, _decode(nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index)))) for index in indices]


def main() -> None:
    if sys.argv[1:] == ["list"]:
        sys.stdout.write(json.dumps(list_uuids()))
        return
    fd, seconds, parent = sys.argv[1:4]
    serve(mmap.mmap(int(fd), MEMORY_BYTES), float(seconds), int(parent))
    # Not sys.exit: the thread that waits for events may be stuck in the driver.
    os._exit(0)


if __name__ == "__main__":
    main()
