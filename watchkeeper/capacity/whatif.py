"""What if: the same jobs on the fleet as it is and as it might be, side by side.

A change adds nodes, takes GPUs or a rack away, or cuts GPUs into slices; `compare` replays the jobs on both fleets and
says what waiting and utilisation become, by shape. It answers a question and changes nothing; `cli/capacity` prints
it. What a replay assumes is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from watchkeeper.capacity.jobs import JobRecords, RecordedJob, unknown_models
from watchkeeper.capacity.replay import Floats, QueuePolicy, ReplayOutcome, replay
from watchkeeper.capacity.simulated_fleet import FleetNode
from watchkeeper.errors import WatchkeeperError
from watchkeeper.readers.table import PlainProblems

ASSUMPTIONS = (
    "each job runs as long as it ran when recorded, whatever it runs on",
    "jobs would have been submitted at the same times",
    "only GPUs are scarce: CPUs, memory, quotas, priorities and affinities are not looked at",
    "a job of up to a node's GPUs needs them on one node; a larger one takes whole nodes",
)
# Rows of the table by size; all that is less than a GPU is one row.
SHAPES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Spread(TypedDict):
    """Seconds of waiting; None where no job has started."""

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
    """Two replays side by side, as `--json` and the API give them."""

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
    """What is to be different. `slice_gpus` GPUs are cut into `slices_of_gpu` parts each."""

    add_gpus: int = 0
    remove_gpus: int = 0
    remove_racks: tuple[str, ...] = ()
    remove_nodes: tuple[str, ...] = ()
    slice_gpus: int = 0
    slices_of_gpu: int = 0

    def __str__(self) -> str:
        parts = [
            f"{self.add_gpus} GPUs more" if self.add_gpus else "",
            f"{self.remove_gpus} GPUs fewer" if self.remove_gpus else "",
            *(f"without rack {rack}" for rack in self.remove_racks),
            *(f"without node {node}" for node in self.remove_nodes),
            f"{self.slice_gpus} GPUs cut into {self.slices_of_gpu} slices each" if self.slice_gpus else "",
        ]
        return ", ".join(filter(None, parts)) or "nothing changed"


class FleetChangeRefused(WatchkeeperError):
    """The change cannot be made on this fleet; the message has both numbers."""


def apply_change(nodes: Sequence[FleetNode], change: FleetChange) -> tuple[FleetNode, ...]:
    """The fleet after the change; added nodes are like the most frequent kind of those that are there."""
    _check_names(nodes, change)
    left = [node for node in nodes if node.rack not in change.remove_racks and node.name not in change.remove_nodes]
    left = _fewer(left, change.remove_gpus)
    left += _more(nodes, change.add_gpus)
    left = _sliced(left, change)
    if not left:
        raise FleetChangeRefused(
            "nothing would be left of the fleet", now=f"It has {sum(node.gpus for node in nodes)} GPUs"
        )
    return tuple(left)


def _check_names(nodes: Sequence[FleetNode], change: FleetChange) -> None:
    for kind, wanted, known in (
        ("rack", change.remove_racks, {node.rack for node in nodes if node.rack}),
        ("node", change.remove_nodes, {node.name for node in nodes}),
    ):
        for name in wanted:
            if name not in known:
                has = ", ".join(sorted(known)[:10]) or f"none: the table of nodes has no column {kind}"
                raise FleetChangeRefused(f"there is no {kind} {name!r:.60}", now=f"The fleet has: {has}")


def _fewer(nodes: list[FleetNode], gpus: int) -> list[FleetNode]:
    """Whole nodes from the end of the list, the last of them in part."""
    have = sum(node.gpus for node in nodes)
    if gpus > have:
        raise FleetChangeRefused(f"{gpus} GPUs cannot be taken away", now=f"The fleet has {have}")
    left, last = list(nodes), len(nodes) - 1
    while gpus:
        taken = min(gpus, left[last].gpus)
        left[last] = replace(left[last], gpus=left[last].gpus - taken)
        gpus, last = gpus - taken, last - 1
    return [node for node in left if node.gpus]


def _more(nodes: Sequence[FleetNode], gpus: int) -> list[FleetNode]:
    if not gpus:
        return []
    kinds: dict[tuple[str, int], int] = {}
    for node in nodes:
        kinds[node.model, node.gpus] = kinds.get((node.model, node.gpus), 0) + 1
    model, size = max(kinds, key=lambda kind: (kinds[kind], kind))
    sizes = [size] * (gpus // size) + ([gpus % size] if gpus % size else [])
    return [FleetNode(f"added-{at}", count, model=model) for at, count in enumerate(sizes, start=1)]


def _sliced(nodes: list[FleetNode], change: FleetChange) -> list[FleetNode]:
    """GPUs are cut from the end of the list on, so that whole nodes stay whole as long as possible."""
    if not change.slice_gpus:
        return nodes
    have = sum(node.gpus for node in nodes)
    if change.slice_gpus > have or not 2 <= change.slices_of_gpu <= 7:
        raise FleetChangeRefused(
            f"{change.slice_gpus} GPUs cannot be cut into {change.slices_of_gpu} slices each",
            now=f"The fleet has {have} GPUs, and MIG makes 2 to 7 slices of one",
        )
    left, gpus, at = list(nodes), change.slice_gpus, len(nodes) - 1
    while gpus:
        cut = min(gpus, left[at].gpus)
        left[at] = replace(left[at], sliced_gpus=cut, slices_of_gpu=change.slices_of_gpu)
        gpus, at = gpus - cut, at - 1
    return left


def compare(
    recorded: JobRecords, nodes: Sequence[FleetNode], change: FleetChange, *, policy: QueuePolicy = QueuePolicy.BACKFILL
) -> WhatIf:
    """Waiting and utilisation as recorded, as replayed on the fleet as it is, and after the change; plain for JSON."""
    after = apply_change(nodes, change)
    jobs, unknown = jobs_for_fleet(recorded.jobs, [*nodes, *after])
    window = (recorded.since, recorded.until)
    before, then = (summarise_replay(jobs, replay(jobs, fleet, policy=policy), window) for fleet in (nodes, after))
    return {
        "change": str(change),
        "policy": policy.value,
        "jobs": dict(recorded.counts),
        "layout": recorded.layout,
        "since": recorded.since,
        "until": recorded.until,
        "recorded": {"wait": waits(jobs, _recorded_waits(jobs))},
        "before": before,
        "after": then,
        "unknown_models": unknown,
        "assumes": list(ASSUMPTIONS),
        "problems": recorded.problems.plain(),
    }


def jobs_for_fleet(jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode]) -> tuple[list[RecordedJob], dict[str, int]]:
    """Without the models that jobs ask for where no node says what it has."""
    if any(node.model for node in nodes):
        return list(jobs), unknown_models(jobs, nodes)
    return [replace(job, shape=replace(job.shape, models=())) if job.shape.models else job for job in jobs], {}


def _recorded_waits(jobs: Sequence[RecordedJob]) -> Floats:
    return np.array([math.nan if job.started is None else job.started - job.submitted for job in jobs])


def summarise_replay(jobs: Sequence[RecordedJob], outcome: ReplayOutcome, window: tuple[float, float]) -> ReplaySummary:
    submitted = np.array([job.submitted for job in jobs], dtype=np.float64)
    available = outcome.gpus * (window[1] - window[0])
    used = outcome.gpu_seconds(*window)
    never = set(outcome.never_fits)
    sizes = sorted({jobs[at].shape.gpus for at in never})
    late = int(np.sum(outcome.starts > window[1]))
    return {
        "gpus": outcome.gpus,
        "utilisation": used / available if available else None,
        "gpu_hours_used": used / 3600,
        "gpu_hours_available": available / 3600,
        "peak_gpus": float(outcome.used_gpus.max()) if len(outcome.used_gpus) else 0.0,
        "wait": waits(jobs, outcome.starts - submitted),
        "started_after_the_record": late,
        "never_fits": {"jobs": len(never), "gpus": sizes[:20]},
    }


def waits(jobs: Sequence[RecordedJob], seconds: Floats) -> Waits:
    """Seconds of waiting of all jobs that started, and by shape: a row for each size up to which a job counts."""
    rows: dict[str, Spread] = {}
    sizes = np.array([job.shape.gpus for job in jobs])
    for low, high in zip((0.0, 0.999, *SHAPES), (0.999, *SHAPES, math.inf), strict=False):
        of_shape = seconds[(sizes > low) & (sizes <= high)]
        if len(of_shape):
            rows[_shape_name(low, high)] = _spread(of_shape)
    return {**_spread(seconds), "by_gpus": rows}


def _shape_name(low: float, high: float) -> str:
    if high < 1:
        return "share"
    if math.isinf(high):
        return f">{low:g}"
    return f"{high:g}" if high <= 2 else f"{math.floor(low) + 1}-{high:g}"


def _spread(seconds: Floats) -> Spread:
    known = seconds[~np.isnan(seconds)]
    if not len(known):
        return {"jobs": 0, "mean": None, "p50": None, "p95": None, "max": None}
    p50, p95 = np.quantile(known, [0.5, 0.95])
    mean, p50, p95, most = (round(float(value), 3) for value in (known.mean(), p50, p95, known.max()))
    return {"jobs": len(known), "mean": mean, "p50": p50, "p95": p95, "max": most}
