"""Memory: of a hub with the last two hours of a fleet, compared with Prometheus, and of the store alone.

Data is written here and read by separate processes, as after a restart. `ratio` is the resident memory of Prometheus
divided by that of the hub. `bare_megabytes` is the size of the samples as float64.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench import _restart, telemetry
from bench.cold import fill, measure_reopen
from tests import servers


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet; use 10000 for published results")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    comparison: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        samples_folder = _restart.samples_folder(Path(folder))
        fill(fleet, samples_folder, with_blocks=False)
        numbers = measure_reopen(samples_folder, fleet)
        comparison["hub_mebibytes"] = _restart.measure_memory_mib(_restart.create_hub(Path(folder), fleet), fleet)
        if servers.find("prometheus"):
            comparison["prometheus_mebibytes"] = _restart.measure_memory_mib(
                _restart.create_prometheus(Path(folder), fleet), fleet
            )
            comparison["ratio"] = round(comparison["prometheus_mebibytes"] / comparison["hub_mebibytes"], 2)
    bare_megabytes = fleet.samples * 8 / 2**20
    return comparison | {
        "samples": fleet.samples,
        "series": fleet.gpus * len(telemetry.METRICS),
        "bare_megabytes": round(bare_megabytes, 1),
        "resident_megabytes": numbers["opened_megabytes"],
        "asked_megabytes": numbers["resident_megabytes"],
        "empty_megabytes": numbers["empty_megabytes"],
        "bare_ratio": round((numbers["opened_megabytes"] - numbers["empty_megabytes"]) / bare_megabytes, 2),
        "load_average": round(os.getloadavg()[0], 2),
    }
