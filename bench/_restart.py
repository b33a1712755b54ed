"""A hub and Debian's Prometheus started anew over the same two hours, which both have in their logs alone, and days of
blocks before them where that is asked for.

`ours` and `prometheus` are the two with data directories filled; `seconds` and `mebibytes` start them as a user does,
and say how soon they answered a first question and what they hold at rest. `memory` and `cold` compare the two.
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

# After its first answer a server tidies up for a while; the least that it holds in this time counts.
REST_SECONDS = 15
PATIENCE_SECONDS = 900.0
# A Prometheus cuts a block of two hours when it has three of them in memory.
HEAD_MS = 3 * 3_600_000
HEAD_TIMES = "prometheus_tsdb_head_"
QUESTION = "count(DCGM_FI_DEV_GPU_TEMP)"


def kept_samples(folder: Path) -> Path:
    """Where a hub of `bench._hub` in this folder has its samples; the folder is then known as a hub's."""
    claimed = files.DataDirectory(folder / "hub")
    claimed.claim()
    claimed.release()
    return Path(settings.Settings(hub=settings.HubSettings(data=str(folder / "hub"))).samples_path)


@dataclass(frozen=True, slots=True)
class Server:
    """A program that can be started, where it answers, and what it starts on."""

    command: tuple[str, ...]
    url: str
    data: Path
    log: Path


def ours(folder: Path, fleet: telemetry.Telemetry) -> Server:
    """A hub on samples that `cold.fill` left in `kept_samples(folder)`; its modules are compiled, as when installed."""
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


def prometheus(folder: Path, fleet: telemetry.Telemetry, days: int = 0) -> Server:
    """A Prometheus that was given the same by remote write, has cut its blocks, and was stopped."""
    with engines.prometheus(folder) as url:
        _peers.write(fleet, [url], days=days)
        await_that(lambda: _head_ms(url) <= HEAD_MS, within_seconds=PATIENCE_SECONDS)
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
    """Time that a Prometheus has in memory and log, and not yet in blocks."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=PATIENCE_SECONDS) as answer:
        told = dict(line.split(" ", 1) for line in answer.read().decode().splitlines() if line.startswith(HEAD_TIMES))
    low, high = (float(told[f"{HEAD_TIMES}{end}_time"]) for end in ("min", "max"))
    return high - low


def blocks_of(data: Path) -> int:
    """Ours are files, a Prometheus' are folders with a description in each."""
    return sum(1 for kind in ("*.block", "meta.json") for _ in data.rglob(kind))


def seconds(started: Sequence[Server], fleet: telemetry.Telemetry, *, times: int) -> list[float]:
    """Seconds from start to first right answer: of each the median of several starts, in turn, on fresh copies."""
    found: list[list[float]] = [[] for _ in started]
    for one in started:
        shutil.copytree(one.data, _copy_of(one))
    for _ in range(times):
        for one, took in zip(started, found, strict=True):
            shutil.rmtree(one.data)
            shutil.copytree(_copy_of(one), one.data)
            with _running(one, fleet) as (_, first):
                took.append(first)
    return [round(statistics.median(took), 2) for took in found]


def _copy_of(one: Server) -> Path:
    return one.data.with_name(f"{one.data.name}-kept")


def mebibytes(one: Server, fleet: telemetry.Telemetry) -> float:
    """What it holds when it has answered and come to rest."""
    with _running(one, fleet) as (pid, _):
        return round(_at_rest(pid), 1)


@contextlib.contextmanager
def _running(one: Server, fleet: telemetry.Telemetry) -> Iterator[tuple[int, float]]:
    """Start it; give its process, and how many seconds it took to answer."""
    with one.log.open("wb") as output:
        began = time.perf_counter()
        server = subprocess.Popen(one.command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield server.pid, _first_answer(server, one.url, fleet, log=one.log) - began
        finally:
            servers.stop(server)


def _first_answer(server: subprocess.Popen[bytes], url: str, fleet: telemetry.Telemetry, *, log: Path) -> float:
    """When the server first counted the whole fleet."""
    asked = urllib.parse.urlencode({"query": QUESTION, "time": f"{fleet.end_ms / 1000:.3f}"})
    wanted, deadline = f'"{fleet.gpus}"'.encode(), time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/api/v1/query?{asked}", timeout=PATIENCE_SECONDS) as answer,
        ):
            if wanted in answer.read():
                return time.perf_counter()
        time.sleep(0.02)
    raise RuntimeError(f"{url} did not count {fleet.gpus} GPUs:\n{log.read_text()[-2000:]}")


def _at_rest(pid: int) -> float:
    held = []
    for _ in range(REST_SECONDS):
        time.sleep(1.0)
        held.append(resident_mib(pid))
    return min(held)
