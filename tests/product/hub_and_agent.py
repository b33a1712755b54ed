"""A hub and an agent as processes that find what they left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.model import orders
from watchkeeper.model.orders import node_key

HUB_KEY = "0123456789abcdef" * 2
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

    def answer() -> T | None:
        with contextlib.suppress(HubError):
            return true()
        return None

    return until(answer, timeout_seconds=PATIENCE_SECONDS, interval_seconds=PROGRAM_SECONDS)
