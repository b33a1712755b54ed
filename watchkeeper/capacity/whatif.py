"""Compare what-if replays: the same jobs on the current fleet and on a changed fleet.

A change adds nodes, removes GPUs, nodes or racks, or partitions GPUs with MIG. `compare` replays the jobs on both
fleets and returns waits by job size, utilisation and the assumptions; `find_smallest_addition` searches the nodes that
a target wait needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.jobs import JobRecords, RecordedJob, unknown_models
from watchkeeper.capacity.replay import QueuePolicy, ReplayOutcome, replay
from watchkeeper.capacity.simulated_fleet import FleetNode
from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers.table import PlainProblems

ASSUMPTIONS = (
    "each job runs as long as when it was recorded, on any GPU",
    "jobs are submitted at the same times",
    "only GPUs are limited: CPUs, memory, quotas, priorities and affinities are ignored",
    "a job that fits on one node runs on one node; a larger job takes whole nodes",
)
# Rows of the table by job size; all jobs below one GPU are in one row.
SHAPES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DAY_SECONDS = 86_400.0
# If adding four times the fleet is not enough, the jobs are the problem and not the fleet.
MAX_FLEET_MULTIPLE = 4


class Spread(TypedDict):
    """Waits in seconds; None if no job has started."""

    jobs: int
    mean: float | None
    p50: float | None
    p95: float | None
    max: float | None


class Waits(Spread):
    by_gpus: dict[str, Spread]


class RecordedWaits(TypedDict):
    wait: Waits


class NeverFits(TypedDict):
    jobs: int
    gpus: list[float]


class ReplaySummary(TypedDict):
    gpus: float
    utilisation: float | None
    gpu_hours_used: float
    gpu_hours_available: float
    peak_gpus: float
    wait: Waits
    started_after_the_record: int
    never_fits: NeverFits


class WhatIf(TypedDict):
    """The comparison of two replays, in the format of `--json` and the API."""

    change: str
    policy: str
    jobs: dict[str, int]
    layout: str
    since: float
    until: float
    recorded: RecordedWaits
    before: ReplaySummary
    after: ReplaySummary
    unknown_models: dict[str, int]
    assumes: list[str]
    problems: PlainProblems


@dataclass(frozen=True, slots=True)
class FleetChange:
    """A change of the fleet; `slice_gpus` GPUs are partitioned into `slices_of_gpu` MIG instances each."""

    add_gpus: int = 0
    remove_gpus: int = 0
    remove_racks: tuple[str, ...] = ()
    remove_nodes: tuple[str, ...] = ()
    slice_gpus: int = 0
    slices_of_gpu: int = 0

    def __str__(self) -> str:
        parts = [
            f"{self.add_gpus} GPUs added" if self.add_gpus else "",
            f"{self.remove_gpus} GPUs removed" if self.remove_gpus else "",
            *(f"rack {rack} removed" for rack in self.remove_racks),
            *(f"node {node} removed" for node in self.remove_nodes),
            f"{self.slice_gpus} GPUs split into {self.slices_of_gpu} MIG instances each" if self.slice_gpus else "",
        ]
        return ", ".join(filter(None, parts)) or "no change"


class FleetChangeRefused(WatchkeeperError):
    """The change is not possible on this fleet; the message has both numbers."""


def apply_change(nodes: Sequence[FleetNode], change: FleetChange) -> tuple[FleetNode, ...]:
    """Return the fleet after the change; added nodes have the most frequent model and size of the fleet."""
    _check_names(nodes, change)
    on_kept_racks = [node for node in nodes if node.rack not in change.remove_racks]
    remaining = [node for node in on_kept_racks if node.name not in change.remove_nodes]
    remaining = _remove_gpus(remaining, change.remove_gpus)
    remaining += _add_nodes(nodes, change.add_gpus)
    remaining = _slice_gpus(remaining, change)
    if not remaining:
        fleet_gpus = sum(node.gpus for node in nodes)
        raise FleetChangeRefused("the change removes all GPUs", now=f"The fleet has {fleet_gpus} GPUs")
    return tuple(remaining)


def _check_names(nodes: Sequence[FleetNode], change: FleetChange) -> None:
    racks, node_names = {node.rack for node in nodes if node.rack}, {node.name for node in nodes}
    for kind, names, existing in (("rack", change.remove_racks, racks), ("node", change.remove_nodes, node_names)):
        for name in names:
            if name not in existing:
                available = ", ".join(sorted(existing)[:10]) or f"none: the table of nodes has no column {kind}"
                raise FleetChangeRefused(f"there is no {kind} {name!r:.60}", now=f"The fleet has: {available}")


def _remove_gpus(nodes: list[FleetNode], gpus: int) -> list[FleetNode]:
    fleet_gpus = sum(node.gpus for node in nodes)
    if gpus > fleet_gpus:
        raise FleetChangeRefused(f"cannot remove {gpus} GPUs", now=f"The fleet has {fleet_gpus}")
    remaining, last = list(nodes), len(nodes) - 1
    while gpus:
        taken = min(gpus, remaining[last].gpus)
        remaining[last] = replace(remaining[last], gpus=remaining[last].gpus - taken)
        gpus, last = gpus - taken, last - 1
    return [node for node in remaining if node.gpus]


def _add_nodes(nodes: Sequence[FleetNode], gpus: int) -> list[FleetNode]:
    if not gpus:
        return []
    kinds = Counter((node.model, node.gpus) for node in nodes)
    model, size = max(kinds, key=lambda kind: (kinds[kind], kind))
    sizes = [size] * (gpus // size) + ([gpus % size] if gpus % size else [])
    return [FleetNode(f"added-{at}", count, model=model) for at, count in enumerate(sizes, start=1)]


def _slice_gpus(nodes: list[FleetNode], change: FleetChange) -> list[FleetNode]:
    """Partition GPUs from the end of the list, so that as many nodes as possible keep whole GPUs."""
    if not change.slice_gpus:
        return nodes
    fleet_gpus = sum(node.gpus for node in nodes)
    if change.slice_gpus > fleet_gpus or not 2 <= change.slices_of_gpu <= 7:
        raise FleetChangeRefused(
            f"cannot split {change.slice_gpus} GPUs into {change.slices_of_gpu} MIG instances each",
            now=f"The fleet has {fleet_gpus} GPUs, and MIG splits a GPU into 2 to 7 instances",
        )
    sliced, gpus, at = list(nodes), change.slice_gpus, len(nodes) - 1
    while gpus:
        cut = min(gpus, sliced[at].gpus)
        sliced[at] = replace(sliced[at], sliced_gpus=cut, slices_of_gpu=change.slices_of_gpu)
        gpus, at = gpus - cut, at - 1
    return sliced


def compare(
    recorded: JobRecords, nodes: Sequence[FleetNode], change: FleetChange, *, policy: QueuePolicy = QueuePolicy.BACKFILL
) -> WhatIf:
    """Return waits and utilisation as JSON: as recorded, as replayed on the current fleet, and after the change."""
    after = apply_change(nodes, change)
    jobs, unknown = jobs_for_fleet(recorded.jobs, [*nodes, *after])
    window = (recorded.since, recorded.until)
    waits = np.array([math.nan if job.started is None else job.started - job.submitted for job in jobs])
    before, changed = (summarise_replay(jobs, replay(jobs, fleet, policy=policy), window) for fleet in (nodes, after))
    return {
        "change": str(change),
        "policy": policy.value,
        "jobs": dict(recorded.counts),
        "layout": recorded.layout,
        "since": recorded.since,
        "until": recorded.until,
        "recorded": {"wait": summarise_waits(jobs, waits)},
        "before": before,
        "after": changed,
        "unknown_models": unknown,
        "assumes": list(ASSUMPTIONS),
        "problems": recorded.problems.plain(),
    }


def jobs_for_fleet(jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode]) -> tuple[list[RecordedJob], dict[str, int]]:
    """Return the jobs, and their models that no node has; if no node has a model, requested models are ignored."""
    if any(node.model for node in nodes):
        return list(jobs), unknown_models(jobs, nodes)
    return [replace(job, shape=replace(job.shape, models=())) if job.shape.models else job for job in jobs], {}


def summarise_replay(jobs: Sequence[RecordedJob], outcome: ReplayOutcome, window: tuple[float, float]) -> ReplaySummary:
    submitted = np.array([job.submitted for job in jobs], dtype=np.float64)
    available = outcome.gpus * (window[1] - window[0])
    used = outcome.gpu_seconds(*window)
    never_fit = set(outcome.never_fits)
    sizes = sorted({jobs[at].shape.gpus for at in never_fit})
    late = int(np.sum(outcome.starts > window[1]))
    return {
        "gpus": outcome.gpus,
        "utilisation": used / available if available else None,
        "gpu_hours_used": used / 3600,
        "gpu_hours_available": available / 3600,
        "peak_gpus": float(outcome.used_gpus.max()) if len(outcome.used_gpus) else 0.0,
        "wait": summarise_waits(jobs, outcome.starts - submitted),
        "started_after_the_record": late,
        "never_fits": {"jobs": len(never_fit), "gpus": sizes[:20]},
    }


def summarise_waits(jobs: Sequence[RecordedJob], seconds: Floats) -> Waits:
    rows: dict[str, Spread] = {}
    sizes = np.array([job.shape.gpus for job in jobs])
    for low, high in zip((0.0, 0.999, *SHAPES), (0.999, *SHAPES, math.inf), strict=False):
        shape_seconds = seconds[(sizes > low) & (sizes <= high)]
        if len(shape_seconds):
            rows[_format_shape(low, high)] = _summarise_seconds(shape_seconds)
    return {**_summarise_seconds(seconds), "by_gpus": rows}


def _format_shape(low: float, high: float) -> str:
    if high < 1:
        return "share"
    if math.isinf(high):
        return f">{low:g}"
    return f"{high:g}" if high <= 2 else f"{math.floor(low) + 1}-{high:g}"


def _summarise_seconds(seconds: Floats) -> Spread:
    started = seconds[~np.isnan(seconds)]
    if not len(started):
        return {"jobs": 0, "mean": None, "p50": None, "p95": None, "max": None}
    p50, p95 = np.quantile(started, [0.5, 0.95])
    mean, p50, p95, longest = (round(float(value), 3) for value in (started.mean(), p50, p95, started.max()))
    return {"jobs": len(started), "mean": mean, "p50": p50, "p95": p95, "max": longest}


@dataclass(frozen=True, slots=True)
class Addition:
    """The GPUs to add for a target wait; `add_gpus` is None if adding four times the fleet is not enough."""

    target_seconds: float
    add_gpus: int | None
    p95_seconds: float | None
    # The share of days that meet the target.
    days_kept: float | None
    replays: int


def find_smallest_addition(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[FleetNode],
    *,
    target_seconds: float,
    policy: QueuePolicy = QueuePolicy.BACKFILL,
) -> Addition:
    # More GPUs can lengthen a single wait, because the order of jobs changes. So the result meets the target, and one
    # node less was replayed and did not.
    size = max(node.gpus for node in nodes)
    low, high = 0, MAX_FLEET_MULTIPLE * sum(node.gpus for node in nodes) // size
    waits_by_count: dict[int, Floats] = {}

    def replay_waits(count: int) -> Floats:
        if count not in waits_by_count:
            outcome = replay(jobs, apply_change(nodes, FleetChange(add_gpus=count * size)), policy=policy)
            waits_by_count[count] = outcome.starts - np.array([job.submitted for job in jobs])
        return waits_by_count[count]

    def meets_target(count: int) -> bool:
        p95 = _p95(replay_waits(count))
        return p95 is None or p95 <= target_seconds

    if not meets_target(high):
        return Addition(target_seconds, None, _p95(replay_waits(high)), None, len(waits_by_count))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if meets_target(middle) else (middle + 1, high)
    waits = replay_waits(high)
    days = np.array([job.submitted // DAY_SECONDS for job in jobs])
    kept = [p95 <= target_seconds for day in np.unique(days) if (p95 := _p95(waits[days == day])) is not None]
    days_kept = sum(kept) / len(kept) if kept else None
    return Addition(target_seconds, high * size, _p95(waits), days_kept, len(waits_by_count))


def _p95(waits: Floats) -> float | None:
    started = waits[~np.isnan(waits)]
    return float(np.quantile(started, 0.95)) if len(started) else None
