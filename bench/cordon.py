"""Cordons and drains on a real Kubernetes API server: by the driver alone, and from an event at a hub.

`cordon_ms` is the time until the node is cordoned (a get and a patch), `perform_ms` until condition and event are
written too, and `get_ms` the time of a get. `event_to_cordon_ms` starts when an Xid 79 is pushed to a hub in a separate
process. Then pods of hollow nodes are drained, all nodes at once, and those of many Node objects, for which a small
stand-in of the kubelet ends pods.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from bench import repair
from tests import servers
from tests.remediate.drivers import kubernetes_story as story
from tests.support.clusters import kubernetes_server
from tests.support.clusters.kubernetes_server import Cluster
from tests.support.waiting import until
from watchkeeper.model.actions import ActionKind
from watchkeeper.remediate.drivers.kubernetes import KubernetesDriver
from watchkeeper.remediate.drivers.kubernetes_client import ApiCall, ApiClient, ApiResponse
from watchkeeper.remediate.drivers.kubernetes_node import STRATEGIC_PATCH
from watchkeeper.remediate.drivers.kubernetes_pods import EvictionRules

# The first poll interval of the state machine.
POLL_SECONDS = 0.2
TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 0.2
KUBELETS, KUBELET_POLL_SECONDS = 8, 0.1
PODS = "/api/v1/namespaces/default/pods"
# The cluster name of events of bench/repair.
HUB = """
hub.port = {port}
hub.data = "{folder}/hub"
fleet.cluster = "sim"
fleet.kubeconfig = "{kubeconfig}"
[remediate]
driver = "kubernetes"
mode = "act"
pool_percent = 100
fleet_percent = 100
starts = 10000
breaker_nodes = 10000
one_per_domain = []
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cordons", type=int, default=200)
    parser.add_argument("--events", type=int, default=100, help="events at a hub, one node at a time")
    parser.add_argument("--hollow", type=int, default=16, help="nodes with a hollow kubelet")
    parser.add_argument("--nodes", type=int, default=200, help="Node objects with a stand-in for their kubelets")
    parser.add_argument("--pods", type=int, default=4, help="pods on each node")
    parser.add_argument("--threads", type=int, default=16, help="nodes to drain at the same time")


def measure(options: argparse.Namespace) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        kubernetes_server.running(Path(folder) / "kubernetes", nodes=options.hollow) as cluster,
        _running_driver(cluster) as driver,
    ):
        for number in range(max(options.cordons, options.nodes)):
            story.add_node(cluster, _name(number))
        numbers = _measure_cordons(driver, options.cordons)
        if options.events:
            numbers |= measure_events(cluster, driver, options.events)
        if options.hollow:
            numbers |= _drain_hollow(cluster, driver, options)
        numbers |= _drain_objects(cluster, driver, options)
    numbers |= {"load_average": os.getloadavg()[0]}
    return {name: round(value, 3) for name, value in numbers.items()}


class TimedClient(ApiClient):
    """Stores the time of the response to the last patch of a node."""

    patched_at = 0.0

    def send(self, call: ApiCall, **more: Any) -> ApiResponse:
        response = super().send(call, **more)
        if call.method == "PATCH" and not call.path.endswith("/status"):
            self.patched_at = time.perf_counter()
        return response


@contextlib.contextmanager
def _running_driver(cluster: Cluster) -> Iterator[KubernetesDriver]:
    driver = KubernetesDriver(TimedClient(story.reached(cluster)), EvictionRules(evict_unmanaged=True))
    try:
        yield driver
    finally:
        driver.close()


def _measure_cordons(driver: KubernetesDriver, count: int) -> dict[str, float]:
    assert isinstance(driver.client, TimedClient)
    get_seconds, cordon_seconds, perform_seconds = [], [], []
    for number in range(count):
        started_at = time.perf_counter()
        driver.client.send(ApiCall("GET", f"/api/v1/nodes/{_name(number)}"))
        get_seconds.append(time.perf_counter() - started_at)
        started_at = time.perf_counter()
        outcome = driver.perform(story.action(ActionKind.CORDON, _name(number)))
        perform_seconds.append(time.perf_counter() - started_at)
        cordon_seconds.append(driver.client.patched_at - started_at)
        assert outcome.is_complete, outcome
        driver.perform(story.action(ActionKind.UNCORDON, _name(number)))
    return {
        "cordons": count,
        **_percentiles("get", get_seconds),
        **_percentiles("cordon", cordon_seconds),
        **_percentiles("perform", perform_seconds),
    }


def _percentiles(name: str, times: list[float]) -> dict[str, float]:
    return {f"{name}_ms_p50": 1000 * median(times), f"{name}_ms_p99": 1000 * _p99(times)}


