"""Repairs: from an event at the hub to a cordoned node, a burst of incidents against its budget, and a tick's cost.

Event to cordon is measured over HTTP, as an agent pushes it, with a real hub and the simulator's cluster in processes
of their own; the reference is a push that opens an incident and asks for nothing. The burst and the tick run in this
process over the journal on disk and a cluster in memory. `--walks` adds random walks with troubles, crashes and
people, in which no law of tests/remediate/walk.py may break.
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

WITHIN_SECONDS = 10.0
# Often enough to measure milliseconds, rarely enough to leave the simulator its time.
POLL_SECONDS = 0.002
FLEET_PERCENT, POOL_PERCENT = 1, 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=60, help="nodes that break one after the other")
    parser.add_argument("--incidents", type=int, default=1000, help="incidents of the burst, one for each node")
    parser.add_argument("--walks", type=int, default=0, help="random walks of 300 steps each")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        found = {**event_to_cordon(Path(folder), options.events), **burst(Path(folder), options.incidents)}
    if options.walks:
        found |= walks(options.walks)
    return found


def event_to_cordon(folder: Path, count: int) -> dict[str, Any]:
    port, epoch = servers.free_port(), time.time()
    simulator = f"http://127.0.0.1:{port}"
    world = ["--gpus", str(8 * count), "--port", str(port), "--epoch", repr(epoch)]
    with servers.running([*WATCHKEEPER, "sim", "run", *world], ready_url=f"{simulator}/sd", log=folder / "sim.log"):
        hub_port = servers.free_port()
        runner = [sys.executable, "-m", "tests.support.deadly_hub", simulator, str(folder / "kept"), str(hub_port)]
        ready = f"http://127.0.0.1:{hub_port}/-/ready"
        with servers.running([*runner, "1", repr(epoch), "never", "free"], ready_url=ready, log=folder / "hub.log"):
            hub, cluster = (http.client.HTTPConnection("127.0.0.1", one, timeout=30) for one in (hub_port, port))
            return break_one_by_one(hub, cluster, await_that(lambda: known(hub, count), within_seconds=60))


def break_one_by_one(
    hub: http.client.HTTPConnection, cluster: http.client.HTTPConnection, nodes: Sequence[str]
) -> dict[str, Any]:
    plain = [push(hub, node, 43) for node in nodes]
    answers = [answer_seconds(cluster, node) for node in nodes]
    cordoned, pushed = [], []
    for node in nodes:
        began = time.perf_counter()
        pushed.append(push(hub, node, 79))
        cordoned.append(wait_for_cordon(cluster, node, began))
        resolve(hub, node)
    return {
        "event_to_cordon_p50_seconds": percentile(cordoned, 0.5),
        "event_to_cordon_p99_seconds": percentile(cordoned, 0.99),
        "push_p50_seconds": percentile(pushed, 0.5),
        "reference_push_p50_seconds": percentile(plain, 0.5),
        "simulator_answer_p50_seconds": percentile(answers, 0.5),
        "simulator_answer_p99_seconds": percentile(answers, 0.99),
        "cordon_over_push_ratio": round(percentile(cordoned, 0.5) / max(percentile(plain, 0.5), 0.001), 1),
    }


def known(hub: http.client.HTTPConnection, count: int) -> list[str]:
    found = ask(hub, "GET", "/api/nodes")["nodes"]
    return [node["name"] for node in found] if len(found) >= count else []


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None) -> Any:
    sent = None if body is None else json.dumps(body).encode()
    connection.request(method, path, sent, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path} answered {answer.status}: {content[:200]!r}")
    return json.loads(content)


def push(hub: http.client.HTTPConnection, node: str, code: int) -> float:
    place = {"cluster": "sim", "node": node, "gpu": f"GPU-bench-{node}"}
    now = datetime.now(UTC).isoformat()
    event = {"id": f"sim/{node}/bench/{code}/{now}", "kind": "xid", "code": code, "place": place, "at": now}
    began = time.perf_counter()
    ask(hub, "POST", "/api/events", [{**event, "text": f"NVRM: Xid (PCI:0000:5d:00): {code}"}])
    return time.perf_counter() - began


def answer_seconds(cluster: http.client.HTTPConnection, node: str) -> float:
    """What one question costs the simulator: a cordon is seen after one call of the hub's and one of ours."""
    began = time.perf_counter()
    ask(cluster, "GET", f"/cluster/nodes/{node}")
    return time.perf_counter() - began


def wait_for_cordon(cluster: http.client.HTTPConnection, node: str, began: float) -> float:
    while time.perf_counter() - began < WITHIN_SECONDS:
        if ask(cluster, "GET", f"/cluster/nodes/{node}")["cordoned_by"]:
            return time.perf_counter() - began
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{node} was not cordoned within {WITHIN_SECONDS:g} s")


def resolve(hub: http.client.HTTPConnection, node: str) -> None:
    """End it again: many nodes of one rack with the same fault would become one incident, which nobody reboots."""
    found = ask(hub, "GET", "/api/repairs")["repairs"]
    id = next(one["incident"] for one in found if one["node"]["node"] == node)
    ask(hub, "POST", f"/api/incidents/{id}/resolve", {"why": "measured"})


def burst(folder: Path, count: int) -> dict[str, Any]:
    """Every node of a fleet breaks at once; a share of it may be out."""
    world = World(folder, count, limits(pool_percent=POOL_PERCENT, fleet_percent=FLEET_PERCENT))
    began = time.perf_counter()
    for node in world.nodes:
        world.take(world.breaks(node.name))
    taken = time.perf_counter() - began
    for machine in world.cluster.machines.values():
        machine.is_sick = False
    ticks = [tick(world) for _ in range(20)]
    found = {
        "burst_incidents": count,
        "burst_seconds": round(taken, 2),
        "burst_budget_nodes": max(1, count * FLEET_PERCENT // 100),
        "burst_most_nodes_out": world.cluster.most_ours,
        "tick_open_repairs": len(world.repairs.active_repairs()),
        "tick_p50_seconds": percentile(ticks, 0.5),
        "tick_p99_seconds": percentile(ticks, 0.99),
    }
    world.close()
    return found


def tick(world: World) -> float:
    """What deciding about everything costs; the calls that come of it are the cluster's time."""
    began = time.perf_counter()
    due = world.repairs.sweep(world.now)
    took = time.perf_counter() - began
    for id in due:
        world.repairs.advance(id, world.now)
    world.step(1)
    return took


def walks(count: int) -> dict[str, Any]:
    began, calls = time.perf_counter(), 0
    for seed in range(1000, 1000 + count):
        with tempfile.TemporaryDirectory() as folder:
            calls += len(walk.walk(Path(folder), seed, 300).world.cluster.calls)
    return {"walk_steps": 300 * count, "walk_calls": calls, "walk_seconds": round(time.perf_counter() - began, 1)}


__all__: Sequence[str] = ("add_options", "measure")
