"""Restarts: time to load the samples of a hub, from the WAL alone and from blocks, and time of the first queries.

The store is opened in a separate process, so that only the disk cache is warm. `ratio` compares the hub with
Prometheus, both with two hours in the WAL and days of blocks: seconds from start to the first correct result, as the
median of several starts in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import _restart, telemetry
from bench.disk import HOUR_MS, load
from tests import servers
from watchkeeper.query.embedded import EmbeddedEngine
from watchkeeper.query.engine import QueryRange
from watchkeeper.store import durable

# A hub maintains its blocks every minute.
UPKEEP_SLOTS = 4
FIRST_QUERIES = {
    "instant": "count(DCGM_FI_DEV_GPU_TEMP > 80)",
    "rate": "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]))",
    "narrow": 'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-0003"}',
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")
    parser.add_argument("--starts", type=int, default=5, help="starts of each server; the median counts")
    parser.add_argument("--days", type=int, default=7, help="days of blocks before the WAL")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    numbers: dict[str, float] = {"samples": fleet.samples}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("log", "blocks"):
            path = Path(folder) / kind
            fill(fleet, path, with_blocks=kind == "blocks")
            numbers |= {f"{kind}_{name}": number for name, number in measure_reopen(path, fleet).items()}
        numbers |= compare_starts(Path(folder), fleet, starts=options.starts, days=options.days)
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def compare_starts(folder: Path, fleet: telemetry.Telemetry, *, starts: int, days: int) -> dict[str, float]:
    samples = _restart.samples_folder(folder)
    fill_past(fleet, samples, days)
    fill(fleet, samples, with_blocks=False)
    hub = _restart.create_hub(folder, fleet)
    blocks = {"hub_blocks": _restart.count_blocks(hub.data)}
    if not servers.find("prometheus"):
        return blocks | {"hub_seconds": _restart.measure_start_seconds([hub], fleet, times=starts)[0]}
    prometheus = _restart.create_prometheus(folder, fleet, days)
    blocks["prometheus_blocks"] = _restart.count_blocks(prometheus.data)
    hub_seconds, prometheus_seconds = _restart.measure_start_seconds([hub, prometheus], fleet, times=starts)
    return blocks | {
        "hub_seconds": hub_seconds,
        "prometheus_seconds": prometheus_seconds,
        "ratio": round(prometheus_seconds / hub_seconds, 2),
    }


def fill_past(fleet: telemetry.Telemetry, path: Path, days: int) -> None:
    """Write blocks for this number of days before the telemetry, cut and merged as by a hub, without a WAL."""
    clock = [telemetry.START_MS]
    store = durable.open_store(path, durable.StoreSettings(uses_wal=False), clock_ms=lambda: clock[0])
    ids, tables = load(fleet, store)
    for turn, clock[0] in enumerate(telemetry.past_ms(days)):
        for node in range(fleet.nodes):
            store.append_scrape(f"node-{node}", ids[node], clock[0], tables[node][turn % fleet.slots])
        store.maintain(clock[0])
    store.close()


def end_ms(fleet: telemetry.Telemetry) -> int:
    return telemetry.START_MS + fleet.slots * telemetry.INTERVAL_MS


def fill(fleet: telemetry.Telemetry, path: Path, *, with_blocks: bool) -> None:
    """Write a store as a hub does: all samples in the WAL, or all but the last minutes in blocks."""
    clock = [telemetry.START_MS]
    store_settings = durable.StoreSettings(memory_ms=fleet.slots * telemetry.INTERVAL_MS + HOUR_MS)
    store = durable.open_store(path, store_settings, clock_ms=lambda: clock[0])
    ids, tables = load(fleet, store)
    times = [fleet.times_ms(node).tolist() for node in range(fleet.nodes)]
    for slot in range(fleet.slots):
        clock[0] = telemetry.START_MS + (slot + 1) * telemetry.INTERVAL_MS
        for node in range(fleet.nodes):
            store.append_scrape(f"node-{node}", ids[node], times[node][slot], tables[node][slot])
        store.sync()
        if with_blocks and slot % UPKEEP_SLOTS == 0:
            store.maintain(clock[0])
    store.close()


def measure_reopen(path: Path, fleet: telemetry.Telemetry) -> dict[str, float]:
    """Seconds, CPU seconds and memory of a new process that opens the store and runs queries."""
    command = [sys.executable, "-m", "bench.cold", str(path), str(end_ms(fleet))]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    numbers: dict[str, float] = json.loads(ran.stdout)
    return numbers


def resident_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise OSError("/proc/self/status has no VmRSS")


def open_and_query(path: Path, now_ms: int) -> dict[str, float]:
    before_mb = resident_megabytes()
    wall, cpu = time.perf_counter(), time.process_time()
    store = durable.open_store(path, durable.StoreSettings(), clock_ms=lambda: now_ms)
    numbers: dict[str, float] = {
        "open_seconds": round(time.perf_counter() - wall, 3),
        "open_cpu_seconds": round(time.process_time() - cpu, 3),
        "replayed_samples": store.status().replayed_samples,
        "blocks": store.status().blocks,
        "opened_megabytes": resident_megabytes(),
    }
    engine = EmbeddedEngine(store)
    for name, expr in FIRST_QUERIES.items():
        wall = time.perf_counter()
        engine.instant(expr, now_ms)
        numbers[f"{name}_milliseconds"] = round(1000 * (time.perf_counter() - wall), 1)
    wall = time.perf_counter()
    engine.range("avg(DCGM_FI_DEV_GPU_UTIL)", QueryRange(now_ms - 2 * HOUR_MS, now_ms, 15_000))
    numbers["range_milliseconds"] = round(1000 * (time.perf_counter() - wall), 1)
    return numbers | {"resident_megabytes": resident_megabytes(), "empty_megabytes": before_mb}


if __name__ == "__main__":
    print(json.dumps(open_and_query(Path(sys.argv[1]), int(sys.argv[2]))))
