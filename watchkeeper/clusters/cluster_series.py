"""Build series from a scheduler's view: GPU capacity and allocation, pending workloads, queue waits and quotas.

The hub builds them from every `ClusterView`, Kubernetes or Slurm, each time it appends its status series.
`kubernetes_series` builds those that kube-state-metrics also has, under its names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from watchkeeper.model import cluster, workloads
from watchkeeper.model.labels import METRIC_NAME, Labels

SCHEDULER_UP = "watchkeeper_scheduler_up"
SCHEDULER_GPUS = "watchkeeper_scheduler_gpus"
NODE_STATE = "watchkeeper_scheduler_node_state"
PENDING_GPUS = "watchkeeper_pending_gpus"
PENDING_WORKLOADS = "watchkeeper_pending_workloads"
QUEUE_WAIT = "watchkeeper_queue_wait_seconds"
QUOTA_GPUS = "watchkeeper_quota_gpus"
# After a failed read, the last view is used for this long: an upgrade of a control plane takes less, and a wrong view
# of the cluster must not be used longer.
MAX_VIEW_AGE_SECONDS = 300.0
HELP = {
    SCHEDULER_UP: "1 if the scheduler (`source`) was read without a problem, else 0; at 0 its other series keep their "
    "last values for 5 minutes, and then end",
    SCHEDULER_GPUS: "GPUs in the scheduler, by `state`: capacity, allocatable, allocated, and in_service (allocatable "
    "on nodes that are ready and not cordoned)",
    PENDING_GPUS: "GPUs that pending workloads request, by `queue` and the scheduler's `reason`",
    PENDING_WORKLOADS: "Pending workloads that request GPUs, by `queue` and `reason`",
    QUEUE_WAIT: "Time that the oldest pending workload has waited for GPUs, by `queue`",
    QUOTA_GPUS: "GPU quota by `owner` (namespace or account) and `resource`; `type` is hard (the limit) or used",
}


def scheduler_series(view: cluster.ClusterView, name: str, *, now: float) -> dict[Labels, float]:
    """The series of one scheduler of the cluster `name`; only `SCHEDULER_UP` if its view is too old."""
    scheduler_labels = {"cluster": name, "source": view.source}
    series = {_labels(SCHEDULER_UP, scheduler_labels): float(view.at_ms is not None and not view.problem)}
    if not is_current(view, now):
        return series
    # A scheduler that counts no GPUs of its nodes must not look like one without GPUs.
    has_counts = not view.nodes or any(node.gpus is not None for node in view.nodes)
    for state, gpus in _count_gpus(view).items() if has_counts else ():
        series[_labels(SCHEDULER_GPUS, scheduler_labels, state=state)] = gpus
    series.update(_pending_series(view, scheduler_labels, now=now))
    series.update(_quota_series(view, scheduler_labels))
    return series


def is_current(view: cluster.ClusterView, now: float) -> bool:
    """False if the scheduler never answered, or if it has a problem and its last answer is too old."""
    return view.at_ms is not None and (not view.problem or now - view.at_ms / 1000 <= MAX_VIEW_AGE_SECONDS)


def _count_gpus(view: cluster.ClusterView) -> Mapping[str, float]:
    """Count GPUs by state; a MIG instance or a shared GPU counts as its part of a GPU."""
    in_service = [node for node in view.nodes if node.is_schedulable and node.is_ready]
    part_by_node = {node.name: node.gpu_part for node in view.nodes}
    allocations = ((name, count) for workload in view.workloads for name, count in workload.nodes.items())
    return {
        "capacity": sum((node.gpus or 0) * node.gpu_part for node in view.nodes),
        "allocatable": sum((node.allocatable_gpus or 0) * node.gpu_part for node in view.nodes),
        "in_service": sum((node.allocatable_gpus or 0) * node.gpu_part for node in in_service),
        "allocated": sum(count * part_by_node.get(name, 1.0) for name, count in allocations),
    }


def _pending_series(
    view: cluster.ClusterView, scheduler_labels: Mapping[str, str], *, now: float
) -> Iterator[tuple[Labels, float]]:
    gpus: defaultdict[tuple[str, str], float] = defaultdict(float)
    workload_counts: Counter[tuple[str, str]] = Counter()
    longest_waits: dict[str, float] = {}
    for workload in view.workloads:
        if workload.state is not workloads.WorkloadState.PENDING or not workload.gpus:
            continue
        gpus[workload.queue, workload.reason] += workload.gpus * workload.gpu_part
        workload_counts[workload.queue, workload.reason] += 1
        if workload.requested_at is not None:
            longest_waits[workload.queue] = max(longest_waits.get(workload.queue, 0.0), now - workload.requested_at)
    for (queue, reason), count in gpus.items():
        yield _labels(PENDING_GPUS, scheduler_labels, queue=queue, reason=reason), count
    for (queue, reason), count in workload_counts.items():
        yield _labels(PENDING_WORKLOADS, scheduler_labels, queue=queue, reason=reason), float(count)
    for queue, seconds in longest_waits.items():
        yield _labels(QUEUE_WAIT, scheduler_labels, queue=queue), seconds


def _quota_series(view: cluster.ClusterView, scheduler_labels: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
    for quota in view.quotas:
        for kind, count in (("hard", quota.limit), ("used", quota.used)):
            if count is not None:
                labels = _labels(QUOTA_GPUS, scheduler_labels, owner=quota.owner, resource=quota.resource, type=kind)
                yield labels, float(count)


def _labels(name: str, scheduler_labels: Mapping[str, str], **extra_labels: str) -> Labels:
    return Labels({METRIC_NAME: name, **scheduler_labels, **extra_labels})
