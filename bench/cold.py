"""A restart: how long until a hub's samples are there again, from the log alone and from blocks, and the first answers.

The store is filled here and opened in a process of its own, so that nothing is warm but the disk's cache. `ratio` is
the whole hub beside Prometheus, both with two hours in their logs and days of blocks before them: seconds from the
start to the first right answer, the median of several starts that take turns.
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

# A hub looks after its blocks each minute.
UPKEEP_SLOTS = 4
FIRST_QUESTIONS = {
    "instant": "count(DCGM_FI_DEV_GPU_TEMP > 80)",
    "rate": "sum(rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[5m]))",
    "narrow": 'DCGM_FI_DEV_GPU_TEMP{Hostname="gpu-0003"}',
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")
    parser.add_argument("--starts", type=int, default=5, help="starts of each server; the median counts")
    parser.add_argument("--days", type=int, default=7, help="days of blocks before the log")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    numbers: dict[str, float] = {"samples": fleet.samples}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("log", "blocks"):
            path = Path(folder) / kind
            fill(fleet, path, with_blocks=kind == "blocks")
            numbers |= {f"{kind}_{name}": number for name, number in reopened(path, fleet).items()}
        numbers |= beside_prometheus(Path(folder), fleet, starts=options.starts, days=options.days)
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def beside_prometheus(folder: Path, fleet: telemetry.Telemetry, *, starts: int, days: int) -> dict[str, float]:
    samples = _restart.kept_samples(folder)
    fill_past(fleet, samples, days)
    fill(fleet, samples, with_blocks=False)
    hub = _restart.ours(folder, fleet)
    blocks = {"hub_blocks": _restart.blocks_of(hub.data)}
    if not servers.find("prometheus"):
        return blocks | {"hub_seconds": _restart.seconds([hub], fleet, times=starts)[0]}
    other = _restart.prometheus(folder, fleet, days)
    blocks["prometheus_blocks"] = _restart.blocks_of(other.data)
    ours, theirs = _restart.seconds([hub, other], fleet, times=starts)
    return blocks | {"hub_seconds": ours, "prometheus_seconds": theirs, "ratio": round(theirs / ours, 2)}


def fill_past(fleet: telemetry.Telemetry, path: Path, days: int) -> None:
    """Blocks of so many days before the telemetry, cut and merged as by a hub; nothing in a log."""
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
    """A store as a hub leaves it: everything in the log, or everything but the last minutes in blocks."""
    clock = [telemetry.START_MS]
    limits = durable.StoreSettings(memory_ms=fleet.slots * telemetry.INTERVAL_MS + HOUR_MS)
    store = durable.open_store(path, limits, clock_ms=lambda: clock[0])
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


def reopened(path: Path, fleet: telemetry.Telemetry) -> dict[str, float]:
    """Seconds, CPU seconds and memory of a new process that opens the store and answers."""
    command = [sys.executable, "-m", "bench.cold", str(path), str(end_ms(fleet))]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ran.stdout)
    return found


def resident_megabytes() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise OSError("/proc/self/status has no VmRSS")


def open_and_ask(path: Path, now_ms: int) -> dict[str, float]:
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
    for name, expr in FIRST_QUESTIONS.items():
        wall = time.perf_counter()
        engine.instant(expr, now_ms)
        numbers[f"{name}_milliseconds"] = round(1000 * (time.perf_counter() - wall), 1)
    wall = time.perf_counter()
    engine.range("avg(DCGM_FI_DEV_GPU_UTIL)", QueryRange(now_ms - 2 * HOUR_MS, now_ms, 15_000))
    numbers["range_milliseconds"] = round(1000 * (time.perf_counter() - wall), 1)
    return numbers | {"resident_megabytes": resident_megabytes(), "empty_megabytes": before_mb}


if __name__ == "__main__":
    print(json.dumps(open_and_ask(Path(sys.argv[1]), int(sys.argv[2]))))
