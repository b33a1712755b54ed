"""Objects of the Kubernetes API into the few facts that matter for GPUs, small enough to keep one for every pod.

`collect/kubernetes_watch` hands over each object as the API server wrote it; what comes out has no reference to it,
so a pod of ten kilobytes of JSON is kept as one. Texts that thousands of objects share are kept once. Nothing is
taken for granted: an object without the promised shape gives empty facts, and one without a name gives CollectError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from watchkeeper.readers import json_facts as facts

# nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-1g.10gb
GPU_RESOURCE = re.compile(r"^nvidia\.com/(?:gpu(?:\.shared)?|mig-[\w.]+)$")
# Device classes and drivers of NVIDIA's driver for dynamic resources.
GPU_CLASSES = ("gpu.nvidia.com", "mig.nvidia.com")
# Some hundred labels of node-feature-discovery on every node, about the CPU and the kernel.
UNWANTED_LABELS = ("feature.node.kubernetes.io/", "beta.kubernetes.io/", "pod-template-hash", "controller-uid",
                   "batch.kubernetes.io/controller-uid", "controller-revision-hash")  # fmt: skip
MAX_LABELS = 100
# Our mark on a node that we have cordoned; the Kubernetes driver writes it.
CORDONED_BY = "watchkeeper.dev/cordoned-by"
LONGEST_MESSAGE = 500
# Who puts a pod into a queue writes its name here: Kueue, Volcano, YuniKorn.
QUEUE_NAMES = ("kueue.x-k8s.io/queue-name", "scheduling.volcano.sh/queue-name", "volcano.sh/queue-name", "queue")
# 0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are …
REFUSALS = re.compile(r"^0/\d+ nodes are available: (?P<reasons>.*?)\.?(?: preemption: .*)?$", re.DOTALL)
REFUSAL = re.compile(r"(?P<nodes>\d+) (?P<reason>[^,{]+(?:\{[^}]*\}(?:, that the pod didn't tolerate)?)?)")
# node(s) had untolerated taint {nvidia.com/gpu: present}: the taint is said elsewhere, the reason is one word.
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
    """`conditions` are type and status; `why_not_ready` is the kubelet's or the controller's sentence.

    A machine that is taken out and put back under its name has another `uid`.
    """

    name: str
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
        """None where the API server has not heard from the kubelet for a while."""
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
    """A pod that has not ended. Of one that holds no GPU and is no target only name, node, phase and owner are kept."""

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
        """By counted resources; what its claims bring is in the claims."""
        return self.gpus > 0


@dataclass(frozen=True, slots=True)
class Quota:
    """GPU lines of one ResourceQuota: resource, hard, used."""

    namespace: str
    name: str
    lines: tuple[tuple[str, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class KubernetesJob:
    """A job that is not done. `gpus` is what one of its pods asks for; `wanted` pods should run now."""

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
    """A claim of dynamic resources: how many GPUs it has, or asks for, and the pod that they are counted for."""

    namespace: str
    name: str
    gpus: int = 0
    pod: str = ""


@dataclass(frozen=True, slots=True)
class WarningEvent:
    """The last warning about an object."""

    kind: str
    namespace: str
    name: str
    reason: str
    message: str
    at: float | None = None
    count: int = 1


def read_node(raw: Any) -> KubernetesNode:
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    conditions = [condition for condition in facts.items(status, "conditions") if isinstance(condition, dict)]
    sick = [one for one in conditions if one.get("type") == "Ready" and one.get("status") != "True"]
    addresses = (facts.mapping(address) for address in facts.items(status, "addresses"))
    return KubernetesNode(
        facts.name_of(about),
        uid=facts.text(about, "uid", intern_it=False),
        labels=_labels(about),
        taints=tuple(_taint(taint) for taint in facts.items(spec, "taints")),
        is_cordoned=spec.get("unschedulable") is True,
        conditions=tuple((facts.text(one, "type"), facts.text(one, "status")) for one in conditions),
        not_ready_reason=f"{facts.text(sick[0], 'reason')}: {facts.text(sick[0], 'message')}"[:LONGEST_MESSAGE]
        if sick
        else "",
        capacity=_counts(facts.mapping(status, "capacity")),
        allocatable=_counts(facts.mapping(status, "allocatable")),
        addresses=tuple(dict.fromkeys(text for one in addresses if (text := facts.text(one, "address")))),
        cordoned_by=facts.text(facts.mapping(about, "annotations"), CORDONED_BY),
    )


def read_pod(raw: Any, *, is_target: bool = False) -> KubernetesPod:
    """`is_target`: an agent or exporter, whose address and ports are wanted as well."""
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    gpus = _pod_gpus(spec)
    claims = _claims(spec, status)
    runtime_class = facts.text(spec, "runtimeClassName")
    small = KubernetesPod(
        intern(facts.text(about, "namespace")),
        facts.name_of(about),
        node=facts.text(spec, "nodeName"),
        phase=facts.text(status, "phase") or "Unknown",
        owner=_owner(about),
        runtime_class=runtime_class,
        address=facts.text(status, "podIP") if is_target else "",
        ports=_ports(spec) if is_target else (),
        labels=_labels(about) if is_target else {},
        is_ready=_condition(status, "Ready")[0],
    )
    return _whole(raw, small, gpus=gpus, claims=claims) if gpus or claims or runtime_class else small


def read_quota(raw: Any) -> Quota:
    about, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "status")
    hard, used = (
        facts.mapping(status, "hard") or facts.mapping(facts.mapping(raw, "spec"), "hard"),
        facts.mapping(status, "used"),
    )
    lines = tuple(
        (intern(name), facts.count(value), facts.count(used.get(name)))
        for name, value in sorted(hard.items())
        if GPU_RESOURCE.match(name.removeprefix("requests.").removeprefix("limits."))
    )
    return Quota(intern(facts.text(about, "namespace")), facts.name_of(about), lines)


def read_job(raw: Any) -> KubernetesJob:
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    asked, completions = facts.count(spec.get("parallelism")), facts.count(spec.get("completions"))
    parallelism = 1 if asked is None else asked
    # Towards its end a job needs fewer pods than may run side by side.
    left = parallelism if completions is None else completions - (facts.count(status.get("succeeded")) or 0)
    return KubernetesJob(
        intern(facts.text(about, "namespace")),
        facts.name_of(about),
        parallelism=parallelism,
        expected_pods=min(parallelism, max(0, left)),
        active=facts.count(status.get("active")) or 0,
        gpus=_pod_gpus(facts.mapping(facts.mapping(spec, "template"), "spec")),
        queue=_queue(about),
        created_at=facts.time(about.get("creationTimestamp")),
        is_suspended=spec.get("suspend") is True,
    )


def is_job_done(raw: Any) -> bool:
    """True for a job that has completed or failed."""
    return any(_condition(facts.mapping(raw, "status"), kind)[0] for kind in ("Complete", "Failed"))


def read_claim(raw: Any) -> Claim:
    """A ResourceClaim of resource.k8s.io; one that pods share is counted for the first of them."""
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    results = [
        facts.mapping(one)
        for one in facts.items(facts.mapping(facts.mapping(status, "allocation"), "devices"), "results")
    ]
    requests = [facts.mapping(one) for one in facts.items(facts.mapping(spec, "devices"), "requests")]
    # Version v1 puts the request into `exactly`, v1beta1 did not.
    asked = [facts.mapping(one, "exactly") or one for one in requests]
    held = sum(1 for one in results if facts.text(one, "driver") in GPU_CLASSES)
    wanted = sum(
        facts.count(one.get("count", 1)) or 0 for one in asked if facts.text(one, "deviceClassName") in GPU_CLASSES
    )
    users = [facts.text(facts.mapping(one), "name") for one in facts.items(status, "reservedFor")]
    return Claim(
        intern(facts.text(about, "namespace")), facts.name_of(about), held if results else wanted, next(iter(users), "")
    )


def read_warning(raw: Any) -> WarningEvent:
    """An event; current API servers write `series` and `eventTime`, old ones `count` and `lastTimestamp`."""
    about, series = facts.mapping(raw, "involvedObject"), facts.mapping(raw, "series")
    at = series.get("lastObservedTime") or raw.get("lastTimestamp") or raw.get("eventTime")
    return WarningEvent(
        facts.text(about, "kind"),
        intern(facts.text(about, "namespace")),
        facts.text(about, "name"),
        intern(facts.text(raw, "reason")),
        facts.text(raw, "message", intern_it=False)[:LONGEST_MESSAGE],
        at=facts.time(at),
        count=facts.count(series.get("count")) or facts.count(raw.get("count")) or 1,
    )


def pending_reason(word: str, message: str) -> str:
    """Why a scheduler leaves a pod waiting, in its own words and without numbers: the reason of most nodes."""
    found = REFUSALS.match(message)
    if found is None:
        return word or "not looked at yet"
    nodes: dict[str, int] = {}
    for refusal in REFUSAL.finditer(found["reasons"]):
        reason = BRACES.sub("", refusal["reason"]).strip(" .")
        nodes[reason] = nodes.get(reason, 0) + int(refusal["nodes"])
    # A lack of GPUs is what people act on, however many other nodes have no GPU to begin with.
    scarce = [reason for reason in nodes if reason.startswith("Insufficient nvidia.com/")]
    return intern(max(scarce or nodes, key=lambda reason: nodes[reason], default=word or "Unschedulable"))


def _whole(raw: Any, small: KubernetesPod, *, gpus: int, claims: tuple[str, ...]) -> KubernetesPod:
    about, spec, status = facts.mapping(raw, "metadata"), facts.mapping(raw, "spec"), facts.mapping(raw, "status")
    is_scheduled, reason, message = _condition(status, "PodScheduled")
    ended = facts.text(status, "reason")
    return KubernetesPod(
        small.namespace,
        small.name,
        node=small.node,
        phase=small.phase,
        owner=small.owner,
        labels=_labels(about),
        containers=_containers(spec, status),
        gpus=gpus,
        claims=claims,
        created_at=facts.time(about.get("creationTimestamp")),
        started_at=facts.time(status.get("startTime")),
        is_ready=small.is_ready,
        is_scheduled=bool(small.node) if is_scheduled is None else is_scheduled,
        reason=reason or ended,
        message=message or facts.text(status, "message", intern_it=False)[:LONGEST_MESSAGE],
        queue=_queue(about),
        tolerations=tuple(_taint(one) for one in facts.items(spec, "tolerations")),
        node_selector={
            intern(key): facts.text(facts.mapping(spec, "nodeSelector"), key)
            for key in facts.mapping(spec, "nodeSelector")
        },
        runtime_class=small.runtime_class,
        address=small.address,
        ports=small.ports,
        device_ids=_device_ids(status),
    )


def _containers(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[Container, ...]:
    states = {
        facts.text(facts.mapping(one), "name"): facts.mapping(one) for one in facts.items(status, "containerStatuses")
    }
    found = []
    for raw in map(facts.mapping, facts.items(spec, "containers")):
        name = facts.text(raw, "name")
        state = states.get(name, {})
        last = facts.mapping(facts.mapping(state, "lastState"), "terminated")
        exit_code = last.get("exitCode")
        found.append(
            Container(
                name,
                gpus=_requests(raw),
                restarts=facts.count(state.get("restartCount")) or 0,
                last_reason=facts.text(last, "reason"),
                last_exit_code=exit_code if isinstance(exit_code, int) else None,
            )
        )
    return tuple(found)


def _pod_gpus(spec: Mapping[str, Any]) -> int:
    """What the scheduler counts: all containers together, or the greediest of those that run before them."""
    together = sum(count for raw in facts.items(spec, "containers") for _, count in _requests(facts.mapping(raw)))
    before = [sum(count for _, count in _requests(facts.mapping(raw))) for raw in facts.items(spec, "initContainers")]
    return max([together, *before])


def _requests(container: Mapping[str, Any]) -> Counts:
    """GPUs of a container; a limit without a request is one, as the API server would fill it in."""
    resources = facts.mapping(container, "resources")
    return _counts({**facts.mapping(resources, "limits"), **facts.mapping(resources, "requests")})


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the claims; the status knows those that were made from a template."""
    found = [
        facts.mapping(one)
        for one in (*facts.items(spec, "resourceClaims"), *facts.items(status, "resourceClaimStatuses"))
    ]
    return tuple(dict.fromkeys(name for one in found if (name := facts.text(one, "resourceClaimName"))))


