"""Load shedding: panels are refused first, then pages; rules, events and repairs continue.

A real hub over a simulated fleet. Clients send slow queries without pause, first more than the limit of panels, then
more than the limit of pages; meanwhile other clients open pages, agents push events, and rules are evaluated. For each
kind it counts responses and refusals, and shows one refusal. The missed evaluations at rest are the reference, because
other load of the machine causes some.
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
# A browser does not retry at once after a refusal.
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
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each stage")
    parser.add_argument("--warm", type=float, default=60.0, help="seconds of samples before the first stage")


@dataclass(slots=True)
class ResponseStats:
    """The responses to one kind of request."""

    statuses: Counter[str] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    refusal: str = ""

    def as_numbers(self) -> dict[str, Any]:
        numbers: dict[str, Any] = dict(self.statuses)
        if self.times:
            numbers["p99_seconds"] = percentile(self.times, 0.99)
        return numbers | ({"refusal": self.refusal} if self.refusal else {})


def measure(options: argparse.Namespace) -> dict[str, Any]:
    port = servers.free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        line = [*WATCHKEEPER, "up", "--gpus", str(options.gpus), "--port", str(port), "--data", f"{folder}/kept"]
        with servers.running(line, ready_url=f"{url}/-/ready", log=Path(folder) / "log"):
            time.sleep(options.warm)
            numbers: dict[str, Any] = {"gpus": options.gpus, "seconds": options.seconds}
            numbers["load_average_before"] = round(os.getloadavg()[0], 1)
            for name, clients_by_kind in STAGES.items():
                missed_before, started_at = missed_evaluations(url), time.monotonic()
                stats_by_kind = asyncio.run(run_stage(url, clients_by_kind, options.seconds))
                numbers[name] = {kind: stats.as_numbers() for kind, stats in stats_by_kind.items()}
                numbers[name]["turns of rules missed in a minute"] = round(
                    (missed_evaluations(url) - missed_before) * 60 / (time.monotonic() - started_at), 1
                )
            return numbers


def missed_evaluations(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        return sum(map(int, MISSED.findall(answer.read().decode())))


async def run_stage(url: str, clients_by_kind: Mapping[str, int], seconds: float) -> dict[str, ResponseStats]:
    """Run this number of clients of each kind for some time; returns their responses."""
    stats_by_kind, deadline = {kind: ResponseStats() for kind in clients_by_kind}, time.monotonic() + seconds
    clients = [
        send_requests(url, kind, number, deadline=deadline, stats=stats_by_kind[kind])
        for kind, count in clients_by_kind.items()
        for number in range(count)
    ]
    await asyncio.gather(asyncio.sleep(seconds), *clients)
    return stats_by_kind


async def send_requests(url: str, kind: str, number: int, *, deadline: float, stats: ResponseStats) -> None:
    connection, request_number = http.Connection(timeout_seconds=120.0), 0
    try:
        while time.monotonic() < deadline:
            request_number += 1
            started_at = time.monotonic()
            try:
                response = await connection.send(request(url, kind, number, request_number))
            except CollectError as error:
                stats.statuses[f"no answer: {error.problem}"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            stats.statuses["answered" if response.status == 200 else f"refused with {response.status}"] += 1
            if response.status == 200:
                stats.times.append(time.monotonic() - started_at)
            else:
                stats.refusal = stats.refusal or response.body.decode(errors="replace")[:300]
                await asyncio.sleep(PAUSE_SECONDS)
    finally:
        await connection.aclose()


def request(url: str, kind: str, number: int, request_number: int) -> http.HttpRequest:
    if kind == "push":
        body = pushing.body(number, request_number + int(time.time()), 2)
        return http.HttpRequest(f"{url}/api/events", "POST", {"Content-Type": "application/json"}, body)
    end = int(time.time())
    return http.HttpRequest(url + (PAGE if kind == "page" else PANEL.format(start=end - 300, end=end)))
