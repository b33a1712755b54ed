"""A large fleet on a remote server: the cost of scraping, remote write and rules with VictoriaMetrics as the store.

The real pipeline scrapes a simulated fleet in simulated time, writes to a real VictoriaMetrics by remote write, and
evaluates rules over HTTP. The cost of the simulator is measured and subtracted. CPU seconds are per scrape interval of
15 s; `lost` samples were not accepted. `--without-rules` measures a hub whose rules run on the server (`[rules] owner =
"server"`). `--streamed` is for fleets that are too large to simulate, with rules evaluated by us and by vmalert
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
from bench.scale import INTERVAL_SECONDS, SERIES_PER_GPU, TimedConnection, TimedSimulation
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
    parser.add_argument(
        "--warm", type=int, default=2, help="intervals before measuring; in the first one all series are new"
    )
    parser.add_argument("--intervals", type=int, default=4, help="intervals to measure")
    parser.add_argument("--without-rules", action="store_true", help="do not evaluate rules")
    parser.add_argument("--streamed", action="store_true", help="25 metrics per GPU, rendered page by page")
    parser.add_argument(
        "--near", action="store_true", help="with --streamed: evaluate our rules on the hub's local cache"
    )
    parser.add_argument("--memory", default="15m", help="with --streamed and --near: retention of the local cache")
    parser.add_argument("--turns", type=int, default=2, help="with --streamed: evaluations of our rules")
    parser.add_argument("--vmalert-seconds", type=float, default=60.0, help="with --streamed: seconds to run vmalert")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, victoria_metrics(Path(folder)) as (url, pid):
        if options.streamed:
            return measure_streamed(options, url, Path(folder), pid=pid)
        return asyncio.run(measure_simulated(options, url, Path(folder), pid))


def measure_streamed(options: argparse.Namespace, url: str, folder: Path, *, pid: int) -> dict[str, Any]:
    engine = create_engine(url, options.gpus, is_near=options.near, memory=options.memory)
    try:
        return asyncio.run(_streamed.measure(options, engine, url=url, pid=pid, folder=folder))
    finally:
        engine.close()


@contextlib.contextmanager
def victoria_metrics(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a server for a large fleet; yields its URL and pid."""
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    command: list[str | Path] = [servers.require("victoria-metrics"), f"-httpListenAddr=127.0.0.1:{port}"]
    command += [
        f"-storageDataPath={folder}/vm",
        "-retentionPeriod=24",
        "-search.latencyOffset=0s",
        "-memory.allowedPercent=30",
    ]
    command += [
        "-search.maxUniqueTimeseries=20000000",
        "-search.maxQueryDuration=120s",
        "-search.maxSamplesPerQuery=10000000000",
    ]
    with servers.running(command, ready_url=f"{url}/health", log=folder / "vm.log") as server:
        yield url, server.pid


async def measure_simulated(options: argparse.Namespace, url: str, folder: Path, pid: int) -> dict[str, Any]:
    simulation = TimedSimulation(SimSettings(gpus=options.gpus, seed=7))
    connection, engine = TimedConnection(simulation), create_engine(url, options.gpus)
    monitored = MonitoredFleet(
        simulation,
        folder,
        intervals=FleetIntervals(INTERVAL_SECONDS, INTERVAL_SECONDS),
        connection=connection,
        remote=engine,
    )
    try:
        with_rules = not options.without_rules
        await advance_intervals(monitored, url, options.warm, with_rules=with_rules)
        cpu_before = time.process_time() - simulation.cpu_seconds - connection.cpu_seconds
        server_cpu_before, started_at, rows_before = cpu_seconds(pid), time.monotonic(), inserted_rows(url)
        await advance_intervals(monitored, url, options.intervals, with_rules=with_rules)
        cpu_seconds_used = (
            time.process_time() - simulation.cpu_seconds - connection.cpu_seconds - cpu_before
        ) / options.intervals
        states = monitored.pipeline.rule_state.values()
        return {
            "gpus": options.gpus,
            "series": len(engine.remote._encoded_labels),
            "samples_an_interval": round((inserted_rows(url) - rows_before) / options.intervals),
            "lost": sum(loop.dropped_samples.total() for _, loop in monitored._target_loops.values()),
            "rules_failing": sum(state.health is not evaluate.RuleHealth.OK for state in states),
            "cpu_seconds": round(cpu_seconds_used, 2),
            "server_cpu_seconds": round((cpu_seconds(pid) - server_cpu_before) / options.intervals, 2),
            "core_share": round(cpu_seconds_used / INTERVAL_SECONDS, 3),
            "seconds": round((time.monotonic() - started_at) / options.intervals, 1),
            "server_memory_mib": round(resident_mib(pid), 1),
        }
    finally:
        monitored.close()
        engine.close()


def create_engine(url: str, gpus: int, *, is_near: bool = False, memory: str = "2h") -> prometheus.PrometheusEngine:
    access = settings.QuerySettings(
        engine=settings.QueryEngine.PROMETHEUS,
        url=url,
        write_url=f"{url}/api/v1/write",
        timeout="120s",
        max_series=SERIES_PER_GPU * gpus,
        near=is_near,
        memory=memory,
    )
    engine = LocalCacheEngine(access) if is_near else prometheus.PrometheusEngine(access)
    # Simulated time does not wait for the server, so the queue must hold a whole interval.
    engine.remote.sender = Sender(
        ServerClient(access, f"{url}/api/v1/write", key="query.write_url"), max_queued=SERIES_PER_GPU * gpus
    )
    return engine


async def advance_intervals(monitored: MonitoredFleet, url: str, intervals: int, *, with_rules: bool = True) -> None:
    """Simulate intervals; samples are flushed before rules are evaluated."""
    assert isinstance(monitored.engine, prometheus.PrometheusEngine)
    assert monitored.engine.remote.sender is not None
    for second in range(1, intervals * INTERVAL_SECONDS + 1):
        await monitored.advance(1, with_rules=with_rules)
        if not monitored.engine.remote.sender.flush(FLUSH_SECONDS):
            raise RuntimeError(f"the server did not accept the samples within {FLUSH_SECONDS:g} s")
        if second % INTERVAL_SECONDS == INTERVAL_SECONDS - 1:
            flush_server(url)


def flush_server(url: str) -> None:
    """Make the newest samples visible to queries, which would otherwise take seconds."""
    with urllib.request.urlopen(f"{url}/internal/force_flush", timeout=FLUSH_SECONDS):
        pass


def inserted_rows(url: str) -> float:
    """The number of samples that the server has accepted."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith('vm_rows_inserted_total{type="promremotewrite"}')
    )
