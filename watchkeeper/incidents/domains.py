"""Failure domains: when many nodes of a rack or leaf switch have the same fault at once, the domain has failed.

`IncidentTracker` calls this after each change of a node's incident. The result is one more signal, at the place of
the domain; it merges the incidents of the nodes into one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes
from watchkeeper.incidents.footprint import NO_FOOTPRINT, Footprint, is_workload
from watchkeeper.incidents.signals import Signal
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, Member, MemberKind

# The domains that can share a fault: power and cooling by rack, links by leaf switch, storage by both.
DOMAIN_KINDS: Mapping[str, tuple[str, ...]] = {
    "node_down": ("rack", "power", "leaf"),
    "power": ("rack", "power"),
    "cooling": ("rack",),
    "infiniband": ("leaf",),
    "storage": ("rack", "leaf"),
}
# Two nodes may fail together by chance; three of ten hardly do.
MIN_NODES = 3
MIN_SHARE = 0.3
# One failure appears in scrapes and rule evaluations that are up to an interval apart.
MAX_SPREAD = timedelta(minutes=2)
# 12 of 64 nodes of rack r12 at once: …
FAILED_COUNT = re.compile(r"(\d+) of ")
IncidentsNear = Callable[[fleet.Place], Sequence[Incident]]


@dataclass(frozen=True, slots=True)
class Domains:
    """Lookups in the inventory: domains of a node, nodes of a domain, footprint of a job, pool of a node."""

    domains_of: Callable[[fleet.Place], Sequence[fleet.Place]] = lambda _: ()
    nodes_of: Callable[[fleet.Place], Sequence[fleet.Place]] = lambda _: ()
    footprint_of: Callable[[fleet.Place], Footprint] = lambda _: NO_FOOTPRINT
    pool_of: Callable[[fleet.Place], str] = lambda _: ""

    def job_runs_at(self, place: fleet.Place, job: fleet.Place) -> bool:
        """Whether a job is this place, has a rank there, or has a node in this rack or behind this switch."""
        if place == job:
            return True
        runs_on = self.footprint_of(job)
        if place.domain is None:
            return runs_on.includes(place)
        return any(node in runs_on.nodes for node in self.nodes_of(place))

    def job_holds(self, job: fleet.Place, place: fleet.Place) -> bool:
        """Whether the job holds this GPU, or all GPUs of this pod or Slurm job."""
        if not is_workload(job):
            return False
        if is_workload(place):
            held_gpus = self.footprint_of(place).gpus
            return place == job or (bool(held_gpus) and held_gpus <= self.footprint_of(job).gpus)
        return place.gpu is not None and self.footprint_of(job).includes(place)

    def places_near(self, place: fleet.Place) -> dict[fleet.Place, None]:
        """A place, its nodes if it is a domain, and the domains that contain it."""
        inside = self.nodes_of(place) if place.domain is not None else ()
        outer = (domain for node in (*inside, place) if node.node for domain in self.domains_of(node))
        return dict.fromkeys([place, *inside, *outer])

    def places_of_job(self, job: fleet.Place) -> dict[fleet.Place, None]:
        """The job itself, its nodes, and their domains: a fault at any of them can affect the job."""
        nodes = sorted(self.footprint_of(job).nodes)
        return dict.fromkeys([job, *nodes, *(outer for node in nodes for outer in self.domains_of(node))])


@dataclass(frozen=True, slots=True)
class Extent:
    domain: fleet.Place
    failed: int
    nodes: int
    since: datetime

    @property
    def share(self) -> float:
        return self.failed / self.nodes if self.nodes else 0.0


def domain_failure_signal(incident: Incident, domains: Domains, *, near: IncidentsNear) -> Signal | None:
    """The signal of a domain of this incident's node, if enough of its nodes have the same fault."""
    place = incident.place
    if place.domain is not None and incident.is_open:
        return _updated_domain_signal(incident, domains, near=near)
    if place.node is None or place.gpu is not None or not incident.is_open:
        return None
    kinds = DOMAIN_KINDS.get(incident.family, ())
    node_domains = domains.domains_of(place.whole_node)
    candidates = [domain for domain in node_domains if (domain.domain or "").partition("=")[0] in kinds]
    extents = [_extent(incident, domain, domains, near=near) for domain in candidates]
    failed = [extent for extent in extents if extent.failed >= MIN_NODES and extent.share >= MIN_SHARE]
    # If two domains failed completely, the larger one explains more.
    widest = max(failed, key=lambda extent: (extent.share, extent.nodes), default=None)
    return None if widest is None else _domain_signal(incident, widest)


def _updated_domain_signal(incident: Incident, domains: Domains, *, near: IncidentsNear) -> Signal | None:
    """The new signal of a failed domain when more of its nodes have the fault than its signal states."""
    domain_member = next((member for member in incident.members if member.kind is MemberKind.DOMAIN), None)
    if domain_member is None:
        return None
    extent = _extent(incident, incident.place, domains, near=near)
    reported = FAILED_COUNT.match(domain_member.text)
    if reported is None or extent.failed <= int(reported[1]):
        return None
    updated = _domain_signal(incident, extent)
    return Signal(replace(updated.member, ref=domain_member.ref, since=domain_member.since), updated.family)


def _extent(incident: Incident, domain: fleet.Place, domains: Domains, *, near: IncidentsNear) -> Extent:
    nodes = domains.nodes_of(domain)
    names = {place.node for place in nodes}
    # When a job stalled does not show when its nodes failed.
    latest = max(member.since for member in incident.members if not is_workload(member.place))
    live_members = [
        member
        for neighbour in near(domain)
        if neighbour.is_open and neighbour.family == incident.family
        for member in neighbour.members
        if member.until is None and member.place.node in names and abs(latest - member.since) <= MAX_SPREAD
    ]
    since = min((member.since for member in live_members), default=latest)
    return Extent(domain, len({member.place.node for member in live_members}), len(nodes), since)


def _domain_signal(incident: Incident, extent: Extent) -> Signal:
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
