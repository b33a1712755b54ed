"""A Kubernetes cluster in the words of `model/cluster`: what its API server says of nodes, GPU pods and quotas.

`kubernetes_watch` keeps the objects; the hub asks `view_of` for the pages, the inventory and the series that Kubernetes
and Slurm share. Only what has to do with GPUs is in a view: nodes that have or should have some, pods and jobs that
ask for some, quotas that limit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from watchkeeper.catalogue import mig
from watchkeeper.clusters.kubernetes import kubernetes_discovery
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.kit import clock
from watchkeeper.model import cluster, workloads
from watchkeeper.readers.clusters import kubernetes_objects as objects

SOURCE = "kubernetes"
# create Pod "train-" …: pods "train-x2x" is forbidden: exceeded quota: gpus, requested: …
QUOTA_WORDS = "exceeded quota"
MIG_RESOURCE, PROFILE = "nvidia.com/mig-", re.compile(r"[1-7]g\.\d+gb")
# Ends the product's name where gpu-feature-discovery sees time slicing or MPS; two sharers are the least.
SHARED, SHARES = "-SHARED", re.compile(r"[2-9]|[1-9]\d{1,3}")


def view_of(watch: KubernetesWatch) -> cluster.ClusterView:
    """What the API server said last, with what of it could not be read."""
    heard = watch.synced_at
    counted = ((pod, watch.gpus_of(pod)) for pod in watch.pods())
    pods = [
        scheduled_pod(pod, watch.cluster, gpus=gpus, warned=watch.warning("Pod", pod.namespace, pod.name))
        for pod, gpus in counted
        if gpus
    ]
    return cluster.ClusterView(
        SOURCE,
        at_ms=None if heard is None else clock.to_ms(heard),
        nodes=tuple(scheduled_node(node, watch.cluster) for node in watch.nodes() if node.has_gpus),
        workloads=(*pods, *blocked_jobs(watch)),
        quotas=tuple(quota for one in watch.quotas() for quota in quotas(one, watch.cluster)),
        problem="; ".join(watch.problems()),
    )


def scheduled_node(node: objects.KubernetesNode, name: str) -> cluster.ScheduledNode:
    """The state is what `kubectl get nodes` shows."""
    ready = {True: "Ready", False: "NotReady", None: "Unknown"}[node.is_ready]
    is_known = node.capacity or "nvidia.com/gpu.count" in node.labels
    return cluster.ScheduledNode(
        name,
        node.name,
        SOURCE,
        state=f"{ready},SchedulingDisabled" if node.is_cordoned else ready,
        is_ready=node.is_ready,
        is_schedulable=not node.is_cordoned,
        gpus=_total(node.capacity) if is_known else None,
        allocatable_gpus=_total(node.allocatable) if is_known else None,
        addresses=node.addresses,
        reason=node.not_ready_reason,
        unschedulable_by=node.cordoned_by,
        labels=node.labels,
        taints=tuple(_written(taint) for taint in node.taints),
        gpu_part=_mean_part(node.capacity, node.labels),
    )


def scheduled_pod(
    pod: objects.KubernetesPod, name: str, *, gpus: int, warned: objects.WarningEvent | None = None
) -> workloads.ScheduledWorkload:
    """Why it waits is the scheduler's word; one that has its GPUs and does not start says what `warned` of last."""
    reason, detail = "", ""
    if not pod.node:
        reason, detail = objects.pending_reason(pod.reason, pod.message), pod.message
    elif pod.phase == "Pending" and warned is not None:
        reason, detail = warned.reason, warned.message
    return workloads.ScheduledWorkload(
        name,
        workloads.Workload(workloads.WorkloadKind.POD, pod.name, namespace=pod.namespace),
        _state(pod),
        gpus=gpus,
        nodes={pod.node: gpus} if pod.node else {},
        queue=pod.queue,
        account=pod.namespace,
        owner=pod.owner,
        reason=reason,
        detail=detail,
        requested_at=pod.created_at,
        started_at=pod.started_at,
        labels=pod.labels,
        gpu_part=1.0 if pod.node else _mean_part([one for box in pod.containers for one in box.gpus], {}),
    )


def blocked_jobs(watch: KubernetesWatch) -> Iterable[workloads.ScheduledWorkload]:
    """Jobs with fewer pods than they want, because a quota or an admission rule forbids the rest."""
    for job in watch.jobs():
        missing = job.expected_pods - job.active
        warned = watch.warning("Job", job.namespace, job.name)
        if not job.gpus or missing <= 0 or job.is_suspended or warned is None or warned.reason != "FailedCreate":
            continue
        yield workloads.ScheduledWorkload(
            watch.cluster,
            workloads.Workload(workloads.WorkloadKind.POD, job.name, namespace=job.namespace),
            workloads.WorkloadState.PENDING,
            gpus=job.gpus * missing,
            queue=job.queue,
            account=job.namespace,
            owner=f"Job/{job.name}",
            reason=QUOTA_WORDS if QUOTA_WORDS in warned.message else warned.reason,
            detail=warned.message,
            requested_at=job.created_at,
        )


def quotas(quota: objects.Quota, name: str) -> Iterable[cluster.Quota]:
    for resource, hard, used in quota.lines:
        yield cluster.Quota(name, quota.namespace, resource, limit=hard, used=used)


def _state(pod: objects.KubernetesPod) -> workloads.WorkloadState:
    """A pod holds its GPUs from the moment it has a node, whatever its containers are doing."""
    return workloads.WorkloadState.RUNNING if pod.node else workloads.WorkloadState.PENDING


def _total(counts: objects.Counts) -> int:
    return sum(count for _, count in counts)


def _mean_part(counts: Iterable[tuple[str, int]], labels: Mapping[str, str]) -> float:
    """What each of these is of a GPU, in the mean: a node may have whole GPUs beside slices."""
    known = [(_part(resource, labels), count) for resource, count in counts]
    total = sum(count for _, count in known)
    return sum(part * count for part, count in known) / total if total else 1.0


def _part(resource: str, labels: Mapping[str, str]) -> float:
    """`nvidia.com/mig-1g.10gb` is a slice; with the strategy `single` the node's product is; others share by turns."""
    model, _, cut = labels.get(kubernetes_discovery.PRODUCT, "").removesuffix(SHARED).partition("-MIG-")
    profile = resource.removeprefix(MIG_RESOURCE) if resource.startswith(MIG_RESOURCE) else cut
    if PROFILE.match(profile):
        return mig.minimum_gpu_share(profile, model)
    replicas = labels.get(kubernetes_discovery.REPLICAS, "")
    return 1 / int(replicas) if SHARES.fullmatch(replicas) else 1.0


def _written(taint: objects.Taint) -> str:
    """As `kubectl taint` writes it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}" if taint.effect else f"{taint.key}{value}"