def _device_ids(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Devices of running containers by their plugin's id, which API servers since 1.36 tell."""
    return tuple(
        facts.text(facts.mapping(one), "resourceID")
        for container in map(facts.mapping, facts.items(status, "containerStatuses"))
        for resource in map(facts.mapping, facts.items(container, "allocatedResourcesStatus"))
        if GPU_RESOURCE.match(facts.text(resource, "name"))
        for one in facts.items(resource, "resources")
    )


def _ports(spec: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (facts.text(port, "name"), number)
        for container in map(facts.mapping, facts.items(spec, "containers"))
        for port in map(facts.mapping, facts.items(container, "ports"))
        if (number := facts.count(port.get("containerPort"))) is not None
    )


def _condition(status: Mapping[str, Any], kind: str) -> tuple[bool | None, str, str]:
    """Whether a condition is so, the word for why, and the sentence; None where nobody has said."""
    for one in map(facts.mapping, facts.items(status, "conditions")):
        if one.get("type") == kind:
            known = {"True": True, "False": False}.get(facts.text(one, "status"))
            return known, facts.text(one, "reason"), facts.text(one, "message", intern_it=False)[:LONGEST_MESSAGE]
    return None, "", ""


def _queue(about: Mapping[str, Any]) -> str:
    """The queue that a queueing controller put it in; the namespace where there is no such controller."""
    named = {**facts.mapping(about, "annotations"), **facts.mapping(about, "labels")}
    return next(
        (intern(named[key]) for key in QUEUE_NAMES if isinstance(named.get(key), str)), facts.text(about, "namespace")
    )


def _owner(about: Mapping[str, Any]) -> str:
    for owner in map(facts.mapping, facts.items(about, "ownerReferences")):
        if owner.get("controller") is True:
            return intern(f"{facts.text(owner, 'kind')}/{facts.text(owner, 'name')}")
    return ""


def _labels(about: Mapping[str, Any]) -> dict[str, str]:
    wanted = (
        (name, value)
        for name, value in facts.mapping(about, "labels").items()
        if isinstance(value, str) and not name.startswith(UNWANTED_LABELS)
    )
    return {intern(name): intern(value) for _, (name, value) in zip(range(MAX_LABELS), wanted, strict=False)}


def _taint(raw: Any) -> Taint:
    found = facts.mapping(raw)
    return Taint(facts.text(found, "key"), facts.text(found, "value"), facts.text(found, "effect"))


def _counts(resources: Mapping[str, Any]) -> Counts:
    found = ((name, facts.count(value)) for name, value in resources.items() if GPU_RESOURCE.match(name))
    return tuple(sorted((intern(name), count) for name, count in found if count is not None))
