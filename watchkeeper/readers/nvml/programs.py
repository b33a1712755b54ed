"""Which programs have a context on a GPU, and how much of it each of them keeps busy.

The session asks with every fast reading. How busy each program is is asked only where several share the GPU, since
alone a program is all of it, and then only with every fifth reading or when they change: the call takes 2 ms on an
H200. NVML samples one program at a time, so that a second of it says little (an H200 gave 0, 18 and 37 % in turn for a
program that had 13 %), and it is asked for the mean of the last ten. Their raw sum was 5.5 to 8.5 % below the GPU's
utilisation in the first five readings and within 5 % in the other 27 of 32; shown shares always sum to 1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

# `gpuInstanceId` of a program that runs on the whole GPU.
NO_SLICE = 0xFFFFFFFF
# A GPU with more contexts than this has a leak; the rest says nothing more.
MAX_PROGRAMS = 256
WINDOW_US = 10_000_000
READINGS_BETWEEN = 5
LIST = "nvmlDeviceGetComputeRunningProcesses_v3"
SHARES = "nvmlDeviceGetProcessUtilization"

Note = Callable[[str], None]


class Programs:
    """One GPU's programs over time. `is_split` is False on a GPU that cannot tell them apart."""

    def __init__(self) -> None:
        self.is_split = True
        self.newest_us = 0
        self._busy: dict[int, int] = {}
        self._asked_for: frozenset[int] = frozenset()
        self._readings_since = 0

    def read(self, nvml: Any, gpu: Any, note: Note) -> list[list[int | None]]:
        """A row for each program: pid, slice, and its mean SM utilisation in percent; NVMLError where NVML refuses."""
        note(LIST)
        running = [*nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)]
        running += nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu)
        rows = {entry.pid: _slice(entry) for entry in running[:MAX_PROGRAMS]}
        if len(rows) > 1 and self.is_split and self._is_due(frozenset(rows)):
            self._measure(nvml, gpu, note)
        is_told = len(rows) > 1 and self.is_split
        return [[pid, part, self._busy.get(pid, 0) if is_told else None] for pid, part in sorted(rows.items())]

    def _is_due(self, pids: frozenset[int]) -> bool:
        self._readings_since += 1
        if pids == self._asked_for and self._readings_since < READINGS_BETWEEN:
            return False
        self._asked_for, self._readings_since = pids, 0
        return True

    def _measure(self, nvml: Any, gpu: Any, note: Note) -> None:
        note(SHARES)
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(gpu, max(0, self.newest_us - WINDOW_US))
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
            self.is_split = False
            return
        except nvml.NVMLError_NotFound:
            # No program did anything in that time.
            self._busy = {}
            return
        by_pid: dict[int, list[int]] = defaultdict(list)
        for sample in samples:
            # NVML fills what it has no program for with zeros.
            if sample.pid:
                by_pid[sample.pid].append(min(sample.smUtil, 100))
        self.newest_us = max([self.newest_us, *(sample.timeStamp for sample in samples)])
        self._busy = {pid: round(sum(busy) / len(busy)) for pid, busy in by_pid.items()}


def _slice(entry: Any) -> int | None:
    part = getattr(entry, "gpuInstanceId", NO_SLICE)
    return None if part is None or part == NO_SLICE else int(part)
