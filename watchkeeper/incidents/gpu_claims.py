"""Which GPUs do no work because of an incident, and since when.

`blast_radius` counts and prices them. A GPU that several open incidents claim counts for the oldest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache

from watchkeeper.catalogue import causes
from watchkeeper.catalogue.causes import GpuEffect
from watchkeeper.incidents.footprint import is_workload, workload_name
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, Member, MemberKind

# The GPUs of a place, and those of workloads by name.
GpusAt = Callable[[fleet.Place], Collection[str]]
GpusOf = Mapping[str, Collection[str]]
Period = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Claim:
    """GPUs that do no work while a signal lasts; no GPUs of a workload that waits are unknown ones."""

    effect: GpuEffect
    gpus: frozenset[str]
    since: datetime
    until: datetime | None


def stopped_workloads(incident: Incident) -> frozenset[str]:
    """The jobs that finish no step, by a signal of this incident."""
    effects = ((member, causes.gpu_effect(member.cause)) for member in _claiming(incident) if is_workload(member.place))
    return frozenset(workload_name(member.place) for member, effect in effects if effect is GpuEffect.WAITING)


def has_impact(incident: Incident) -> bool:
    """Whether a signal shows that GPUs do no work, or is about a workload itself; else its workloads only run there."""
    members = _claiming(incident)
    return any(is_workload(member.place) or causes.gpu_effect(member.cause) for member in members)


def find_claims(incident: Incident, gpus_at: GpusAt, gpus_of: GpusOf, *, current: bool = False) -> list[Claim]:
    """The claims of all signals; `current`: only of those that an open incident still has."""
    claims = []
    for member in _claiming(incident) if current else incident.members:
        effect = causes.gpu_effect(member.cause)
        if effect is None or member.kind is MemberKind.DOMAIN:
            continue
        if is_workload(member.place):
            gpus = gpus_of.get(workload_name(member.place), ())
        else:
            gpus = () if effect is GpuEffect.WAITING else _gpus_of_member(member, incident, gpus_at)
        since = member.since - timedelta(seconds=member.previous_seconds)
        claims.append(Claim(effect, frozenset(gpus), since, member.until))
    return claims


def claimed_gpus(claims: Iterable[Claim], *effects: GpuEffect) -> frozenset[str]:
    return frozenset().union(*(claim.gpus for claim in claims if not effects or claim.effect in effects))


def gpu_hours(claims: Sequence[Claim], others: Sequence[Claim], *, end: datetime) -> float:
    """GPU-hours until `end`, each GPU once, without the time that other incidents count."""
    periods_of: dict[str, tuple[list[Period], list[Period]]] = {}
    for is_other, claim in [*((False, claim) for claim in claims), *((True, claim) for claim in others)]:
        period = claim.since.timestamp(), min(claim.until or end, end).timestamp()
        for gpu in claim.gpus:
            periods_of.setdefault(gpu, ([], []))[is_other].append(period)

    @cache
    def seconds(own: tuple[Period, ...], other: tuple[Period, ...]) -> float:
        return _covered_seconds((*own, *other)) - _covered_seconds(other)

    return sum(seconds(tuple(own), tuple(other)) for own, other in periods_of.values()) / 3600


def _claiming(incident: Incident) -> list[Member]:
    """The members that are true now; of a resolved incident all."""
    return [member for member in incident.members if member.until is None or not incident.is_open]


def _gpus_of_member(member: Member, incident: Incident, gpus_at: GpusAt) -> Collection[str]:
    place = member.place
    if place.gpu is not None or place.node is None or causes.lookup(member.cause).scope != "gpu":
        return gpus_at(place)
    # One GPU of the node: the one that another signal names, or an unknown one.
    on_node = [other.place.gpu for other in incident.members if other.place.gpu and other.place.node == place.node]
    return [on_node[0] or ""] if on_node else [f"{place.node}/unknown"]


def _covered_seconds(periods: Iterable[Period]) -> float:
    total, covered_until = 0.0, float("-inf")
    for start, end in sorted(periods):
        total += max(0.0, end - max(start, covered_until))
        covered_until = max(covered_until, end)
    return total
