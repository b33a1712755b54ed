"""Serve a hub faster than real time: `python -m bench._soak_hub SIMULATOR DATA PORT SPEED EPOCH`.

Its memory and retention are shorter than usual, so that samples, blocks, merges, alerts and incidents all expire
several times in a simulated day. With a file as a further argument, it traces allocations, and on SIGUSR2 writes the
growth since the last time to this file, by line of code.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import json
import signal
import sys
import tracemalloc
from pathlib import Path

from tests.support import deadly_hub
from watchkeeper.cli.hub import up
from watchkeeper.kit import clock, files, memory
from watchkeeper.remediate.drivers.simulated import SimulatedDriver

MAX_LINES = 30
MIB = 1 << 20


class HeapUse(ctypes.Structure):
    """The result of mallinfo2(3)."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class AllocationTrace:
    """Compares each snapshot of allocations with the previous one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._previous: tracemalloc.Snapshot | None = None
        tracemalloc.start()

    def write_growth(self, *_: object) -> None:
        gc.collect()
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
        rows = [] if self._previous is None else snapshot.compare_to(self._previous, "lineno")[:MAX_LINES]
        self._previous = snapshot
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = HeapUse
        heap = mallinfo2()
        report = {
            "traced_mib": round(tracemalloc.get_traced_memory()[0] / MIB, 1),
            "traced_by_the_trace_mib": round(tracemalloc.get_tracemalloc_memory() / MIB, 1),
            "heap_used_mib": round((heap.uordblks + heap.hblkhd) / MIB, 1),
            "heap_free_mib": round(heap.fordblks / MIB, 1),
            "grown": [f"{row.size_diff / 1024:+,.0f} KiB {row.count_diff:+,} {row.traceback}" for row in rows],
        }
        files.write_atomically(self._path, json.dumps(report).encode())


def main(simulator: str, data: str, port: str, *clock_and_trace: str) -> None:
    speed, epoch, *trace = clock_and_trace
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    demo_settings = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    query = dataclasses.replace(demo_settings.query, memory="1h", block="15m", out_of_order="5m", retention="6h")
    fleet = dataclasses.replace(demo_settings.fleet, scrape_interval="60s", scrape_timeout="50s")
    rules = dataclasses.replace(demo_settings.rules, interval="60s")
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    if trace:
        signal.signal(signal.SIGUSR2, AllocationTrace(Path(trace[0])).write_growth)
    deadly_hub.run(
        dataclasses.replace(demo_settings, query=query, fleet=fleet, rules=rules), SimulatedDriver(simulator), time=time
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
