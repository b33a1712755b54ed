"""Servers that go away and come back: the hub says so, keeps what it is told, and tells nobody nonsense on return.

What a test tells already is run as that test; the rest is here.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import servers
from tests.faults.world import Away, Ledger, Outcome, World, until
from tests.support.paths import ROOT
from tests.support.running_product import WATCHKEEPER
from watchkeeper.kit import recent_failures

STORIES = {
    "alertmanager away": (
        "tests/product/test_notifications.py::"
        "test_a_hub_killed_while_alertmanager_is_down_loses_nothing_and_tells_nobody_twice"
    ),
    "postgresql away": (
        "tests/product/test_several_hubs.py::test_a_hub_outlives_its_server_and_goes_on_when_it_is_back"
    ),
    "api server away": (
        "tests/clusters/kubernetes/test_kubernetes_real.py::test_an_api_server_that_restarts_is_watched_again_with_one_list_at_most"
    ),
    "slurm hangs": "tests/clusters/slurm/test_slurm_watch.py -k hangs",
    "repair killed at every call": "tests/product/test_repair_through_kills.py",
    "store killed": "tests/store/test_durable_crash.py",
}
# A loop that comes round once an hour takes nothing back before the hub forgets that it failed.
WELL_SECONDS = recent_failures.FRESH_FOR.total_seconds() + 30
# A story of ten restarts takes a minute, and three on a machine where others have the cores.
STORY_SECONDS = 600
SETTINGS = """
[hub]
data = "kept"
[fleet]
cluster = "sim"
sd_urls = ["{fleet}/sd"]
scrape_interval = "1s"
[query]
engine = "prometheus"
url = "{server}"
write_url = "{server}/api/v1/write"
timeout = "2s"
retries = 0
[rules]
interval = "1s"
"""


def story(name: str) -> Callable[..., None]:
    """A fault that a test tells; each round is one run of that test."""

    def run(_: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
        limit = f"--timeout={STORY_SECONDS}"
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", limit, *STORIES[name].split()]
        for outcome.rounds in range(1, rounds + 1):
            done = subprocess.run(
                line, cwd=ROOT, capture_output=True, text=True, timeout=2 * STORY_SECONDS, check=False
            )
            outcome.check(done.returncode == 0, done.stdout[-1500:])

    return run


def prometheus_away(folder: Path, outcome: Outcome, rng: random.Random, *, rounds: int) -> None:
    with contextlib.ExitStack() as stack:
        fleet, port = servers.free_port(), servers.free_port()
        url = f"http://127.0.0.1:{fleet}"
        line = [*WATCHKEEPER, "sim", "run", "--gpus", "64", "--port", str(fleet)]
        stack.enter_context(servers.running(line, ready_url=f"{url}/sd", log=folder / "sim.log"))
        server = stack.enter_context(prometheus(folder, port))
        made = Remote(folder, 1.0, 0.0, url, servers.free_port())
        (folder / "hub.toml").write_text(SETTINGS.format(fleet=url, server=f"http://127.0.0.1:{port}"))
        stack.callback(made.stop)
        made.start()
        ledger = Ledger(made, rng, kinds=("_events", "_silence", "_note"))
        until(lambda: reads(made), "Prometheus has the fleet's samples")
        for outcome.rounds in range(1, rounds + 1):
            ledger.look()
            before = len(ledger.incidents)
            server.send_signal(signal.SIGKILL)
            server.wait()
            until(lambda: made.get("/api/status")["degraded"], "the status says what is degraded")
            for _ in range(10):
                ledger.write_something()
            server = stack.enter_context(prometheus(folder, port))
            until(lambda: reads(made), "samples arrive again")
            await_well(made)
            ledger.check(outcome, has_samples=False)
            nodes = len({event["place"]["node"] for event in ledger.events})
            outcome.check(len(ledger.incidents) <= before + nodes, "an alert storm on return")
        outcome.counts["acknowledged"] = ledger.acknowledged


class Remote(World):
    """A hub by its settings file."""

    def spawn(self) -> subprocess.Popen[bytes]:
        line = [*WATCHKEEPER, "hub", "--config", str(self.folder / "hub.toml"), "--port", str(self.port)]
        with (self.folder / "hub.log").open("ab") as log:
            self.hub = subprocess.Popen(line, stdout=log, stderr=log, env=os.environ)
        return self.hub

    def now(self) -> float:
        return time.time()


def await_well(made: World) -> None:
    """Return when nothing is degraded any more; AssertionError with what still is."""
    degraded: list[str] = []

    def is_well() -> bool:
        degraded[:] = made.get("/api/status")["degraded"]
        return not degraded

    try:
        until(is_well, "nothing is degraded any more", within_seconds=WELL_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {degraded}") from error


def reads(made: World) -> bool:
    with contextlib.suppress(Away, AssertionError):
        result = made.get("/api/v1/query?query=count(count_over_time(DCGM_FI_DEV_GPU_TEMP[10s]))")["data"]["result"]
        return bool(result) and result[0]["value"][1] == "64"
    return False


@contextlib.contextmanager
def prometheus(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "prometheus.yml").write_text("global: {}\n")
    line = [
        servers.require("prometheus"),
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    ]
    ready = f"http://127.0.0.1:{port}/-/ready"
    with servers.running(line, ready_url=ready, log=folder / "prometheus.log") as server:
        yield server
