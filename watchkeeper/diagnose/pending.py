"""Why a pod does not run: each node's reasons, the cause that follows, and the smallest change that would help.

Pure, over `Ask` and `Offer`. They are made from the objects of a watched API server, from pasted `kubectl get -o
json` (both by `readers.clusters.kubernetes_objects`), or from the series of kube-state-metrics; the tree of decisions
is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watchkeeper.readers.clusters import kubernetes_objects as objects

GPU = "nvidia.com/gpu"
GENERAL = ("nvidia.com/gpu", "nvidia.com/gpu.shared")
KEEPS_OUT = ("NoSchedule", "NoExecute")


class Reason(StrEnum):
    """Why one node does not take the pod; the order is that in which they are worth telling."""

    SELECTOR = "selector"
    TAINT = "taint"
    NO_PLUGIN = "no_plugin"
    OTHER_RESOURCE = "other_resource"
    NOT_READY = "not_ready"
    CORDONED = "cordoned"
    TOO_SMALL = "too_small"
    FULL = "full"


CAUSE_OF = {
    Reason.SELECTOR: "node_selector_mismatch",
    Reason.TAINT: "untolerated_taint",
    Reason.NO_PLUGIN: "no_device_plugin",
    Reason.OTHER_RESOURCE: "mig_misconfig",
    Reason.NOT_READY: "insufficient_gpu_capacity",
    Reason.CORDONED: "insufficient_gpu_capacity",
    Reason.TOO_SMALL: "insufficient_gpu_capacity",
    Reason.FULL: "insufficient_gpu_capacity",
}
# What a change costs: a line in a manifest, a word to an operator, somebody else's GPUs, another machine.
COST = {
    Reason.TAINT: 1,
    Reason.SELECTOR: 1,
    Reason.OTHER_RESOURCE: 3,
    Reason.CORDONED: 4,
    Reason.FULL: 6,
    Reason.NO_PLUGIN: 7,
    Reason.NOT_READY: 8,
    Reason.TOO_SMALL: 9,
}


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for; `gpus` by resource name, empty for none."""

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    tolerations: tuple[objects.Taint, ...] = ()
    selector: Mapping[str, str] = field(default_factory=dict)
    # The namespace's GPU quotas: resource, hard, used.
    quotas: tuple[tuple[str, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """What a node has, offers and has given away, by resource name."""

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
    reason: Reason
    text: str
    change: str


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """`refusals` empty: the pod would fit here."""

    node: str
    refusals: tuple[PlacementRefusal, ...]

    @property
    def cost(self) -> int:
        return sum(COST[refusal.reason] for refusal in self.refusals)

    @property
    def text(self) -> str:
        return "; ".join(refusal.text for refusal in self.refusals) or "would take it"


@dataclass(frozen=True, slots=True)
class PlacementVerdict:
    """`cause` None: nothing keeps it from running here; `smallest_change` is empty then."""

    cause: str | None
    why: str
    smallest_change: str
    nodes: tuple[NodeVerdict, ...] = ()
    notes: tuple[str, ...] = ()

    def count_reasons(self) -> list[tuple[str, int]]:
        """The reasons with how many nodes have them, most first."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            for refusal in node.refusals:
                counts[refusal.reason.value] = counts.get(refusal.reason.value, 0) + 1
        return sorted(counts.items(), key=lambda item: -item[1])


def judge_placement(ask: PodRequest, offers: Sequence[NodeOffer]) -> PlacementVerdict:
    """The cause of the node that is nearest to taking the pod."""
    notes = tuple(_quota_notes(ask))
    if not ask.gpus:
        return PlacementVerdict(
            "missing_gpu_request",
            f"{ask.name} asks for no GPU, so it gets none and computes on the CPU",
            f"add `{GPU}: 1` to the limits of its container",
            notes=notes,
        )
    nodes = tuple(sorted((judge_node(ask, offer) for offer in offers), key=lambda one: (one.cost, one.node)))
    if not nodes:
        return PlacementVerdict(
            "insufficient_gpu_capacity", "the cluster has no GPU node", "add a GPU node", notes=notes
        )
    nearest = nodes[0]
    if not nearest.refusals:
        why = f"{nearest.node} has room for it; the scheduler has not come to it yet"
        return PlacementVerdict(None, why, "", nodes, notes)
    change = f"{nearest.node}: {', and '.join(refusal.change for refusal in nearest.refusals)}"
    cause, why = _cause(ask, nodes, offers)
    return PlacementVerdict(cause, why, change, nodes, notes)


def judge_node(ask: PodRequest, offer: NodeOffer) -> NodeVerdict:
    found = [*_rules(ask, offer)]
    for resource, count in sorted(ask.gpus.items()):
        refusal = _room(resource, count, offer)
        found += [refusal] if refusal is not None else []
    return NodeVerdict(offer.name, tuple(found))


def tolerates(tolerations: Iterable[objects.Taint], taint: objects.Taint) -> bool:
    """A toleration without a key tolerates all, one without a value every value, one without an effect every effect."""
    return any(
        one.key in ("", taint.key) and one.value in ("", taint.value) and one.effect in ("", taint.effect)
        for one in tolerations
    )


def request_of_pod(pod: objects.KubernetesPod, quotas: Iterable[objects.Quota] = (), *, claimed: int = 0) -> PodRequest:
    """`claimed` are GPUs of claims, which count as whole ones."""
    gpus: dict[str, int] = {}
    for container in pod.containers:
        for resource, count in container.gpus:
            gpus[resource] = gpus.get(resource, 0) + count
    if claimed:
        gpus[GPU] = gpus.get(GPU, 0) + claimed
    lines = tuple(line for quota in quotas if quota.namespace == pod.namespace for line in quota.lines)
    return PodRequest(f"{pod.namespace}/{pod.name}", gpus, pod.tolerations, pod.node_selector, lines)


def node_offers(nodes: Iterable[objects.KubernetesNode], pods: Iterable[objects.KubernetesPod]) -> list[NodeOffer]:
    """GPU nodes with what their pods hold."""
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        held = used.setdefault(pod.node, {}) if pod.node else {}
        for container in pod.containers:
            for resource, count in container.gpus:
                held[resource] = held.get(resource, 0) + count
    return [
        NodeOffer(
            node.name, dict(node.capacity), dict(node.allocatable), used.get(node.name, {}),
            node.taints, node.labels, node.is_ready, node.is_cordoned,
        )
        for node in nodes
        if node.has_gpus
    ]  # fmt: skip


def _rules(ask: PodRequest, offer: NodeOffer) -> Iterable[PlacementRefusal]:
    for key, value in sorted(ask.selector.items()):
        has = offer.labels.get(key)
        if has != value:
            text = f"has no label {key}" if has is None else f"has {key}={has}, not {value}"
            change = f"change the selector to {key}={has}" if has is not None else f"take {key} out of the selector"
            yield PlacementRefusal(Reason.SELECTOR, text, change)
    for taint in offer.taints:
        if taint.effect in KEEPS_OUT and not offer.is_cordoned and not tolerates(ask.tolerations, taint):
            written = f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"
            yield PlacementRefusal(Reason.TAINT, f"has the taint {written}", f"tolerate {written}")
    if offer.is_cordoned:
        yield PlacementRefusal(Reason.CORDONED, "is cordoned", "uncordon it")
    if offer.is_ready is not True:
        yield PlacementRefusal(Reason.NOT_READY, "is not ready", "bring it back")


def _room(resource: str, count: int, offer: NodeOffer) -> PlacementRefusal | None:
    has, offered, free = offer.capacity.get(resource, 0), offer.allocatable.get(resource, 0), offer.free(resource)
    if free >= count:
        return None
    if not has and not offered:
        others = sorted(name for name, some in offer.allocatable.items() if some)
        if not others:
            text = f"offers no {resource}: its device plugin has found nothing"
            return PlacementRefusal(Reason.NO_PLUGIN, text, "bring its device plugin back")
        if resource in GENERAL and all(name in GENERAL for name in others):
            return PlacementRefusal(
                Reason.OTHER_RESOURCE, f"offers {', '.join(others)}, not {resource}", f"ask for {others[0]}"
            )
        change = f"ask for {others[0]}, or change its MIG layout"
        return PlacementRefusal(Reason.OTHER_RESOURCE, f"offers {', '.join(others)}, not {resource}", change)
    if has and not offered:
        text = f"knows {has} {resource} and offers none: its device plugin is gone or finds them all unhealthy"
        return PlacementRefusal(Reason.NO_PLUGIN, text, "bring its device plugin back")
    if offered < count:
        return PlacementRefusal(
            Reason.TOO_SMALL, f"has {offered} {resource}, {count} are asked for", f"ask for {offered}"
        )
    change = f"ask for {free}, or free {count - free} {resource}" if free else f"free {count} {resource}"
    return PlacementRefusal(Reason.FULL, f"has {free} of {offered} {resource} free, {count} are asked for", change)


def _cause(ask: PodRequest, nodes: Sequence[NodeVerdict], offers: Sequence[NodeOffer]) -> tuple[str, str]:
    """From the reasons of the nodes that are nearest to taking it, the first that is worth telling."""
    nearest = [node for node in nodes if node.cost == nodes[0].cost]
    kinds = {refusal.reason for refusal in nearest[0].refusals}
    first = next(reason for reason in Reason if reason in kinds)
    share = f"{len(nearest)} of {len(nodes)} GPU nodes are nearest to taking it; {nearest[0].node} {nearest[0].text}"
    if first is Reason.FULL:
        resource, count = max(ask.gpus.items(), key=lambda item: item[1])
        free = {offer.name: offer.free(resource) for offer in offers if _is_open_to(ask, offer)}
        total = sum(free.values())
        if total >= count:
            most = max(free.values())
            return (
                "gpu_fragmentation",
                f"{total} {resource} are free, but {most} at most on one node; {count} are asked for",
            )
        return CAUSE_OF[first], f"{total} {resource} are free on the nodes that it may use, {count} are asked for"
    return CAUSE_OF[first], share


def _is_open_to(ask: PodRequest, offer: NodeOffer) -> bool:
    return not any(True for _ in _rules(ask, offer))


def _quota_notes(ask: PodRequest) -> Iterable[str]:
    for resource, hard, used in ask.quotas:
        if hard is not None and used is not None:
            full = "used up" if used >= hard else f"{hard - used} left"
            yield f"quota of its namespace: {used} of {hard} {resource}, {full}"
