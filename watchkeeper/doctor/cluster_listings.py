"""Read printouts of kubectl, Slurm and InfiniBand tools: nodes, pods, jobs and ports with a problem."""

from __future__ import annotations

import re
from collections import Counter

from watchkeeper.catalogue import tables
from watchkeeper.doctor import records
from watchkeeper.doctor.listing import Listing
from watchkeeper.readers.clusters import kubernetes_text, slurm_text
from watchkeeper.readers.fabric import infiniband_text

QUEUE_REASONS = frozenset({"Resources", "Priority", "JobArrayTaskLimit", "BeginTime"})
# A DaemonSet on GPU nodes often is a part of the driver or of monitoring, which uses GPUs without a request.
POD_KINDS = frozenset({"Pod", "Deployment", "StatefulSet", "ReplicaSet", "ReplicationController", "Job", "CronJob"})
COUNTER_SIGNS = {"LinkDownedCounter": "hca-downed", "VL15Dropped": "hca-management-drops"}
LINK_ERROR_LIMIT = 10
XID_IN_REASON = re.compile(r"(?i)\bxid[ _:=-]{0,3}(\d{1,3})\b")
# NHC: check_hw_ib: No IB port mlx5_3:1 is ACTIVE
IB_IN_REASON = re.compile(r"(?i)check_hw_ib|ib port|infiniband|mlx5_\d")
# /sys/class/infiniband/mlx5_0/ports/1/hw_counters/packet_seq_err:929974
SYSFS_COUNTER = re.compile(
    r"/infiniband/(?P<hca>\w+)/ports/(?P<port>\d+)/(?:hw_)?counters/(?P<name>\w+)[:=\s]\s*(?P<value>\d+)\s*$"
)


def read_cluster_signs(listing: Listing) -> None:
    text, is_object = listing.text, listing.kind in ("kubernetes_json", "kubernetes_yaml")
    if "Capacity:" in text:
        for node in kubernetes_text.read_node_text(listing.lines):
            _add_node_signs(node, listing)
    elif "allocatable:" in text and not is_object:
        excerpt = kubernetes_text.read_status_excerpt(text)
        if excerpt is not None and kubernetes_text.gpu_count(excerpt.capacity) is not None:
            _add_node_signs(excerpt, listing)
    if is_object:
        for item in kubernetes_text.read_objects(text, is_yaml=listing.kind == "kubernetes_yaml"):
            _add_object_signs(item, listing)
    elif "Image: " in text and "Name: " in text:
        for record in records.describe_records(listing):
            pod = kubernetes_text.read_described_pod(listing.lines[record.first - 1 : record.last])
            _add_request_signs(pod, listing, record.first, dict(record.fields))
    if listing.kind == "slurm_json":
        nodes, jobs = slurm_text.read_json(text)
    else:
        has_nodes = any(mark in text for mark in ("NodeName=", "NODELIST", "PARTITION"))
        nodes = list(slurm_text.read_nodes(listing.lines)) if has_nodes else []
        jobs = list(slurm_text.read_jobs(listing.lines)) if re.search(r"\bPD\b|PENDING", text) else []
    for slurm_node in nodes:
        _add_slurm_node_signs(slurm_node, listing)
    for job in jobs:
        if "PEND" in job.state and job.reason in QUEUE_REASONS:
            listing.add_sign("slurm-waits", job.line, job=job.id, reason=job.reason)


def _add_node_signs(node: kubernetes_text.NodeFacts, listing: Listing) -> None:
    capacity, allocatable = kubernetes_text.gpu_count(node.capacity), kubernetes_text.gpu_count(node.allocatable)
    if node.is_ready is False:
        listing.add_sign("k8s-node-not-ready", node.line, node=node.name)
    if "cpu" not in node.capacity:
        return
    if not capacity:
        sign = "k8s-node-without-gpus" if capacity is None else "k8s-node-zero-gpus"
        listing.add_sign(sign, node.line, node=node.name)
    elif allocatable is not None and allocatable < capacity:
        sign = "k8s-node-allocatable-lower" if allocatable else "k8s-node-none-allocatable"
        listing.add_sign(sign, node.line, node=node.name, allocatable=str(allocatable), capacity=str(capacity))


def _add_object_signs(item: object, listing: Listing) -> None:
    assert isinstance(item, dict)
    if item["kind"] == "Node":
        node = kubernetes_text.read_node(item)
        # Most nodes of a cluster may have no GPU by design: only nodes labelled as GPU nodes count.
        labels = item["metadata"].get("labels") or {}
        is_labelled = any("nvidia.com/gpu" in str(name) for name in labels)
        if kubernetes_text.gpu_count(node.capacity) is not None or is_labelled:
            node.line = _line_of(listing, node.name)
            _add_node_signs(node, listing)
    elif item["kind"] in POD_KINDS:
        pod = kubernetes_text.read_pod(item)
        place = {"pod": pod.name, "namespace": pod.namespace, "node": pod.node}
        if pod.requests_gpu is False:
            listing.add_sign("k8s-pod-without-gpu", _line_of(listing, pod.name), **place)
        _add_request_signs(pod, listing, _line_of(listing, pod.name), place)
        for container, reason, code in pod.terminations:
            if reason == "OOMKilled" or code == 135:
                sign = "k8s-oomkilled" if reason == "OOMKilled" else "k8s-exit-135"
                listing.add_sign(sign, _line_of(listing, pod.name), **place, container=container)


