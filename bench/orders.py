"""Work orders: the cost of a thousand agents that poll a hub, and the time until an order arrives.

The reference is the same hub in the same run before the first poll. Agents are connections that poll like
`agent.orders.orders`; orders are not executed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests import servers
from watchkeeper.client.hub import Client

RULES = "groups: [{name: silent, rules: [{alert: Never, expr: vector(0) > 1}]}]\n"
WAIT_SECONDS = 30


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--orders", type=int, default=100)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        root, port = Path(folder), servers.free_port()
        (root / "key").write_text(secrets.token_hex(32))
        (root / "key").chmod(0o600)
        (root / "rules.yml").write_text(RULES)
        (root / "hub.toml").write_text(
            f'[hub]\nport = {port}\ndata = "kept"\norder_key_file = "key"\n[rules]\nfiles = ["rules.yml"]\n'
        )
        line = [sys.executable, "-m", "watchkeeper.cli.main", "hub", "--config", str(root / "hub.toml")]
        ready = f"http://127.0.0.1:{port}/-/healthy"
        with servers.running(line, ready_url=ready, log=root / "log") as hub:
            return asyncio.run(measure_hub(hub, port, options))


async def measure_hub(hub: subprocess.Popen[bytes], port: int, options: argparse.Namespace) -> dict[str, Any]:
    await asyncio.sleep(3)
    idle_percent, memory_before = await cpu_share(hub.pid, options.seconds), resident_mib(hub.pid)
    arrived_at: dict[str, float] = {}
    agents = [asyncio.create_task(poll(port, f"n{number}", arrived_at)) for number in range(options.agents)]
    await asyncio.sleep(3)
    polled_percent = await cpu_share(hub.pid, options.seconds)
    client, order_ms = Client(f"http://127.0.0.1:{port}"), []
    for number in range(options.orders):
        node = f"n{number * 7 % options.agents}"
        started_at = time.perf_counter()
        await asyncio.to_thread(client.create_order, node, "scan", {})
        while node not in arrived_at:
            await asyncio.sleep(0.0005)
        order_ms.append((arrived_at.pop(node) - started_at) * 1000)
    memory_growth = resident_mib(hub.pid) - memory_before
    threads = len(list(Path(f"/proc/{hub.pid}/task").iterdir()))
    for agent in agents:
        agent.cancel()
    await asyncio.gather(*agents, return_exceptions=True)
    order_ms.sort()
    return {
        "idle_cpu_percent": round(idle_percent, 2),
        "polled_cpu_percent": round(polled_percent, 2),
        "kib_per_agent": round(memory_growth * 1024 / options.agents, 1),
        "threads": threads,
        "order_p50_ms": round(statistics.median(order_ms), 2),
        "order_p99_ms": round(order_ms[int(0.99 * (len(order_ms) - 1))], 2),
    }


async def poll(port: int, node: str, arrived_at: dict[str, float]) -> None:
    """Poll forever, as an agent does, and store the time when an order arrives."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET /api/orders?node={node}&wait={WAIT_SECONDS} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    try:
        while True:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            if json.loads(await reader.readexactly(int(size.split(b":")[1])))["orders"]:
                arrived_at[node] = time.perf_counter()
                await asyncio.sleep(3600)
    finally:
        writer.close()


async def cpu_share(pid: int, seconds: float) -> float:
    """CPU use in percent of one core."""
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / seconds


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024
