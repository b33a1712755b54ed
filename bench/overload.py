"""More is asked than can be answered: panels are refused first, then pages; rules, events and repairs go on.

A real hub over a simulated fleet. Askers put slow questions without pause, first more than panels may have in flight,
then more than pages may; beside them people open pages, agents push events, and rules have their turns. Of each kind
it counts what was answered and what was refused, and keeps one refusal in its own words. How many turns rules miss at
rest is the reference: a machine that others use misses some by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import pushing
from bench.incidents import percentile
from tests import servers
from tests.support.running_product import WATCHKEEPER
from watchkeeper.errors import CollectError
from watchkeeper.net import http
from watchkeeper.web import shedding

PANEL = "/api/v1/query_range?query=quantile_over_time(0.9,DCGM_FI_DEV_GPU_TEMP[5m])&start={start}&end={end}&step=15"
PAGE = "/api/incidents?limit=1000"
# A browser that was refused does not ask again at once.
PAUSE_SECONDS = 1.0
STAGES: dict[str, dict[str, int]] = {
    "at rest": {},
    "more panels than may be": {"panel": shedding.MAX_PANEL_REQUESTS * 6 // 5, "page": 20, "push": 20},
    "more pages than may be": {
        "panel": shedding.MAX_PANEL_REQUESTS,
        "page": shedding.MAX_PAGE_REQUESTS * 6 // 5,
        "push": 20,
    },
}
MISSED = re.compile(r"^watchkeeper_rules_missed_evaluations_total\{.*\} (\d+)", re.MULTILINE)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each stage")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of samples before it begins")


@dataclass(slots=True)
class Heard:
    """What came of one kind of question."""

    statuses: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    refusal: str = ""

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = dict(self.statuses)
        if self.times:
            found["p99_seconds"] = percentile(self.times, 0.99)
        return found | ({"refusal": self.refusal} if self.refusal else {})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        line = [*WATCHKEEPER, "up", "--gpus", str(options.gpus), "--port", str(port), "--data", f"{folder}/kept"]
        with servers.running(line, ready_url=f"{url}/-/ready", log=Path(folder) / "log"):
            time.sleep(options.warm)
            found: dict[str, Any] = {"gpus": options.gpus, "seconds": options.seconds}
            found["load_average_before"] = round(os.getloadavg()[0], 1)
            for name, asked in STAGES.items():
                missed, began = missed_turns(url), time.monotonic()
                heard = asyncio.run(stage(url, asked, options.seconds))
                found[name] = {kind: one.plain() for kind, one in heard.items()}
                found[name]["turns of rules missed in a minute"] = round(
                    (missed_turns(url) - missed) * 60 / (time.monotonic() - began), 1
                )
            return found


def missed_turns(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return sum(map(int, MISSED.findall(answer.read().decode())))


async def stage(url: str, asked: Mapping[str, int], seconds: float) -> dict[str, Heard]:
    """Let so many of each kind ask for a while; what they heard."""
    heard, until = {kind: Heard() for kind in asked}, time.monotonic() + seconds
    askers = [
        asker(url, kind, number, until=until, heard=heard[kind])
        for kind, count in asked.items()
        for number in range(count)
    ]
    await asyncio.gather(asyncio.sleep(seconds), *askers)
    return heard


async def asker(url: str, kind: str, number: int, *, until: float, heard: Heard) -> None:
    connection, turn = http.Connection(timeout_seconds=120.0), 0
    try:
        while time.monotonic() < until:
            turn += 1
            began = time.monotonic()
            try:
                answer = await connection.send(request(url, kind, number, turn))
            except CollectError as error:
                heard.statuses[f"no answer: {error.problem}"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            heard.statuses["answered" if answer.status == 200 else f"refused with {answer.status}"] += 1
            if answer.status == 200:
                heard.times.append(time.monotonic() - began)
            else:
                heard.refusal = heard.refusal or answer.body.decode(errors="replace")[:300]
                await asyncio.sleep(PAUSE_SECONDS)
    finally:
        await connection.aclose()


def request(url: str, kind: str, number: int, turn: int) -> http.HttpRequest:
    if kind == "push":
        body = pushing.body(number, turn + int(time.time()), 2)
        return http.HttpRequest(f"{url}/api/events", "POST", {"Content-Type": "application/json"}, body)
    end = int(time.time())
    return http.HttpRequest(url + (PAGE if kind == "page" else PANEL.format(start=end - 300, end=end)))
