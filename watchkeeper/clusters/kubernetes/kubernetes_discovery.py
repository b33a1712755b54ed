"""Discover nodes and targets from a Kubernetes cluster.

A node with GPUs is expected, with the number of GPUs from its labels or its capacity; the labels of
packs/node_labels.csv set its pool, rack, leaf and NVLink domain. The pod of the agent is a target, or that of
dcgm-exporter if the node has no agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch, Selectors
from watchkeeper.errors import SettingsError
from watchkeeper.net import addresses
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.scrape import discovery

SOURCE = "kubernetes"
COUNT, REPLICAS, PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.product"
POOL = "pool"
# Names of the metrics port in the manifests of the agent and of dcgm-exporter.
PORT_NAMES = ("metrics", "gpu-metrics", "http-metrics")
DEFAULT_PORT = 9400


@cache
def label_rows() -> tuple[tuple[str, str], ...]:
    """Node labels and the facts that they set (`pool` or a failure domain), highest priority first."""
    return pack.load("node_labels.csv", lambda cells: (pack.required(cells["label"]), pack.required(cells["becomes"])))


def parse_selectors(texts: tuple[str, ...]) -> Selectors:
    """Parse `name=value` settings into pairs; SettingsError if one is invalid."""
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or "," in text:
            problem = f"`{text}` is not a label with a value, such as app=dcgm-exporter"
            raise SettingsError(problem, where="fleet.kubernetes_targets")
        pairs.append((name, value))
    return tuple(pairs)


class KubernetesDiscovery:
    """Discover nodes and targets; remembers each node's highest GPU count, so that a lost GPU stays expected."""

    def __init__(self, watch: KubernetesWatch, targets: Selectors) -> None:
        self._watch = watch
        self._targets = targets
        # By node name: the machine (uid of its object, GPU model) and its highest GPU count.
        self._most_gpus: dict[str, tuple[tuple[str, str], int]] = {}

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        """GPU nodes as expected nodes, each with a target unless `listed` already has one."""
        cluster = self._watch.cluster
        nodes = [node for node in self._watch.nodes() if node.has_gpus]
        names = {node.name for node in nodes}
        self._most_gpus = {name: most_gpus for name, most_gpus in self._most_gpus.items() if name in names}
        target_nodes = {target.node for target in listed.targets if target.cluster == cluster}
        pod_by_node = self._choose_pods()
        groups = [
            self._group(node, None if node.name in target_nodes else pod_by_node.get(node.name)) for node in nodes
        ]
        return discovery.read_groups(groups, SOURCE, cluster=cluster)

    def _group(self, node: objects.KubernetesNode, pod: objects.KubernetesPod | None) -> dict[str, object]:
        domains, expected = read_placement(node.labels), self._expected_gpus(node)
        labels = {
            f"{discovery.META}cluster": self._watch.cluster,
            f"{discovery.META}node": node.name,
            f"{discovery.META}pool": domains.pop(POOL, ""),
            f"{discovery.META}aliases": ",".join(sorted({*node.addresses} - {node.name})),
            f"{discovery.META}expected_gpus": "" if expected is None else str(expected),
            **{f"{discovery.DOMAIN_META}{kind}": name for kind, name in domains.items()},
        }
        if pod is None:
            return {"targets": [], "labels": labels}
        pod_labels = {"__meta_kubernetes_namespace": pod.namespace, "__meta_kubernetes_pod_name": pod.name}
        return {"targets": [addresses.join_port(pod.address, _port(pod))], "labels": labels | pod_labels}

    def _expected_gpus(self, node: objects.KubernetesNode) -> int | None:
        now = physical_gpus(node)
        if now is None:
            return None
        machine = (node.uid, node.labels.get(PRODUCT, ""))
        machine_before, most_gpus = self._most_gpus.get(node.name, (machine, 0))
        # Both the label and the capacity follow the driver: they also drop when a GPU falls off the bus.
        self._most_gpus[node.name] = (machine, max(now, most_gpus) if machine_before == machine else now)
        return self._most_gpus[node.name][1]

    def _choose_pods(self) -> Mapping[str, objects.KubernetesPod]:
        """The pod to scrape on each node; only the one with the first selector, so that no GPU is scraped twice."""
        order = {pair: rank for rank, pair in enumerate(self._targets)}
        chosen: dict[str, tuple[int, objects.KubernetesPod]] = {}
        for pod in self._watch.pods():
            ranks = [order[pair] for pair in pod.labels.items() if pair in order]
            if not ranks or not pod.node or not pod.address or pod.phase != "Running":
                continue
            best = chosen.get(pod.node)
            if best is None or (min(ranks), pod.name) < (best[0], best[1].name):
                chosen[pod.node] = (min(ranks), pod)
        return {node: pod for node, (_, pod) in chosen.items()}


def read_placement(labels: Mapping[str, str]) -> dict[str, str]:
    """Pool and failure domains from a node's labels; for each of them the first row of the table is used."""
    placement: dict[str, str] = {}
    for label, fact in label_rows():
        if labels.get(label):
            placement.setdefault(fact, labels[label])
    return placement


def physical_gpus(node: objects.KubernetesNode) -> int | None:
    """The number of whole GPUs by labels and capacity; None if these count MIG instances or shared GPUs."""
    if "-MIG-" in node.labels.get(PRODUCT, ""):
        # With the strategy `single` both count MIG instances (gpu-feature-discovery, README).
        return None
    label_count = node.labels.get(COUNT, "")
    if label_count.isascii() and label_count.isdigit() and len(label_count) < 4:
        return int(label_count)
    capacity = dict(node.capacity)
    if set(capacity) == {"nvidia.com/gpu"} and node.labels.get(REPLICAS, "1") in ("0", "1"):
        return capacity["nvidia.com/gpu"]
    return None


def _port(pod: objects.KubernetesPod) -> int:
    port_by_name = dict(pod.ports)
    only_port = pod.ports[0][1] if len(pod.ports) == 1 else DEFAULT_PORT
    return next((port_by_name[name] for name in PORT_NAMES if name in port_by_name), only_port)
