"""Blast radius: which GPUs, jobs and teams an incident affects, and what that costs.

A fault under a job may stop it on all its GPUs, or not at all. So all GPUs of a job count while a signal shows that it
finishes no step, and otherwise those that are lost or idle. A distributed job counts as one workload with all its pods;
each replica of a service counts on its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from watchkeeper.catalogue.causes import GpuEffect
from watchkeeper.incidents import gpu_claims
from watchkeeper.incidents.footprint import RANKS, jobs_of
from watchkeeper.kit import clock, own_metrics, wire
from watchkeeper.model import fleet, labels, workloads
from watchkeeper.model.incidents import Incident

WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
# The labels of a GPU end when the GPU stops reporting: the holder is in the samples before that.
WINDOW = "5m"
SHARE = "watchkeeper:job_gpu:share"
TRAINING = "watchkeeper:job_training:group"
OF_ONE_GPU = "cluster, UUID, namespace, workload, team"
OF_ONE_JOB = "on (cluster, workload_kind, namespace, job_name)"
SETTLED = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class AffectedWorkload:
    """A workload and all GPUs that it holds, on any node; None if unknown. `team` may be `unmapped`."""

    workload: str
    team: str
    gpus: int | None
    # Whether a signal shows that it finishes no step; only then its GPUs count and cost.
    is_stopped: bool = wire.json_key("stopped", default=False)


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """`gpus` do no work and count here; they are lost, idle, or wait in a stopped job. All `broken_gpus` are lost."""

    broken_gpus: int
    gpus: int
    affected_workloads: tuple[AffectedWorkload, ...] = field(metadata={"json_key": "hits"})
    teams: tuple[str, ...]
    gpu_hours: float
    # In `currency`, which is mostly USD; None without a price, or if the GPUs of a stopped job are unknown.
    dollars_per_hour: float | None
    cost_so_far: float | None = None
    currency: str = "USD"
    # Older open incidents that count the other GPUs that do no work here: each GPU counts and costs once.
    counted_in: tuple[str, ...] = ()

    @property
    def hourly_text(self) -> str:
        if self.dollars_per_hour is None:
            return "unknown cost"
        sign = "$" if self.currency == "USD" else f"{self.currency} "
        return f"{sign}{self.dollars_per_hour:,.2f}/h"

    @property
    def unmapped(self) -> tuple[str, ...]:
        return tuple(affected.workload for affected in self.affected_workloads if affected.team == fleet.UNMAPPED)


def holders_query(incident: Incident, now: datetime, older: Iterable[Incident] = ()) -> tuple[str, int] | None:
    """The query for the GPUs of the affected workloads, and its time in ms; None without affected workloads.

    `older` are open incidents that may count the same GPUs.
    """
    jobs = jobs_of(incident)
    others = {workload.rpartition("/")[2] for workload in incident.workloads if workload not in jobs}
    jobs |= frozenset().union(*(gpu_claims.stopped_workloads(other) for other in older))
    exprs = [_job_gpus_query(jobs)] if jobs else []
    if others:
        selector = f'{{workload=~"{_names_pattern(others)}"}}[{WINDOW}]'
        # All pods of the training jobs that these workloads belong to.
        affected = f"last_over_time({SHARE}{selector}) and {OF_ONE_JOB} last_over_time({TRAINING}[{WINDOW}])"
        all_pods = f"last_over_time({SHARE}[{WINDOW}]) and {OF_ONE_JOB} ({affected})"
        gangs = f'label_replace({all_pods}, "gang", "$1", "job_name", "(.+)")'
        exprs.append(f"group by (gang, {OF_ONE_GPU}) ({gangs})")
        exprs.append(f"group by ({OF_ONE_GPU}) (last_over_time({WORKLOAD_INFO}{selector}))")
    return (" or ".join(exprs), clock.to_ms(min(now, incident.opened_at + SETTLED))) if exprs else None


def _job_gpus_query(jobs: Collection[str]) -> str:
    """GPUs by job and pod; by job only if the holders are unknown or no rank reports."""
    selector = f'{{job_name=~"{_names_pattern(jobs)}"}}[{WINDOW}]'
    ranks = f"group by (cluster, UUID, job_name) (last_over_time({RANKS}{selector}))"
    held_gpus = f"max by (cluster, UUID, namespace, workload, team) (last_over_time({WORKLOAD_INFO}[{WINDOW}]))"
    # A GPU that two jobs share counts for only one of them.
    by_pod = f"{held_gpus} * on (cluster, UUID) group_left (job_name) topk by (cluster, UUID) (1, {ranks})"
    shares = f"group by (job_name, {OF_ONE_GPU}) (last_over_time({SHARE}{selector}))"
    return f"(group by (job_name, {OF_ONE_GPU}) ({by_pod}) or on (job_name) ({ranks}) or on (job_name) ({shares}))"


def _names_pattern(names: Collection[str]) -> str:
    return own_metrics.escape("|".join(sorted(re.escape(name) for name in names)))


def compute_blast_radius(
    incident: Incident,
    holders: Collection[labels.Labels],
    *,
    now: datetime,
    gpus_at: gpu_claims.GpusAt,
    price_per_gpu_hour: float | None,
    currency: str = "USD",
    older: Sequence[Incident] = (),
) -> BlastRadius:
    """What an incident affects, or affected while it was open; `holders` are the series of `holders_query`."""
    gpus_of, affected = gpus_of_workloads(holders), _affected_workloads(incident, holders)
    claims = gpu_claims.find_claims(incident, gpus_at, gpus_of)
    current = gpu_claims.find_claims(incident, gpus_at, gpus_of, current=True)
    claims_of = {other.id: gpu_claims.find_claims(other, gpus_at, gpus_of, current=True) for other in older}
    others = [claim for of_other in claims_of.values() for claim in of_other]
    gpus = gpu_claims.claimed_gpus(current)
    gpu_hours = gpu_claims.gpu_hours(claims, others, end=incident.resolved_at or now)
    # A stopped job of which no GPU is known.
    is_unknown = any(claim.effect is GpuEffect.WAITING and not claim.gpus for claim in current)
    price = None if is_unknown else price_per_gpu_hour
    counted = len(gpus - gpu_claims.claimed_gpus(others))
    return BlastRadius(
        broken_gpus=len(gpu_claims.claimed_gpus(current, GpuEffect.LOST)),
        gpus=counted,
        affected_workloads=affected,
        teams=tuple(sorted({workload.team for workload in affected})),
        gpu_hours=round(gpu_hours, 2),
        dollars_per_hour=None if price is None else round(counted * price, 2),
        cost_so_far=None if price is None else round(gpu_hours * price, 2),
        currency=currency,
        counted_in=tuple(id for id, of_other in claims_of.items() if gpus & gpu_claims.claimed_gpus(of_other)),
    )


def gpus_of_workloads(holders: Iterable[labels.Labels]) -> dict[str, set[str]]:
    """GPUs by the name of the job and of each pod or Slurm job; a series without a UUID counts as one GPU."""
    gpus: dict[str, set[str]] = {}
    for holder in holders:
        for name in filter(
            None, (holder.get("job_name"), _workload_name(holder, label="gang"), _workload_name(holder))
        ):
            gpus.setdefault(name, set()).add(holder.get("UUID") or str(holder))
    return gpus


def _affected_workloads(incident: Incident, holders: Collection[labels.Labels]) -> tuple[AffectedWorkload, ...]:
    gpus_of, stopped = gpus_of_workloads(holders), gpu_claims.stopped_workloads(incident)
    # Pods that are counted as part of their job; on their own they would count twice.
    teams, counted_pods, gang_of_pod = dict[str, str](), set[str](), dict[str, str]()
    for holder in holders:
        name = _workload_name(holder)
        if holder.get("job_name"):
            counted_pods.add(name)
            name = holder["job_name"]
        elif holder.get("gang"):
            gang_of_pod[name] = _workload_name(holder, label="gang")
            name = gang_of_pod[name]
        teams.setdefault(name, holder.get("team", ""))
    affected = []
    names = [gang_of_pod.get(name, name) for name in incident.workloads if name not in counted_pods]
    for workload in dict.fromkeys(names):
        team = teams.get(workload, workload.partition("/")[0] if "/" in workload else "") or fleet.UNMAPPED
        gpus = len(gpus_of[workload]) if workload in gpus_of else None
        affected.append(AffectedWorkload(workload, team, gpus, workload in stopped))
    return tuple(affected)


def _workload_name(holder: Mapping[str, str], *, label: str = "workload") -> str:
    name = holder.get(label, "")
    return workloads.workload_name(holder.get("namespace", ""), name) if name else ""
