"""Blast radius: which GPUs, jobs and teams an incident affects, and what that costs.

A broken GPU stops its job on all other GPUs of the job. So the blast radius counts all GPUs of the affected
workloads, not only the broken ones. A distributed job counts as one workload with all its pods; each replica of a
service counts on its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchkeeper.incidents.footprint import RANKS, jobs_of
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import fleet, labels, workloads
from watchkeeper.model.incidents import Incident

WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
# The labels of a GPU end when the GPU stops reporting: the holder is in the samples before that.
WINDOW = "5m"
SHARE = "watchkeeper:job_gpu:share"
TRAINING = "watchkeeper:job_training:group"
OF_ONE_JOB = "on (cluster, workload_kind, namespace, job_name)"
SETTLED = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class AffectedWorkload:
    """A workload and all GPUs that it holds, on any node; None if unknown. `team` may be `unmapped`."""

    workload: str
    team: str
    gpus: int | None


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """`broken_gpus` are the GPUs at the incident's places; `gpus` also counts all GPUs of the affected workloads."""

    broken_gpus: int
    gpus: int
    affected_workloads: tuple[AffectedWorkload, ...] = field(metadata={"json_key": "hits"})
    teams: tuple[str, ...]
    gpu_hours: float
    # In `currency`, which is mostly USD; None without a price.
    dollars_per_hour: float | None
    cost_so_far: float | None = None
    currency: str = "USD"

    @property
    def hourly_text(self) -> str:
        if self.dollars_per_hour is None:
            return "unknown cost"
        sign = "$" if self.currency == "USD" else f"{self.currency} "
        return f"{sign}{self.dollars_per_hour:,.2f}/h"

    @property
    def unmapped(self) -> tuple[str, ...]:
        return tuple(affected.workload for affected in self.affected_workloads if affected.team == fleet.UNMAPPED)


def holders_query(incident: Incident, now: datetime) -> tuple[str, int] | None:
    """The query for the GPUs of the affected workloads, and its time in ms; None without affected workloads."""
    jobs = jobs_of(incident)
    others = {workload.rpartition("/")[2] for workload in incident.workloads if workload not in jobs}
    exprs = [_job_gpus_query(jobs)] if jobs else []
    if others:
        selector = f'{{workload=~"{_names_pattern(others)}"}}[{WINDOW}]'
        # All pods of the training jobs that these workloads belong to.
        affected = f"last_over_time({SHARE}{selector}) and {OF_ONE_JOB} last_over_time({TRAINING}[{WINDOW}])"
        all_pods = f"last_over_time({SHARE}[{WINDOW}]) and {OF_ONE_JOB} ({affected})"
        gangs = f'label_replace({all_pods}, "gang", "$1", "job_name", "(.+)")'
        exprs.append(f"count by (gang, namespace, workload, team) ({gangs})")
        exprs.append(f"count by (namespace, workload, team) (last_over_time({WORKLOAD_INFO}{selector}))")
    return (" or ".join(exprs), clock.to_ms(min(now, incident.opened_at + SETTLED))) if exprs else None


def _job_gpus_query(jobs: Collection[str]) -> str:
    """GPUs by job and pod; by job only if the holders are unknown or no rank reports."""
    selector = f'{{job_name=~"{_names_pattern(jobs)}"}}[{WINDOW}]'
    ranks = f"group by (cluster, UUID, job_name) (last_over_time({RANKS}{selector}))"
    held_gpus = f"max by (cluster, UUID, namespace, workload, team) (last_over_time({WORKLOAD_INFO}[{WINDOW}]))"
    # A GPU that two jobs share counts for only one of them.
    by_pod = f"{held_gpus} * on (cluster, UUID) group_left (job_name) topk by (cluster, UUID) (1, {ranks})"
    return (
        f"(count by (job_name, namespace, workload, team) ({by_pod}) or on (job_name) count by (job_name) ({ranks})"
        f" or on (job_name) count by (job_name, namespace, workload, team) (last_over_time({SHARE}{selector})))"
    )


def _names_pattern(names: Collection[str]) -> str:
    return own_metrics.escape("|".join(sorted(re.escape(name) for name in names)))


def compute_blast_radius(
    incident: Incident,
    holders: Mapping[labels.Labels, float],
    *,
    now: datetime,
    gpus_at: Callable[[fleet.Place], int],
    price_per_gpu_hour: float | None,
    currency: str = "USD",
) -> BlastRadius:
    """What an incident affects, or affected while it was open; `holders` is the result of `holders_query`."""
    affected = _affected_workloads(incident, holders)
    places = {member.place for member in incident.members}
    outside = {place for place in places if place == incident.place or not incident.place.encloses(place)}
    same_cause = [member for member in incident.members if member.place.gpu and member.cause == incident.cause]
    # Idle GPUs of one job are one incident, at the place of the first of them.
    same_cause_gpus = len({replace(member.place, slice=None) for member in same_cause}) if incident.place.gpu else 0
    broken_gpus = max(gpus_at(incident.place), same_cause_gpus) or sum(gpus_at(place) for place in outside)
    gpus = max(broken_gpus, sum(workload.gpus or 0 for workload in affected))
    gpu_hours = gpus * max(((incident.resolved_at or now) - incident.opened_at).total_seconds(), 0.0) / 3600
    return BlastRadius(
        broken_gpus=broken_gpus,
        gpus=gpus,
        affected_workloads=affected,
        teams=tuple(sorted({workload.team for workload in affected})),
        gpu_hours=round(gpu_hours, 2),
        dollars_per_hour=None if price_per_gpu_hour is None else round(gpus * price_per_gpu_hour, 2),
        cost_so_far=None if price_per_gpu_hour is None else round(gpu_hours * price_per_gpu_hour, 2),
        currency=currency,
    )


def _affected_workloads(incident: Incident, holders: Mapping[labels.Labels, float]) -> tuple[AffectedWorkload, ...]:
    gpus_by_workload: dict[str, tuple[str, float]] = {}
    # Pods that are counted as part of their job; on their own they would count twice.
    counted_pods, gang_of_pod = set[str](), dict[str, str]()
    for holder, value in holders.items():
        name = _workload_name(holder)
        if holder.get("job_name"):
            counted_pods.add(name)
            name = holder["job_name"]
        elif holder.get("gang"):
            gang_of_pod[name] = _workload_name(holder, label="gang")
            name = gang_of_pod[name]
        team, gpus_before = gpus_by_workload.get(name, (holder.get("team", ""), 0.0))
        gpus_by_workload[name] = (team, gpus_before + value)
    affected = []
    names = [gang_of_pod.get(name, name) for name in incident.workloads if name not in counted_pods]
    for workload in dict.fromkeys(names):
        team, gpus = gpus_by_workload.get(workload, (workload.partition("/")[0] if "/" in workload else "", None))
        affected.append(AffectedWorkload(workload, team or fleet.UNMAPPED, None if gpus is None else int(gpus)))
    return tuple(affected)


def _workload_name(holder: Mapping[str, str], *, label: str = "workload") -> str:
    return workloads.workload_name(holder.get("namespace", ""), holder.get(label, ""))
