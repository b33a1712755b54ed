"""Decide why a pod is pending: the reasons of each node, the cause, and the smallest change that would help.

Pure, over `PodRequest` and `NodeOffer`. They come from the objects of a watched API server, from pasted `kubectl get -o
json` (both by `readers.clusters.kubernetes_objects`), or from series of kube-state-metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watchkeeper.readers.clusters import kubernetes_objects as objects

GPU = "nvidia.com/gpu"
WHOLE_GPU_RESOURCES = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")


class RefusalReason(StrEnum):
    """Why a pod does not fit on a node, the most useful reason first."""

    SELECTOR = "selector"
    TAINT = "taint"
    NO_PLUGIN = "no_plugin"
    OTHER_RESOURCE = "other_resource"
    NOT_READY = "not_ready"
    CORDONED = "cordoned"
    TOO_SMALL = "too_small"
    FULL = "full"


CAUSE_BY_REASON = dict.fromkeys(RefusalReason, "insufficient_gpu_capacity") | {
    RefusalReason.SELECTOR: "node_selector_mismatch",
    RefusalReason.TAINT: "untolerated_taint",
    RefusalReason.NO_PLUGIN: "no_device_plugin",
    RefusalReason.OTHER_RESOURCE: "mig_misconfig",
}
# The cost of a change: a line in a manifest, a request to an operator, GPUs of another workload, another node.
COST = {
    RefusalReason.TAINT: 1,
    RefusalReason.SELECTOR: 1,
    RefusalReason.OTHER_RESOURCE: 3,
    RefusalReason.CORDONED: 4,
    RefusalReason.FULL: 6,
    RefusalReason.NO_PLUGIN: 7,
    RefusalReason.NOT_READY: 8,
    RefusalReason.TOO_SMALL: 9,
}


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod requests; `gpus` by resource name, empty for none."""

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[objects.Taint, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    # The namespace's GPU quotas: resource, hard, used.
    quotas: tuple[tuple[str, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """The capacity, allocatable and used GPUs of a node, by resource name."""

    name: str
    capacity: Mapping[str, int] = field(default_factory=dict)
    allocatable: Mapping[str, int] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)
    taints: tuple[objects.Taint, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    is_ready: bool | None = True
    is_cordoned: bool = False

    def free(self, resource: str) -> int:
        return max(0, self.allocatable.get(resource, 0) - self.used.get(resource, 0))


@dataclass(frozen=True, slots=True)
class PlacementRefusal:
    reason: RefusalReason
    text: str
    change: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """Why the pod does not fit on a node; without refusals it fits."""

    node: str
    refusals: tuple[PlacementRefusal, ...]

    @property
    def cost(self) -> int:
        return sum(COST[refusal.reason] for refusal in self.refusals)

    @property
    def text(self) -> str:
        return "; ".join(refusal.text for refusal in self.refusals) or "has capacity"


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """`cause` is None and `smallest_change` is empty if the pod fits on a node."""

    cause: str | None
    why: str
    smallest_change: str
    nodes: tuple[NodeVerdict, ...] = ()
    notes: tuple[str, ...] = ()


def judge_placement(request: PodRequest, offers: Sequence[NodeOffer]) -> PlacementVerdict:
    """The cause and the smallest change, from the node where the smallest change is enough."""
    notes = tuple(_quota_notes(request))
    if not request.gpus:
        why, change = "requests no GPU, so it runs on the CPU", f"add `{GPU}: 1` to the limits of its container"
        return PlacementVerdict("missing_gpu_request", f"{request.name} {why}", change, notes=notes)
    nodes = tuple(sorted((judge_node(request, offer) for offer in offers), key=lambda node: (node.cost, node.node)))
    if not nodes:
        why = "the cluster has no GPU node"
        return PlacementVerdict("insufficient_gpu_capacity", why, "add a GPU node", notes=notes)
    nearest = nodes[0]
    if not nearest.refusals:
        why = f"{nearest.node} has capacity; the scheduler has not placed the pod yet"
        return PlacementVerdict(None, why, "", nodes, notes)
    change = f"{nearest.node}: {', and '.join(refusal.change for refusal in nearest.refusals)}"
    cause, why = _cause(request, nodes, offers)
    return PlacementVerdict(cause, why, change, nodes, notes)


def judge_node(request: PodRequest, offer: NodeOffer) -> NodeVerdict:
    capacity_refusals = (_capacity_refusal(name, count, offer) for name, count in sorted(request.gpus.items()))
    refusals = (*_rule_refusals(request, offer), *capacity_refusals)
    return NodeVerdict(offer.name, tuple(refusal for refusal in refusals if refusal is not None))


def tolerates(tolerations: Iterable[objects.Taint], taint: objects.Taint) -> bool:
    """Whether a toleration matches the taint; an empty key, value or effect matches all."""
    return any(
        toleration.key in ("", taint.key)
        and toleration.value in ("", taint.value)
        and toleration.effect in ("", taint.effect)
        for toleration in tolerations
    )


def request_of_pod(pod: objects.KubernetesPod, quotas: Iterable[objects.Quota] = (), *, claimed: int = 0) -> PodRequest:
    """The request of a pod; `claimed` GPUs of resource claims count as whole GPUs."""
    gpus: dict[str, int] = {}
    for container in pod.containers:
        for resource, count in container.gpus:
            gpus[resource] = gpus.get(resource, 0) + count
    if claimed:
        gpus[GPU] = gpus.get(GPU, 0) + claimed
    lines = tuple(line for quota in quotas if quota.namespace == pod.namespace for line in quota.lines)
    return PodRequest(f"{pod.namespace}/{pod.name}", gpus, pod.tolerations, pod.node_selector, lines)


def node_offers(nodes: Iterable[objects.KubernetesNode], pods: Iterable[objects.KubernetesPod]) -> list[NodeOffer]:
    """The GPU nodes, with the GPUs that their pods use."""
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        used_here = used.setdefault(pod.node, {}) if pod.node else {}
        for container in pod.containers:
            for resource, count in container.gpus:
                used_here[resource] = used_here.get(resource, 0) + count
    return [
        NodeOffer(
            node.name, dict(node.capacity), dict(node.allocatable), used.get(node.name, {}),
            node.taints, node.labels, node.is_ready, node.is_cordoned,
        )
        for node in nodes
        if node.has_gpus
    ]  # fmt: skip


def _rule_refusals(request: PodRequest, offer: NodeOffer) -> Iterable[PlacementRefusal]:
    for key, value in sorted(request.selector.items()):
        actual = offer.labels.get(key)
        if actual != value:
            text, change = f"has {key}={actual}, not {value}", f"change the selector to {key}={actual}"
            if actual is None:
                text, change = f"has no label {key}", f"remove {key} from the selector"
            yield PlacementRefusal(RefusalReason.SELECTOR, text, change)
    for taint in offer.taints:
        if taint.effect in BLOCKING_EFFECTS and not offer.is_cordoned and not tolerates(request.tolerations, taint):
            taint_text = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            yield PlacementRefusal(RefusalReason.TAINT, f"has the taint {taint_text}", f"tolerate {taint_text}")
    if offer.is_cordoned:
        yield PlacementRefusal(RefusalReason.CORDONED, "is cordoned", "uncordon it")
    if offer.is_ready is not True:
        yield PlacementRefusal(RefusalReason.NOT_READY, "is not ready", "make it ready")


def _capacity_refusal(resource: str, count: int, offer: NodeOffer) -> PlacementRefusal | None:
    capacity, offered, free = offer.capacity.get(resource, 0), offer.allocatable.get(resource, 0), offer.free(resource)
    if free >= count:
        return None
    if not capacity and not offered:
        others = sorted(name for name, amount in offer.allocatable.items() if amount)
        if not others:
            text = f"has no {resource}: its device plugin reports none"
            return PlacementRefusal(RefusalReason.NO_PLUGIN, text, "fix its device plugin")
        is_whole = all(name in WHOLE_GPU_RESOURCES for name in (resource, *others))
        change = f"request {others[0]}" + ("" if is_whole else ", or change its MIG layout")
        return PlacementRefusal(RefusalReason.OTHER_RESOURCE, f"has {', '.join(others)}, not {resource}", change)
    if capacity and not offered:
        text = f"has {capacity} {resource}, 0 allocatable: its device plugin is not running or reports all as unhealthy"
        return PlacementRefusal(RefusalReason.NO_PLUGIN, text, "fix its device plugin")
    if offered < count:
        text = f"has {offered} {resource}, {count} requested"
        return PlacementRefusal(RefusalReason.TOO_SMALL, text, f"request {offered}")
    change = f"request {free}, or free {count - free} {resource}" if free else f"free {count} {resource}"
    return PlacementRefusal(RefusalReason.FULL, f"has {free} of {offered} {resource} free, {count} requested", change)


def _cause(request: PodRequest, nodes: Sequence[NodeVerdict], offers: Sequence[NodeOffer]) -> tuple[str, str]:
    """The cause and its text, from the most useful reason of the nodes with the smallest change."""
    nearest = [node for node in nodes if node.cost == nodes[0].cost]
    kinds = {refusal.reason for refusal in nearest[0].refusals}
    first = next(reason for reason in RefusalReason if reason in kinds)
    text = f"closest of {len(nodes)} GPU nodes ({len(nearest)} alike): {nearest[0].node} {nearest[0].text}"
    if first is RefusalReason.FULL:
        resource, count = max(request.gpus.items(), key=lambda item: item[1])
        free = [offer.free(resource) for offer in offers if not list(_rule_refusals(request, offer))]
        text = f"{sum(free)} {resource} are free on the nodes that the pod may use, {count} requested"
        if sum(free) >= count:
            text = f"{sum(free)} {resource} are free, but at most {max(free)} on one node; {count} requested"
            return "gpu_fragmentation", text
    return CAUSE_BY_REASON[first], text


def _quota_notes(request: PodRequest) -> Iterable[str]:
    for resource, hard, used in request.quotas:
        if hard is not None and used is not None:
            left = f"{hard - used} left" if used < hard else "none left"
            yield f"namespace quota: {used} of {hard} {resource} used, {left}"
