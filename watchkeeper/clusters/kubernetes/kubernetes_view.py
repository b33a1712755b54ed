"""Convert the objects of a Kubernetes cluster to a `model.cluster.ClusterView`.

The pages, the inventory and the series that Kubernetes and Slurm share use the view. It has only objects about GPUs:
nodes that have or should have GPUs, pods and jobs that request them, and quotas that limit them.
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
QUOTA_EXCEEDED = "exceeded quota"
MIG_RESOURCE, PROFILE = "nvidia.com/mig-", re.compile(r"[1-7]g\.\d+gb")
# gpu-feature-discovery appends this to the product name for time slicing or MPS, with two or more replicas.
SHARED, SHARES = "-SHARED", re.compile(r"[2-9]|[1-9]\d{1,3}")


def build_view(watch: KubernetesWatch) -> cluster.ClusterView:
    """The view of the cluster; `problem` names the kinds that could not be read."""
    synced_at = watch.synced_at
    pods = [
        scheduled_pod(pod, watch.cluster, gpus=gpus, warning=watch.warning("Pod", pod.namespace, pod.name))
        for pod in watch.pods()
        if (gpus := watch.gpus_of(pod))
    ]
    quotas = (
        cluster.Quota(watch.cluster, quota.namespace, resource, limit=hard, used=used)
        for quota in watch.quotas()
        for resource, hard, used in quota.lines
    )
    return cluster.ClusterView(
        SOURCE,
        at_ms=None if synced_at is None else clock.to_ms(synced_at),
        nodes=tuple(scheduled_node(node, watch.cluster) for node in watch.nodes() if node.has_gpus),
        workloads=(*pods, *blocked_jobs(watch)),
        quotas=tuple(quotas),
        problem="; ".join(watch.problems()),
    )


def scheduled_node(node: objects.KubernetesNode, name: str) -> cluster.ScheduledNode:
    """Convert a node; its state is written as in `kubectl get nodes`."""
    ready = {True: "Ready", False: "NotReady", None: "Unknown"}[node.is_ready]
    has_counts = node.capacity or "nvidia.com/gpu.count" in node.labels
    return cluster.ScheduledNode(
        name,
        node.name,
        SOURCE,
        state=f"{ready},SchedulingDisabled" if node.is_cordoned else ready,
        is_ready=node.is_ready,
        is_schedulable=not node.is_cordoned,
        gpus=_total(node.capacity) if has_counts else None,
        allocatable_gpus=_total(node.allocatable) if has_counts else None,
        addresses=node.addresses,
        reason=node.not_ready_reason,
        unschedulable_by=node.cordoned_by,
        labels=node.labels,
        taints=tuple(_format_taint(taint) for taint in node.taints),
        gpu_part=_mean_gpu_part(node.capacity, node.labels),
    )


def scheduled_pod(
    pod: objects.KubernetesPod, name: str, *, gpus: int, warning: objects.WarningEvent | None = None
) -> workloads.ScheduledWorkload:
    """Convert a pod; the reason is the scheduler's, or that of `warning` if the pod has a node but does not start."""
    reason, detail = "", ""
    if not pod.node:
        reason, detail = objects.pending_reason(pod.reason, pod.message), pod.message
    elif pod.phase == "Pending" and warning is not None:
        reason, detail = warning.reason, warning.message
    requests = [] if pod.node else [request for container in pod.containers for request in container.gpus]
    return workloads.ScheduledWorkload(
        name,
        workloads.Workload(workloads.WorkloadKind.POD, pod.name, namespace=pod.namespace),
        # A pod holds its GPUs as soon as it has a node, whatever the state of its containers.
        workloads.WorkloadState.RUNNING if pod.node else workloads.WorkloadState.PENDING,
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
        gpu_part=_mean_gpu_part(requests, {}),
    )


def blocked_jobs(watch: KubernetesWatch) -> Iterable[workloads.ScheduledWorkload]:
    """Jobs with missing pods that a quota or an admission rule refuses."""
    for job in watch.jobs():
        missing = job.expected_pods - job.active
        warning = watch.warning("Job", job.namespace, job.name)
        if not job.gpus or missing <= 0 or job.is_suspended or warning is None or warning.reason != "FailedCreate":
            continue
        yield workloads.ScheduledWorkload(
            watch.cluster,
            workloads.Workload(workloads.WorkloadKind.POD, job.name, namespace=job.namespace),
            workloads.WorkloadState.PENDING,
            gpus=job.gpus * missing,
            queue=job.queue,
            account=job.namespace,
            owner=f"Job/{job.name}",
            reason=QUOTA_EXCEEDED if QUOTA_EXCEEDED in warning.message else warning.reason,
            detail=warning.message,
            requested_at=job.created_at,
        )


def _total(counts: objects.Counts) -> int:
    return sum(count for _, count in counts)


def _mean_gpu_part(counts: Iterable[tuple[str, int]], labels: Mapping[str, str]) -> float:
    """The mean part of a GPU that each unit stands for: a node may have whole GPUs and MIG instances."""
    weighted = [(_gpu_part(resource, labels), count) for resource, count in counts]
    total = sum(count for _, count in weighted)
    return sum(part * count for part, count in weighted) / total if total else 1.0


def _gpu_part(resource: str, labels: Mapping[str, str]) -> float:
    """The part of a GPU, by MIG profile (in the resource, or the product with strategy `single`) or by replicas."""
    model, _, node_profile = labels.get(kubernetes_discovery.PRODUCT, "").removesuffix(SHARED).partition("-MIG-")
    profile = resource.removeprefix(MIG_RESOURCE) if resource.startswith(MIG_RESOURCE) else node_profile
    if PROFILE.match(profile):
        return mig.minimum_gpu_share(profile, model)
    replicas = labels.get(kubernetes_discovery.REPLICAS, "")
    return 1 / int(replicas) if SHARES.fullmatch(replicas) else 1.0


def _format_taint(taint: objects.Taint) -> str:
    """Format a taint as `kubectl taint` does."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}" if taint.effect else f"{taint.key}{value}"
