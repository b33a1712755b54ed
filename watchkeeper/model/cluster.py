"""A cluster as its scheduler knows it: nodes, workloads, quotas, and what of it could not be read.

`collect/kubernetes_watch` and `collect/slurm_watch` each keep one `ClusterView` up to date; the hub merges them into
the fleet, the standing series (kube-state-metrics' names where they exist) and the pages. A view that could not be
refreshed stays, with `problem` saying since when and why: what a scheduler said last is better than nothing, and
nothing must not look like an empty cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.model.workloads import ScheduledWorkload


@dataclass(frozen=True, slots=True)
class ScheduledNode:
    """A node as its scheduler knows it. A count that the scheduler does not tell is None.

    `state` is the scheduler's own word (`Ready`, `NotReady`, `idle`, `drained`, …), `reason` why it is not in use, and
    `unschedulable_by` who has taken it out, where that is written on it. `gpu_part` is what one of its counts is of a
    GPU: a seventh where it counts MIG slices.
    """

    cluster: str
    name: str
    source: str
    state: str
    is_ready: bool | None
    is_schedulable: bool
    gpus: int | None = None
    allocatable_gpus: int | None = None
    addresses: tuple[str, ...] = ()
    reason: str = ""
    unschedulable_by: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    gpu_part: float = 1.0


@dataclass(frozen=True, slots=True)
class Quota:
    """GPUs that a namespace or an account may hold, and holds. `limit` None: none was set."""

    cluster: str
    owner: str
    resource: str
    limit: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one scheduler said last. `at_ms` None: it has never answered."""

    source: str
    at_ms: int | None = None
    nodes: tuple[ScheduledNode, ...] = ()
    workloads: tuple[ScheduledWorkload, ...] = ()
    quotas: tuple[Quota, ...] = ()
    problem: str = ""
