"""A large fleet on a server: what scraping, remote write and rules cost when VictoriaMetrics keeps the samples.

The pages of a simulated fleet are read by the real pipeline in simulated time and written to a real VictoriaMetrics by
remote write; rules ask it over HTTP. What the simulator takes is measured and left out. CPU seconds are of one scrape
interval of 15 s; `lost` are samples that were offered and not taken. What is left with `--without-rules` is what a hub
does whose rules belong to the server (`[rules] owner = "server"`), and what the server does besides evaluating them.
`--streamed` is for fleets that no simulation of this machine could hold, with rules owned by us and by vmalert
(`_streamed`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import _streamed
from bench.idle import cpu_seconds, resident_mib
from bench.scale import INTERVAL_SECONDS, SERIES_PER_GPU, TimedLine, TimedSimulation
from tests import servers
from watchkeeper.config import settings
from watchkeeper.drill.monitored_fleet import FleetIntervals, MonitoredFleet
from watchkeeper.query import prometheus
from watchkeeper.query.local_cache import LocalCacheEngine
from watchkeeper.query.remote.http import ServerClient
from watchkeeper.query.remote.sender import Sender
from watchkeeper.rules import evaluate
from watchkeeper.sim.simulation import SimSettings

FLUSH_SECONDS = 600.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=2, help="intervals before looking: in the first all series are new")
    parser.add_argument("--intervals", type=int, default=4, help="intervals to look at")
    parser.add_argument("--without-rules", action="store_true", help="somebody else evaluates them")
    parser.add_argument("--streamed", action="store_true", help="25 metrics for each GPU, made page by page")
    parser.add_argument(
        "--near", action="store_true", help="streamed: our rules are evaluated on what the hub has read"
    )
    parser.add_argument("--memory", default="15m", help="streamed: how much of it a near hub keeps")
    parser.add_argument("--turns", type=int, default=2, help="streamed: turns of our rules")
    parser.add_argument("--vmalert-seconds", type=float, default=60.0, help="streamed: how long vmalert has the rules")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, victoria_metrics(Path(folder)) as (url, pid):
        if options.streamed:
            return streamed(options, url, Path(folder), pid=pid)
        return asyncio.run(watched(options, url, Path(folder), pid))


def streamed(options: argparse.Namespace, url: str, folder: Path, *, pid: int) -> dict[str, Any]:
    engine = engine_of(url, options.gpus, near=options.near, memory=options.memory)
    try:
        return asyncio.run(_streamed.measure(options, engine, url=url, pid=pid, folder=folder))
    finally:
        engine.close()


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[tuple[str, int]]:
    """A server for a large fleet: its address and its process."""
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    line: list[str | Path] = [servers.require("victoria-metrics"), f"-httpListenAddr=127.0.0.1:{port}"]
    line += [
        f"-storageDataPath={folder}/vm",
        "-retentionPeriod=24",
        "-search.latencyOffset=0s",
        "-memory.allowedPercent=30",
    ]
    line += [
        "-search.maxUniqueTimeseries=20000000",
        "-search.maxQueryDuration=120s",
        "-search.maxSamplesPerQuery=10000000000",
    ]
    with servers.running(line, ready_url=f"{url}/health", log=folder / "vm.log") as server:
        yield url, server.pid


async def watched(options: argparse.Namespace, url: str, folder: Path, pid: int) -> dict[str, Any]:
    simulation = TimedSimulation(SimSettings(gpus=options.gpus, seed=7))
    line, engine = TimedLine(simulation), engine_of(url, options.gpus)
    watch = MonitoredFleet(
        simulation, folder, intervals=FleetIntervals(INTERVAL_SECONDS, INTERVAL_SECONDS), connection=line, remote=engine
    )
    try:
        with_rules = not options.without_rules
        await spend(watch, url, options.warm, with_rules=with_rules)
        own = time.process_time() - simulation.cpu_seconds - line.cpu_seconds
        there, began, written = cpu_seconds(pid), time.monotonic(), rows(url)
        await spend(watch, url, options.intervals, with_rules=with_rules)
        used = (time.process_time() - simulation.cpu_seconds - line.cpu_seconds - own) / options.intervals
        states = watch.pipeline.rule_state.values()
        return {
            "gpus": options.gpus,
            "series": len(engine.remote._numbered),
            "samples_an_interval": round((rows(url) - written) / options.intervals),
            "lost": sum(loop.dropped_samples.total() for _, loop in watch._target_loops),
            "rules_failing": sum(state.health is not evaluate.RuleHealth.OK for state in states),
            "cpu_seconds": round(used, 2),
            "server_cpu_seconds": round((cpu_seconds(pid) - there) / options.intervals, 2),
            "core_share": round(used / INTERVAL_SECONDS, 3),
            "seconds": round((time.monotonic() - began) / options.intervals, 1),
            "server_memory_mib": round(resident_mib(pid), 1),
        }
    finally:
        watch.close()
        engine.close()


def engine_of(url: str, gpus: int, *, near: bool = False, memory: str = "2h") -> prometheus.PrometheusEngine:
    access = settings.QuerySettings(
        engine=settings.QueryEngine.PROMETHEUS,
        url=url,
        write_url=f"{url}/api/v1/write",
        timeout="120s",
        max_series=SERIES_PER_GPU * gpus,
        near=near,
        memory=memory,
    )
    engine = LocalCacheEngine(access) if near else prometheus.PrometheusEngine(access)
    # Simulated time does not wait for the server; a hub's queue has the real time between two scrapes.
    engine.remote.sender = Sender(
        ServerClient(access, f"{url}/api/v1/write", key="query.write_url"), max_queued=SERIES_PER_GPU * gpus
    )
    return engine


async def spend(watch: MonitoredFleet, url: str, intervals: int, *, with_rules: bool = True) -> None:
    """Let intervals pass; before rules have their turn the server can see what was written."""
    assert isinstance(watch.engine, prometheus.PrometheusEngine)
    assert watch.engine.remote.sender is not None
    for second in range(1, intervals * INTERVAL_SECONDS + 1):
        await watch.advance(1, with_rules=with_rules)
        if not watch.engine.remote.sender.flush(FLUSH_SECONDS):
            raise RuntimeError(f"the server did not take what was written within {FLUSH_SECONDS:g} s")
        if second % INTERVAL_SECONDS == INTERVAL_SECONDS - 1:
            show(url)


def show(url: str) -> None:
    """Let the server answer with what was written a moment ago; it would do so after seconds."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=FLUSH_SECONDS):
        pass


def rows(url: str) -> float:
    """Samples that the server has taken so far."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(one.rpartition(" ")[2])
        for one in lines
        if one.startswith('vm_rows_inserted_total{type="promremotewrite"}')
    )
