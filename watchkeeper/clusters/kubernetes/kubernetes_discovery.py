"""Nodes and targets that a Kubernetes cluster names: one more source beside lists and agents that register.

A node with GPUs is expected, with as many GPUs as its labels or its capacity say; the labels of packs/node_labels.csv
place it in a pool, rack, leaf and NVLink domain. A pod of our agent, or of a dcgm-exporter where there is no agent,
is a target. The hub merges `found` behind the lists of people, which know better.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch, Selectors
from watchkeeper.errors import SettingsError
from watchkeeper.model import fleet
from watchkeeper.readers.clusters import kubernetes_objects as objects
from watchkeeper.scrape import discovery

SOURCE = "kubernetes"
COUNT, REPLICAS, PRODUCT = "nvidia.com/gpu.count", "nvidia.com/gpu.replicas", "nvidia.com/gpu.product"
POOL = "pool"
# What our agent and every dcgm-exporter call the port of their page.
PORT_NAMES = ("metrics", "gpu-metrics", "http-metrics")
DEFAULT_PORT = 9400


@dataclass(frozen=True, slots=True)
class LabelRow:
    """A node's label and what it becomes: the pool, or the name of a failure domain."""

    label: str
    becomes: str


@cache
def label_rows() -> tuple[LabelRow, ...]:
    """In the order in which they count."""
    return pack.load(
        "node_labels.csv", lambda cells: LabelRow(pack.required(cells["label"]), pack.required(cells["becomes"]))
    )


def selectors(texts: tuple[str, ...]) -> Selectors:
    """`name=value` of the settings as pairs; SettingsError for anything else."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value) or "," in text:
            raise SettingsError(
                f"`{text}` is not a label and its value, as in app=dcgm-exporter", where="fleet.kubernetes_targets"
            )
        found.append((name, value))
    return tuple(found)


class KubernetesDiscovery:
    """Remembers only the most GPUs that each node has had, so that one that fell out is missed."""

    def __init__(self, watch: KubernetesWatch, targets: Selectors) -> None:
        self._watch = watch
        self._targets = targets
        # By name: the machine, as its object's id and its GPUs' model, and the most GPUs it has had.
        self._most: dict[str, tuple[tuple[str, str], int]] = {}

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        """GPU nodes as expected ones; their targets where no list has one for the node already."""
        cluster = self._watch.cluster
        nodes = {node.name: self._expected(node) for node in self._watch.nodes() if node.has_gpus}
        self._most = {name: most for name, most in self._most.items() if name in nodes}
        has_target = {target.node for target in listed.targets if target.cluster == cluster}
        chosen = self._pods()
        groups = [_group(node, chosen.get(name) if name not in has_target else None) for name, node in nodes.items()]
        return discovery.read_groups(groups, SOURCE, defaults=discovery.DiscoveryDefaults(cluster=cluster))

    def _expected(self, node: objects.KubernetesNode) -> fleet.Node:
        placed = placement(node.labels)
        return fleet.Node(
            self._watch.cluster,
            node.name,
            pool=placed.pop(POOL, ""),
            aliases=frozenset(node.addresses) - {node.name},
            expected_gpus=self._expected_gpus(node),
            domains=placed,
            source=SOURCE,
        )

    def _expected_gpus(self, node: objects.KubernetesNode) -> int | None:
        now = physical_gpus(node)
        if now is None:
            return None
        machine = (node.uid, node.labels.get(PRODUCT, ""))
        known, most = self._most.get(node.name, (machine, 0))
        # Both the label and the capacity follow the driver: a GPU that falls off the bus is gone from them as well.
        self._most[node.name] = (machine, max(now, most) if known == machine else now)
        return self._most[node.name][1]

    def _pods(self) -> Mapping[str, objects.KubernetesPod]:
        """For each node the pod to read; of several the one whose label stands first, so that no GPU is read twice."""
        order = {pair: place for place, pair in enumerate(self._targets)}
        chosen: dict[str, tuple[int, objects.KubernetesPod]] = {}
        for pod in self._watch.pods():
            places = [order[pair] for pair in pod.labels.items() if pair in order]
            if not places or not pod.node or not pod.address or pod.phase != "Running":
                continue
            best = chosen.get(pod.node)
            if best is None or (min(places), pod.name) < (best[0], best[1].name):
                chosen[pod.node] = (min(places), pod)
        return {node: pod for node, (_, pod) in chosen.items()}


def placement(labels: Mapping[str, str]) -> dict[str, str]:
    """Pool and failure domains by a node's labels; of two labels for one thing the first of the table counts."""
    found: dict[str, str] = {}
    for row in label_rows():
        if labels.get(row.label):
            found.setdefault(row.becomes, labels[row.label])
    return found


def physical_gpus(node: objects.KubernetesNode) -> int | None:
    """GPUs in the machine, as far as its labels and capacity tell; None where they count slices or shares of them."""
    if "-MIG-" in node.labels.get(PRODUCT, ""):
        # With the strategy `single` both count slices (gpu-feature-discovery, README).
        return None
    counted = node.labels.get(COUNT, "")
    if counted.isascii() and counted.isdigit() and len(counted) < 4:
        return int(counted)
    capacity = dict(node.capacity)
    if set(capacity) == {"nvidia.com/gpu"} and node.labels.get(REPLICAS, "1") in ("0", "1"):
        return capacity["nvidia.com/gpu"]
    return None


def _group(node: fleet.Node, pod: objects.KubernetesPod | None) -> dict[str, object]:
    labels = {
        f"{discovery.META}cluster": node.cluster,
        f"{discovery.META}node": node.name,
        f"{discovery.META}pool": node.pool,
        f"{discovery.META}aliases": ",".join(sorted(node.aliases)),
        f"{discovery.META}expected_gpus": "" if node.expected_gpus is None else str(node.expected_gpus),
        **{f"{discovery.DOMAIN_META}{kind}": name for kind, name in node.domains.items()},
    }
    if pod is None:
        return {"targets": [], "labels": labels}
    host = f"[{pod.address}]" if ":" in pod.address else pod.address
    about = {"__meta_kubernetes_namespace": pod.namespace, "__meta_kubernetes_pod_name": pod.name}
    return {"targets": [f"{host}:{_port(pod)}"], "labels": labels | about}


def _port(pod: objects.KubernetesPod) -> int:
    named = dict(pod.ports)
    for name in PORT_NAMES:
        if name in named:
            return named[name]
    return pod.ports[0][1] if len(pod.ports) == 1 else DEFAULT_PORT
