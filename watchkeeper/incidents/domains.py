"""Failure domains: when many nodes of one rack, or behind one leaf switch, fail alike at once, the domain has failed.

`core.Incidents` asks after each change of a node's incident. The answer is one more signal, at the place of the
domain, which takes the incidents of the nodes into one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes
from watchkeeper.incidents.footprint import NOWHERE, Footprint, is_workload
from watchkeeper.incidents.signals import Signal
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, Member, MemberKind

# Which domains a fault may be common to: power and cooling by rack, links by the switch they end in, files by either.
KINDS: Mapping[str, tuple[str, ...]] = {
    "node_down": ("rack", "power", "leaf"),
    "power": ("rack", "power"),
    "cooling": ("rack",),
    "infiniband": ("leaf",),
    "storage": ("rack", "leaf"),
}
# Two nodes may fail together by accident; three of ten hardly do.
LEAST_NODES = 3
LEAST_SHARE = 0.3
# Scrapes and rules of one moment are spread over an interval each.
TOGETHER = timedelta(minutes=2)
# 12 of 64 nodes of rack r12 at once: …
SAID = re.compile(r"(\d+) of ")


@dataclass(frozen=True, slots=True)
class Domains:
    """What the inventory says: the domains of a node, the nodes of a domain, where a job runs, the pool of a node."""

    domains_of: Callable[[fleet.Place], Sequence[fleet.Place]] = lambda _: ()
    nodes_of: Callable[[fleet.Place], Sequence[fleet.Place]] = lambda _: ()
    footprint_of: Callable[[fleet.Place], Footprint] = lambda _: NOWHERE
    pool_of: Callable[[fleet.Place], str] = lambda _: ""

    def job_runs_at(self, place: fleet.Place, job: fleet.Place) -> bool:
        """True when a job is this place, or has a rank there, or a machine in this rack or behind this switch."""
        if place == job:
            return True
        runs_on = self.footprint_of(job)
        if place.domain is None:
            return runs_on.includes(place)
        return any(node in runs_on.nodes for node in self.nodes_of(place))

    def job_holds(self, job: fleet.Place, place: fleet.Place) -> bool:
        """True when this GPU is the job's, or all that this pod or Slurm job has are."""
        if not is_workload(job):
            return False
        if is_workload(place):
            parts = self.footprint_of(place).gpus
            return place == job or (bool(parts) and parts <= self.footprint_of(job).gpus)
        return place.gpu is not None and self.footprint_of(job).includes(place)

    def places_near(self, place: fleet.Place) -> dict[fleet.Place, None]:
        """The places to look at for what belongs to a node or a domain: itself, what it holds, what holds it."""
        inside = self.nodes_of(place) if place.domain is not None else ()
        found = dict.fromkeys([place, *inside])
        return found | dict.fromkeys(outer for one in (*inside, place) if one.node for outer in self.domains_of(one))

    def places_of_job(self, job: fleet.Place) -> dict[fleet.Place, None]:
        """The job itself, its machines, and what holds them: where something may have broken that it suffers from."""
        nodes = sorted(self.footprint_of(job).nodes)
        return dict.fromkeys([job, *nodes, *(outer for node in nodes for outer in self.domains_of(node))])


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a domain has the fault."""

    domain: fleet.Place
    failed: int
    nodes: int
    since: datetime

    @property
    def share(self) -> float:
        return self.failed / self.nodes if self.nodes else 0.0


def shared_by_domain(
    incident: Incident, domains: Domains, *, near: Callable[[fleet.Place], Sequence[Incident]]
) -> Signal | None:
    """The signal of a domain of which this incident's node is a part, if enough of its nodes have the same fault."""
    place = incident.place
    if place.domain is not None and incident.is_open:
        return _grown(incident, domains, near=near)
    if place.node is None or place.gpu is not None or not incident.is_open:
        return None
    kinds = KINDS.get(incident.family, ())
    around = [
        domain for domain in domains.domains_of(place.whole_node) if (domain.domain or "").partition("=")[0] in kinds
    ]
    extents = [_extent(incident, domain, domains.nodes_of(domain), near=near(domain)) for domain in around]
    enough = [one for one in extents if one.failed >= LEAST_NODES and one.share >= LEAST_SHARE]
    # Of two that have failed as a whole, the larger one explains more.
    best = max(enough, key=lambda extent: (extent.share, extent.nodes), default=None)
    return None if best is None else _signal(incident, best)


def _grown(incident: Incident, domains: Domains, *, near: Callable[[fleet.Place], Sequence[Incident]]) -> Signal | None:
    """The signal of a domain that is known to have failed, anew when more of its nodes have the fault than it says."""
    said = next((one for one in incident.members if one.kind is MemberKind.DOMAIN), None)
    if said is None:
        return None
    extent = _extent(incident, incident.place, domains.nodes_of(incident.place), near=near(incident.place))
    counted = SAID.match(said.text)
    if counted is None or extent.failed <= int(counted[1]):
        return None
    fresh = _signal(incident, extent)
    return Signal(replace(fresh.member, ref=said.ref, since=said.since), fresh.family)


def _extent(
    incident: Incident, domain: fleet.Place, nodes: Sequence[fleet.Place], *, near: Sequence[Incident]
) -> Extent:
    inside = {place.node for place in nodes}
    # A job that stands still tells nothing about when its machines failed.
    latest = max(member.since for member in incident.members if not is_workload(member.place))
    live = [
        member
        for one in near
        if one.is_open and one.family == incident.family
        for member in one.members
        if member.until is None and member.place.node in inside and abs(latest - member.since) <= TOGETHER
    ]
    since = min((member.since for member in live), default=latest)
    return Extent(domain, len({member.place.node for member in live}), len(nodes), since)


def _signal(incident: Incident, extent: Extent) -> Signal:
    row = causes.lookup(incident.cause)
    name = (extent.domain.domain or "").replace("=", " ", 1)
    member = Member(
        kind=MemberKind.DOMAIN,
        ref=f"{extent.domain}/{incident.family}",
        place=extent.domain,
        cause=row.cause,
        since=extent.since,
        text=f"{extent.failed} of {extent.nodes} nodes of {name} at once: {row.headline('each')}",
        severity=incident.severity,
    )
    return Signal(member, incident.family)
