"""Child process that reads GPUs and the processes of the workload at a fixed rate.

    python -m watchkeeper.probe.profile.recorder_child INTERVAL_SECONDS [INDEX…]

Output, as JSON lines: `opening` before each GPU, `gpus` with all GPUs or `error` with the reason, then a `row` for each
GPU and tick, always in the same order, so that a hanging call can be attributed to a GPU. Input: one line with the pid
of the workload; the process exits at the end of its input.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from watchkeeper.kit import clock
from watchkeeper.probe.profile import gpu_reader, process_tree
from watchkeeper.readers.nvml import session

SLOW_SECONDS = 1.0
HOST_SECONDS = 0.5
OUTPUT = 1


class ParentPipe:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = b""
        self.is_closed = False

    def wait(self, seconds: float) -> int | None:
        """Wait for this time or until input arrives; returns a pid if one was received."""
        if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
            return None
        received = os.read(self._fd, 4096)
        self.is_closed = not received
        self._text += received
        line, newline, rest = self._text.partition(b"\n")
        if not newline:
            return None
        self._text = rest
        return int(line)


class RowSampler:
    def __init__(self, gpus: list[gpu_reader.GpuReader], wall_clock: clock.Clock) -> None:
        self._gpus = gpus
        self._clock = wall_clock
        self._tree: process_tree.ProcessTree | None = None
        self._slow_read_at = self._host_read_at = float("-inf")

    def set_process(self, pid: int) -> None:
        self._tree = process_tree.ProcessTree(pid)
        self._host_read_at = float("-inf")

    def read_rows(self, now: float) -> list[dict[str, Any]]:
        is_slow_due, is_host_due = now - self._slow_read_at >= SLOW_SECONDS, now - self._host_read_at >= HOST_SECONDS
        host = dict(self._tree.read(now)) if self._tree is not None and is_host_due else {}
        pids = set(self._tree.pids()) if self._tree is not None and is_slow_due else set()
        self._slow_read_at = now if is_slow_due else self._slow_read_at
        self._host_read_at = now if is_host_due else self._host_read_at
        rows = []
        for gpu in self._gpus:
            values = {name: round(value, 3) for name, value in gpu.read(is_slow=is_slow_due).items()}
            at = round(self._clock.now().timestamp(), 3)
            row: dict[str, Any] = {"t": at, "gpu": gpu.facts.index, "values": values | host}
            if pids:
                row["is_used"] = bool(pids.intersection(gpu.pids()))
            rows.append(row)
        return rows


def record(interval: float, indices: list[int] | None) -> None:
    parent = ParentPipe(sys.stdin.fileno())
    try:
        gpus, lost = gpu_reader.open_gpus(indices, lambda gpu, indices: _send({"opening": gpu, "of": list(indices)}))
    except session.NvmlBroken as error:
        _send({"error": error.reason, "text": str(error)})
        return
    _send({"gpus": [asdict(gpu.facts) for gpu in gpus], "lost": lost})
    sampler, next_tick = RowSampler(gpus, clock.ScaledClock()), time.monotonic()
    while not parent.is_closed:
        next_tick = max(next_tick + interval, time.monotonic())
        while not parent.is_closed and (remaining_seconds := next_tick - time.monotonic()) > 0:
            pid = parent.wait(remaining_seconds)
            if pid is not None:
                sampler.set_process(pid)
        for row in sampler.read_rows(time.monotonic()):
            _send({"row": row})


def _send(message: dict[str, Any]) -> None:
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(OUTPUT, line) :]


def main() -> None:
    with suppress(BrokenPipeError, KeyboardInterrupt):
        record(float(sys.argv[1]), [int(word) for word in sys.argv[2:]] or None)
    # Not sys.exit: closing NVML may hang, and the kernel cleans up anyway.
    os._exit(0)


if __name__ == "__main__":
    main()
