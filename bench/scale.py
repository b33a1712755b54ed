"""CPU use of the hub by fleet size: CPU seconds per scrape interval, with all shipped rules.

Each size runs in a separate process: the real pipeline scrapes, stores, logs and evaluates a simulated fleet in
simulated time, without HTTP. The cost of the simulator is measured and subtracted. `exponent` is the slope of the costs
on logarithmic axes: 1 is linear, less is better.
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
    parser.add_argument(
        "--warm", type=int, default=4, help="intervals before measuring; in the first one all series are new"
    )
    parser.add_argument(
        "--intervals", type=int, default=8, help="intervals to measure; some rules are evaluated in every fourth"
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    sizes = {str(gpus): run_size(gpus, options.warm, options.intervals) for gpus in sorted(options.gpus)}
    return {
        "sizes": sizes,
        "exponent": round(exponent({int(gpus): numbers["cpu_seconds"] for gpus, numbers in sizes.items()}), 3),
        "gpus_of_one_core": max(numbers["gpus_of_one_core"] for numbers in sizes.values()),
        "load_average": round(os.getloadavg()[0], 2),
    }


def run_size(gpus: int, warm: int, intervals: int) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.scale", str(gpus), str(warm), str(intervals)]
    completed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    numbers: dict[str, float] = json.loads(completed.stdout)
    return numbers


def exponent(costs: dict[int, float]) -> float:
    """The slope of a line through the logarithms of costs over sizes, by least squares; 1 for a single size."""
    xs, ys = [math.log(size) for size in costs], [math.log(cost) for cost in costs.values()]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - x_mean) ** 2 for x in xs)
    if not spread:
        return 1.0
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / spread


class TimedConnection(SimulatedConnection):
    """Returns pages of the simulated fleet, and measures the CPU time of rendering them."""

    cpu_seconds = 0.0

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        cpu_before = time.process_time()
        response = await super().send(request)
        self.cpu_seconds += time.process_time() - cpu_before
        return response


class TimedSimulation(Simulation):
    """A simulation that measures the CPU time of its steps."""

    cpu_seconds = 0.0

    def advance(self, seconds: int) -> None:
        cpu_before = time.process_time()
        super().advance(seconds)
        self.cpu_seconds += time.process_time() - cpu_before


async def measure_size(gpus: int, *, warm: int, intervals: int, folder: Path) -> dict[str, float]:
    """Mean CPU seconds per interval of each part."""
    simulation = TimedSimulation(SimSettings(gpus=gpus, seed=7))
    connection = TimedConnection(simulation)
    store_settings = durable.StoreSettings(max_series=SERIES_PER_GPU * gpus)
    store = durable.open_store(folder / "store", store_settings, clock_ms=lambda: clock.to_ms(simulation.now))
    intervals_of_fleet = FleetIntervals(INTERVAL_SECONDS, INTERVAL_SECONDS)
    # The page of the simulated cluster has all pods; real jobs raise `sample_limit` for kube-state-metrics.
    monitored = MonitoredFleet(
        simulation,
        folder,
        intervals=intervals_of_fleet,
        store=store,
        connection=connection,
        max_page_series=SERIES_PER_GPU * gpus,
    )
    try:
        await _advance(monitored, store, warm)
        cpu_before = time.process_time() - simulation.cpu_seconds - connection.cpu_seconds
        log_cpu = await _advance(monitored, store, intervals)
        cpu_seconds = (time.process_time() - simulation.cpu_seconds - connection.cpu_seconds - cpu_before) / intervals
        return {
            "series": len(store),
            "cpu_seconds": round(cpu_seconds, 4),
            "of_that_log": round(log_cpu / intervals, 4),
            "core_share": round(cpu_seconds / INTERVAL_SECONDS, 4),
            "gpus_of_one_core": round(gpus * INTERVAL_SECONDS / cpu_seconds),
            "memory_mib": round(resident_mib(os.getpid()), 1),
            "refused_pages": sum(
                loop.state.health is scrape.TargetHealth.DOWN for _, loop in monitored._target_loops.values()
            ),
        }
    finally:
        monitored.close()
        store.close()


async def _advance(monitored: MonitoredFleet, store: durable.DurableStore, intervals: int) -> float:
    """Simulate intervals and sync the WAL each second as a hub does; returns the CPU seconds of the syncs."""
    sync_cpu_seconds = 0.0
    started_at = time.monotonic()
    for second in range(1, intervals * INTERVAL_SECONDS + 1):
        await monitored.advance(1)
        cpu_before = time.process_time()
        store.sync()
        sync_cpu_seconds += time.process_time() - cpu_before
        if second % INTERVAL_SECONDS == 0:
            progress = f"interval {second // INTERVAL_SECONDS} of {intervals}, {time.monotonic() - started_at:.0f} s"
            print(f"{progress}, {len(store)} series, {resident_mib(os.getpid()):.0f} MiB", file=sys.stderr, flush=True)
    return sync_cpu_seconds


if __name__ == "__main__":
    # As in a hub: with Python's defaults, garbage collection takes a sixth of the first minutes.
    memory.release_eagerly()
    memory.collect_garbage_rarely()
    with tempfile.TemporaryDirectory() as folder_name:
        interval_counts = {"warm": int(sys.argv[2]), "intervals": int(sys.argv[3])}
        print(json.dumps(asyncio.run(measure_size(int(sys.argv[1]), **interval_counts, folder=Path(folder_name)))))
