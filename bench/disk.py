"""Bytes on disk for each sample: of our blocks, and of Prometheus' blocks if promtool is installed.

Samples are appended as scrapes to the durable store, so that the cost of appending and of the WAL is measured too.
`--prometheus-gpus` is smaller by default, because promtool reads only 100,000 samples a second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench import telemetry
from watchkeeper.store import durable

HOUR_MS = 3_600_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")
    parser.add_argument("--prometheus-gpus", type=int, default=64, help="size of the fleet for promtool; 0 skips it")


def measure(options: argparse.Namespace) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        numbers = fill_store(telemetry.Telemetry(options.gpus, options.slots), Path(folder) / "ours")
        if options.prometheus_gpus and shutil.which("promtool"):
            fleet = telemetry.Telemetry(options.prometheus_gpus, options.slots)
            our_numbers = fill_store(fleet, Path(folder) / "same")
            prometheus_bytes = prometheus_bytes_per_sample(fleet, Path(folder))
            numbers |= {
                "prometheus_gpus": fleet.gpus,
                "prometheus_bytes_per_sample": prometheus_bytes,
                "block_bytes_per_sample_same": our_numbers["block_bytes_per_sample"],
                "prometheus_ratio": round(prometheus_bytes / our_numbers["block_bytes_per_sample"], 2),
            }
    return numbers | {"load_average": round(os.getloadavg()[0], 2)}


def fill_store(fleet: telemetry.Telemetry, path: Path) -> dict[str, float]:
    """Append the samples one slot at a time, then cut and merge blocks."""
    clock = [telemetry.START_MS]
    store_settings = durable.StoreSettings(memory_ms=fleet.slots * telemetry.INTERVAL_MS + HOUR_MS)
    store = durable.open_store(path, store_settings, clock_ms=lambda: clock[0])
    ids, tables = load(fleet, store)
    times = [fleet.times_ms(node).tolist() for node in range(fleet.nodes)]
    append_cpu = sync_cpu = 0.0
    for slot in range(fleet.slots):
        clock[0] = telemetry.START_MS + (slot + 1) * telemetry.INTERVAL_MS
        cpu_before = time.process_time()
        for node in range(fleet.nodes):
            store.append_scrape(f"node-{node}", ids[node], times[node][slot], tables[node][slot])
        cpu_after_append = time.process_time()
        store.sync()
        append_cpu, sync_cpu = (
            append_cpu + cpu_after_append - cpu_before,
            sync_cpu + time.process_time() - cpu_after_append,
        )
    log_bytes = store.status().log_bytes
    cpu_before = time.process_time()
    store.maintain(clock[0] + HOUR_MS)
    block_cpu = time.process_time() - cpu_before
    status = store.status()
    store.close()
    micro = 1e6 / fleet.samples
    return {
        "samples": fleet.samples,
        "append_microseconds_per_sample": round(append_cpu * micro, 4),
        "log_microseconds_per_sample": round(sync_cpu * micro, 4),
        "log_bytes_per_sample": round(log_bytes / fleet.samples, 3),
        "block_cpu_seconds": round(block_cpu, 2),
        "blocks": status.blocks,
        "block_bytes_per_sample": round(status.block_bytes / fleet.samples, 4),
    }


def load(fleet: telemetry.Telemetry, store: durable.DurableStore) -> tuple[list[telemetry.Ids], list[telemetry.Floats]]:
    """The series ids of each node, and its readings as slot × series."""
    readings = dict(fleet.metrics())
    ids, tables = [], []
    for node in range(fleet.nodes):
        gpus = fleet.gpus_of(node)
        ids.append(np.array([store.series_id(fleet.labels(metric, gpu)) for metric in readings for gpu in gpus]))
        rows = np.concatenate([values[gpus.start : gpus.stop] for values in readings.values()])
        tables.append(np.ascontiguousarray(rows.T))
    return ids, tables


def prometheus_bytes_per_sample(fleet: telemetry.Telemetry, folder: Path) -> float:
    """Bytes per sample of blocks that promtool creates from the same samples."""
    text = folder / "openmetrics.txt"
    with text.open("w") as file:
        file.writelines(_openmetrics(fleet))
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "theirs")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    used_bytes = sum(path.stat().st_size for path in (folder / "theirs").glob("*/chunks/*"))
    used_bytes += sum(path.stat().st_size for path in (folder / "theirs").glob("*/index"))
    return round(used_bytes / fleet.samples, 4)


def _openmetrics(fleet: telemetry.Telemetry) -> Iterator[str]:
    for metric, values in fleet.metrics():
        yield f"# TYPE {telemetry.metric_name(metric)} gauge\n"
        for gpu in range(fleet.gpus):
            series = str(fleet.labels(metric, gpu)).replace(", ", ",")
            times = fleet.times_ms(gpu // telemetry.GPUS_PER_NODE)
            for at_ms, value in zip(times.tolist(), values[gpu].tolist(), strict=True):
                yield f"{series} {value!r} {at_ms / 1000:.3f}\n"
    yield "# EOF\n"
