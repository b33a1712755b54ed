"""A sweep of an InfiniBand fabric: 512 host ports in ibsim, read with infiniband-diags, compared with ibnetdiscover.

`sweep_seconds` is the whole sweep; `walk_seconds` is `ibnetdiscover` alone in the same run, which every tool needs.
`take_seconds` is the time of the hub to compare a sweep with the previous one and to create its series.
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
    parser.add_argument("--nodes", type=int, default=64, help="hosts of the fabric, each with one port per rail")
    parser.add_argument("--rails", type=int, default=8, help="rails of the fabric")
    parser.add_argument("--turns", type=int, default=5, help="sweeps; the median counts")


def measure(options: argparse.Namespace) -> dict[str, float]:
    plan = ibsim.Plan(options.nodes, options.rails, nodes_per_leaf=32, spines=8, links_per_spine=2)
    with tempfile.TemporaryDirectory() as folder, ibsim.running(plan, Path(folder)) as running:
        sweep_settings = fabric_sweep.SweepSettings(environment=running.environment)
        walk_seconds, sweep_seconds = [], []
        for _ in range(options.turns):
            started_at = time.perf_counter()
            running.ask("ibnetdiscover")
            walk_seconds.append(time.perf_counter() - started_at)
            sweep = fabric_sweep.sweep(sweep_settings, at_ms=0)
            sweep_seconds.append(sweep.seconds)
    layout = fabric.FabricTopology(sweep)
    watch = fabric_watch.FabricWatch(config.FabricSettings(), "main")
    started_at = time.perf_counter()
    watch.accept_sweep(sweep, NOW)
    seconds = time.perf_counter() - started_at
    return {
        "host_ports": len(layout.host_links()),
        "ports": len(sweep.ports),
        "switches": len(layout.switches()),
        "unread": len(sweep.problems) + len(sweep.unread),
        "sweep_seconds": round(median(sweep_seconds), 3),
        "slowest_sweep_seconds": round(max(sweep_seconds), 3),
        "walk_seconds": round(median(walk_seconds), 3),
        "sweep_per_walk": round(median(sweep_seconds) / median(walk_seconds), 2),
        "take_seconds": round(seconds, 4),
        "series": len(watch.series(clock.to_ms(NOW))),
    }
