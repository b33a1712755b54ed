"""Restart a hub and Debian's Prometheus over the same two hours in their WALs, with optional days of blocks before.

`create_hub` and `create_prometheus` fill the data directories; `measure_start_seconds` and `measure_memory_mib` start
the servers as a user does, and measure the time to the first correct result and the memory at rest. The benchmarks
`memory` and `cold` use them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import _peers, telemetry
from bench.idle import resident_mib
from tests import servers
from tests.support import engines
from tests.support.running_product import await_that
from watchkeeper.config import settings
from watchkeeper.kit import files

# After its first result a server still cleans up; the lowest memory in this time counts.
REST_SECONDS = 15
TIMEOUT_SECONDS = 900.0
# Prometheus writes a block of two hours when it has three hours in memory.
HEAD_MS = 3 * 3_600_000
HEAD_TIMES = "prometheus_tsdb_head_"
QUERY = "count(DCGM_FI_DEV_GPU_TEMP)"


def samples_folder(folder: Path) -> Path:
    """The samples folder of a hub of `bench._hub`; the data directory is marked as a hub's."""
    directory = files.DataDirectory(folder / "hub")
    directory.claim()
    directory.release()
    return Path(settings.Settings(hub=settings.HubSettings(data=str(folder / "hub"))).samples_path)


@dataclass(frozen=True, slots=True)
class Server:
    """A server program with its URL, data directory and log."""

    command: tuple[str, ...]
    url: str
    data: Path
    log: Path


def create_hub(folder: Path, fleet: telemetry.Telemetry) -> Server:
    """A hub on the samples that `cold.fill` wrote to `samples_folder(folder)`, with compiled modules."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, "-c", "import bench._hub, bench.telemetry, watchkeeper.cli.hub.serving"],
        check=True,
        env=environment,
    )
    port = servers.free_port()
    command = [sys.executable, "-m", "bench._hub", folder, port, fleet.gpus, fleet.slots, "kept"]
    url = f"http://127.0.0.1:{port}"
    return Server(tuple(map(str, command)), url, folder / "hub", folder / "hub.log")


def create_prometheus(folder: Path, fleet: telemetry.Telemetry, days: int = 0) -> Server:
    """A Prometheus that got the same samples by remote write, has written its blocks, and was stopped."""
    with engines.prometheus(folder) as url:
        _peers.write_telemetry(fleet, [url], days=days)
        await_that(lambda: _head_ms(url) <= HEAD_MS, within_seconds=TIMEOUT_SECONDS)
    url = f"http://127.0.0.1:{servers.free_port()}"
    command = (
        str(servers.require("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={urllib.parse.urlsplit(url).netloc}",
        f"--storage.tsdb.retention.time={engines.KEPT}",
    )
    return Server(command, url, folder / "prometheus", folder / "prometheus-again.log")


def _head_ms(url: str) -> float:
    """The time range that Prometheus has in memory and WAL, not yet in blocks."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=TIMEOUT_SECONDS) as answer:
        head_times = dict(
            line.split(" ", 1) for line in answer.read().decode().splitlines() if line.startswith(HEAD_TIMES)
        )
    low, high = (float(head_times[f"{HEAD_TIMES}{end}_time"]) for end in ("min", "max"))
    return high - low


def count_blocks(data: Path) -> int:
    """The number of blocks: ours are files, those of Prometheus are folders with a meta.json."""
    return sum(1 for kind in ("*.block", "meta.json") for _ in data.rglob(kind))


def measure_start_seconds(servers_to_start: Sequence[Server], fleet: telemetry.Telemetry, *, times: int) -> list[float]:
    """Seconds from start to the first correct result: the median of several starts in turn, each on a new copy."""
    seconds_by_server: list[list[float]] = [[] for _ in servers_to_start]
    for server in servers_to_start:
        shutil.copytree(server.data, _backup_folder(server))
    for _ in range(times):
        for server, start_seconds in zip(servers_to_start, seconds_by_server, strict=True):
            shutil.rmtree(server.data)
            shutil.copytree(_backup_folder(server), server.data)
            with _running(server, fleet) as (_, first):
                start_seconds.append(first)
    return [round(statistics.median(start_seconds), 2) for start_seconds in seconds_by_server]


def _backup_folder(server: Server) -> Path:
    return server.data.with_name(f"{server.data.name}-kept")


def measure_memory_mib(server: Server, fleet: telemetry.Telemetry) -> float:
    """Memory at rest, after the first correct result."""
    with _running(server, fleet) as (pid, _):
        return round(_min_memory_mib(pid), 1)


@contextlib.contextmanager
def _running(server: Server, fleet: telemetry.Telemetry) -> Iterator[tuple[int, float]]:
    """Start a server; yields its pid, and the seconds until the first correct result."""
    with server.log.open("wb") as output:
        started_at = time.perf_counter()
        process = subprocess.Popen(server.command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process.pid, _first_answer(process, server.url, fleet, log=server.log) - started_at
        finally:
            servers.stop(process)


def _first_answer(server: subprocess.Popen[bytes], url: str, fleet: telemetry.Telemetry, *, log: Path) -> float:
    """The time when the server first counted the whole fleet."""
    parameters = urllib.parse.urlencode({"query": QUERY, "time": f"{fleet.end_ms / 1000:.3f}"})
    expected, deadline = f'"{fleet.gpus}"'.encode(), time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/api/v1/query?{parameters}", timeout=TIMEOUT_SECONDS) as answer,
        ):
            if expected in answer.read():
                return time.perf_counter()
        time.sleep(0.02)
    raise RuntimeError(f"{url} did not count {fleet.gpus} GPUs:\n{log.read_text()[-2000:]}")


def _min_memory_mib(pid: int) -> float:
    samples_mib = []
    for _ in range(REST_SECONDS):
        time.sleep(1.0)
        samples_mib.append(resident_mib(pid))
    return min(samples_mib)
