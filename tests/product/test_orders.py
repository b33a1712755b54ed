"""Hub and agent as programs: an order goes from one command line to another node's agent, whatever dies in between."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests import servers
from tests.fake_nvml import driver
from tests.product.running import command
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.model import orders
from watchkeeper.model.orders import node_key

HUB_KEY = "5" * 32
PATIENCE_SECONDS = 90.0


T = TypeVar("T")


class Place:
    """A directory in which a hub and an agent find what they left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = servers.free_port()
        self.hub = Client(f"http://127.0.0.1:{self.port}", timeout_seconds=30)
        for name, key in (("hub.key", HUB_KEY), ("n1.key", node_key(HUB_KEY.encode(), "main", "n1").decode())):
            (root / name).write_text(key)
            (root / name).chmod(0o600)
        (root / "hub.toml").write_text(f'[hub]\nport = {self.port}\ndata = "data"\norder_key_file = "hub.key"\n')
        os.mkfifo(root / "kmsg")

    @contextlib.contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        line = [sys.executable, "-m", "watchkeeper.cli.main", *arguments]
        with (self.root / f"{arguments[0]}.log").open("ab") as log:
            started = subprocess.Popen(line, stdout=log, stderr=log)
        try:
            yield started
        finally:
            started.kill()
            started.wait()

    def a_hub(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        return self.running("hub", "--config", str(self.root / "hub.toml"))

    def an_agent(self) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
        where = ["--spool", str(self.root / "spool"), "--kmsg", str(self.root / "kmsg"), "--host-root", str(self.root)]
        who = ["--hub", self.hub.url, "--node", "n1", "--order-key", str(self.root / "n1.key")]
        return self.running("agent", "--no-gpus", "--listen", "none", *who, *where)

    def answered(self, id: str) -> orders.Receipt:
        return await_that(lambda: self.hub.order(id).receipt)


def await_that(true: Callable[[], T | None]) -> T:
    """What it gives once it gives something; a hub that is away may come back."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(HubError):
            found = true()
            if found:
                return found
        time.sleep(0.05)
    raise AssertionError("it never came true")


@pytest.mark.slow
def test_an_order_survives_the_death_of_the_hub_and_is_done_once(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with place.a_hub():
        given = await_that(lambda: place.hub.give_order("n1", "profiling_pause", {"seconds": "600"}))
    with place.an_agent(), place.a_hub():
        receipt = place.answered(given.order.id)
        assert receipt.result == "done"
        pause = json.loads((tmp_path / "spool" / "profiling_pause.json").read_text())
        resumed = command("agent", "profiling", "resume", "--node", "n1", "--hub", place.hub.url)
        assert (resumed.returncode, resumed.stdout) == (0, "n1: done: profiling goes on\n")
        scan = command("agent", "order", "n1", "scan", "--hub", place.hub.url)
        assert (scan.returncode, json.loads(scan.stdout)["verdict"]) == (0, "unknown")
        refused = command("agent", "order", "n1", "profiling_pause", "seconds=0", "--hub", place.hub.url)
        assert (refused.returncode, "it must be from 1 to 86400" in refused.stdout) == (1, True)
    assert pause["by"] == "an order"
    assert (tmp_path / "agent.log").read_text().count("Order ended") == 4


@pytest.mark.slow
def test_work_that_died_with_its_agent_is_answered_by_the_next_one(
    tmp_path: Path, fake: driver.FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    log = tmp_path / "agent.log"
    # A driver that hangs: the scan is never over before its agent is killed.
    fake.tell(driver.EVERY, Init=driver.HANG)
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_CONTROL"):
        monkeypatch.setitem(os.environ, name, fake.environment[name])
    with place.a_hub():
        with place.an_agent() as first:
            id = await_that(lambda: place.hub.give_order("n1", "scan", {})).order.id
            await_that(lambda: "Order begun" in log.read_text())
            first.kill()
        fake.tell(driver.EVERY, Init=None)
        with place.an_agent():
            receipt = place.answered(id)
    assert (receipt.result, "whether it was done is not known" in receipt.text) == ("failed", True)
