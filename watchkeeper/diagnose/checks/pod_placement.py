"""Pods that wait: the tree of `diagnose.pending`, over what kube-state-metrics' series say."""

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
    """The cause that follows from each node's own reasons; None where the series are not there."""
    if facts.incident.family != FAMILY or not facts.context.rows("kube_pod_status_phase"):
        return None
    ask, offers = asked(facts.context, facts.names(facts.place)), offered(facts.context)
    is_running = facts.context.max_value("kube_pod_status_phase", phase="Running") == 1
    if (is_running and ask.gpus) or not offers:
        return None
    found = pending.judge_placement(ask, offers)
    if found.cause is None:
        return None
    lines = [f"{node.node} {node.text}" for node in found.nodes[:4]]
    return make_finding(
        facts,
        found.cause,
        place=facts.place,
        confidence=0.9,
        evidence=(
            *(Evidence("kube-state-metrics", line, at=facts.at, place=facts.place) for line in lines),
            *(member_evidence(member) for member in facts.incident.members[:2]),
        ),
        why=f"{found.why[0].upper()}{found.why[1:]}.",
        steps=(DiagnosisStep(f"The smallest change: {found.smallest_change}"),),
        ruled_out=_ruled_out(found),
    )


def asked(around: PlaceContext, name: str) -> pending.PodRequest:
    gpus: dict[str, int] = {}
    for labels, value in around.rows(REQUESTS):
        resource = resource_name(labels.get("resource", ""))
        if resource is not None:
            gpus[resource] = gpus.get(resource, 0) + round(value)
    tolerations = tuple(
        Taint(labels.get("key", ""), labels.get("value", ""), labels.get("effect", ""))
        for labels, _ in around.rows("kube_pod_tolerations")
    )
    prefix = "nodeselector_"
    selector = {
        f"label_{key.removeprefix(prefix)}": value
        for labels, _ in around.rows("kube_pod_nodeselectors")
        for key, value in labels.items()
        if key.startswith(prefix)
    }
    return pending.PodRequest(name, gpus, tolerations, selector)


def offered(around: PlaceContext) -> list[pending.NodeOffer]:
    sizes: dict[str, dict[str, dict[str, int]]] = {"capacity": {}, "allocatable": {}}
    for what, nodes in sizes.items():
        for labels, value in around.rows(f"kube_node_status_{what}"):
            resource = resource_name(labels.get("resource", ""))
            if resource is not None:
                nodes.setdefault(labels.get("node", ""), {})[resource] = round(value)
    free = {labels.get("node", ""): round(value) for labels, value in around.rows(FREE)}
    taints: dict[str, list[Taint]] = {}
    for labels, _ in around.rows("kube_node_spec_taint"):
        taint = Taint(labels.get("key", ""), labels.get("value", ""), labels.get("effect", ""))
        taints.setdefault(labels.get("node", ""), []).append(taint)
    named = {labels.get("node", ""): labels for labels, _ in around.rows("kube_node_labels")}
    return [
        pending.NodeOffer(
            node,
            sizes["capacity"].get(node, {}),
            allocatable,
            # The rule that counts free GPUs leaves out nodes that are cordoned or not ready.
            {resource: max(0, some - free.get(node, 0)) for resource, some in allocatable.items()},
            tuple(taints.get(node, ())),
            named.get(node, {}),
        )
        for node, allocatable in sorted(sizes["allocatable"].items())
    ]


def resource_name(text: str) -> str | None:
    """As the API server writes it; kube-state-metrics turns every sign into an underscore."""
    found = MIG.match(text)
    if found is not None:
        return f"nvidia.com/mig-{found[1]}.{found[2]}"
    return {"nvidia_com_gpu": "nvidia.com/gpu", "nvidia_com_gpu_shared": "nvidia.com/gpu.shared"}.get(text)


def _ruled_out(found: pending.PlacementVerdict) -> tuple[RuledOut, ...]:
    have = {pending.CAUSE_OF[refusal.reason] for node in found.nodes for refusal in node.refusals}
    silent = {
        "untolerated_taint": "no node has a taint that it does not tolerate",
        "node_selector_mismatch": "every node has the labels that it selects",
        "no_device_plugin": "every GPU node offers its GPUs",
    }
    return tuple(RuledOut(cause, why) for cause, why in silent.items() if found.nodes and cause not in have)
