"""A repair through the whole product: from a kernel line to a healthy node, and through kill -9 at every call."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, await_that

SPEED = 20
CALLS = ("cordon", "drain", "reboot", "uncordon")


class Fleet:
    """A simulated fleet that outlives the hubs that watch it."""

    def __init__(self, folder: Path, url: str, epoch: float) -> None:
        self.folder, self.url, self.epoch = folder, url, epoch
        self.port = servers.free_port()

    @contextlib.contextmanager
    def hub(self, death: str = "never") -> Iterator[subprocess.Popen[bytes]]:
        ready = f"http://127.0.0.1:{self.port}/-/ready"
        with servers.running(self._line(death), ready_url=ready, log=self.folder / "hub.log") as server:
            yield server

    def hub_until(self, death: str) -> int:
        """How a hub ends that may die before it is ready: it goes on with its repairs at once."""
        return subprocess.run(self._line(death), capture_output=True, timeout=60, check=False).returncode

    def _line(self, death: str) -> list[str]:
        arguments = [self.url, str(self.folder / "kept"), str(self.port), str(SPEED), repr(self.epoch), death]
        return [sys.executable, "-m", "tests.support.deadly_hub", *arguments]

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return json.loads(answer.read())

    def break_it(self) -> str:
        body = json.dumps({"scenario": "xid-79"}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/api/sim/faults", body, headers, method="POST")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.loads(answer.read())["node"])

    def calls(self) -> list[str]:
        """What the cluster was asked to do that changed something, by the journal's own words."""
        entries = self.ask("/api/repairs/log?limit=10000")["entries"]
        return [entry["body"]["text"] for entry in entries]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    port, epoch = servers.free_port(), time.time()
    world = ["--gpus", "64", "--speed", str(SPEED), "--epoch", repr(epoch), "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with servers.running([*WATCHKEEPER, "sim", "run", *world], ready_url=f"{url}/sd", log=tmp_path / "sim.log"):
        yield Fleet(tmp_path, url, epoch)


def scraped(fleet: Fleet) -> bool:
    result = fleet.ask("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")["data"]["result"]
    return bool(result) and result[0]["value"][1] == "64"


@pytest.mark.servers
@pytest.mark.timeout(600)
def test_a_hub_that_is_killed_at_every_call_still_brings_the_node_back_once(fleet: Fleet) -> None:
    deaths = [f"{when}:{kind}" for kind in CALLS for when in ("before", "after")]
    with fleet.hub(deaths[0]) as hub:
        await_that(lambda: scraped(fleet))
        node = fleet.break_it()
        await_that(lambda: hub.poll() == -signal.SIGKILL)
    before, after = [death for death in deaths[1:] if "uncordon" not in death], deaths[-2:]
    assert {death: fleet.hub_until(death) for death in before} == dict.fromkeys(before, -signal.SIGKILL)
    # The reboot has happened, and the node is validated: what was waited for is asked for anew after each start.
    for _ in range(2):
        with fleet.hub() as hub:
            await_that(lambda: fleet.ask("/api/repairs")["repairs"][0]["state"] == "validating")
            hub.kill()
    assert {death: fleet.hub_until(death) for death in after} == dict.fromkeys(after, -signal.SIGKILL)
    with fleet.hub():
        await_that(lambda: not fleet.ask("/api/incidents")["incidents"], within_seconds=120)
        # The signals of a node that works again may end before its repair has put everything back.
        await_that(lambda: fleet.ask("/api/repairs?all=1")["repairs"][0]["state"] == "done")
        assert fleet.ask("/api/repairs?all=1")["repairs"][0]["node"]["node"] == node
        with urllib.request.urlopen(f"{fleet.url}/cluster/nodes/{node}", timeout=60) as answer:
            status = json.loads(answer.read())
        assert (status["schedulable"], status["cordoned_by"]) == (True, None)
        assert sum(f"rebooting {node}" in text for text in fleet.calls()) <= 1
