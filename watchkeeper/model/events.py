"""Events, and the conditions that are folded from them.

An event is immutable and has an id that a retried push repeats. A condition follows from events and is not stored:
`fold_conditions` computes it, so a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from watchkeeper.model.fleet import Place


class EventKind(StrEnum):
    """The kind of event; `code` is its number, where the kind has numbers."""

    XID = "xid"
    SXID = "sxid"
    GPU_LOST = "gpu_lost"
    PCIE_ERROR = "pcie_error"
    MACHINE_CHECK = "machine_check"
    OOM_KILL = "oom_kill"
    # The GSP firmware, an NVLink, a network adapter or its cable, without an Xid.
    GSP_ERROR = "gsp_error"
    NVLINK_ERROR = "nvlink_error"
    NIC_ERROR = "nic_error"
    LINK_DOWN = "link_down"
    # A device access that the IOMMU blocked; a file server that does not answer or has evicted this client.
    IOMMU_FAULT = "iommu_fault"
    STORAGE_LOST = "storage_lost"
    # The server that `fields["server"]` names answers again.
    STORAGE_BACK = "storage_back"
    GPU_RESET = "gpu_reset"
    NODE_BOOT = "node_boot"
    # A fault found by polling the driver, with or without a kernel line; `fields["cause"]` names it. `code` is NVML's
    # return code, NVML's event type, or the bit of DCGM's policy condition.
    DRIVER_FAULT = "driver_fault"
    DRIVER_EVENT = "driver_event"
    POLICY_VIOLATION = "policy_violation"
    # Found by a sweep of the InfiniBand fabric: a link, or a switch with all its links, went down or came up.
    FABRIC_DOWN = "fabric_down"
    FABRIC_UP = "fabric_up"


@dataclass(frozen=True, slots=True)
class Process:
    """The process that used the GPU; either part may be unknown."""

    pid: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `at` is the source's clock, `received_at` the hub's (None until received)."""

    id: str
    kind: EventKind
    code: int | None
    place: Place
    at: datetime
    text: str
    received_at: datetime | None = None
    process: Process | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventSource:
    """The source of a stream of events; `event_id` makes ids that a retry repeats."""

    cluster: str
    node: str
    boot: str
    name: str

    def event_id(self, sequence: int) -> str:
        return f"{self.cluster}/{self.node}/{self.boot}/{self.name}/{sequence}"


# Place, kind, code, and for file servers the server's name, else empty.
ConditionKey = tuple[Place, EventKind, int | None, str]
SERVER = "server"
# Marks an event whose source also reports the recovery; others clear after a quiet time.
REPORTS_RECOVERY = "tells_return"


def condition_key(event: Event) -> ConditionKey:
    """Events with the same key are one condition."""
    return (event.place, event.kind, event.code, event.fields.get(SERVER, ""))


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of a place since some time, folded from events of one kind and code."""

    key: ConditionKey
    since: datetime
    last: datetime
    count: int
    cleared_at: datetime | None = None
    cleared_why: str | None = None

    @property
    def is_open(self) -> bool:
        return self.cleared_at is None


@dataclass(frozen=True, slots=True)
class ClearRule:
    """When a condition clears: after a quiet time, or by an event at the same or an enclosing place.

    An event that names a server clears only conditions of that server.
    """

    quiet_seconds: float | None = None
    cleared_by: frozenset[EventKind] = frozenset()


def fold_conditions(events: Iterable[Event], rule: ClearRule, now: datetime) -> dict[ConditionKey, Condition]:
    """The newest condition of each key at `now`.

    The order and repetition of the events do not matter: they are sorted by time, and each id counts once. A condition
    that cleared and returned starts anew.
    """
    conditions: dict[ConditionKey, Condition] = {}
    unique = {event.id: event for event in events}
    for event in sorted(unique.values(), key=lambda event: (event.at, event.id)):
        if event.at > now:
            continue
        if event.kind in rule.cleared_by:
            _clear_by(conditions, event)
            continue
        key = condition_key(event)
        previous = _clear_if_quiet(conditions[key], rule, event.at) if key in conditions else None
        if previous is None or not previous.is_open:
            conditions[key] = Condition(key, since=event.at, last=event.at, count=1)
        else:
            conditions[key] = Condition(key, since=previous.since, last=event.at, count=previous.count + 1)
    return {key: _clear_if_quiet(condition, rule, now) for key, condition in conditions.items()}


def _clear_if_quiet(condition: Condition, rule: ClearRule, now: datetime) -> Condition:
    """The condition at `now`: cleared if it has been quiet for long enough."""
    if not condition.is_open or rule.quiet_seconds is None:
        return condition
    cleared_at = condition.last + timedelta(seconds=rule.quiet_seconds)
    if now < cleared_at:
        return condition
    return replace(condition, cleared_at=cleared_at, cleared_why=f"quiet for {rule.quiet_seconds:g} s")


def _clear_by(conditions: dict[ConditionKey, Condition], event: Event) -> None:
    server = event.fields.get(SERVER)
    for key, condition in conditions.items():
        if condition.is_open and event.place.encloses(key[0]) and server in (None, key[3]):
            why = f"{event.kind} {event.id}"
            conditions[key] = replace(condition, cleared_at=event.at, cleared_why=why)
