"""One row of the node list: expected and reported GPUs, the scheduler's state, and the holders.

`web.fleet.cluster_api` makes the rows, `client.typed` reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.gpu_states import GpuCounts


class NodeState(StrEnum):
    """The hub's own state of a node; its scheduler has separate states."""

    UP = "up"
    SHORT = "short"
    SILENT = "silent"
    NEVER_SEEN = "never_seen"
    NOT_READ = "not_read"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    source: str
    state: str
    reason: str
    by: str
    is_ready: bool | None
    is_schedulable: bool


class ServiceState(StrEnum):
    """Whether new workloads may start on a node."""

    IN_SERVICE = "in_service"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    # Another state of Slurm in which it starts nothing on the node.
    OUT_OF_SERVICE = "out_of_service"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeService:
    """`text` says what, and who did it: `cordoned · repair INC-1`; empty in service. `incident`: of our repair."""

    state: ServiceState
    text: str
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node. `unmapped` lists missing inventory fields; `holders` includes holders that only a scheduler reports.

    `service` is None if neither a scheduler nor a repair reports the node. `gpus_seen` is the number of GPUs that
    report now, and `gpus` counts all of them by state.
    """

    cluster: str
    name: str
    state: NodeState
    why: str
    pool: str
    rack: str
    leaf: str
    nvlink_domain: str
    unmapped: tuple[str, ...]
    gpus_seen: int
    gpus_expected: int | None
    scheduler: tuple[SchedulerStatus, ...]
    holders: tuple[str, ...]
    incidents: tuple[str, ...]
    last_seen: datetime | None
    sources: str
    service: NodeService | None = None
    gpus: GpuCounts = field(default_factory=GpuCounts)
