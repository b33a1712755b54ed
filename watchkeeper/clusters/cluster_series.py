"""Series of what a scheduler knows: GPUs it has and gave away, who waits for how long and why, and quotas.

The hub makes them from every `ClusterView`, Kubernetes or Slurm, each time it appends its standing series. Where
kube-state-metrics has a name for a thing, `kubernetes_series` uses that name; these are for the rest, and are the same
for both schedulers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from watchkeeper.model import cluster, workloads
from watchkeeper.model.labels import METRIC_NAME, Labels

SCHEDULER_UP = "watchkeeper_scheduler_up"
SCHEDULER_GPUS = "watchkeeper_scheduler_gpus"
PENDING_GPUS = "watchkeeper_pending_gpus"
PENDING_WORKLOADS = "watchkeeper_pending_workloads"
QUEUE_WAIT = "watchkeeper_queue_wait_seconds"
QUOTA_GPUS = "watchkeeper_quota_gpus"
# For so long what a scheduler said last may stand for now: a control plane is upgraded in less, a wrong picture of the
# cluster must not live longer.
SILENT_SECONDS = 300.0
HELP = {
    SCHEDULER_UP: "1 while the scheduler (`source`) is read without a problem; at 0 what it said last is repeated for "
    "5 minutes, and then all its other series end",
    SCHEDULER_GPUS: "GPUs that the scheduler knows, by `state`: capacity, allocatable, allocated, and in_service, the "
    "allocatable ones of nodes that are ready and not cordoned",
    PENDING_GPUS: "GPUs that waiting workloads ask for, by `queue` and by the scheduler's own `reason`",
    PENDING_WORKLOADS: "Workloads that wait for GPUs, by `queue` and `reason`",
    QUEUE_WAIT: "How long the workload at the end of its patience has waited, by `queue`: the longest of all waits",
    QUOTA_GPUS: "GPUs of a quota, by `owner` (namespace or account) and `resource`; `type` is hard or used",
}


def series(view: cluster.ClusterView, name: str, *, now: float) -> dict[Labels, float]:
    """The series of one scheduler of the cluster `name`; of one that does not answer only that it is not read."""
    where = {"cluster": name, "source": view.source}
    made = {_labels(SCHEDULER_UP, where): float(view.at_ms is not None and not view.problem)}
    if not speaks_for(view, now):
        return made
    for state, gpus in _gpus(view).items():
        made[_labels(SCHEDULER_GPUS, where, state=state)] = gpus
    made.update(_pending(view, where, now=now))
    made.update(_quotas(view, where))
    return made


def speaks_for(view: cluster.ClusterView, now: float) -> bool:
    """False for a scheduler that never answered, and for one with a problem whose last word is too old."""
    if view.at_ms is None:
        return False
    return not view.problem or now - view.at_ms / 1000 <= SILENT_SECONDS


def _gpus(view: cluster.ClusterView) -> Mapping[str, float]:
    """Slices and shares of GPUs as the parts of a GPU that they are."""
    in_service = [node for node in view.nodes if node.is_schedulable and node.is_ready]
    parts = {node.name: node.gpu_part for node in view.nodes}
    held = ((name, count) for one in view.workloads for name, count in one.nodes.items())
    return {
        "capacity": sum((node.gpus or 0) * node.gpu_part for node in view.nodes),
        "allocatable": sum((node.allocatable_gpus or 0) * node.gpu_part for node in view.nodes),
        "in_service": sum((node.allocatable_gpus or 0) * node.gpu_part for node in in_service),
        "allocated": sum(count * parts.get(name, 1.0) for name, count in held),
    }


def _pending(view: cluster.ClusterView, where: Mapping[str, str], *, now: float) -> Iterator[tuple[Labels, float]]:
    gpus: defaultdict[tuple[str, str], float] = defaultdict(float)
    waiting: Counter[tuple[str, str]] = Counter()
    longest: dict[str, float] = {}
    for one in view.workloads:
        if one.state is not workloads.WorkloadState.PENDING or not one.gpus:
            continue
        gpus[one.queue, one.reason] += one.gpus * one.gpu_part
        waiting[one.queue, one.reason] += 1
        if one.requested_at is not None:
            longest[one.queue] = max(longest.get(one.queue, 0.0), now - one.requested_at)
    both: tuple[tuple[str, Mapping[tuple[str, str], float]], ...] = (PENDING_GPUS, gpus), (PENDING_WORKLOADS, waiting)
    for name, counts in both:
        for (queue, reason), count in counts.items():
            yield _labels(name, where, queue=queue, reason=reason), float(count)
    for queue, seconds in longest.items():
        yield _labels(QUEUE_WAIT, where, queue=queue), seconds


def _quotas(view: cluster.ClusterView, where: Mapping[str, str]) -> Iterator[tuple[Labels, float]]:
    for quota in view.quotas:
        for kind, count in (("hard", quota.limit), ("used", quota.used)):
            if count is not None:
                named = _labels(QUOTA_GPUS, where, owner=quota.owner, resource=quota.resource, type=kind)
                yield named, float(count)


def _labels(name: str, where: Mapping[str, str], **more: str) -> Labels:
    return Labels({METRIC_NAME: name, **where, **more})
