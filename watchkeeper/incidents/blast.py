"""Blast radius: which GPUs, jobs and teams an incident hits, and what that costs.

A GPU that breaks stops its job on every other GPU as well, so what counts is what the hit workloads hold, not what
broke. A job whose ranks go in step counts as one, with all of its pods; replicas of a service are pods of their own.
`question` is what to ask the engine, `of` makes the answer a blast radius; pages and reports show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.incidents.footprint import RANKS, jobs_of
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import fleet, labels, workloads
from watchkeeper.model.incidents import Incident

WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
# A GPU that is gone takes its labels along; who held it stood there until then.
WINDOW = "5m"
SHARE = "watchkeeper:job_gpu:share"
TRAINING = "watchkeeper:job_training:group"
OF_ONE_JOB = "on (cluster, workload_kind, namespace, job_name)"
SETTLED = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Hit:
    """One workload; `gpus` is how many it holds anywhere, None where nobody says. A `team` may be `unmapped`."""

    workload: str
    team: str
    gpus: int | None


@dataclass(frozen=True, slots=True)
class Blast:
    """`broken_gpus` lie in the incident's places; `gpus` are those, or what the hit workloads hold if that is more."""

    broken_gpus: int
    gpus: int
    hits: tuple[Hit, ...]
    teams: tuple[str, ...]
    gpu_hours: float
    dollars_per_hour: float

    @property
    def unmapped(self) -> tuple[str, ...]:
        """The workloads that belong to no team."""
        return tuple(hit.workload for hit in self.hits if hit.team == fleet.UNMAPPED)


def holders_query(incident: Incident, now: datetime) -> tuple[str, int] | None:
    """What to ask, and at what time, to learn how much the hit workloads hold; None where there are none."""
    jobs = jobs_of(incident)
    others = {workload.rpartition("/")[2] for workload in incident.workloads if workload not in jobs}
    asked = [_of_jobs(jobs)] if jobs else []
    if others:
        named = f'{{workload=~"{_any_of(others)}"}}[{WINDOW}]'
        asked += [_of_gangs(named), f"count by (namespace, workload, team) (last_over_time({WORKLOAD_INFO}{named}))"]
    return (" or ".join(asked), clock.to_ms(min(now, incident.opened_at + SETTLED))) if asked else None


def _of_jobs(jobs: Collection[str]) -> str:
    """GPUs by job and pod; by job alone where nobody tells what holds them, or where no rank tells anything."""
    named = f'{{job_name=~"{_any_of(jobs)}"}}[{WINDOW}]'
    ranks = f"group by (cluster, UUID, job_name) (last_over_time({RANKS}{named}))"
    held = f"max by (cluster, UUID, namespace, workload, team) (last_over_time({WORKLOAD_INFO}[{WINDOW}]))"
    # A GPU that two jobs share is one of them.
    by_pod = f"{held} * on (cluster, UUID) group_left (job_name) topk by (cluster, UUID) (1, {ranks})"
    return (
        f"(count by (job_name, namespace, workload, team) ({by_pod}) or on (job_name) count by (job_name) ({ranks})"
        f" or on (job_name) count by (job_name, namespace, workload, team) (last_over_time({SHARE}{named})))"
    )


def _of_gangs(named: str) -> str:
    """GPUs of every pod of the training jobs that these workloads are ranks of."""
    hit = f"last_over_time({SHARE}{named}) and {OF_ONE_JOB} last_over_time({TRAINING}[{WINDOW}])"
    all_pods = f"last_over_time({SHARE}[{WINDOW}]) and {OF_ONE_JOB} ({hit})"
    return f'count by (gang, namespace, workload, team) (label_replace({all_pods}, "gang", "$1", "job_name", "(.+)"))'


def _any_of(names: Collection[str]) -> str:
    return own_metrics.escape("|".join(sorted(re.escape(name) for name in names)))


def compute_blast(
    incident: Incident,
    holders: Mapping[labels.Labels, float],
    *,
    now: datetime,
    gpus_at: Callable[[fleet.Place], int],
    dollars_per_gpu_hour: float,
) -> Blast:
    """What an incident hits, or hit while it was open; `holders` is the answer to the question."""
    hits = _hits(incident, holders)
    places = {member.place for member in incident.members if not _is_inside(member.place, incident.place)}
    same = {replace(one.place, slice=None) for one in incident.members if one.place.gpu and one.cause == incident.cause}
    # A GPU may be the first of a job's that do nothing; they are one incident.
    at_place = max(gpus_at(incident.place), len(same)) if incident.place.gpu else gpus_at(incident.place)
    broken = at_place or sum(gpus_at(place) for place in places)
    gpus = max(broken, sum(hit.gpus or 0 for hit in hits))
    lasted = ((incident.resolved_at or now) - incident.opened_at).total_seconds()
    return Blast(
        broken_gpus=broken,
        gpus=gpus,
        hits=hits,
        teams=tuple(sorted({hit.team for hit in hits})),
        gpu_hours=round(gpus * max(lasted, 0.0) / 3600, 2),
        dollars_per_hour=round(gpus * dollars_per_gpu_hour, 2),
    )


def _is_inside(place: fleet.Place, outer: fleet.Place) -> bool:
    return place != outer and outer.encloses(place)


def _hits(incident: Incident, holders: Mapping[labels.Labels, float]) -> tuple[Hit, ...]:
    counted: dict[str, tuple[str, float]] = {}
    # A pod of a job that is counted as a whole would count twice.
    parts, gang_of = set[str](), dict[str, str]()
    for held, value in holders.items():
        name = _name(held)
        if held.get("job_name"):
            parts.add(name)
            name = held["job_name"]
        elif held.get("gang"):
            gang_of[name] = _name(held, called="gang")
            name = gang_of[name]
        team, before = counted.get(name, (held.get("team", ""), 0.0))
        counted[name] = (team, before + value)
    found = []
    for workload in dict.fromkeys(gang_of.get(one, one) for one in incident.workloads if one not in parts):
        team, gpus = counted.get(workload, (workload.partition("/")[0] if "/" in workload else "", None))
        found.append(Hit(workload, team or fleet.UNMAPPED, None if gpus is None else int(gpus)))
    return tuple(found)


def _name(held: Mapping[str, str], *, called: str = "workload") -> str:
    return workloads.workload_name(held.get("namespace", ""), held.get(called, ""))
