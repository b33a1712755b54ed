"""How the hub's work grows with the fleet: CPU seconds per scrape interval, every shipped rule on.

Each size is a process of its own: a simulated fleet whose pages are read, stored, logged and judged by the real
pipeline in simulated time. What the simulator itself takes, its steps and its pages, is measured and left out;
HTTP is not part of it. `exponent` is the slope of the costs on logarithmic axes: 1 is linear, less is better.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.idle import resident_mib
from watchkeeper.cli.hub.up import SERIES_PER_GPU
from watchkeeper.drill.monitored_fleet import FleetIntervals, MonitoredFleet, SimulatedConnection
from watchkeeper.kit import clock, memory
from watchkeeper.net import http
from watchkeeper.scrape import scrape
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.store import durable

INTERVAL_SECONDS = 15


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, nargs="+", default=[1000, 2000, 4000], help="sizes of the fleet")
    parser.add_argument("--warm", type=int, default=4, help="intervals before looking: in the first all series are new")
    parser.add_argument(
        "--intervals", type=int, default=8, help="intervals to look at; some rules have their turn in every fourth"
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sizes = {str(gpus): apart(gpus, options.warm, options.intervals) for gpus in sorted(options.gpus)}
    return {
        "sizes": sizes,
        "exponent": round(exponent({int(gpus): one["cpu_seconds"] for gpus, one in sizes.items()}), 3),
        "gpus_of_one_core": max(one["gpus_of_one_core"] for one in sizes.values()),
        "load_average": round(os.getloadavg()[0], 2),
    }


def apart(gpus: int, warm: int, intervals: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.scale", str(gpus), str(warm), str(intervals)]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def exponent(costs: dict[int, float]) -> float:
    """The slope of a line through the logarithms of costs over sizes, by least squares; 1 for a single size."""
    xs, ys = [math.log(size) for size in costs], [math.log(cost) for cost in costs.values()]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    if not spread:
        return 1.0
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


class TimedLine(SimulatedConnection):
    """The simulated fleet's pages, and the CPU time that making them took."""

    cpu_seconds = 0.0

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        before = time.process_time()
        answer = await super().send(request)
        self.cpu_seconds += time.process_time() - before
        return answer


class TimedSimulation(Simulation):
    """A fleet that says what its own steps took."""

    cpu_seconds = 0.0

    def advance(self, seconds: int) -> None:
        before = time.process_time()
        super().advance(seconds)
        self.cpu_seconds += time.process_time() - before


async def one_size(gpus: int, *, warm: int, intervals: int, folder: Path) -> dict[str, float]:
    """CPU seconds of each part in an interval, the mean of those looked at."""
    simulation = TimedSimulation(SimSettings(gpus=gpus, seed=7))
    line = TimedLine(simulation)
    limits = durable.StoreSettings(max_series=SERIES_PER_GPU * gpus)
    store = durable.open_store(folder / "store", limits, clock_ms=lambda: clock.to_ms(simulation.now))
    pace = FleetIntervals(INTERVAL_SECONDS, INTERVAL_SECONDS)
    # The page of a simulated cluster has all its pods: as `sample_limit` of a job raises it for kube-state-metrics.
    watch = MonitoredFleet(
        simulation, folder, intervals=pace, store=store, connection=line, max_page_series=SERIES_PER_GPU * gpus
    )
    try:
        await _pass(watch, store, warm)
        before = time.process_time() - simulation.cpu_seconds - line.cpu_seconds
        log_cpu = await _pass(watch, store, intervals)
        used = (time.process_time() - simulation.cpu_seconds - line.cpu_seconds - before) / intervals
        return {
            "series": len(store),
            "cpu_seconds": round(used, 4),
            "of_that_log": round(log_cpu / intervals, 4),
            "core_share": round(used / INTERVAL_SECONDS, 4),
            "gpus_of_one_core": round(gpus * INTERVAL_SECONDS / used),
            "memory_mib": round(resident_mib(os.getpid()), 1),
            "refused_pages": sum(loop.state.health is scrape.TargetHealth.DOWN for _, loop in watch._target_loops),
        }
    finally:
        watch.close()
        store.close()


async def _pass(watch: MonitoredFleet, store: durable.DurableStore, intervals: int) -> float:
    """Let intervals pass, the log synced each second as in a hub; returns the CPU seconds of that."""
    spent = 0.0
    began = time.monotonic()
    for second in range(1, intervals * INTERVAL_SECONDS + 1):
        await watch.advance(1)
        before = time.process_time()
        store.sync()
        spent += time.process_time() - before
        if second % INTERVAL_SECONDS == 0:
            said = f"interval {second // INTERVAL_SECONDS} of {intervals}, {time.monotonic() - began:.0f} s"
            print(f"{said}, {len(store)} series, {resident_mib(os.getpid()):.0f} MiB", file=sys.stderr, flush=True)
    return spent


if __name__ == "__main__":
    # As in a hub: with Python's own habits a sixth of the first minutes is the search for garbage among label sets.
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    with tempfile.TemporaryDirectory() as kept:
        asked = {"warm": int(sys.argv[2]), "intervals": int(sys.argv[3])}
        print(json.dumps(asyncio.run(one_size(int(sys.argv[1]), **asked, folder=Path(kept)))))
