"""Memory: what a hub holds with a fleet's last two hours in it, beside Prometheus with the same; and the store alone.

Everything is filled here and read by a process of its own, as after a restart. `ratio` is Prometheus' resident memory
in units of the hub's. `bare_megabytes` is what the same samples would take as float64 and nothing else.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench import _restart, telemetry
from bench.cold import fill, reopened
from tests import servers


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=1000, help="size of the fleet; 10000 is the one that counts")
    parser.add_argument("--slots", type=int, default=480, help="readings of each GPU, 15 s apart")


def measure(options: argparse.Namespace) -> dict[str, float]:
    fleet = telemetry.Telemetry(options.gpus, options.slots)
    beside: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        kept = _restart.kept_samples(Path(folder))
        fill(fleet, kept, with_blocks=False)
        found = reopened(kept, fleet)
        beside["hub_mebibytes"] = _restart.mebibytes(_restart.ours(Path(folder), fleet), fleet)
        if servers.find("prometheus"):
            beside["prometheus_mebibytes"] = _restart.mebibytes(_restart.prometheus(Path(folder), fleet), fleet)
            beside["ratio"] = round(beside["prometheus_mebibytes"] / beside["hub_mebibytes"], 2)
    bare = fleet.samples * 8 / 2**20
    return beside | {
        "samples": fleet.samples,
        "series": fleet.gpus * len(telemetry.METRICS),
        "bare_megabytes": round(bare, 1),
        "resident_megabytes": found["opened_megabytes"],
        "asked_megabytes": found["resident_megabytes"],
        "empty_megabytes": found["empty_megabytes"],
        "bare_ratio": round((found["opened_megabytes"] - found["empty_megabytes"]) / bare, 2),
        "load_average": round(os.getloadavg()[0], 2),
    }
