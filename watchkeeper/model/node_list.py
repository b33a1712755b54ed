"""One line of the list of nodes: what a node should have, has, what its scheduler says, and who holds it.

`web.fleet.node_list` makes the lines, `client.typed` reads them back.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class NodeState(StrEnum):
    """What we know about a node ourselves; its scheduler has words of its own."""

    UP = "up"
    SHORT = "short"
    SILENT = "silent"
    NEVER_SEEN = "never_seen"
    NOT_READ = "not_read"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """What one scheduler says about a node."""

    source: str
    state: str
    reason: str
    by: str
    is_ready: bool | None
    is_schedulable: bool


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node. `unmapped` names what nobody has said about it; `holders` has also whom only a scheduler names."""

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
