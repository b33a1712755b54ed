"""Read kubectl and Slurm printouts: nodes without GPUs, down nodes, terminated pods, pending jobs."""

from __future__ import annotations

import re

from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add_sign
from watchkeeper.readers.clusters import kubernetes_text, slurm_text
from watchkeeper.readers.clusters.kubernetes_text import NodeFacts

QUEUE_REASONS = frozenset({"Resources", "Priority", "JobArrayTaskLimit", "BeginTime"})
XID_IN_REASON = re.compile(r"(?i)\bxid[ _:=-]{0,3}(\d{1,3})\b")
# NHC: check_hw_ib: No IB port mlx5_3:1 is ACTIVE
IB_IN_REASON = re.compile(r"(?i)check_hw_ib|ib port|infiniband|mlx5_\d")


def read_cluster_signs(listing: Listing, facts: DoctorFacts) -> None:
    text = listing.text
    if "Capacity:" in text:
        for node in kubernetes_text.read_node_text(listing.lines):
            _add_node_signs(node, listing, facts)
    elif "allocatable:" in text and listing.kind not in ("kubernetes_json", "kubernetes_yaml"):
        excerpt = kubernetes_text.read_status_excerpt(text)
        if excerpt is not None and kubernetes_text.gpu_count(excerpt.capacity) is not None:
            _add_node_signs(excerpt, listing, facts)
    if listing.kind in ("kubernetes_json", "kubernetes_yaml"):
        for item in kubernetes_text.read_objects(text, is_yaml=listing.kind == "kubernetes_yaml"):
            _add_object_signs(item, listing, facts)
    if listing.kind == "slurm_json":
        nodes, jobs = slurm_text.read_json(text)
    else:
        has_nodes = any(mark in text for mark in ("NodeName=", "NODELIST", "PARTITION"))
        nodes = list(slurm_text.read_nodes(listing.lines)) if has_nodes else []
        jobs = list(slurm_text.read_jobs(listing.lines)) if " PD " in text or "PENDING" in text else []
    for slurm_node in nodes:
        _add_slurm_node_signs(slurm_node, listing, facts)
    for job in jobs:
        if "PEND" in job.state and job.reason in QUEUE_REASONS:
            add_sign(facts, listing, "slurm-waits", line=job.line, fields={"job": job.id, "reason": job.reason})


def _add_node_signs(node: NodeFacts, listing: Listing, facts: DoctorFacts) -> None:
    capacity, allocatable = kubernetes_text.gpu_count(node.capacity), kubernetes_text.gpu_count(node.allocatable)
    place = {"node": node.name}
    if node.is_ready is False:
        add_sign(facts, listing, "k8s-node-not-ready", line=node.line, fields=place)
    if "cpu" not in node.capacity:
        return
    if capacity is None:
        add_sign(facts, listing, "k8s-node-without-gpus", line=node.line, fields=place)
    elif capacity == 0:
        add_sign(facts, listing, "k8s-node-zero-gpus", line=node.line, fields=place)
    elif allocatable is not None and allocatable < capacity:
        fields = place | {"allocatable": str(allocatable), "capacity": str(capacity)}
        sign = "k8s-node-allocatable-lower" if allocatable else "k8s-node-none-allocatable"
        add_sign(facts, listing, sign, line=node.line, fields=fields)


def _add_object_signs(item: object, listing: Listing, facts: DoctorFacts) -> None:
    assert isinstance(item, dict)
    if item["kind"] == "Node":
        node = kubernetes_text.read_node(item)
        # Most nodes of a cluster may have no GPU by design: only nodes labelled as GPU nodes count.
        labels = item["metadata"].get("labels") or {}
        if kubernetes_text.gpu_count(node.capacity) is not None or any(
            "nvidia.com/gpu" in str(name) for name in labels
        ):
            node.line = _line_of(listing, node.name)
            _add_node_signs(node, listing, facts)
    elif item["kind"] == "Pod":
        pod = kubernetes_text.read_pod(item)
        place = {"pod": pod.name, "namespace": pod.namespace, "node": pod.node}
        if pod.requests_gpu is False:
            add_sign(facts, listing, "k8s-pod-without-gpu", line=_line_of(listing, pod.name), fields=place)
        for container, reason, code in pod.terminations:
            fields = place | {"container": container}
            line = _line_of(listing, pod.name)
            if reason == "OOMKilled":
                add_sign(facts, listing, "k8s-oomkilled", line=line, fields=fields)
            elif code == 135:
                add_sign(facts, listing, "k8s-exit-135", line=line, fields=fields)


def _line_of(listing: Listing, name: str) -> int:
    at = listing.text.find(f'"{name}"')
    at = at if at >= 0 else listing.text.find(name)
    return listing.text.count("\n", 0, at) + 1 if at >= 0 else 1


def _add_slurm_node_signs(node: slurm_text.SlurmNode, listing: Listing, facts: DoctorFacts) -> None:
    place = {"node": node.name, "reason": node.reason}
    code = XID_IN_REASON.search(node.reason)
    if code is not None:
        add_sign(facts, listing, "page-xid", line=node.line, fields=place | {"code": code[1]})
    elif IB_IN_REASON.search(node.reason):
        add_sign(facts, listing, "hca-port-down", line=node.line, fields=place)
    elif slurm_text.DOWN.search(node.state) or re.search(r"(?i)not responding|unexpectedly rebooted", node.reason):
        add_sign(facts, listing, "slurm-node-down", line=node.line, fields=place)
    elif node.reason and slurm_text.DRAINED.search(node.state):
        add_sign(facts, listing, "slurm-drained", line=node.line, fields=place)
    if node.gres == "(null)":
        add_sign(facts, listing, "slurm-gres-null", line=node.line, fields=place)
