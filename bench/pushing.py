"""A thousand agents push events into one hub at the same moment: all are acknowledged, and none is lost.

A real hub over HTTP; each agent has a connection of its own and waits as long as the hub asks it to, as the real one
does. The time of a push is from its first try to its acknowledgement. Then the hub is killed with -9, started again and
told everything once more: what it keeps of that had been lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench.idle import cpu_seconds, resident_mib
from bench.incidents import percentile
from tests import servers
from tests.support.running_product import WATCHKEEPER
from watchkeeper.agent import push
from watchkeeper.errors import CollectError
from watchkeeper.net import http

CODES = (13, 31, 43, 45, 63, 94)
AGAIN_AT_ONCE = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--pushes", type=int, default=5, help="of each agent, one after the other")
    parser.add_argument("--events", type=int, default=4, help="in each push")


def measure(options: argparse.Namespace) -> dict[str, float]:
    bodies = [[body(agent, at, options.events) for at in range(options.pushes)] for agent in range(options.agents)]
    with tempfile.TemporaryDirectory() as folder:
        port = servers.free_port()
        (Path(folder) / "hub.toml").write_text(f'[hub]\nport = {port}\ndata = "kept"\n')
        line = [*WATCHKEEPER, "hub", "--config", f"{folder}/hub.toml"]
        ready, url = f"http://127.0.0.1:{port}/-/ready", f"http://127.0.0.1:{port}/api/events"
        with servers.running(line, ready_url=ready, log=Path(folder) / "log") as server:
            before, began = cpu_seconds(server.pid), time.monotonic()
            pushed = asyncio.run(all_at_once(url, bodies))
            seconds = time.monotonic() - began
            used, held = cpu_seconds(server.pid) - before, resident_mib(server.pid)
            server.kill()
            server.wait()
        with servers.running(line, ready_url=ready, log=Path(folder) / "log"):
            lost = asyncio.run(tell_again(url, bodies))
    times = [took for took, _ in pushed]
    return {
        "agents": options.agents,
        "pushes": len(times),
        "events": options.agents * options.pushes * options.events,
        "lost": lost,
        "seconds": round(seconds, 2),
        "acknowledged_p50_seconds": percentile(times, 0.5),
        "acknowledged_p99_seconds": percentile(times, 0.99),
        "asked_to_come_again": sum(tries - 1 for _, tries in pushed),
        "hub_cpu_seconds": round(used, 2),
        "hub_memory_mib": round(held, 1),
    }


def body(agent: int, number: int, count: int) -> bytes:
    node, now = f"node-{agent}", datetime.now(UTC).isoformat()
    return json.dumps(
        [
            {
                "id": f"main/{node}/boot/kmsg/{number * count + at}",
                "kind": "xid",
                "code": CODES[(number + at) % len(CODES)],
                "place": {"cluster": "main", "node": node, "gpu": f"GPU-{agent}-{at % 8}"},
                "at": now,
                "text": f"NVRM: Xid (PCI:0000:5d:00): {CODES[(number + at) % len(CODES)]}",
            }
            for at in range(count)
        ]
    ).encode()


async def all_at_once(url: str, bodies: Sequence[Sequence[bytes]]) -> list[tuple[float, int]]:
    """For each push how long it took to be acknowledged, and in how many tries."""
    found = await asyncio.gather(*(agent(url, mine) for mine in bodies))
    return [one for mine in found for one in mine]


async def agent(url: str, mine: Sequence[bytes]) -> list[tuple[float, int]]:
    connection, found = http.Connection(timeout_seconds=push.HubEndpoint(url).timeout_seconds), []
    try:
        for content in mine:
            began = time.monotonic()
            tries = await delivered(connection, url, content)
            found.append((time.monotonic() - began, tries))
    finally:
        await connection.aclose()
    return found


async def delivered(connection: http.Connection, url: str, content: bytes) -> int:
    """In how many tries the hub took it, by the agent's own rules."""
    tries = 0
    while True:
        tries += 1
        pause = push.RETRY_BACKOFF.delay_seconds(tries)
        try:
            answer = await connection.send(http.HttpRequest(url, "POST", {"Content-Type": "application/json"}, content))
            verdict, wait = push.classify_response(answer, pause)
        except CollectError:
            verdict, wait = push.PushResult.RETRY, pause
        if verdict is push.PushResult.DELIVERED:
            return tries
        if verdict is push.PushResult.REFUSED:
            raise RuntimeError(f"the hub refuses it: {answer.body[:200]!r}")
        await asyncio.sleep(wait)


async def tell_again(url: str, bodies: Sequence[Sequence[bytes]]) -> int:
    """How many of the events the hub does not know."""
    events = [event for mine in bodies for content in mine for event in json.loads(content)]
    connection, lost = http.Connection(timeout_seconds=60.0), 0
    try:
        for at in range(0, len(events), AGAIN_AT_ONCE):
            content = json.dumps(events[at : at + AGAIN_AT_ONCE]).encode()
            answer = await connection.send(http.HttpRequest(url, "POST", {"Content-Type": "application/json"}, content))
            if answer.status != 200:
                raise RuntimeError(f"the hub answered {answer.status}: {answer.body[:200]!r}")
            lost += json.loads(answer.body)["kept"]
    finally:
        await connection.aclose()
    return lost
