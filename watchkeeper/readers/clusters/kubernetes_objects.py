"""Reduce objects of the Kubernetes API to the fields that matter for GPUs, so that the hub can keep every pod.

The result has no reference to the object of the API server, so a pod of ten kilobytes of JSON takes one kilobyte.
Missing or malformed fields give empty values; an object without a name gives CollectError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any

from watchkeeper.readers import json_facts as facts

# nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-1g.10gb
GPU_RESOURCE = re.compile(r"^nvidia\.com/(?:gpu(?:\.shared)?|mig-[\w.]+)$")
# Device classes and drivers of NVIDIA's driver for dynamic resources.
GPU_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")
# node-feature-discovery adds about a hundred labels to each node, about its CPU and kernel.
IGNORED_LABEL_PREFIXES = ("feature.node.kubernetes.io/", "beta.kubernetes.io/", "pod-template-hash", "controller-uid",
                   "batch.kubernetes.io/controller-uid", "controller-revision-hash")  # fmt: skip
MAX_LABELS = 100
# The annotation that Watchkeeper's Kubernetes driver writes on nodes that it cordons.
CORDONED_BY = "watchkeeper.dev/cordoned-by"
MAX_MESSAGE_CHARS = 500
# Labels and annotations that name a pod's queue: Kueue, Volcano, YuniKorn.
QUEUE_NAMES = ("kueue.x-k8s.io/queue-name", "scheduling.volcano.sh/queue-name", "volcano.sh/queue-name", "queue")
# 0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are …
REFUSALS = re.compile(r"^0/\d+ nodes are available: (?P<reasons>.*?)\.?(?: preemption: .*)?$", re.DOTALL)
REFUSAL = re.compile(r"(?P<nodes>\d+) (?P<reason>[^,{]+(?:\{[^}]*\}(?:, that the pod didn't tolerate)?)?)")
# node(s) had untolerated taint {nvidia.com/gpu: present}: the pod's tolerations show the taint, so the reason omits it.
BRACES = re.compile(r" ?\{[^}]*\}(?:, that the pod didn't tolerate)?")

Counts = tuple[tuple[str, int], ...]
"""Resource names with their counts, GPUs only."""


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class KubernetesNode:
    """A node. `conditions` are pairs of type and status; `not_ready_reason` quotes the Ready condition."""

    name: str
    # A node that is deleted and registered again under the same name has a new one.
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    conditions: tuple[tuple[str, str], ...] = ()
    not_ready_reason: str = ""
    capacity: Counts = ()
    allocatable: Counts = ()
    addresses: tuple[str, ...] = ()
    cordoned_by: str = ""

    @property
    def is_ready(self) -> bool | None:
        """None if the status is unknown, because the kubelet no longer posts it."""
        status = dict(self.conditions).get("Ready", "Unknown")
        return None if status == "Unknown" else status == "True"

    @property
    def has_gpus(self) -> bool:
        return bool(self.capacity) or self.labels.get("nvidia.com/gpu.present") == "true"


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    gpus: Counts = ()
    restarts: int = 0
    last_reason: str = ""
    last_exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class KubernetesPod:
    """A pod that has not ended. A pod without GPUs that is not a target keeps only name, node, phase and owner."""

    namespace: str
    name: str
    node: str = ""
    phase: str = "Unknown"
    owner: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    containers: tuple[Container, ...] = ()
    gpus: int = 0
    claims: tuple[str, ...] = ()
    created_at: float | None = None
    started_at: float | None = None
    is_ready: bool | None = None
    is_scheduled: bool | None = None
    reason: str = ""
    message: str = ""
    queue: str = ""
    tolerations: tuple[Taint, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    runtime_class: str = ""
    address: str = ""
    ports: tuple[tuple[str, int], ...] = ()
    device_ids: tuple[str, ...] = ()

    @property
    def requests_gpus(self) -> bool:
        """Whether it requests GPUs as counted resources; GPUs of resource claims are in `claims`."""
        return self.gpus > 0


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota; `lines` are resource, hard and used of each GPU resource."""

    namespace: str
    name: str
    lines: tuple[tuple[str, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job that is not done. `gpus` is the request of one pod; `expected_pods` should run now."""

    namespace: str
    name: str
    parallelism: int = 1
    expected_pods: int = 1
    active: int = 0
    gpus: int = 0
    queue: str = ""
    created_at: float | None = None
    is_suspended: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A ResourceClaim: the GPUs that it has, or requests, and the pod that they are counted for."""

    gpus: int = 0
    pod: str = ""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """The newest warning event of an object."""

    reason: str
    message: str


def read_node(raw: Any) -> KubernetesNode:
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    conditions = facts.rows(status, "conditions")
    not_ready_reasons = (
        f"{facts.text(condition, 'reason')}: {facts.text(condition, 'message')}"[:MAX_MESSAGE_CHARS]
        for condition in conditions
        if condition.get("type") == "Ready" and condition.get("status") != "True"
    )
    addresses = (facts.text(address, "address") for address in facts.rows(status, "addresses"))
    return KubernetesNode(
        facts.require_name(metadata),
        uid=facts.text(metadata, "uid", intern_it=False),
        labels=_labels(metadata),
        taints=tuple(map(_taint, facts.rows(spec, "taints"))),
        is_cordoned=spec.get("unschedulable") is True,
        conditions=tuple((facts.text(condition, "type"), facts.text(condition, "status")) for condition in conditions),
        not_ready_reason=next(not_ready_reasons, ""),
        capacity=_counts(facts.mapping(status, "capacity")),
        allocatable=_counts(facts.mapping(status, "allocatable")),
        addresses=tuple(dict.fromkeys(filter(None, addresses))),
        cordoned_by=facts.text(facts.mapping(metadata, "annotations"), CORDONED_BY),
    )


def read_pod(raw: Any, *, is_target: bool = False) -> KubernetesPod:
    """Read a pod; with `is_target` (an agent or exporter) also its address, ports and labels."""
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    gpus, claims, runtime_class = _pod_gpus(spec), _claims(spec, status), facts.text(spec, "runtimeClassName")
    minimal_pod = KubernetesPod(
        intern(facts.text(metadata, "namespace")),
        facts.require_name(metadata),
        node=facts.text(spec, "nodeName"),
        phase=facts.text(status, "phase") or "Unknown",
        owner=_owner(metadata),
        runtime_class=runtime_class,
        address=facts.text(status, "podIP") if is_target else "",
        ports=_ports(spec) if is_target else (),
        labels=_labels(metadata) if is_target else {},
        is_ready=_condition(status, "Ready")[0],
    )
    return _read_gpu_pod(raw, minimal_pod, gpus=gpus, claims=claims) if gpus or claims or runtime_class else minimal_pod


def read_quota(raw: Any) -> Quota:
    metadata, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "status")
    hard = facts.mapping(status, "hard") or facts.mapping(facts.mapping(raw, "spec"), "hard")
    used = facts.mapping(status, "used")
    lines = tuple(
        (intern(name), facts.count(value), facts.count(used.get(name)))
        for name, value in sorted(hard.items())
        if GPU_RESOURCE.match(name.removeprefix("requests.").removeprefix("limits."))
    )
    return Quota(intern(facts.text(metadata, "namespace")), facts.require_name(metadata), lines)


def read_job(raw: Any) -> KubernetesJob:
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    requested, completions = facts.count(spec.get("parallelism")), facts.count(spec.get("completions"))
    parallelism = 1 if requested is None else requested
    # Near its end a job needs fewer pods than its parallelism allows.
    remaining = parallelism if completions is None else completions - (facts.count(status.get("succeeded")) or 0)
    return KubernetesJob(
        intern(facts.text(metadata, "namespace")),
        facts.require_name(metadata),
        parallelism=parallelism,
        expected_pods=min(parallelism, max(0, remaining)),
        active=facts.count(status.get("active")) or 0,
        gpus=_pod_gpus(facts.mapping(facts.mapping(spec, "template"), "spec")),
        queue=_queue(metadata),
        created_at=facts.time(metadata.get("creationTimestamp")),
        is_suspended=spec.get("suspend") is True,
    )


def is_job_unfinished(raw: Any) -> bool:
    return not any(_condition(facts.mapping(raw, "status"), kind)[0] for kind in ("Complete", "Failed"))


def read_claim(raw: Any) -> Claim:
    """Read a ResourceClaim of resource.k8s.io; a claim that several pods share is counted for the first pod."""
    spec, status = facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    results = facts.rows(facts.mapping(facts.mapping(status, "allocation"), "devices"), "results")
    requests = facts.rows(facts.mapping(spec, "devices"), "requests")
    # v1 puts the request into `exactly`, v1beta1 does not.
    exact_requests = [facts.mapping(request, "exactly") or request for request in requests]
    allocated = sum(facts.text(result, "driver") in GPU_CLASSES for result in results)
    requested = sum(
        facts.count(request.get("count", 1)) or 0
        for request in exact_requests
        if facts.text(request, "deviceClassName") in GPU_CLASSES
    )
    consumers = (facts.text(consumer, "name") for consumer in facts.rows(status, "reservedFor"))
    return Claim(allocated if results else requested, next(consumers, ""))


def read_warning(raw: Any) -> WarningEvent:
    message = facts.text(raw, "message", intern_it=False)[:MAX_MESSAGE_CHARS]
    return WarningEvent(intern(facts.text(raw, "reason")), message)


def pending_reason(reason_name: str, message: str) -> str:
    """Why a pod is pending: the scheduler's reason for most nodes, without the node count."""
    match = REFUSALS.match(message)
    if match is None:
        return reason_name or "not scheduled yet"
    nodes: dict[str, int] = {}
    for refusal in REFUSAL.finditer(match["reasons"]):
        reason = BRACES.sub("", refusal["reason"]).strip(" .")
        nodes[reason] = nodes.get(reason, 0) + int(refusal["nodes"])
    # People act on a GPU shortage, even if more nodes are refused because they have no GPU.
    gpu_shortages = [reason for reason in nodes if reason.startswith("Insufficient nvidia.com/")]
    return intern(max(gpu_shortages or nodes, key=lambda reason: nodes[reason], default=reason_name or "Unschedulable"))


def _read_gpu_pod(raw: Any, minimal_pod: KubernetesPod, *, gpus: int, claims: tuple[str, ...]) -> KubernetesPod:
    metadata, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    is_scheduled, reason, message = _condition(status, "PodScheduled")
    node_selector = facts.mapping(spec, "nodeSelector")
    return replace(
        minimal_pod,
        labels=_labels(metadata),
        containers=_containers(spec, status),
        gpus=gpus,
        claims=claims,
        created_at=facts.time(metadata.get("creationTimestamp")),
        started_at=facts.time(status.get("startTime")),
        is_scheduled=bool(minimal_pod.node) if is_scheduled is None else is_scheduled,
        reason=reason or facts.text(status, "reason"),
        message=message or facts.text(status, "message", intern_it=False)[:MAX_MESSAGE_CHARS],
        queue=_queue(metadata),
        tolerations=tuple(map(_taint, facts.rows(spec, "tolerations"))),
        node_selector={intern(key): facts.text(node_selector, key) for key in node_selector},
        device_ids=_device_ids(status),
    )


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Container, ...]:
    states = {facts.text(state, "name"): state for state in facts.rows(status, "containerStatuses")}
    containers = []
    for raw in facts.rows(spec, "containers"):
        name = facts.text(raw, "name")
        state = states.get(name, {})
        last = facts.mapping(facts.mapping(state, "lastState"), "terminated")
        exit_code = last.get("exitCode")
        containers.append(
            Container(
                name,
                gpus=_requests(raw),
                restarts=facts.count(state.get("restartCount")) or 0,
                last_reason=facts.text(last, "reason"),
                last_exit_code=exit_code if isinstance(exit_code, int) else None,
            )
        )
    return tuple(containers)


