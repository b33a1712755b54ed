"""The recorder: a child that reads GPUs and the workload's programs at a fixed rate, so that neither a driver call that
hangs nor Python's lock touches whoever watches.

    python -m watchkeeper.probe.profile.recorder_child INTERVAL_SECONDS [INDEX…]

Out, one JSON line each: `opening` before each GPU, `hello` with the GPUs or `broken` with the reason, then `row` for
each GPU and tick, always in the same order, so that a call that hangs can be laid to a GPU. In: one line with the pid
of the workload, when there is one; the end of the input ends the recorder. `recorder` is the other end.
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
    """What the parent has said so far: a pid, or the end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._text = b""
        self.is_closed = False

    def wait(self, seconds: float) -> int | None:
        """Sleep for so long unless the parent says something; a pid if it has."""
        if not select.select([self._fd], [], [], max(0.0, seconds))[0]:
            return None
        piece = os.read(self._fd, 4096)
        self.is_closed = not piece
        self._text += piece
        line, newline, rest = self._text.partition(b"\n")
        if not newline:
            return None
        self._text = rest
        return int(line)


class RowSampler:
    """A row of every GPU at each tick."""

    def __init__(self, gpus: list[gpu_reader.GpuReader], own_clock: clock.Clock) -> None:
        self._gpus = gpus
        self._clock = own_clock
        self._tree: process_tree.ProcessTree | None = None
        self._slow_at = self._host_at = float("-inf")

    def watch(self, pid: int) -> None:
        self._tree = process_tree.ProcessTree(pid)
        self._host_at = float("-inf")

    def rows(self, now: float) -> list[dict[str, Any]]:
        is_slow, is_host = now - self._slow_at >= SLOW_SECONDS, now - self._host_at >= HOST_SECONDS
        host = dict(self._tree.read(now)) if self._tree is not None and is_host else {}
        pids = set(self._tree.pids()) if self._tree is not None and is_slow else set()
        self._slow_at = now if is_slow else self._slow_at
        self._host_at = now if is_host else self._host_at
        found = []
        for gpu in self._gpus:
            values = {name: round(value, 3) for name, value in gpu.read(is_slow=is_slow).items()}
            row: dict[str, Any] = {
                "t": round(self._clock.now().timestamp(), 3),
                "gpu": gpu.facts.index,
                "values": values | host,
            }
            if pids:
                row["is_used"] = bool(pids.intersection(gpu.pids()))
            found.append(row)
        return found


def serve(interval: float, chosen: list[int] | None) -> None:
    inbox = ParentPipe(sys.stdin.fileno())
    try:
        opened = gpu_reader.open_gpus(chosen, lambda gpu, wanted: _send({"opening": gpu, "of": list(wanted)}))
    except session.NvmlBroken as error:
        _send({"broken": error.reason, "text": str(error)})
        return
    _send({"hello": [asdict(gpu.facts) for gpu in opened.gpus], "lost": opened.lost})
    ticks, due = RowSampler(opened.gpus, clock.ScaledClock()), time.monotonic()
    while not inbox.is_closed:
        due = max(due + interval, time.monotonic())
        while not inbox.is_closed and (left := due - time.monotonic()) > 0:
            pid = inbox.wait(left)
            if pid is not None:
                ticks.watch(pid)
        for row in ticks.rows(time.monotonic()):
            _send({"row": row})


def _send(message: dict[str, Any]) -> None:
    line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(OUTPUT, line) :]


def main() -> None:
    with suppress(BrokenPipeError, KeyboardInterrupt):
        serve(float(sys.argv[1]), [int(word) for word in sys.argv[2:]] or None)
    # Not sys.exit: closing NVML may hang, and the kernel cleans up as well.
    os._exit(0)


if __name__ == "__main__":
    main()
