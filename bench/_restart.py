"""A hub and Debian's Prometheus started anew over the same two hours, which both have in their logs alone.

`ours` and `prometheus` fill a data directory, start the server on it as a user does, and say how soon it answered its
first question and what it holds when it has come to rest. `memory` and `cold` compare the two.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import _peers, telemetry
from bench.idle import resident_mib
from tests import servers
from tests.query import engines
from watchkeeper.config import settings
from watchkeeper.kit import files

# After its first answer a server tidies up for a while; the least that it holds in this time counts.
REST_SECONDS = 15
PATIENCE_SECONDS = 900.0
QUESTION = "count(DCGM_FI_DEV_GPU_TEMP)"


@dataclass(frozen=True, slots=True)
class Restarted:
    """Seconds from the start of the process to its first right answer, and MiB when it rests."""

    seconds: float
    mebibytes: float


def kept_samples(folder: Path) -> Path:
    """Where a hub of `bench._hub` in this folder has its samples; the folder is then known as a hub's."""
    claimed = files.DataDirectory(folder / "hub")
    claimed.claim()
    claimed.release()
    return Path(settings.Settings(hub=settings.Hub(data=str(folder / "hub"))).samples_path)


def ours(folder: Path, fleet: telemetry.Telemetry) -> Restarted:
    """A hub on samples that `cold.fill` left in `kept_samples(folder)`; its modules are compiled, as when installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(
        [sys.executable, "-c", "import bench._hub, bench.telemetry, watchkeeper.cli.serving"],
        check=True,
        env=environment,
    )
    port = servers.free_port()
    command = [sys.executable, "-m", "bench._hub", folder, port, fleet.gpus, fleet.slots, "kept"]
    return _start([str(part) for part in command], f"http://127.0.0.1:{port}", fleet, log=folder / "hub.log")


def prometheus(folder: Path, fleet: telemetry.Telemetry) -> Restarted:
    """A Prometheus that was given the same by remote write and stopped."""
    with engines.prometheus(folder) as url:
        _peers.write(fleet, [url])
    url = f"http://127.0.0.1:{servers.free_port()}"
    command = [
        str(servers.require("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address={urllib.parse.urlsplit(url).netloc}",
        f"--storage.tsdb.retention.time={engines.KEPT}",
    ]
    return _start(command, url, fleet, log=folder / "prometheus-again.log")


def _start(command: Sequence[str], url: str, fleet: telemetry.Telemetry, *, log: Path) -> Restarted:
    with log.open("wb") as output:
        began = time.perf_counter()
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            seconds = _first_answer(server, url, fleet, log=log) - began
            return Restarted(round(seconds, 2), round(_at_rest(server.pid), 1))
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