def _pod_gpus(spec: Mapping[str, Any]) -> int:
    """The count that the scheduler uses: the sum of all containers, or the largest init container if that is more."""
    regular_gpus = sum(count for raw in facts.rows(spec, "containers") for _, count in _requests(raw))
    init_gpus = [sum(count for _, count in _requests(raw)) for raw in facts.rows(spec, "initContainers")]
    return max([regular_gpus, *init_gpus])


def _requests(container: Mapping[str, Any]) -> Counts:
    """GPU requests of a container; a limit without a request counts as the request, as in the API server."""
    resources = facts.mapping(container, "resources")
    return _counts({**facts.mapping(resources, "limits"), **facts.mapping(resources, "requests")})


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the claims; the status names those that were created from a template."""
    claims = facts.rows(spec, "resourceClaims") + facts.rows(status, "resourceClaimStatuses")
    return tuple(dict.fromkeys(name for claim in claims if (name := facts.text(claim, "resourceClaimName"))))


def _device_ids(status: Mapping[str, Any]) -> tuple[str, ...]:
    """The device plugin's ids of the devices of running containers; API servers list them since 1.36."""
    return tuple(
        facts.text(device, "resourceID")
        for container in facts.rows(status, "containerStatuses")
        for resource in facts.rows(container, "allocatedResourcesStatus")
        if GPU_RESOURCE.match(facts.text(resource, "name"))
        for device in facts.rows(resource, "resources")
    )


