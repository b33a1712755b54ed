"""Memory of a store: a process that holds a fleet's last two hours, and nothing else.

The store is filled here and read by a process of its own, as after a restart. `bare_megabytes` is what the same
samples would take as float64 and nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench import telemetry
from bench.cold import fill, reopened


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    with tempfile.TemporaryDirectory() as folder:
        fill(fleet, Path(folder), with_blocks=False)
        found = reopened(Path(folder), fleet)
    bare = fleet.samples * 8 / 2**20
    return {
        "samples": fleet.samples,
        "series": fleet.gpus * len(telemetry.METRICS),
        "bare_megabytes": round(bare, 1),
        "resident_megabytes": found["opened_megabytes"],
        "asked_megabytes": found["resident_megabytes"],
        "empty_megabytes": found["empty_megabytes"],
        "bare_ratio": round((found["opened_megabytes"] - found["empty_megabytes"]) / bare, 2),
        "load_average": round(os.getloadavg()[0], 2),
    }
