"""Repairs: time from an event to a cordoned node, a burst of incidents with a budget, and the cost of a tick.

Event to cordon is measured over HTTP with a real hub and the simulator's cluster in separate processes; the reference
is a push that opens an incident without a repair. Burst and tick run in this process, with the journal on disk and a
cluster in memory. `--walks` adds random walks with faults, crashes and user actions, in which no invariant of
tests/remediate/walk.py may fail.
"""

from __future__ import annotations

import argparse
import http.client
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.incidents import percentile
from tests import servers
from tests.remediate import walk
from tests.remediate.world import World, limits
from tests.support.running_product import WATCHKEEPER, await_that

TIMEOUT_SECONDS = 10.0
# Short enough to measure milliseconds, long enough for the simulator.
POLL_SECONDS = 0.002
FLEET_PERCENT, POOL_PERCENT = 1, 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=60, help="nodes that fail one after another")
    parser.add_argument("--incidents", type=int, default=1000, help="incidents in the burst, one per node")
    parser.add_argument("--walks", type=int, default=0, help="random walks of 300 steps each")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        numbers = {
            **measure_event_to_cordon(Path(folder), options.events),
            **measure_burst(Path(folder), options.incidents),
        }
    if options.walks:
        numbers |= run_walks(options.walks)
    return numbers


def measure_event_to_cordon(folder: Path, count: int) -> dict[str, Any]:
    port, epoch = servers.free_port(), time.time()
    simulator = f"http://127.0.0.1:{port}"
    simulator_options = ["--gpus", str(8 * count), "--port", str(port), "--epoch", repr(epoch)]
    with servers.running(
        [*WATCHKEEPER, "sim", "run", *simulator_options], ready_url=f"{simulator}/sd", log=folder / "sim.log"
    ):
        hub_port = servers.free_port()
        hub_command = [sys.executable, "-m", "tests.support.deadly_hub", simulator, str(folder / "kept"), str(hub_port)]
        ready = f"http://127.0.0.1:{hub_port}/-/ready"
        with servers.running(
            [*hub_command, "1", repr(epoch), "never", "free"], ready_url=ready, log=folder / "hub.log"
        ):
            hub, cluster = (
                http.client.HTTPConnection("127.0.0.1", host_port, timeout=30) for host_port in (hub_port, port)
            )
            return break_one_by_one(hub, cluster, await_that(lambda: list_nodes(hub, count), within_seconds=60))


def break_one_by_one(
    hub: http.client.HTTPConnection, cluster: http.client.HTTPConnection, nodes: Sequence[str]
) -> dict[str, Any]:
    reference_seconds = [push(hub, node, 43) for node in nodes]
    answer_times = [measure_answer(cluster, node) for node in nodes]
    cordon_seconds, push_seconds = [], []
    for node in nodes:
        started_at = time.perf_counter()
        push_seconds.append(push(hub, node, 79))
        cordon_seconds.append(wait_for_cordon(cluster, node, started_at))
        resolve(hub, node)
    return {
        "event_to_cordon_p50_seconds": percentile(cordon_seconds, 0.5),
        "event_to_cordon_p99_seconds": percentile(cordon_seconds, 0.99),
        "push_p50_seconds": percentile(push_seconds, 0.5),
        "reference_push_p50_seconds": percentile(reference_seconds, 0.5),
        "simulator_answer_p50_seconds": percentile(answer_times, 0.5),
        "simulator_answer_p99_seconds": percentile(answer_times, 0.99),
        "cordon_over_push_ratio": round(
            percentile(cordon_seconds, 0.5) / max(percentile(reference_seconds, 0.5), 0.001), 1
        ),
    }


def list_nodes(hub: http.client.HTTPConnection, count: int) -> list[str]:
    nodes = request(hub, "GET", "/api/nodes")["nodes"]
    return [node["name"] for node in nodes] if len(nodes) >= count else []


def request(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    request_body = None if body is None else json.dumps(body).encode()
    connection.request(method, path, request_body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != 200:
        raise RuntimeError(f"{path} returned {response.status}: {content[:200]!r}")
    return json.loads(content)


def push(hub: http.client.HTTPConnection, node: str, code: int) -> float:
    place = {"cluster": "sim", "node": node, "gpu": f"GPU-bench-{node}"}
    now = datetime.now(UTC).isoformat()
    event = {"id": f"sim/{node}/bench/{code}/{now}", "kind": "xid", "code": code, "place": place, "at": now}
    started_at = time.perf_counter()
    request(hub, "POST", "/api/events", [{**event, "text": f"NVRM: Xid (PCI:0000:5d:00): {code}"}])
    return time.perf_counter() - started_at


def measure_answer(cluster: http.client.HTTPConnection, node: str) -> float:
    """Seconds of one simulator call; detecting a cordon takes one call of the hub and one of ours."""
    started_at = time.perf_counter()
    request(cluster, "GET", f"/cluster/nodes/{node}")
    return time.perf_counter() - started_at


def wait_for_cordon(cluster: http.client.HTTPConnection, node: str, started_at: float) -> float:
    while time.perf_counter() - started_at < TIMEOUT_SECONDS:
        if request(cluster, "GET", f"/cluster/nodes/{node}")["cordoned_by"]:
            return time.perf_counter() - started_at
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{node} was not cordoned within {TIMEOUT_SECONDS:g} s")


def resolve(hub: http.client.HTTPConnection, node: str) -> None:
    """Resolve the incident, because many nodes of one rack with the same fault would become one incident."""
    repairs = request(hub, "GET", "/api/repairs")["repairs"]
    id = next(repair["incident"] for repair in repairs if repair["node"]["node"] == node)
    request(hub, "POST", f"/api/incidents/{id}/resolve", {"why": "measured"})


def measure_burst(folder: Path, count: int) -> dict[str, Any]:
    """Break all nodes of a fleet at once, with a budget for nodes out of service."""
    world = World(folder, count, limits(pool_percent=POOL_PERCENT, fleet_percent=FLEET_PERCENT))
    started_at = time.perf_counter()
    for node in world.nodes:
        world.take(world.breaks(node.name))
    seconds = time.perf_counter() - started_at
    for machine in world.cluster.machines.values():
        machine.is_sick = False
    ticks = [measure_tick(world) for _ in range(20)]
    numbers = {
        "burst_incidents": count,
        "burst_seconds": round(seconds, 2),
        "burst_budget_nodes": max(1, count * FLEET_PERCENT // 100),
        "burst_most_nodes_out": world.cluster.most_ours,
        "tick_open_repairs": len(world.repairs.active_repairs()),
        "tick_p50_seconds": percentile(ticks, 0.5),
        "tick_p99_seconds": percentile(ticks, 0.99),
    }
    world.close()
    return numbers


def measure_tick(world: World) -> float:
    """Seconds to decide about all repairs, without the calls to the cluster."""
    started_at = time.perf_counter()
    due_repairs = world.repairs.sweep(world.now)
    seconds = time.perf_counter() - started_at
    for id in due_repairs:
        world.repairs.advance(id, world.now)
    world.step(1)
    return seconds


def run_walks(count: int) -> dict[str, Any]:
    started_at, calls = time.perf_counter(), 0
    for seed in range(1000, 1000 + count):
        with tempfile.TemporaryDirectory() as folder:
            calls += len(walk.walk(Path(folder), seed, 300).world.cluster.calls)
    return {"walk_steps": 300 * count, "walk_calls": calls, "walk_seconds": round(time.perf_counter() - started_at, 1)}


__all__: Sequence[str] = ("add_options", "measure")
