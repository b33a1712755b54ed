"""Find why a pod is pending, with `diagnose.pending` over series of kube-state-metrics."""

from __future__ import annotations

import re

from watchkeeper.diagnose import pending
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.diagnose.place_context import PlaceContext
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.readers.clusters.kubernetes_objects import Taint

FAMILY = "scheduling"
FREE = "watchkeeper:kube_node_free_gpus:count"
REQUESTS = "kube_pod_container_resource_requests"
# nvidia_com_mig_1g_10gb is nvidia.com/mig-1g.10gb
MIG = re.compile(r"^nvidia_com_mig_(\d+g)_(\d+gb)$")


def waiting_pod(facts: IncidentFacts) -> Finding | None:
    """A pod is pending: the cause from the reasons of each node; None without kube-state-metrics."""
    if facts.incident.family != FAMILY or not facts.context.rows("kube_pod_status_phase"):
        return None
    request, offers = pod_request(facts.context, facts.names(facts.place)), node_offers(facts.context)
    is_running = facts.context.max_value("kube_pod_status_phase", phase="Running") == 1
    if (is_running and request.gpus) or not offers:
        return None
    verdict = pending.judge_placement(request, offers)
    if verdict.cause is None:
        return None
    lines = [f"{node.node} {node.text}" for node in verdict.nodes[:4]]
    return make_finding(
        facts,
        verdict.cause,
        confidence=0.9,
        evidence=(
            *(Evidence("kube-state-metrics", line, at=facts.at, place=facts.place) for line in lines),
            *(member_evidence(member) for member in facts.incident.members[:2]),
        ),
        why=f"{verdict.why[0].upper()}{verdict.why[1:]}.",
        steps=(DiagnosisStep(f"Smallest change: {verdict.smallest_change}"),),
        ruled_out=_ruled_out(verdict),
    )


def pod_request(context: PlaceContext, name: str) -> pending.PodRequest:
    gpus: dict[str, int] = {}
    for labels, value in context.rows(REQUESTS):
        resource = resource_name(labels.get("resource", ""))
        if resource is not None:
            gpus[resource] = gpus.get(resource, 0) + round(value)
    tolerations = tuple(
        Taint(labels.get("key", ""), labels.get("value", ""), labels.get("effect", ""))
        for labels, _ in context.rows("kube_pod_tolerations")
    )
    prefix = "nodeselector_"
    selector = {
        f"label_{key.removeprefix(prefix)}": value
        for labels, _ in context.rows("kube_pod_nodeselectors")
        for key, value in labels.items()
        if key.startswith(prefix)
    }
    return pending.PodRequest(name, gpus, tolerations, selector)


def node_offers(context: PlaceContext) -> list[pending.NodeOffer]:
    sizes: dict[str, dict[str, dict[str, int]]] = {"capacity": {}, "allocatable": {}}
    for kind, nodes in sizes.items():
        for labels, value in context.rows(f"kube_node_status_{kind}"):
            resource = resource_name(labels.get("resource", ""))
            if resource is not None:
                nodes.setdefault(labels.get("node", ""), {})[resource] = round(value)
    free = {labels.get("node", ""): round(value) for labels, value in context.rows(FREE)}
    taints: dict[str, list[Taint]] = {}
    for labels, _ in context.rows("kube_node_spec_taint"):
        taint = Taint(labels.get("key", ""), labels.get("value", ""), labels.get("effect", ""))
        taints.setdefault(labels.get("node", ""), []).append(taint)
    labels_by_node = {labels.get("node", ""): labels for labels, _ in context.rows("kube_node_labels")}
    return [
        pending.NodeOffer(
            node,
            sizes["capacity"].get(node, {}),
            allocatable,
            # The rule that counts free GPUs excludes nodes that are cordoned or not ready.
            {resource: max(0, count - free.get(node, 0)) for resource, count in allocatable.items()},
            tuple(taints.get(node, ())),
            labels_by_node.get(node, {}),
        )
        for node, allocatable in sorted(sizes["allocatable"].items())
    ]


def resource_name(text: str) -> str | None:
    """The name of the API server; kube-state-metrics replaces special characters by underscores."""
    match = MIG.match(text)
    if match is not None:
        return f"nvidia.com/mig-{match[1]}.{match[2]}"
    return {"nvidia_com_gpu": "nvidia.com/gpu", "nvidia_com_gpu_shared": "nvidia.com/gpu.shared"}.get(text)


def _ruled_out(verdict: pending.PlacementVerdict) -> tuple[RuledOut, ...]:
    present = {pending.CAUSE_BY_REASON[refusal.reason] for node in verdict.nodes for refusal in node.refusals}
    absent = {
        "untolerated_taint": "the pod tolerates the taints of all nodes",
        "node_selector_mismatch": "all nodes have the labels of the node selector",
        "no_device_plugin": "all GPU nodes have allocatable GPUs",
    }
    return tuple(RuledOut(cause, why) for cause, why in absent.items() if verdict.nodes and cause not in present)
