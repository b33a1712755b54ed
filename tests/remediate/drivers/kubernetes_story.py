"""What stories about the Kubernetes driver share: a driver for a running cluster, actions, and objects to act on."""

from __future__ import annotations

import contextlib
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.clusters.kubernetes_server import TOKEN, Cluster
from tests.support.waiting import PROGRAM_SECONDS, until
from watchkeeper.model.actions import Action, ActionId, ActionKind
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import IncidentId
from watchkeeper.net import access
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.remediate.driver import ActionOutcome
from watchkeeper.remediate.drivers.kubernetes import KubernetesDriver
from watchkeeper.remediate.drivers.kubernetes_client import ApiClient
from watchkeeper.remediate.drivers.kubernetes_pods import EvictionRules

Raw = dict[str, Any]


def reached(cluster: Cluster, *, token: str = TOKEN, token_file: Path | None = None) -> kubeconfig.ApiServer:
    let_in = access.Access(
        credentials="" if token_file else token,
        credentials_file=str(token_file or ""),
        ca_file=str(cluster.ca_file),
    )
    return kubeconfig.ApiServer(cluster.url, let_in, "test")


@contextlib.contextmanager
def driving(
    cluster: Cluster, *, rules: EvictionRules | None = None, token: str = TOKEN, token_file: Path | None = None
) -> Iterator[KubernetesDriver]:
    client = ApiClient(reached(cluster, token=token, token_file=token_file))
    driver = KubernetesDriver(client, rules or EvictionRules())
    try:
        yield driver
    finally:
        driver.close()


def action(kind: ActionKind, node: str, *, incident: str = "I-7", gpu: str | None = None, **arguments: str) -> Action:
    place = Place("main", node=node, gpu=gpu)
    return Action(ActionId(f"1-{kind}"), kind, place, IncidentId(incident), "GPU 3 fell off the bus", arguments)


def add_node(cluster: Cluster, name: str, **about: Any) -> str:
    """A node without a kubelet, which is enough for whatever is only written on it."""
    raw = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **about}}
    cluster.create("/api/v1/nodes", raw)
    return name


def node(cluster: Cluster, name: str) -> Raw:
    return cluster.ask(f"/api/v1/nodes/{name}")


def add_pods(cluster: Cluster, app: str, on: str, *, count: int = 1) -> None:
    """Pods of a ReplicaSet on one node; it starts others when they go, which then wait for a node."""
    container = {"name": "main", "image": "none"}
    spec = {
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
        "nodeSelector": {"kubernetes.io/hostname": on},
    }
    template = {"metadata": {"labels": {"app": app}}, "spec": spec}
    selector = {"matchLabels": {"app": app}}
    raw = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": app},
        "spec": {"replicas": count, "selector": selector, "template": template},
    }
    cluster.create("/apis/apps/v1/namespaces/default/replicasets", raw)
    until(lambda: sum(name.startswith(f"{app}-") for name in running(cluster, on)) == count)


def running(cluster: Cluster, on: str) -> list[str]:
    pods = cluster.ask(f"/api/v1/pods?fieldSelector=spec.nodeName={on}")["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]


def budget(cluster: Cluster, name: str, app: str, *, minimum: int) -> str:
    """A disruption budget that its controller has looked at; gives its path."""
    path = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets"
    spec = {"minAvailable": minimum, "selector": {"matchLabels": {"app": app}}}
    raw = {"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
    cluster.create(path, raw)
    until(lambda: cluster.ask(f"{path}/{name}").get("status", {}).get("observedGeneration") == 1)
    until(lambda: cluster.ask(f"{path}/{name}")["status"].get("currentHealthy") == minimum)
    return f"{path}/{name}"


def finished(driver: KubernetesDriver, action: Action) -> ActionOutcome:
    """Perform it as the state machine does, again until it is complete."""

    def complete() -> ActionOutcome | None:
        done = driver.perform(action)
        return done if done.is_complete else None

    return until(complete, what=f"complete: {action}", interval_seconds=PROGRAM_SECONDS)


def clean(cluster: Cluster) -> None:
    """Every story finds the hollow nodes free and schedulable, whichever ran before it."""
    lists = (
        "/apis/policy/v1beta1/poddisruptionbudgets",
        "/apis/apps/v1/replicasets",
        "/api/v1/pods",
    )
    for path in lists:
        api, _, kind = path.rpartition("/")
        for node in cluster.ask(path)["items"]:
            about = node["metadata"]
            where = f"{api}/namespaces/{about['namespace']}/{kind}/{about['name']}"
            with contextlib.suppress(urllib.error.HTTPError):
                cluster.ask(f"{where}?gracePeriodSeconds=0&propagationPolicy=Background", method="DELETE")
    for node in cluster.ask("/api/v1/nodes")["items"]:
        name = node["metadata"]["name"]
        if not name.startswith("hollow-"):
            cluster.ask(f"/api/v1/nodes/{name}", method="DELETE")
            continue
        gone = {key: None for key in node["metadata"].get("annotations", {}) if key.startswith("watchkeeper.dev/")}
        cluster.ask(
            f"/api/v1/nodes/{name}",
            method="PATCH",
            body={"metadata": {"annotations": gone}, "spec": {"unschedulable": None, "taints": None}},
        )


def apply(cluster: Cluster, manifests: list[Raw]) -> None:
    """What `kubectl apply` would do with objects that are not there yet."""
    for raw in manifests:
        about, kind = raw["metadata"], f"{raw['kind'].lower()}s"
        namespace = f"/namespaces/{about['namespace']}" if "namespace" in about else ""
        cluster.create(f"/apis/{raw['apiVersion']}{namespace}/{kind}", raw)
