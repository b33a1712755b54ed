"""A hub over a simulated fleet that runs faster than time: `python -m bench._soak_hub SIMULATOR DATA PORT SPEED EPOCH`.

Its memory and retention are shorter than usual, so that in a simulated day everything comes to its end several times:
rows of samples, blocks, merges, alerts, incidents. With a file behind that it traces what is allocated, and on SIGUSR2
writes there what has grown since the last time, by the line of code that asked for it.
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

MOST_LINES = 30
MIB = 1 << 20


class HeapUse(ctypes.Structure):
    """What mallinfo2(3) gives."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


class Trace:
    """Compares each look with the one before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before: tracemalloc.Snapshot | None = None
        tracemalloc.start()

    def look(self, *_: object) -> None:
        gc.collect()
        now = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])
        rows = [] if self._before is None else now.compare_to(self._before, "lineno")[:MOST_LINES]
        self._before = now
        asked = ctypes.CDLL(None).mallinfo2
        asked.restype = HeapUse
        heap = asked()
        told = {
            "traced_mib": round(tracemalloc.get_traced_memory()[0] / MIB, 1),
            "traced_by_the_trace_mib": round(tracemalloc.get_tracemalloc_memory() / MIB, 1),
            "heap_used_mib": round((heap.uordblks + heap.hblkhd) / MIB, 1),
            "heap_free_mib": round(heap.fordblks / MIB, 1),
            "grown": [f"{row.size_diff / 1024:+,.0f} KiB {row.count_diff:+,} {row.traceback}" for row in rows],
        }
        files.write_atomically(self._path, json.dumps(told).encode())


def main(simulator: str, data: str, port: str, *clock_and_trace: str) -> None:
    speed, epoch, *trace = clock_and_trace
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    told = up.demo_settings("127.0.0.1", int(port), directory=data, tokens=None)
    query = dataclasses.replace(told.query, memory="1h", block="15m", out_of_order="5m", retention="6h")
    fleet = dataclasses.replace(told.fleet, scrape_interval="60s", scrape_timeout="50s")
    rules = dataclasses.replace(told.rules, interval="60s")
    time = clock.ScaledClock(speed=float(speed), epoch_seconds=float(epoch))
    if trace:
        signal.signal(signal.SIGUSR2, Trace(Path(trace[0])).look)
    deadly_hub.run(
        dataclasses.replace(told, query=query, fleet=fleet, rules=rules), SimulatedDriver(simulator), time=time
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
