"""Workloads: the holder of each GPU, or the reason why it is unknown.

A node's agent attributes its own GPUs from three sources (the kubelet's pod-resources socket, Slurm's job files, the
processes that NVML lists); the hub adds team and project from its inventory. Each GPU has an `Attribution`, and one
without holders has a reason, because an empty label is the most reported defect of GPU exporters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


def workload_name(namespace: str, name: str) -> str:
    """`research/llm-70b-0`, or the job's id without a namespace."""
    return f"{namespace}/{name}" if namespace else name


class WorkloadKind(StrEnum):
    POD = "pod"
    SLURM_JOB = "slurm_job"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True, order=True)
class Workload:
    """One holder. `name` is a pod's name, a Slurm job's id, or the command of a program without either."""

    kind: WorkloadKind
    name: str
    namespace: str = ""
    container: str = ""
    user: str = ""

    def __str__(self) -> str:
        return workload_name(self.namespace, self.name)


class UnattributedReason(StrEnum):
    """Why a GPU has no workload; `FREE` is a fact, the others are missing data."""

    FREE = "free"
    NO_SOURCE = "no_source"
    SOURCE_FAILED = "source_failed"
    UNKNOWN_DEVICE = "unknown_device"


@dataclass(frozen=True, slots=True)
class Holding:
    """One workload on a GPU or MIG instance. `share` is its part of the GPU's use, 0 to 1, None if unknown."""

    workload: Workload
    slice: str | None = None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Attribution:
    """The holders of one GPU, or the reason why there are none. `detail` is for people."""

    holdings: tuple[Holding, ...] = ()
    reason: UnattributedReason | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if bool(self.holdings) == (self.reason is not None):
            raise ValueError("an attribution has either holdings or a reason")


class WorkloadState(StrEnum):
    """The state of a workload, in terms that fit Kubernetes and Slurm."""

    PENDING = "pending"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ScheduledWorkload:
    """A pod or a Slurm job as its scheduler reports it.

    `gpus` is the number that it requested. `reason` is the scheduler's own word for why it is pending (`Unschedulable`,
    `Resources`, …) and `detail` its message. `nodes` maps each node to the number of its GPUs there. While it is
    pending, `gpu_part` is the share of a GPU that each requested GPU stands for.
    """

    cluster: str
    workload: Workload
    state: WorkloadState
    gpus: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)
    queue: str = ""
    account: str = ""
    owner: str = ""
    reason: str = ""
    detail: str = ""
    requested_at: float | None = None
    started_at: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    gpu_part: float = 1.0
