"""Recorded jobs once more, on a fleet of our choice: a discrete-event simulation of one queue.

Time jumps from event to event. At each moment first all jobs that end give their GPUs back, then those that arrive
join the queue, then the policy starts what it may. Each job runs as long as it ran when it was recorded, whatever it
runs on. Jobs of one shape are interchangeable as far as placing goes, so the queue is kept by shape: whether the
oldest of a shape fits decides for all of it. `whatif` compares two replays.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from watchkeeper.capacity.jobs import RecordedJob
from watchkeeper.capacity.simulated_fleet import WHOLE, FleetNode, GpuRequest, JobPlacement, SimulatedFleet

Floats = npt.NDArray[np.float64]


class QueuePolicy(StrEnum):
    """Who may start. `FIFO`: only the oldest. `BACKFILL`: the oldest that fits, so that a large one may wait for ever,
    as in Kubernetes and wherever nothing is reserved for the head of the queue."""

    FIFO = "fifo"
    BACKFILL = "backfill"


@dataclass(frozen=True, slots=True, eq=False)
class ReplayOutcome:
    """What came of every job: its start, NaN where it never started; and the fleet's GPUs in use at every change."""

    starts: Floats
    ends: Floats
    never_fits: tuple[int, ...]
    change_times: Floats
    used_gpus: Floats
    gpus: float

    def gpu_seconds(self, since: float, until: float) -> float:
        """GPU seconds in use inside a window."""
        if not len(self.change_times) or until <= since:
            return 0.0
        edges = np.clip(np.append(self.change_times, math.inf), since, until)
        return float(np.sum(np.diff(edges) * self.used_gpus))


def replay(
    jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode], *, policy: QueuePolicy = QueuePolicy.BACKFILL
) -> ReplayOutcome:
    """Every job of `jobs`, which are in order of submission, on `nodes`."""
    return _Replay(jobs, nodes, policy).to_the_end()


class _Replay:
    def __init__(self, jobs: Sequence[RecordedJob], nodes: Sequence[FleetNode], policy: QueuePolicy) -> None:
        self._jobs = jobs
        self._stock = SimulatedFleet(nodes)
        self._policy = policy
        self._starts = np.full(len(jobs), math.nan)
        self._ends = np.full(len(jobs), math.nan)
        self._running: list[tuple[float, int]] = []
        self._placed: dict[int, JobPlacement] = {}
        self._waiting: dict[GpuRequest, deque[int]] = {}
        self._in_order: deque[int] = deque()
        self._changes: list[tuple[float, int]] = []
        fits = {shape: self._stock.could_ever(shape) for shape in {job.shape for job in jobs}}
        self._never = tuple(at for at, job in enumerate(jobs) if not fits[job.shape])

    def to_the_end(self) -> ReplayOutcome:
        never, arrived = set(self._never), 0
        while arrived < len(self._jobs) or self._running:
            arrival = self._jobs[arrived].submitted if arrived < len(self._jobs) else math.inf
            now = min(arrival, self._running[0][0] if self._running else math.inf)
            freed = self._end_jobs(now)
            came: list[int] = []
            while arrived < len(self._jobs) and self._jobs[arrived].submitted <= now:
                if arrived not in never:
                    came.append(arrived)
                arrived += 1
            self._start_jobs(came, now, freed=freed)
            if not self._changes or self._changes[-1][1] != self._stock.used_milli:
                self._changes.append((now, self._stock.used_milli))
        times = np.array([at for at, _ in self._changes], dtype=np.float64)
        used = np.array([milli for _, milli in self._changes], dtype=np.float64) / WHOLE
        gpus = self._stock.milli / WHOLE
        return ReplayOutcome(self._starts, self._ends, self._never, times, used, gpus)

    def _end_jobs(self, now: float) -> bool:
        freed = False
        while self._running and self._running[0][0] <= now:
            _, at = heapq.heappop(self._running)
            self._stock.take_back(self._placed.pop(at))
            freed = True
        return freed

    def _start_jobs(self, came: list[int], now: float, *, freed: bool) -> None:
        if self._policy is QueuePolicy.FIFO:
            self._in_order.extend(came)
            while self._in_order and self._try(self._in_order[0], now):
                self._in_order.popleft()
            return
        for at in came:
            self._waiting.setdefault(self._jobs[at].shape, deque()).append(at)
        # Where nothing was given back, only shapes of those that came can have become startable.
        shapes = list(self._waiting) if freed else list({self._jobs[at].shape for at in came})
        oldest = [(self._waiting[shape][0], shape) for shape in shapes if self._waiting[shape]]
        heapq.heapify(oldest)
        while oldest:
            at, shape = heapq.heappop(oldest)
            # GPUs only become fewer while jobs are started: a shape that does not fit is done for this moment.
            if self._try(at, now):
                self._waiting[shape].popleft()
                if self._waiting[shape]:
                    heapq.heappush(oldest, (self._waiting[shape][0], shape))
                else:
                    del self._waiting[shape]

    def _try(self, at: int, now: float) -> bool:
        placing = self._stock.place(self._jobs[at].shape)
        if placing is None:
            return False
        end = now + self._jobs[at].seconds
        self._starts[at], self._ends[at] = now, end
        self._placed[at] = placing
        heapq.heappush(self._running, (end, at))
        return True
