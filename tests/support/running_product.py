"""The whole product as a user starts it: `watchkeeper up` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import servers
from tests.support.waiting import PROGRAM_SECONDS, until

WATCHKEEPER = [sys.executable, "-m", "watchkeeper.cli.main"]
# Long for a test that waits in vain and free for all others: two busy cores may need a minute for a second's work.
SOON_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Product:
    """A running `watchkeeper up` and how to talk to it."""

    url: str
    server: subprocess.Popen[bytes]
    log: Path

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:
            return json.loads(answer.read())

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, "--hub", self.url)

    def incidents(self) -> list[dict[str, Any]]:
        incidents: list[dict[str, Any]] = self.get("/api/incidents")["incidents"]
        return incidents

    def scraped(self) -> bool:
        """True once every GPU of the first scrape round is known."""
        result = self.get("/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)")["data"]["result"]
        return bool(result) and result[0]["value"][1] == "64"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WATCHKEEPER, *arguments], capture_output=True, text=True, timeout=SOON_SECONDS, check=False)


@contextlib.contextmanager
def up(folder: Path, *arguments: str) -> Iterator[Product]:
    """64 simulated GPUs on a free port, from ready to stopped."""
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    line = [*WATCHKEEPER, "up", "--gpus", "64", "--port", str(port), "--data", str(folder / "kept"), *arguments]
    log = folder / f"up-{port}.log"
    with servers.running(line, ready_url=f"{url}/-/ready", log=log) as server:
        yield Product(url, server, log)


def await_that(
    condition: Callable[[], Any], *, within_seconds: float = SOON_SECONDS, what: str = "the condition"
) -> Any:
    """The condition's first true answer; AssertionError when it stays false."""
    return until(condition, timeout_seconds=within_seconds, interval_seconds=PROGRAM_SECONDS, what=what)
