"""A thousand agents push events to one hub at the same time: all are acknowledged, and none is lost.

Each agent has its own connection to a real hub and retries after the delay that the hub sends, as the real agent does.
The time of a push is from the first attempt to the acknowledgement. Then the hub is killed with -9 and started again,
and all events are sent again: events that it stores now had been lost.
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
RESEND_BATCH = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--pushes", type=int, default=5, help="pushes of each agent, one after another")
    parser.add_argument("--events", type=int, default=4, help="events in each push")


def measure(options: argparse.Namespace) -> dict[str, float]:
    bodies = [[body(agent, at, options.events) for at in range(options.pushes)] for agent in range(options.agents)]
    with tempfile.TemporaryDirectory() as folder:
        port = servers.free_port()
        (Path(folder) / "hub.toml").write_text(f'[hub]\nport = {port}\ndata = "kept"\n')
        line = [*WATCHKEEPER, "hub", "--config", f"{folder}/hub.toml"]
        ready, url = f"http://127.0.0.1:{port}/-/ready", f"http://127.0.0.1:{port}/api/events"
        with servers.running(line, ready_url=ready, log=Path(folder) / "log") as server:
            cpu_before, started_at = cpu_seconds(server.pid), time.monotonic()
            deliveries = asyncio.run(push_all(url, bodies))
            seconds = time.monotonic() - started_at
            cpu_used, memory_mib = cpu_seconds(server.pid) - cpu_before, resident_mib(server.pid)
            server.kill()
            server.wait()
        with servers.running(line, ready_url=ready, log=Path(folder) / "log"):
            lost = asyncio.run(count_lost(url, bodies))
    times = [seconds_to_ack for seconds_to_ack, _ in deliveries]
    return {
        "agents": options.agents,
        "pushes": len(times),
        "events": options.agents * options.pushes * options.events,
        "lost": lost,
        "seconds": round(seconds, 2),
        "acknowledged_p50_seconds": percentile(times, 0.5),
        "acknowledged_p99_seconds": percentile(times, 0.99),
        "asked_to_come_again": sum(tries - 1 for _, tries in deliveries),
        "hub_cpu_seconds": round(cpu_used, 2),
        "hub_memory_mib": round(memory_mib, 1),
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


async def push_all(url: str, bodies: Sequence[Sequence[bytes]]) -> list[tuple[float, int]]:
    """Run all agents at the same time; returns seconds to acknowledgement and attempts of each push."""
    deliveries = await asyncio.gather(*(run_agent(url, agent_bodies) for agent_bodies in bodies))
    return [delivery for agent_deliveries in deliveries for delivery in agent_deliveries]


async def run_agent(url: str, bodies: Sequence[bytes]) -> list[tuple[float, int]]:
    connection, deliveries = http.Connection(timeout_seconds=push.HubEndpoint(url).timeout_seconds), []
    try:
        for content in bodies:
            started_at = time.monotonic()
            tries = await deliver(connection, url, content)
            deliveries.append((time.monotonic() - started_at, tries))
    finally:
        await connection.aclose()
    return deliveries


async def deliver(connection: http.Connection, url: str, content: bytes) -> int:
    """Push until the hub acknowledges, with the agent's retry rules; returns the number of attempts."""
    attempts = 0
    while True:
        attempts += 1
        retry_seconds = push.RETRY_BACKOFF.delay_seconds(attempts)
        try:
            response = await connection.send(
                http.HttpRequest(url, "POST", {"Content-Type": "application/json"}, content)
            )
            verdict, wait = push.classify_response(response, retry_seconds)
        except CollectError:
            verdict, wait = push.PushResult.RETRY, retry_seconds
        if verdict is push.PushResult.DELIVERED:
            return attempts
        if verdict is push.PushResult.REFUSED:
            raise RuntimeError(f"the hub refused the push: {response.body[:200]!r}")
        await asyncio.sleep(wait)


async def count_lost(url: str, bodies: Sequence[Sequence[bytes]]) -> int:
    """Send all events again, and count those that the hub did not have."""
    events = [event for agent_bodies in bodies for content in agent_bodies for event in json.loads(content)]
    connection, lost = http.Connection(timeout_seconds=60.0), 0
    try:
        for at in range(0, len(events), RESEND_BATCH):
            content = json.dumps(events[at : at + RESEND_BATCH]).encode()
            response = await connection.send(
                http.HttpRequest(url, "POST", {"Content-Type": "application/json"}, content)
            )
            if response.status != 200:
                raise RuntimeError(f"the hub returned {response.status}: {response.body[:200]!r}")
            lost += json.loads(response.body)["kept"]
    finally:
        await connection.aclose()
    return lost