def _p99(times: list[float]) -> float:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def measure_events(cluster: Cluster, driver: KubernetesDriver, count: int) -> dict[str, float]:
    """Push a GPU loss of one node after another to a hub with auto-repair."""
    names = [f"event-{number}" for number in range(count)]
    for name in names:
        story.add_node(cluster, name, labels={"nvidia.com/gpu.present": "true"})
    folder, port = cluster.folder, servers.free_port()
    (folder / "hub.toml").write_text(HUB.format(port=port, folder=folder, kubeconfig=cluster.kubeconfig))
    command = [*repair.WATCHKEEPER, "hub", "--config", folder / "hub.toml"]
    with servers.running(command, ready_url=f"http://127.0.0.1:{port}/-/ready", log=folder / "hub.log"):
        hub = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        until(lambda: set(names) <= set(repair.list_nodes(hub, count)))
        plain_push_seconds = [repair.push(hub, name, 43) for name in names]
        cordon_seconds = [_measure_event(hub, driver.client, name) for name in names]
        hub.close()
    return {
        "events": count,
        **_percentiles("plain_push", plain_push_seconds),
        **_percentiles("event_to_cordon", cordon_seconds),
    }


def _measure_event(hub: http.client.HTTPConnection, client: ApiClient, name: str) -> float:
    started_at = time.perf_counter()
    repair.push(hub, name, 79)
    while not client.send(ApiCall("GET", f"/api/v1/nodes/{name}")).body["spec"].get("unschedulable"):
        assert time.perf_counter() - started_at < TIMEOUT_SECONDS, name
        # Not faster: the hub uses the same API server.
        time.sleep(0.005)
    seconds = time.perf_counter() - started_at
    repair.resolve(hub, name)
    # The steps after the cordon (diagnosis, drain) must not affect the next event.
    time.sleep(SETTLE_SECONDS)
    return seconds


def _drain_hollow(cluster: Cluster, driver: KubernetesDriver, options: argparse.Namespace) -> dict[str, float]:
    names = [f"hollow-{number}" for number in range(options.hollow)]
    for name in names:
        story.add_pods(cluster, f"on-{name}", name, count=options.pods)
    times = _drain_all(driver, names, threads=options.threads, prefix="hollow")
    return {"hollow_nodes": len(names), "hollow_pods": len(names) * options.pods, **times}


def _drain_objects(cluster: Cluster, driver: KubernetesDriver, options: argparse.Namespace) -> dict[str, float]:
    names = [_name(number) for number in range(options.nodes)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda at: _add_pod(driver.client, names[at // options.pods], at), range(len(names) * options.pods)
            )
        )
    with _kubelets(cluster):
        times = _drain_all(driver, names, threads=options.threads, prefix="object")
    return {"object_nodes": len(names), "object_pods": len(names) * options.pods, **times}


def _drain_all(driver: KubernetesDriver, names: list[str], *, threads: int, prefix: str) -> dict[str, float]:
    """Drain all nodes in parallel; returns the total time and percentiles of the time for each node."""

    def drain(name: str) -> float:
        started_at = time.perf_counter()
        driver.perform(story.action(ActionKind.CORDON, name))
        while not (done := driver.perform(story.action(ActionKind.DRAIN, name))).is_complete:
            assert time.perf_counter() - started_at < TIMEOUT_SECONDS, done
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - started_at

    started_at = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        node_seconds = list(pool.map(drain, names))
    total_seconds = time.perf_counter() - started_at
    return {
        f"{prefix}_drain_seconds": total_seconds,
        f"{prefix}_node_drain_seconds_p50": median(node_seconds),
        f"{prefix}_node_drain_seconds_p99": _p99(node_seconds),
    }


def _add_pod(client: ApiClient, node: str, number: int) -> None:
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 30}
    name = f"train-{number}"
    client.send(ApiCall("POST", PODS, {"metadata": {"name": name}, "spec": spec}))
    running = {"status": {"phase": "Running"}}
    assert client.send(ApiCall("PATCH", f"{PODS}/{name}/status", running, STRATEGIC_PATCH)).status == 200


@contextlib.contextmanager
def _kubelets(cluster: Cluster) -> Iterator[None]:
    """Delete terminating pods at once, in place of kubelets."""
    stopped = threading.Event()
    client = ApiClient(story.reached(cluster))

    def run() -> None:
        with ThreadPoolExecutor(KUBELETS) as pool:
            while not stopped.wait(KUBELET_POLL_SECONDS):
                pods = client.send(ApiCall("GET", f"{PODS}?resourceVersion=0")).body["items"]
                deleted_pods = [pod["metadata"]["name"] for pod in pods if "deletionTimestamp" in pod["metadata"]]
                list(
                    pool.map(
                        lambda name: client.send(ApiCall("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")), deleted_pods
                    )
                )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
        client.close()


def _name(number: int) -> str:
    return f"object-{number}"
