"""Find the job of a workload: a Slurm job by its id, pods by their name without the suffix of their controller.

`packs/rules/jobs.yaml` uses the same patterns of `model.jobs` in PromQL, and a test compares the two. Pending pods have
no series of a job; kube-state-metrics lists them for hubs without access to the API server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from watchkeeper.kit import own_metrics
from watchkeeper.model import jobs, workloads
from watchkeeper.model.labels import Labels

# packs/rules/platform.yaml
PENDING_PODS_QUERY = "watchkeeper:pending_gpu_pods:requests"
job_name = jobs.job_name
KIND_OF_LABEL = {
    workloads.WorkloadKind.POD.value: jobs.JobKind.KUBERNETES,
    workloads.WorkloadKind.SLURM_JOB.value: jobs.JobKind.SLURM,
}


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """A job of a cluster; `name` is a Slurm id, the common name of its pods, or the name that a program exports."""

    cluster: str
    kind: jobs.JobKind
    namespace: str
    name: str

    @property
    def id(self) -> str:
        return workloads.workload_name(self.namespace, self.name)

    def matches(self, text: str, cluster: str | None) -> bool:
        return text in (self.id, self.name) and cluster in (None, self.cluster)

    @property
    def selector(self) -> str:
        """The PromQL matchers of the job's series in packs/rules/jobs.yaml."""
        labels = (label for label, kind in KIND_OF_LABEL.items() if kind is self.kind)
        kind_label = next(labels, workloads.WorkloadKind.PROGRAM.value)
        matchers = {"cluster": self.cluster, "workload_kind": kind_label}
        matchers |= {"namespace": self.namespace, "job_name": self.name}
        return ",".join(f'{label}="{own_metrics.escape(value)}"' for label, value in matchers.items())


def job_from_labels(labels: Labels) -> JobKey:
    kind = KIND_OF_LABEL.get(labels.get("workload_kind", ""), jobs.JobKind.PLAIN)
    return JobKey(labels.get("cluster", ""), kind, labels.get("namespace", ""), labels.get("job_name", ""))


def job_from_workload(part: workloads.ScheduledWorkload) -> JobKey:
    kind = KIND_OF_LABEL.get(part.workload.kind.value, jobs.JobKind.PLAIN)
    name = job_name(part.workload.name) if kind is jobs.JobKind.KUBERNETES else part.workload.name
    return JobKey(part.cluster, kind, part.workload.namespace, name)


def read_rank(labels: Labels) -> int | None:
    """Return the rank of a series of a training job; None if the label is missing or invalid."""
    text = labels.get("rank", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None


def read_pending_pods(
    requests: Mapping[Labels, float], scheduled: Iterable[workloads.ScheduledWorkload]
) -> list[workloads.ScheduledWorkload]:
    """Pods that wait for GPUs, without those that a scheduler also reports."""
    names = {(part.cluster, part.workload.namespace, part.workload.name) for part in scheduled}
    pending = []
    for labels, gpus in requests.items():
        cluster, namespace, pod = (labels.get(name, "") for name in ("cluster", "namespace", "pod"))
        if pod and math.isfinite(gpus) and gpus >= 1 and (cluster, namespace, pod) not in names:
            workload = workloads.Workload(workloads.WorkloadKind.POD, pod, namespace)
            state = workloads.WorkloadState.PENDING
            pending.append(workloads.ScheduledWorkload(cluster, workload, state, round(gpus)))
    return pending
