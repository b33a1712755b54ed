"""A cluster as its scheduler reports it: nodes, workloads, quotas, and read errors.

`clusters.kubernetes.kubernetes_watch` and `clusters.slurm.slurm_watch` each keep one `ClusterView` up to date. A view
that fails to refresh keeps its last content, and `problem` says why and since when: an unreachable scheduler must not
look like an empty cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchkeeper.model.workloads import ScheduledWorkload


@dataclass(frozen=True, slots=True)
class ScheduledNode:
    """A node as its scheduler reports it. A count that the scheduler does not report is None.

    `state` is the scheduler's own word (`Ready`, `NotReady`, `idle`, `drained`, …), `reason` why the node is out of
    service, and `unschedulable_by` who cordoned it, where the scheduler records it. `gpu_part` is the share of a GPU
    that one unit of the counts stands for: 1/7 where the scheduler counts MIG instances.
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
    """The GPU limit and use of a namespace or account. `limit` None: no limit is set."""

    cluster: str
    owner: str
    resource: str
    limit: int | None
    used: int | None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The last reply of one scheduler. `at_ms` None: no reply yet."""

    source: str
    at_ms: int | None = None
    nodes: tuple[ScheduledNode, ...] = ()
    workloads: tuple[ScheduledWorkload, ...] = ()
    quotas: tuple[Quota, ...] = ()
    problem: str = ""
