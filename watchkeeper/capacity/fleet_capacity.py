"""Compute the current capacity: free GPUs, fragmentation by job size, and queue waits.

The total of free GPUs is not enough: eight free GPUs on eight nodes cannot start a job of eight. Nodes and workloads
come from `web/accounting/capacity_api`, or from tables of nodes and jobs. GPUs out of service are never free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.simulated_fleet import GPU_MILLI, FleetNode, SimulatedFleet
from watchkeeper.model.fleet_capacity import FleetCapacity, ShapeCapacity

SHAPES = (1, 2, 4, 8)
LOST = "its scheduler cannot allocate them"


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """The GPUs of one node: all, allocated, and lost, which its scheduler cannot allocate."""

    name: str
    gpus: int
    allocated: int
    is_in_service: bool = True
    unavailable_reason: str = ""
    model: str = ""
    lost: int = 0

    @property
    def free(self) -> int:
        return max(0, self.in_service - self.allocated)

    @property
    def in_service(self) -> int:
        return self.gpus - self.lost if self.is_in_service else 0

    @property
    def out_of_service(self) -> int:
        return self.gpus - self.in_service


@dataclass(frozen=True, slots=True)
class QueueWait:
    """Waits in seconds of jobs with `gpus` GPUs: pending jobs, and jobs that have started."""

    gpus: int
    waiting: int
    longest_seconds: float | None
    started: int
    p50_seconds: float | None
    p95_seconds: float | None


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request for GPUs; `requested_at` is None if unknown, `started_at` is None while the request is pending."""

    gpus: int
    requested_at: float | None
    started_at: float | None


def summarise_capacity(nodes: Sequence[NodeCapacity]) -> FleetCapacity:
    free = [node.free for node in nodes]
    total = sum(free)
    largest = max((node.gpus for node in nodes), default=0)
    shapes = [shape for shape in SHAPES if shape <= largest] or ([largest] if largest else [])
    faulty = [node for node in nodes if node.out_of_service]
    shape_capacities = tuple(count_by_shape(free, shapes))
    return FleetCapacity(
        sum(node.gpus for node in nodes),
        sum(node.in_service for node in nodes),
        sum(min(node.allocated, node.gpus) for node in nodes),
        total,
        shape_capacities,
        shape_capacities[-1].stranded_gpus / total if total and shape_capacities else None,
        tuple((node.name, node.out_of_service, node.unavailable_reason or LOST) for node in faulty),
    )


def count_by_shape(free: Iterable[int], shapes: Iterable[int]) -> list[ShapeCapacity]:
    """Count, for each job size, the jobs that fit on free GPUs of single nodes, and the GPUs that they cannot use."""
    counts = np.array(list(free), dtype=np.int64)
    capacities = []
    for shape in shapes:
        jobs = int((counts // shape).sum())
        capacities.append(ShapeCapacity(shape, jobs, jobs * shape, int(counts.sum()) - jobs * shape))
    return capacities


def queue_waits(requests: Iterable[WaitingRequest], *, now: float) -> list[QueueWait]:
    by_shape: dict[int, list[WaitingRequest]] = {}
    for request in requests:
        by_shape.setdefault(request.gpus, []).append(request)
    waits = []
    for gpus, shape_requests in sorted(by_shape.items()):
        pending = [request for request in shape_requests if request.started_at is None]
        waited = [max(0.0, now - request.requested_at) for request in pending if request.requested_at is not None]
        started = [
            max(0.0, request.started_at - request.requested_at)
            for request in shape_requests
            if request.started_at is not None and request.requested_at is not None
        ]
        p50, p95 = map(float, np.quantile(started, [0.5, 0.95])) if started else (None, None)
        waits.append(QueueWait(gpus, len(pending), max(waited, default=None), len(started), p50, p95))
    return waits


@dataclass(frozen=True, slots=True)
class RecordedFleet:
    """A fleet from tables; `unplaced` jobs ran but do not fit, so nodes are missing from the table or differ."""

    nodes: list[NodeCapacity]
    requests: list[WaitingRequest]
    unplaced: list[RecordedJob]


def capacity_from_tables(nodes: Sequence[FleetNode], jobs: Sequence[RecordedJob], *, at: float) -> RecordedFleet:
    """Return the capacity at a time from tables: running jobs are placed as in a replay, the earliest start first."""
    simulated = SimulatedFleet(nodes)
    requests, unplaced = [], []
    for job in sorted(jobs, key=lambda job: (job.submitted if job.started is None else job.started, job.id)):
        if job.submitted > at:
            continue
        started = job.started if job.started is not None and job.started <= at else None
        # A job without an end is still running at the end of its table.
        is_running = started is not None and (job.is_cut_off or started + job.seconds > at)
        if is_running and simulated.place(job.shape) is None:
            unplaced.append(job)
        requests.append(WaitingRequest(-(-job.shape.milli // GPU_MILLI), job.submitted, started))
    pairs = zip(nodes, simulated.free_by_node(), strict=True)
    capacities = [NodeCapacity(node.name, node.gpus, node.gpus - free_gpus) for node, free_gpus in pairs]
    return RecordedFleet(capacities, requests, unplaced)
