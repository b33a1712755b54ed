"""Capacity now, as it truly is: free GPUs that no job of a size can use, who waits how long, held against used.

A total of free GPUs says little: eight free GPUs on eight nodes start no job of eight. `fragmentation` counts by shape
what could start. Nodes and workloads come from `web/capacity_api`, or from tables of nodes and jobs; what is out of
service is never free, and what is unknown is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.simulated_fleet import WHOLE, FleetNode, SimulatedFleet
from watchkeeper.model.fleet_capacity import FleetCapacity, ShapeCapacity

SHAPES = (1, 2, 4, 8)
LOST = "its scheduler cannot give them"


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """One node: its GPUs, how many are held, how many its scheduler cannot give, and whether new work may come.

    `why_not` says why not.
    """

    name: str
    gpus: int
    held: int
    is_in_service: bool = True
    why_not: str = ""
    model: str = ""
    lost: int = 0

    @property
    def free(self) -> int:
        return max(0, self.in_service - self.held)

    @property
    def in_service(self) -> int:
        return self.gpus - self.lost if self.is_in_service else 0

    @property
    def out_of_service(self) -> int:
        return self.gpus - self.in_service


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Waiting by shape, in seconds: of those who wait now, and of those who have started."""

    gpus: int
    waiting: int
    longest_seconds: float | None
    started: int
    p50_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A workload that asked for GPUs: when, None where nobody says, and when it got them; None: it still waits."""

    gpus: int
    requested_at: float | None
    started_at: float | None


def summarise_capacity(nodes: Sequence[NodeCapacity]) -> FleetCapacity:
    free = [node.free for node in nodes]
    total = sum(free)
    largest = max((node.gpus for node in nodes), default=0)
    shapes = [shape for shape in SHAPES if shape <= largest] or ([largest] if largest else [])
    rooms = tuple(fragmentation(free, shapes))
    return FleetCapacity(
        sum(node.gpus for node in nodes),
        sum(node.in_service for node in nodes),
        sum(min(node.held, node.gpus) for node in nodes),
        total,
        rooms,
        rooms[-1].stranded_gpus / total if total and rooms else None,
        tuple((node.name, node.out_of_service, node.why_not or LOST) for node in nodes if node.out_of_service),
    )


def fragmentation(free: Iterable[int], shapes: Iterable[int]) -> list[ShapeCapacity]:
    """For each shape how many of its jobs fit onto the free GPUs of single nodes."""
    counts = np.array(list(free), dtype=np.int64)
    found = []
    for shape in shapes:
        jobs = int((counts // shape).sum())
        found.append(ShapeCapacity(shape, jobs, jobs * shape, int(counts.sum()) - jobs * shape))
    return found


def queue_waits(asks: Iterable[WaitingRequest], *, now: float) -> list[QueueWait]:
    """Waiting by how many GPUs were asked for, the smallest first."""
    by_shape: dict[int, list[WaitingRequest]] = {}
    for ask in asks:
        by_shape.setdefault(ask.gpus, []).append(ask)
    return [_wait(gpus, those, now) for gpus, those in sorted(by_shape.items())]


def _wait(gpus: int, asks: list[WaitingRequest], now: float) -> QueueWait:
    pending = [ask for ask in asks if ask.started_at is None]
    waited = [max(0.0, now - ask.requested_at) for ask in pending if ask.requested_at is not None]
    started = [
        max(0.0, ask.started_at - ask.requested_at)
        for ask in asks
        if ask.started_at is not None and ask.requested_at is not None
    ]
    p50, p95 = (float(found) for found in np.quantile(started, [0.5, 0.95])) if started else (None, None)
    return QueueWait(gpus, len(pending), max(waited, default=None), len(started), p50, p95)


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """A fleet as tables have it; `unplaced` ran and found no place, so that nodes are missing or others than those."""

    nodes: list[NodeCapacity]
    asks: list[WaitingRequest]
    unplaced: list[RecordedJob]


def capacity_from_tables(nodes: Sequence[FleetNode], jobs: Sequence[RecordedJob], *, at: float) -> RecordedFleet:
    """The same from tables: jobs that ran at a time, placed as a replay places them, the longest running first."""
    stock = SimulatedFleet(nodes)
    asks, unplaced = [], []
    for job in sorted(jobs, key=lambda job: (job.submitted if job.started is None else job.started, job.id)):
        if job.submitted > at:
            continue
        started = job.started if job.started is not None and job.started <= at else None
        # A job without an end runs on when its table ends.
        is_running = started is not None and (job.is_cut_off or started + job.seconds > at)
        if is_running and stock.place(job.shape) is None:
            unplaced.append(job)
        asks.append(WaitingRequest(-(-job.shape.milli // WHOLE), job.submitted, started))
    free = stock.free_by_node()
    found = [NodeCapacity(node.name, node.gpus, node.gpus - left) for node, left in zip(nodes, free, strict=True)]
    return RecordedFleet(found, asks, unplaced)
