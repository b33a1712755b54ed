"""Decide whether a job's stall or slowdown belongs to the incident of a fault under one of its ranks.

Pure, like `correlate`, which calls this. packs/effects.csv lists what can stop or slow a job, and for how long after
the fault; `Domains.job_runs_at` tells whether a job runs at a place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from watchkeeper.catalogue import causes
from watchkeeper.incidents import gpu_claims
from watchkeeper.incidents.footprint import Footprint, is_workload
from watchkeeper.incidents.signals import Signal, anchor_place, family_of
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, IncidentId, Member, age_key

# A stalled job is detected within a minute, the link or fan that caused it after a rate and a hold of minutes.
MAX_JOB_LEAD = timedelta(minutes=10)
# Each change of an incident writes these: the GPUs of a job on one or two nodes, the nodes of a larger one.
MAX_LISTED_GPUS, MAX_LISTED_NODES = 16, 1_000
PlaceRelation = Callable[[fleet.Place, fleet.Place], bool]


def explains_job_effect(incident: Incident, signal: Signal, job_runs_at: PlaceRelation) -> bool:
    """Whether the incident is a fault under a rank of this job that can cause this, and is not too old."""
    max_age = causes.job_effects(incident.cause).get(signal.cause)
    if max_age is None or not is_workload(signal.place):
        return False
    newest = max(member.since for member in incident.members if not is_job_member(member, incident))
    return signal.at - newest <= max_age and job_runs_at(incident.place, signal.place)


def is_caused_by_job(incident: Incident, signal: Signal, job_holds: PlaceRelation) -> bool:
    """Whether the signal follows from a stalled job that already belongs to this incident."""
    place = anchor_place(signal.place, signal.cause)
    return any(
        signal.family in causes.affected_families(job_signal.cause)
        if job_signal.place != signal.place
        else job_signal.family == signal.family or signal.cause in causes.job_effects(job_signal.cause)
        for job_signal in ongoing_job_signals(incident)
        if job_signal.place == signal.place or job_holds(job_signal.place, place)
    )


def is_early_effect(incident: Incident, signal: Signal, job_runs_at: PlaceRelation) -> bool:
    """Whether the incident of a job was detected shortly before the fault that caused it, which is the signal."""
    max_age = causes.job_effects(signal.cause).get(incident.cause)
    if max_age is None or not is_workload(incident.place):
        return False
    leads = [signal.at - member.since for member in incident.members]
    is_fresh = all(lead <= MAX_JOB_LEAD and (lead >= timedelta() or -lead <= max_age) for lead in leads)
    return is_fresh and job_runs_at(anchor_place(signal.place, signal.cause), incident.place)


def order_hosts(hosts: Sequence[Incident], signal: Signal) -> Sequence[Incident]:
    """Oldest first; for a job signal its own incident first, then faults by severity, the newest first."""
    if not is_workload(signal.place):
        return hosts
    newest_first = sorted(hosts, key=lambda host: host.opened_at, reverse=True)
    return sorted(newest_first, key=lambda host: (host.family != signal.family, -host.severity.rank))


def is_job_member(member: Member, incident: Incident) -> bool:
    """Whether the member is about a job and the incident is about the fault that stopped it."""
    return is_workload(member.place) and member.place != incident.place


def ongoing_job_signals(incident: Incident) -> list[Signal]:
    ongoing = [member for member in incident.members if member.until is None and is_job_member(member, incident)]
    return [Signal(member, family_of(member)) for member in ongoing]


def places_of_jobs(
    incident: Incident, members: Sequence[Member], footprint_of: Callable[[fleet.Place], Footprint]
) -> tuple[fleet.Place, ...]:
    """Where the jobs and pods with ongoing signals run; it is queried again only when they change."""
    workloads = workloads_of(members)
    if incident.runs_on and workloads <= workloads_of(incident.members):
        return incident.runs_on if workloads else ()
    footprints = [footprint_of(place) for place in workloads]
    gpus = frozenset().union(*(footprint.gpus for footprint in footprints))
    nodes = frozenset().union(*(footprint.nodes for footprint in footprints))
    whole_nodes = frozenset().union(*(footprint.whole_nodes for footprint in footprints))
    places = nodes if len(gpus) > MAX_LISTED_GPUS else gpus | whole_nodes
    return tuple(sorted(places, key=str))[:MAX_LISTED_NODES]


def workloads_of(members: Sequence[Member]) -> frozenset[fleet.Place]:
    """The jobs and pods whose other GPUs and ranks can show the same fault."""
    ongoing = (member for member in members if member.until is None and is_workload(member.place))
    return frozenset(
        member.place
        for member in ongoing
        if causes.is_job_effect(member.cause) or causes.is_effect_of_jobs(family_of(member))
    )


def find_roots(incidents: Sequence[Incident]) -> dict[IncidentId, IncidentId]:
    """For each incident at a place of a job that another open incident stops: that incident, the oldest of them."""
    hosts: dict[fleet.Place, IncidentId] = {}
    hosts_on_node: dict[fleet.Place, IncidentId] = {}
    stopping = {incident.id for incident in incidents if gpu_claims.stopped_workloads(incident)}
    for incident in sorted((incident for incident in incidents if incident.id in stopping), key=age_key):
        for place in incident.runs_on:
            hosts.setdefault(place, incident.id)
            hosts_on_node.setdefault(place.whole_node, incident.id)
    roots = {}
    for incident in incidents if hosts else ():
        place = replace(incident.place, slice=None)
        host = hosts.get(place) or hosts.get(place.whole_node)
        host = host or (hosts_on_node.get(place.whole_node) if place.gpu is None else None)
        if host is not None and incident.id not in stopping:
            roots[incident.id] = host
    return roots
