"""Read the processes with a context on a GPU, and the share of its utilisation that each one uses.

Shares are measured only if several processes use the GPU, with every fifth reading or when the processes change: the
call takes 2 ms on an H200. NVML samples one process at a time, so one second is not representative (an H200 gave 0, 18
and 37 % in turn for a process with 13 %); the mean of the last ten seconds is used, and exported shares always sum to
1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

# `gpuInstanceId` of a process that uses the whole GPU.
NO_SLICE = 0xFFFFFFFF
# A GPU with more contexts has a leak.
MAX_PROGRAMS = 256
WINDOW_US = 10_000_000
READINGS_PER_MEASUREMENT = 5
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
SHARES = "nvmlDeviceGetProcessUtilization"

CallNote = Callable[[str], None]


class Programs:
    """The processes of one GPU over time. `is_split` is False if the GPU cannot measure utilisation by process."""

    def __init__(self) -> None:
        self.is_split = True
        self.newest_us = 0
        self._busy: dict[int, int] = {}
        self._measured_pids: frozenset[int] = frozenset()
        self._readings_since_measurement = 0

    def read(self, nvml: Any, gpu: Any, note: CallNote) -> list[list[int | None]]:
        """A row for each process: pid, MIG instance, mean SM utilisation in percent; NVMLError if the call fails."""
        note(LIST)
        running = [*nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)]
        running += nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu)
        slices_by_pid = {entry.pid: _slice_id(entry) for entry in running[:MAX_PROGRAMS]}
        if len(slices_by_pid) > 1 and self.is_split:
            pids = frozenset(slices_by_pid)
            self._readings_since_measurement += 1
            if pids != self._measured_pids or self._readings_since_measurement >= READINGS_PER_MEASUREMENT:
                self._measured_pids, self._readings_since_measurement = pids, 0
                self._measure(nvml, gpu, note)
        has_shares = len(slices_by_pid) > 1 and self.is_split
        return [
            [pid, slice_id, self._busy.get(pid, 0) if has_shares else None]
            for pid, slice_id in sorted(slices_by_pid.items())
        ]

    def _measure(self, nvml: Any, gpu: Any, note: CallNote) -> None:
        note(SHARES)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(gpu, max(0, self.newest_us - WINDOW_US))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            self.is_split = False
            return
        except nvml.NVMLError_NotFound:
            # No process was active in that time.
            self._busy = {}
            return
        busy_by_pid: dict[int, list[int]] = defaultdict(list)
        for sample in samples:
            # NVML fills unused entries with zeros.
            if sample.pid:
                busy_by_pid[sample.pid].append(min(sample.smUtil, 100))
        self.newest_us = max([self.newest_us, *(sample.timeStamp for sample in samples)])
        self._busy = {pid: round(sum(busy) / len(busy)) for pid, busy in busy_by_pid.items()}


def _slice_id(program: Any) -> int | None:
    slice_id = getattr(program, "gpuInstanceId", NO_SLICE)
    return None if slice_id is None or slice_id == NO_SLICE else int(slice_id)
