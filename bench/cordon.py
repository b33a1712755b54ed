"""Cordons and drains on a real Kubernetes API server: by the driver alone, and from an event at a hub on.

`cordon_ms` is until the node is cordoned (a look and a patch), `perform_ms` until condition and event are written too,
`get_ms` the plain look beside it. `event_to_cordon_ms` begins with the push of an Xid 79 to a hub of its own process.
Then pods of hollow nodes are drained, all nodes at once; and the same with many Node objects whose pods a small
stand-in for their kubelets ends.
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

# As often as the state machine asks at first.
POLL_SECONDS = 0.2
MOST_SECONDS = 60.0
SETTLE_SECONDS = 0.2
KUBELETS, LOOK_SECONDS = 8, 0.1
PODS = "/api/v1/namespaces/default/pods"
# bench/repair pushes events of a cluster with this name.
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
    parser.add_argument("--events", type=int, default=100, help="events at a hub, one node after the other")
    parser.add_argument("--hollow", type=int, default=16, help="nodes with a hollow kubelet")
    parser.add_argument("--nodes", type=int, default=200, help="Node objects with a stand-in for their kubelets")
    parser.add_argument("--pods", type=int, default=4, help="pods on each node")
    parser.add_argument("--threads", type=int, default=16, help="nodes that are drained at the same time")


def measure(options: argparse.Namespace) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory() as folder,
        kubernetes_server.running(Path(folder) / "kubernetes", nodes=options.hollow) as cluster,
        _driving(cluster) as driver,
    ):
        for number in range(max(options.cordons, options.nodes)):
            story.add_node(cluster, _name(number))
        numbers = _cordons(driver, options.cordons)
        if options.events:
            numbers |= events_to_cordons(cluster, driver, options.events)
        if options.hollow:
            numbers |= _hollow(cluster, driver, options)
        numbers |= _objects(cluster, driver, options)
    numbers |= {"load_average": os.getloadavg()[0]}
    return {name: round(value, 3) for name, value in numbers.items()}


class Timed(ApiClient):
    """Remembers when the last patch of a node itself was answered."""

    patched_at = 0.0

    def send(self, call: ApiCall, **more: Any) -> ApiResponse:
        answer = super().send(call, **more)
        if call.method == "PATCH" and not call.path.endswith("/status"):
            self.patched_at = time.perf_counter()
        return answer


@contextlib.contextmanager
def _driving(cluster: Cluster) -> Iterator[KubernetesDriver]:
    driver = KubernetesDriver(Timed(story.reached(cluster)), EvictionRules(evict_unmanaged=True))
    try:
        yield driver
    finally:
        driver.close()


def _cordons(driver: KubernetesDriver, count: int) -> dict[str, float]:
    assert isinstance(driver.client, Timed)
    looked, cordoned, performed = [], [], []
    for number in range(count):
        began = time.perf_counter()
        driver.client.send(ApiCall("GET", f"/api/v1/nodes/{_name(number)}"))
        looked.append(time.perf_counter() - began)
        began = time.perf_counter()
        done = driver.perform(story.action(ActionKind.CORDON, _name(number)))
        performed.append(time.perf_counter() - began)
        cordoned.append(driver.client.patched_at - began)
        assert done.is_complete, done
        driver.perform(story.action(ActionKind.UNCORDON, _name(number)))
    return {"cordons": count, **_ranked("get", looked), **_ranked("cordon", cordoned), **_ranked("perform", performed)}


def _ranked(name: str, times: list[float]) -> dict[str, float]:
    return {f"{name}_ms_p50": 1000 * median(times), f"{name}_ms_p99": 1000 * _p99(times)}


def _p99(times: list[float]) -> float:
    return sorted(times)[math.ceil(0.99 * len(times)) - 1]


def events_to_cordons(cluster: Cluster, driver: KubernetesDriver, count: int) -> dict[str, float]:
    """A hub that may act, told of one node after the other that a GPU fell off the bus."""
    names = [f"event-{number}" for number in range(count)]
    for name in names:
        story.add_node(cluster, name, labels={"nvidia.com/gpu.present": "true"})
    folder, port = cluster.folder, servers.free_port()
    (folder / "hub.toml").write_text(HUB.format(port=port, folder=folder, kubeconfig=cluster.kubeconfig))
    command = [*repair.WATCHKEEPER, "hub", "--config", folder / "hub.toml"]
    with servers.running(command, ready_url=f"http://127.0.0.1:{port}/-/ready", log=folder / "hub.log"):
        hub = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        until(lambda: set(names) <= set(repair.known(hub, count)))
        plain = [repair.push(hub, name, 43) for name in names]
        cordoned = [_event(hub, driver.client, name) for name in names]
        hub.close()
    return {"events": count, **_ranked("plain_push", plain), **_ranked("event_to_cordon", cordoned)}


def _event(hub: http.client.HTTPConnection, client: ApiClient, name: str) -> float:
    began = time.perf_counter()
    repair.push(hub, name, 79)
    while not client.send(ApiCall("GET", f"/api/v1/nodes/{name}")).body["spec"].get("unschedulable"):
        assert time.perf_counter() - began < MOST_SECONDS, name
        # Not faster: the hub asks the same API server.
        time.sleep(0.005)
    took = time.perf_counter() - began
    repair.resolve(hub, name)
    # What comes after the cordon (diagnosis, drain) is not to be measured with the next event.
    time.sleep(SETTLE_SECONDS)
    return took


def _hollow(cluster: Cluster, driver: KubernetesDriver, options: argparse.Namespace) -> dict[str, float]:
    names = [f"hollow-{number}" for number in range(options.hollow)]
    for name in names:
        story.add_pods(cluster, f"on-{name}", name, count=options.pods)
    times = _drain_all(driver, names, threads=options.threads, of="hollow")
    return {"hollow_nodes": len(names), "hollow_pods": len(names) * options.pods, **times}


def _objects(cluster: Cluster, driver: KubernetesDriver, options: argparse.Namespace) -> dict[str, float]:
    names = [_name(number) for number in range(options.nodes)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda at: _add_pod(driver.client, names[at // options.pods], at), range(len(names) * options.pods)
            )
        )
    with _kubelets(cluster):
        times = _drain_all(driver, names, threads=options.threads, of="object")
    return {"object_nodes": len(names), "object_pods": len(names) * options.pods, **times}


def _drain_all(driver: KubernetesDriver, names: list[str], *, threads: int, of: str) -> dict[str, float]:
    """From the first cordon to the last node without pods, and for each node from its cordon on."""

    def drain(name: str) -> float:
        began = time.perf_counter()
        driver.perform(story.action(ActionKind.CORDON, name))
        while not (done := driver.perform(story.action(ActionKind.DRAIN, name))).is_complete:
            assert time.perf_counter() - began < MOST_SECONDS, done
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - began

    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        each = list(pool.map(drain, names))
    whole = time.perf_counter() - began
    return {
        f"{of}_drain_seconds": whole,
        f"{of}_node_drain_seconds_p50": median(each),
        f"{of}_node_drain_seconds_p99": _p99(each),
    }


def _add_pod(client: ApiClient, node: str, number: int) -> None:
    spec = {"nodeName": node, "containers": [{"name": "main", "image": "none"}], "terminationGracePeriodSeconds": 30}
    name = f"train-{number}"
    client.send(ApiCall("POST", PODS, {"metadata": {"name": name}, "spec": spec}))
    running = {"status": {"phase": "Running"}}
    assert client.send(ApiCall("PATCH", f"{PODS}/{name}/status", running, STRATEGIC_PATCH)).status == 200


@contextlib.contextmanager
def _kubelets(cluster: Cluster) -> Iterator[None]:
    """What a kubelet does for a pod that is to end: nothing has to be stopped, so it is gone at once."""
    stopped = threading.Event()
    client = ApiClient(story.reached(cluster))

    def run() -> None:
        with ThreadPoolExecutor(KUBELETS) as pool:
            while not stopped.wait(LOOK_SECONDS):
                found = client.send(ApiCall("GET", f"{PODS}?resourceVersion=0")).body["items"]
                ending = [pod["metadata"]["name"] for pod in found if "deletionTimestamp" in pod["metadata"]]
                list(
                    pool.map(lambda name: client.send(ApiCall("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")), ending)
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
