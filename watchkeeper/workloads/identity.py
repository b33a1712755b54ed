"""Which job a workload belongs to: a Slurm job is its id, pods of a job differ in what controllers append to names.

`packs/rules/jobs.yaml` cuts names of pods by the patterns of `model.jobs`, because most questions about jobs are asked
in PromQL; a test holds the two together. `board` uses them for pods that wait, which no series names.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.kit import own_metrics
from watchkeeper.model import jobs, workloads
from watchkeeper.model.labels import Labels

job_name = jobs.job_name
KINDS = {
    workloads.WorkloadKind.POD.value: jobs.JobKind.KUBERNETES,
    workloads.WorkloadKind.SLURM_JOB.value: jobs.JobKind.SLURM,
}


@dataclass(frozen=True, slots=True, order=True)
class JobKey:
    """A job of a cluster; `name` is a Slurm id, the common name of pods, or what a program calls itself."""

    cluster: str
    kind: jobs.JobKind
    namespace: str
    name: str

    @property
    def id(self) -> str:
        """What people type, and what stands in an address."""
        return workloads.workload_name(self.namespace, self.name)

    def answers_to(self, text: str, cluster: str | None) -> bool:
        return text in (self.id, self.name) and cluster in (None, self.cluster)

    @property
    def selector(self) -> str:
        """The labels of the series of packs/rules/jobs.yaml, for PromQL."""
        word = next((word for word, kind in KINDS.items() if kind is self.kind), workloads.WorkloadKind.PROGRAM.value)
        named = {"cluster": self.cluster, "workload_kind": word, "namespace": self.namespace, "job_name": self.name}
        return ",".join(f'{label}="{own_metrics.escape(value)}"' for label, value in named.items())


def job_of_labels(labels: Labels) -> JobKey:
    """The job that a series of packs/rules/jobs.yaml is about."""
    return JobKey(
        labels.get("cluster", ""),
        KINDS.get(labels.get("workload_kind", ""), jobs.JobKind.PLAIN),
        labels.get("namespace", ""),
        labels.get("job_name", ""),
    )


def job_of_workload(part: workloads.ScheduledWorkload) -> JobKey:
    kind = KINDS.get(part.workload.kind.value, jobs.JobKind.PLAIN)
    name = part.workload.name
    return JobKey(
        part.cluster, kind, part.workload.namespace, job_name(name) if kind is jobs.JobKind.KUBERNETES else name
    )


def rank_of(labels: Labels) -> int | None:
    """The rank that a series of a training job is about."""
    text = labels.get("rank", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 9 else None
