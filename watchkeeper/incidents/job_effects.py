"""What jobs suffer from a fault under one of their ranks: when the two are one incident, and when no longer.

Pure, like `correlate`, which asks here. What can stop or slow a job, and for how long it is to blame, is
packs/effects.csv; whether a job runs at a place is asked of `domains.Domains.reaches`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

from watchkeeper.catalogue import causes, effects
from watchkeeper.incidents.footprint import is_workload
from watchkeeper.incidents.signals import Signal, anchor_place
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, Member

# A job that stands still is told of within a minute, a link or fan that is to blame after a rate and a hold of minutes.
JOB_FIRST = timedelta(minutes=10)
Reaches = Callable[[fleet.Place, fleet.Place], bool]


def explains(incident: Incident, signal: Signal, reaches: Reaches) -> bool:
    """A fault under a rank of this job that can do this to a job, and is not so old that it had its chance."""
    within = effects.job_effects(incident.cause).get(signal.cause)
    if within is None or not is_workload(signal.place):
        return False
    newest = max(member.since for member in incident.members if not is_guest(member, incident))
    return signal.at - newest <= within and reaches(incident.place, signal.place)


def follows(incident: Incident, signal: Signal, holds: Reaches) -> bool:
    """What a job, or what it holds, shows because it stands still: it goes with the job to what stopped it."""
    place = anchor_place(signal.place, signal.cause)
    return any(
        signal.family in effects.affected_families(guest.cause)
        if guest.place != signal.place
        else guest.family == signal.family or signal.cause in effects.job_effects(guest.cause)
        for guest in lasting(incident)
        if guest.place == signal.place or holds(guest.place, place)
    )


def was_first(incident: Incident, signal: Signal, reaches: Reaches) -> bool:
    """The trouble of a job that was seen moments before the fault which brought it about."""
    within = effects.job_effects(signal.cause).get(incident.cause)
    if within is None or not is_workload(incident.place):
        return False
    waits = [signal.at - member.since for member in incident.members]
    is_fresh = all(wait <= JOB_FIRST and (wait >= timedelta() or -wait <= within) for wait in waits)
    return is_fresh and reaches(anchor_place(signal.place, signal.cause), incident.place)


def best_first(hosts: Sequence[Incident], signal: Signal) -> Sequence[Incident]:
    """The oldest; for a job its own, and of the faults under its ranks the gravest and then the newest."""
    if not is_workload(signal.place):
        return hosts
    newest_first = sorted(hosts, key=lambda one: one.opened_at, reverse=True)
    return sorted(newest_first, key=lambda one: (one.family != signal.family, -one.severity.rank))


def is_guest(member: Member, incident: Incident) -> bool:
    """A member that tells of a job, in the incident of what had stopped the job."""
    return is_workload(member.place) and member.place != incident.place


def lasting(incident: Incident) -> list[Signal]:
    """What jobs suffer from an incident and have not overcome."""
    guests = [member for member in incident.members if member.until is None and is_guest(member, incident)]
    return [Signal(member, causes.lookup(member.cause).family) for member in guests]