def _ports(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (facts.text(port, "name"), number)
        for container in facts.rows(spec, "containers")
        for port in facts.rows(container, "ports")
        if (number := facts.count(port.get("containerPort"))) is not None
    )


def _condition(status: Mapping[str, Any], kind: str) -> tuple[bool | None, str, str]:
    """Status, reason and message of a condition; the status is None if it is unknown or not listed."""
    for condition in facts.rows(status, "conditions"):
        if condition.get("type") == kind:
            is_true = {"True": True, "False": False}.get(facts.text(condition, "status"))
            message = facts.text(condition, "message", intern_it=False)[:MAX_MESSAGE_CHARS]
            return is_true, facts.text(condition, "reason"), message
    return None, "", ""


def _queue(metadata: Mapping[str, Any]) -> str:
    """The queue that labels or annotations name; the namespace if none does."""
    texts = {**facts.mapping(metadata, "annotations"), **facts.mapping(metadata, "labels")}
    queues = (texts[key] for key in QUEUE_NAMES if isinstance(texts.get(key), str))
    return intern(next(queues, facts.text(metadata, "namespace")))


def _owner(metadata: Mapping[str, Any]) -> str:
    owners = (owner for owner in facts.rows(metadata, "ownerReferences") if owner.get("controller") is True)
    return intern(next((f"{facts.text(owner, 'kind')}/{facts.text(owner, 'name')}" for owner in owners), ""))


def _labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    kept_labels = (
        (name, value)
        for name, value in facts.mapping(metadata, "labels").items()
        if isinstance(value, str) and not name.startswith(IGNORED_LABEL_PREFIXES)
    )
    return {intern(name): intern(value) for _, (name, value) in zip(range(MAX_LABELS), kept_labels, strict=False)}


def _taint(taint: Mapping[str, Any]) -> Taint:
    return Taint(facts.text(taint, "key"), facts.text(taint, "value"), facts.text(taint, "effect"))


def _counts(resources: Mapping[str, Any]) -> Counts:
    counts = ((name, facts.count(value)) for name, value in resources.items() if GPU_RESOURCE.match(name))
    return tuple(sorted((intern(name), count) for name, count in counts if count is not None))
