"""Replay recorded jobs on a simulated fleet: a discrete-event simulation of one queue.

Time advances from event to event: jobs that end release their GPUs, then new jobs join the queue, then the policy
starts jobs. Jobs with the same request are interchangeable, so there is one queue for each request: if its oldest job
does not fit, none of them does.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from watchkeeper.capacity.demand import Floats
from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.simulated_fleet import GPU_MILLI, FleetNode, GpuRequest, JobPlacement, SimulatedFleet


class QueuePolicy(StrEnum):
    """Which job starts next. `FIFO`: only the oldest. `BACKFILL`: the oldest that fits. Nothing is reserved for the
    head of the queue, so a large job can wait forever, as in Kubernetes."""

    FIFO = "fifo"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, eq=False)
class ReplayOutcome:
    """Start and end of every job, NaN if it never started, and the GPUs in use after every change."""

    starts: Floats
    ends: Floats
    never_fits: tuple[int, ...]
    change_times: Floats
    used_gpus: Floats
    gpus: float

    def gpu_seconds(self, since: float, until: float) -> float:
        if not len(self.change_times) or until <= since:
            return 0.0
        edges = np.clip(np.append(self.change_times, math.inf), since, until)
        return float(np.sum(np.diff(edges) * self.used_gpus))


def replay(
    jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode], *, policy: QueuePolicy = QueuePolicy.BACKFILL
) -> ReplayOutcome:
    return _Replay(jobs, nodes, policy).run()


class _Replay:
    def __init__(self, jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode], policy: QueuePolicy) -> None:
        self._jobs = jobs
        self._fleet = SimulatedFleet(nodes)
        self._policy = policy
        self._starts = np.full(len(jobs), math.nan)
        self._ends = np.full(len(jobs), math.nan)
        self._running: list[tuple[float, int]] = []
        self._placements: dict[int, JobPlacement] = {}
        self._queues: dict[GpuRequest, deque[int]] = {}
        self._fifo_queue: deque[int] = deque()
        self._changes: list[tuple[float, int]] = []
        fits = {shape: self._fleet.can_ever_fit(shape) for shape in {job.shape for job in jobs}}
        self._never_fits = tuple(at for at, job in enumerate(jobs) if not fits[job.shape])

    def run(self) -> ReplayOutcome:
        never_fits, arrived = set(self._never_fits), 0
        while arrived < len(self._jobs) or self._running:
            arrival = self._jobs[arrived].submitted if arrived < len(self._jobs) else math.inf
            now = min(arrival, self._running[0][0] if self._running else math.inf)
            freed = False
            while self._running and self._running[0][0] <= now:
                self._fleet.release(self._placements.pop(heapq.heappop(self._running)[1]))
                freed = True
            arrivals: list[int] = []
            while arrived < len(self._jobs) and self._jobs[arrived].submitted <= now:
                if arrived not in never_fits:
                    arrivals.append(arrived)
                arrived += 1
            self._start_jobs(arrivals, now, freed=freed)
            if not self._changes or self._changes[-1][1] != self._fleet.used_milli:
                self._changes.append((now, self._fleet.used_milli))
        times, used = np.array(self._changes, dtype=np.float64).reshape(-1, 2).T
        gpus = self._fleet.milli / GPU_MILLI
        return ReplayOutcome(self._starts, self._ends, self._never_fits, times, used / GPU_MILLI, gpus)

    def _start_jobs(self, arrivals: list[int], now: float, *, freed: bool) -> None:
        if self._policy is QueuePolicy.FIFO:
            self._fifo_queue.extend(arrivals)
            while self._fifo_queue and self._try_start(self._fifo_queue[0], now):
                self._fifo_queue.popleft()
            return
        for at in arrivals:
            self._queues.setdefault(self._jobs[at].shape, deque()).append(at)
        # If no GPUs were released, only requests of new jobs can start.
        shapes = list(self._queues) if freed else list({self._jobs[at].shape for at in arrivals})
        oldest = [(self._queues[shape][0], shape) for shape in shapes if self._queues[shape]]
        heapq.heapify(oldest)
        while oldest:
            at, shape = heapq.heappop(oldest)
            # Free GPUs only decrease while jobs start: a request that does not fit now is done for this time.
            if self._try_start(at, now):
                self._queues[shape].popleft()
                if self._queues[shape]:
                    heapq.heappush(oldest, (self._queues[shape][0], shape))
                else:
                    del self._queues[shape]

    def _try_start(self, at: int, now: float) -> bool:
        placement = self._fleet.place(self._jobs[at].shape)
        if placement is None:
            return False
        end = now + self._jobs[at].seconds
        self._starts[at], self._ends[at] = now, end
        self._placements[at] = placement
        heapq.heappush(self._running, (end, at))
        return True
