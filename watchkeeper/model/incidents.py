"""An incident is what people work on: one place, one family of causes, all signals about it.

The life cycle is a table. `version` rises with each change, so that concurrent writes are detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

from watchkeeper.errors import InvalidTransition
from watchkeeper.model.alerts import Severity
from watchkeeper.model.fleet import Place

IncidentId = NewType("IncidentId", str)


class IncidentState(StrEnum):
    OPEN = "open"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"


INCIDENT_MOVES: Mapping[IncidentState, frozenset[IncidentState]] = {
    IncidentState.OPEN: frozenset({IncidentState.ACKNOWLEDGED, IncidentState.RESOLVED}),
    IncidentState.ACKNOWLEDGED: frozenset({IncidentState.OPEN, IncidentState.RESOLVED}),
    # A fault that returns soon after is the same incident: flapping must not page twice.
    IncidentState.RESOLVED: frozenset({IncidentState.OPEN}),
}


class MemberKind(StrEnum):
    EVENT = "event"
    ALERT = "alert"
    # Many places of one failure domain have the same fault at once; it lasts as long as their incidents.
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class Member:
    """One signal that belongs to an incident.

    `ref` is the event's id, the alert's label set as text, or the domain with the family. `since` is when it was
    first true, `until` when it stopped (None while it lasts).
    """

    kind: MemberKind
    ref: str
    place: Place
    cause: str
    since: datetime
    text: str
    severity: Severity
    until: datetime | None = None
    # Caused by our own repair: a node that we reboot is unreachable for a while.
    by_repair: bool = False
    # Of an alert: its name, the advice of its rule if no cause is known, and its family if that is not its cause's.
    alert: str = ""
    advice: str = ""
    own_family: str = ""
    # How long it was true before it ended and returned.
    previous_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault with all its signals: its place, cause, title and severity are those of the leading signal."""

    id: IncidentId
    place: Place
    title: str
    severity: Severity
    state: IncidentState
    opened_at: datetime
    cause: str
    family: str
    members: tuple[Member, ...]
    workloads: tuple[str, ...] = ()
    resolved_at: datetime | None = None
    assignee: str | None = None
    version: int = 1
    # How often it returned after it was resolved.
    reopened: int = 0
    # The incident that absorbed this one; this one was resolved as a part of it.
    part_of: str | None = None
    # What the alert's own rule says to do; empty if the cause is known.
    advice: str = ""
    # Since when all signals have ended while a repair still has the node: it resolves when the repair has ended.
    recovering_since: datetime | None = None
    # Where its jobs and pods run: the GPUs of small ones, the nodes of others.
    runs_on: tuple[Place, ...] = ()
    # Another open incident, which stops the job that runs at this place.
    root: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state is not IncidentState.RESOLVED

    @property
    def places(self) -> dict[Place, None]:
        """Every place that it concerns: its own, those of its signals that last, and those of its jobs."""
        members = (member.place for member in self.members if member.until is None or not self.is_open)
        return dict.fromkeys([self.place, *members, *self.runs_on])

    def concerns_gpu(self, cluster: str, node: str, uuid: str) -> bool:
        """Whether a GPU has a signal, or the place or a job of the incident includes the GPU."""
        if any(member.place.gpu == uuid for member in self.members):
            return True
        matching = {Place(cluster, node=node, gpu=uuid), Place(cluster, node=node)}
        places = (replace(place, slice=None, port=None) for place in (self.place, *self.runs_on))
        return not matching.isdisjoint(places)


def age_key(incident: Incident) -> tuple[datetime, int, str]:
    """Sort key: oldest first; if opened at the same time, the lower number first."""
    return incident.opened_at, len(incident.id), incident.id


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One entry of an incident's timeline; the shape of `body` depends on `kind`."""

    at: datetime
    actor: str
    kind: str
    body: Any


def move(incident: Incident, to: IncidentState, *, at: datetime) -> Incident:
    """The incident in its new state, or InvalidTransition if the life cycle does not allow it."""
    if to not in INCIDENT_MOVES[incident.state]:
        allowed = ", ".join(sorted(INCIDENT_MOVES[incident.state]))
        raise InvalidTransition(
            f"{incident.state} cannot become {to}",
            where=incident.id,
            now=f"It is {incident.state}",
            remedy=f"Possible: {allowed}",
        )
    resolved_at = at if to is IncidentState.RESOLVED else None
    recovering_since = None if to is IncidentState.RESOLVED else incident.recovering_since
    reopened = incident.reopened + (incident.state is IncidentState.RESOLVED)
    version = incident.version + 1
    return replace(
        incident,
        state=to,
        resolved_at=resolved_at,
        recovering_since=recovering_since,
        version=version,
        reopened=reopened,
        part_of=None,
    )
