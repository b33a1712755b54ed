"""A sweep of the InfiniBand fabric: 512 host ports in ibsim, walked with infiniband-diags, against one bare walk.

`sweep_seconds` is everything from the first program to the finished value; `walk_seconds` is `ibnetdiscover` alone in
the same run, which any tool has to pay. `take_seconds` is what the hub needs to compare a sweep with the last and to
make series of it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from tests.support.clusters import ibsim
from watchkeeper.clusters.fabric import fabric_sweep, fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.kit import clock
from watchkeeper.model import fabric

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=64, help="hosts of the fabric, each with one port on every rail")
    parser.add_argument("--rails", type=int, default=8, help="rails of the fabric")
    parser.add_argument("--turns", type=int, default=5, help="sweeps; the median counts")


def measure(options: argparse.Namespace) -> dict[str, float]:
    plan = ibsim.Plan(options.nodes, options.rails, nodes_per_leaf=32, spines=8, links_per_spine=2)
    with tempfile.TemporaryDirectory() as folder, ibsim.running(plan, Path(folder)) as running:
        wanted = fabric_sweep.SweepSettings(environment=running.environment)
        walks, sweeps = [], []
        for _ in range(options.turns):
            began = time.perf_counter()
            running.ask("ibnetdiscover")
            walks.append(time.perf_counter() - began)
            found = fabric_sweep.sweep(wanted, at_ms=0)
            sweeps.append(found.seconds)
    layout = fabric.FabricTopology(found)
    watch = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    began = time.perf_counter()
    watch.accept_sweep(found, NOW)
    took = time.perf_counter() - began
    return {
        "host_ports": len(layout.host_links()),
        "ports": len(found.ports),
        "switches": len(layout.switches()),
        "unread": len(found.problems) + len(found.unread),
        "sweep_seconds": round(median(sweeps), 3),
        "slowest_sweep_seconds": round(max(sweeps), 3),
        "walk_seconds": round(median(walks), 3),
        "sweep_per_walk": round(median(sweeps) / median(walks), 2),
        "take_seconds": round(took, 4),
        "series": len(watch.series(clock.to_ms(NOW))),
    }