def _add_request_signs(pod: kubernetes_text.PodFacts, listing: Listing, line: int, place: dict[str, str]) -> None:
    """Find a pod that needs a GPU by its image or environment and requests none."""
    images = [row for image in pod.images if (row := tables.find_image(image)) is not None]
    if pod.requests_gpu or any(not row.uses_gpu for row in images):
        return
    if images:
        listing.add_sign("k8s-gpu-image-without-request", line, **place)
    elif pod.names_devices and not pod.runtime_class:
        listing.add_sign("k8s-devices-without-request", line, **place)


def _line_of(listing: Listing, name: str) -> int:
    at = listing.text.find(f'"{name}"')
    at = at if at >= 0 else listing.text.find(name)
    return listing.text.count("\n", 0, at) + 1 if at >= 0 else 1


def _add_slurm_node_signs(node: slurm_text.SlurmNode, listing: Listing) -> None:
    place = {"node": node.name, "reason": node.reason}
    code = XID_IN_REASON.search(node.reason)
    if code is not None:
        listing.add_sign("page-xid", node.line, **place, code=code[1])
    elif IB_IN_REASON.search(node.reason):
        listing.add_sign("hca-port-down", node.line, **place)
    elif slurm_text.DOWN.search(node.state) or re.search(r"(?i)not responding|unexpectedly rebooted", node.reason):
        listing.add_sign("slurm-node-down", node.line, **place)
    elif node.reason and slurm_text.DRAINED.search(node.state):
        listing.add_sign("slurm-drained", node.line, **place)
    if node.gres == "(null)":
        listing.add_sign("slurm-gres-null", node.line, **place)


def read_fabric_signs(listing: Listing) -> None:
    text = listing.text
    if any(mark in text for mark in ("hysical state", "phys state", "phys_state", "PORT_DOWN")):
        _add_port_signs(listing)
    ports = infiniband_text.read_counters(listing.lines) if "Counter" in text or "Errors for" in text else []
    if listing.kind == "ibdiagnet" or "-E- " in text or "-W- " in text:
        ports += infiniband_text.read_diag_counters(listing.lines)
    for port in ports:
        place = {"owner": port.owner, "port": port.number}
        # `port ALL` and port 255 are the sum of the other ports.
        for name, (value, line) in port.counters.items() if port.number not in ("ALL", "255") else ():
            _add_counter_sign(listing, line, name, value=value, place=place, grew=port.grew)
    # Counters in files of sysfs, one per line as `grep` prints them.
    for line, file_text in enumerate(listing.lines, 1) if "/infiniband/" in text else ():
        if (match := SYSFS_COUNTER.search(file_text)) is not None:
            place = {"hca": match["hca"], "port": match["port"]}
            _add_counter_sign(listing, line, match["name"], value=int(match["value"]), place=place)
    for line, kind, owner, number, state, _ in infiniband_text.read_links(listing.lines) if ")==>" in text else ():
        # A switch port without a cable is down too; only adapter ports are expected to be up.
        if state == "Down" and kind == "CA":
            listing.add_sign("hca-port-down", line, hca=owner, port=number)
        elif state == "Down":
            listing.add_sign("fabric-port-down", line, switch=owner, port=number)


def _add_port_signs(listing: Listing) -> None:
    ports = infiniband_text.read_ports(listing.lines)
    rates = Counter(port.rate for port in ports if (port.state or "").lower() == "active" and port.rate)
    usual = max(rates, key=_number, default="")
    for port in ports:
        state, rate = (port.state or "").lower(), port.rate or ""
        place = {"hca": port.owner, "port": port.number}
        if state.startswith("down") or (port.physical or "").lower() in ("disabled", "polling", "linkerrorrecovery"):
            listing.add_sign("hca-port-down", port.line, **place)
        elif state == "active":
            listing.add_sign("hca-port-active", port.line, **place, layer=port.layer or "", rate=rate)
        if state == "active" and rate and rates[usual] > 1 and _number(rate) < _number(usual):
            listing.add_sign("hca-port-slow", port.line, **place, rate=rate, usual=usual)


def _number(rate: str) -> float:
    digits = "".join(char for char in rate.split(maxsplit=1)[0] if char.isdigit() or char == ".")
    return float(digits) if digits else 0.0


def _add_counter_sign(
    listing: Listing, line: int, name: str, *, value: int, place: dict[str, str], grew: bool = False
) -> None:
    row = tables.find_counter(name)
    if row is None or row.total_limit is None:
        return
    # Of a counter of the link itself, a few errors in days are normal, but none in the seconds of a check.
    limit = 1 if grew and row.total_limit <= LINK_ERROR_LIMIT else row.total_limit
    if value >= limit:
        listing.add_sign(COUNTER_SIGNS.get(row.name, "hca-errors"), line, **place, counter=f"{name} {value}")
