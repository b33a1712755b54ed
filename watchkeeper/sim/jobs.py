"""Simulated jobs: which jobs run on which GPUs, and the load of each GPU.

Jobs of several teams start, run and end; a training job runs on many GPUs in step. Each second `activity` returns the
load of all units of all GPUs; `physics` turns it into power and clocks.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from watchkeeper.sim.fleet import FleetLayout, SimNode

Floats = NDArray[np.float64]

# A full fleet would show no scheduling, an empty one no work.
BUSY_SHARE = 0.86
ARRIVAL_SECONDS = 20
REQUEUE_LIMIT = 1000
DAY_SECONDS = 86_400


class SimJobKind(IntEnum):
    NONE = 0
    TRAINING = 1
    SERVING = 2
    HELD = 3


class WorkPhase(IntEnum):
    IDLE = 0
    COMPUTE = 1
    EXCHANGE = 2
    LOADING = 3
    CHECKPOINT = 4
    SERVING = 5
    STALLED = 6


# Busy shares per phase, after the H200 recording of 2026-11-15 (transformer step, PCIe copies, starved
# loader). A stalled collective spins in one small kernel: GPU_UTIL 100, SMs almost idle.
#   sm  tensor  dram  occupancy  engine  gpu_util  pcie_rx  pcie_tx  nvlink   (last three: share of the link)
LEVELS = np.array(
    [
        [0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.0001, 0.0001, 0.00],
        [0.88, 0.36, 0.38, 0.40, 0.95, 0.98, 0.0100, 0.0030, 0.12],
        [0.52, 0.10, 0.22, 0.26, 0.93, 0.99, 0.0060, 0.0060, 0.70],
        [0.06, 0.03, 0.02, 0.03, 0.08, 0.10, 0.1200, 0.0030, 0.00],
        [0.02, 0.00, 0.06, 0.01, 0.04, 0.06, 0.0010, 0.2200, 0.00],
        [0.66, 0.26, 0.62, 0.34, 0.84, 0.90, 0.0200, 0.0080, 0.04],
        [0.11, 0.00, 0.01, 0.05, 1.00, 1.00, 0.0002, 0.0002, 0.00],
    ]
)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """A kind of job that a team starts repeatedly."""

    namespace: str
    base_name: str
    kind: SimJobKind
    gpus: tuple[int, ...]
    pools: tuple[str, ...]
    hours: tuple[float, float]
    memory: tuple[float, float]
    # False: the job exports no metrics of its own.
    reports_metrics: bool = True
    # Kinds of `serving.KINDS`, in turn.
    servers: tuple[str, ...] = ()


TEMPLATES = (
    JobTemplate("research", "llm-70b", SimJobKind.TRAINING, (16, 32, 64), ("h200", "h100"), (2, 12), (0.80, 0.94)),
    JobTemplate("research", "llm-8b-sft", SimJobKind.TRAINING, (8,), ("h200", "h100", "a100"), (0.5, 4), (0.70, 0.90)),
    JobTemplate("vision", "video-diffusion", SimJobKind.TRAINING, (8, 16), ("h200", "h100"), (1, 8), (0.60, 0.85)),
    JobTemplate("vision", "detector", SimJobKind.TRAINING, (2, 4), ("a100", "l40s"), (0.5, 3), (0.40, 0.70)),
    JobTemplate("speech", "asr-train", SimJobKind.TRAINING, (4, 8), ("a100", "h100"), (1, 6), (0.50, 0.80)),
    JobTemplate("recsys", "ranker", SimJobKind.TRAINING, (8, 16), ("a100",), (0.5, 5), (0.70, 0.88)),
    JobTemplate(
        "serving", "chat-api", SimJobKind.SERVING, (2, 4), ("h100", "h200"), (24, 96), (0.88, 0.92),
        servers=("vllm", "sglang", "tgi", "triton-llm"),
    ),
    JobTemplate(
        "serving", "embed-api", SimJobKind.SERVING, (1,), ("l40s",), (24, 96), (0.30, 0.60), servers=("triton",)
    ),
    JobTemplate(
        "speech", "asr-live", SimJobKind.SERVING, (1,), ("l40s", "h100"), (12, 72), (0.35, 0.55), servers=("program",)
    ),
)  # fmt: skip
SILENT_TRAINING = JobTemplate(
    "vision", "plain-script", SimJobKind.TRAINING, (8,), ("h200", "h100"), (2, 12), (0.60, 0.85), reports_metrics=False
)
RESERVATION = JobTemplate("research", "notebook-reserved", SimJobKind.HELD, (1,), (), (24, 96), (0.45, 0.60))


@dataclass(slots=True)
class SimJob:
    """One running job; GPU rows are in rank order."""

    number: int
    template: JobTemplate
    rows: tuple[int, ...]
    ends: int
    is_slurm: bool
    suffix: str
    pod_names: dict[int, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.template.base_name}-{self.suffix}"

    def labels(self, node_row: int) -> dict[str, str]:
        """Attribution labels as dcgm-exporter adds them, in the order in which it writes them."""
        if self.is_slurm:
            return {"hpc_job": str(self.number)}
        container = "server" if self.template.kind is SimJobKind.SERVING else "main"
        return {"container": container, "namespace": self.template.namespace, "pod": self.pod_names[node_row]}

    def workload(self, node_row: int) -> str:
        return f"slurm/{self.number}" if self.is_slurm else f"{self.template.namespace}/{self.pod_names[node_row]}"


class SimJobs:
    def __init__(self, layout: FleetLayout, rng: random.Random) -> None:
        self.layout = layout
        self.rng = rng
        self.running: dict[int, SimJob] = {}
        # Incremented when labels of the node change; the exporter caches by it.
        self.label_version = [0] * len(layout.nodes)
        self.is_schedulable = np.ones(len(layout.nodes), dtype=bool)
        count = layout.gpu_count
        self.job_of_gpu = np.full(count, -1, dtype=np.int64)
        self.kind = np.zeros(count, dtype=np.int8)
        self.is_down = np.zeros(count, dtype=bool)
        self.is_stalled = np.zeros(count, dtype=bool)
        # Rows of nodes without power: a training job with a rank there stalls.
        self.nodes_down: set[int] = set()
        self.memory_share = np.zeros(count)
        self._first_rank = np.arange(count)
        self._offset, self._density = np.zeros(count), np.ones(count)
        self._exchange, self._epoch, self._checkpoint = np.ones(count), np.ones(count), np.ones(count)
        self._gpus = np.array([len(node.gpus) for node in layout.nodes])
        self._free = self._gpus.copy()
        pools = [node.pool.name for node in layout.nodes]
        self._pools = {pool: np.array([name == pool for name in pools]) for pool in dict.fromkeys(pools)}
        self._timers: list[tuple[int, int, str]] = []
        self._pending: deque[SimJob] = deque(maxlen=REQUEUE_LIMIT)
        self._next_number = 4700 + rng.randrange(200)

    def fill(self, now: int) -> None:
        """Start jobs that have already run for some time, until the fleet has its usual load."""
        for pool in self._pools:
            misses = 0
            while self._busy_share(pool) < BUSY_SHARE and misses < 20:
                misses += not self._start_new_job(pool, now, is_running=True)

    def step(self, now: int) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, number, action = heapq.heappop(self._timers)
            job = self.running.get(number)
            if job is None:
                continue
            if action == "restart":
                self.is_down[list(job.rows)] = False
            elif job.ends <= now:
                self.end(job)
        if now % ARRIVAL_SECONDS == 0:
            for _ in range(len(self._pending)):
                job = self._pending.popleft()
                pool = self.layout.nodes[int(self.layout.node_of_gpu[job.rows[0]])].pool.name
                rows = self._find_free_gpus(pool, len(job.rows))
                if rows is None:
                    self._pending.append(job)
                else:
                    self._start(job.template, rows, now, is_running=False, suffix=job.suffix)
            for pool in self._pools:
                if self._busy_share(pool) < BUSY_SHARE:
                    self._start_new_job(pool, now, is_running=False)

    def activity(self, now: int) -> Floats:
        """The load of every GPU at `now`: one row for each column of LEVELS."""
        phase = self.phases(now)
        levels: Floats = LEVELS[phase].T
        compute = (phase == WorkPhase.COMPUTE) | (phase == WorkPhase.EXCHANGE)
        levels[1] = np.where(compute, np.minimum(0.94, levels[1] * self._density), levels[1])
        serving = phase == WorkPhase.SERVING
        if serving.any():
            levels[:, serving] *= self.request_wave(now)[serving]
        return levels

    def gang_speed(self, clock_share: Floats) -> Floats:
        """The speed of each GPU relative to its clock: a training job is as fast as its slowest rank."""
        slowest_of_gang = np.ones(len(clock_share))
        np.minimum.at(slowest_of_gang, self._first_rank, clock_share)
        speed: Floats = slowest_of_gang[self._first_rank] / clock_share
        return speed

    def is_occupied(self) -> NDArray[np.bool_]:
        """GPUs with a process: clocks stay high and memory stays allocated."""
        is_occupied_gpu: NDArray[np.bool_] = (self.kind != SimJobKind.NONE) & ~self.is_down
        return is_occupied_gpu

    def job_on_gpu(self, row: int) -> SimJob | None:
        return self.running.get(int(self.job_of_gpu[row]))

    def jobs_on_node(self, node: SimNode) -> list[SimJob]:
        numbers = {int(number) for number in self.job_of_gpu[node.rows]} - {-1}
        return [self.running[number] for number in sorted(numbers)]

    def crash(self, job: SimJob, now: int, *, restart_seconds: float | None) -> None:
        """Crash all ranks; without `restart_seconds` the job is not restarted."""
        self.is_down[list(job.rows)] = True
        self.is_stalled[list(job.rows)] = False
        if restart_seconds is not None:
            heapq.heappush(self._timers, (now + round(restart_seconds), job.number, "restart"))

    def end(self, job: SimJob) -> None:
        del self.running[job.number]
        rows = list(job.rows)
        self.job_of_gpu[rows], self.kind[rows], self.memory_share[rows] = -1, SimJobKind.NONE, 0.0
        self.is_down[rows] = self.is_stalled[rows] = False
        self._first_rank[rows] = rows
        self._update_nodes(job, +1)

    def evict(self, job: SimJob) -> None:
        """Remove a job from its GPUs; it starts again elsewhere as soon as GPUs are free."""
        self.end(job)
        if job.template.kind is not SimJobKind.HELD:
            self._pending.append(job)

    def place(self, template: JobTemplate, rows: tuple[int, ...], now: int) -> SimJob:
        for number in sorted({int(n) for n in self.job_of_gpu[list(rows)]} - {-1}):
            self.evict(self.running[number])
        return self._start(template, rows, now, is_running=False)

    def extend(self, job: SimJob, until: int) -> None:
        job.ends = max(job.ends, until)
        heapq.heappush(self._timers, (job.ends, job.number, "end"))

    def phases(self, now: int) -> NDArray[np.int8]:
        at = now + self._offset
        phase = np.zeros(len(self.kind), dtype=np.int8)
        training = self.kind == SimJobKind.TRAINING
        # A seventh of each cycle is gradient exchange; an epoch starts with ten seconds of loading.
        phase[training] = WorkPhase.COMPUTE
        phase[training & (at % self._exchange < self._exchange / 7)] = WorkPhase.EXCHANGE
        phase[training & (at % self._epoch < 10)] = WorkPhase.LOADING
        phase[training & (at % self._checkpoint < 25)] = WorkPhase.CHECKPOINT
        phase[self.kind == SimJobKind.SERVING] = WorkPhase.SERVING
        if self.nodes_down:
            has_lost_rank = np.zeros(len(self.kind), dtype=bool)
            has_lost_rank[self._first_rank[np.isin(self.layout.node_of_gpu, list(self.nodes_down))]] = True
            phase[training & has_lost_rank[self._first_rank]] = WorkPhase.STALLED
        phase[self.is_stalled] = WorkPhase.STALLED
        phase[self.is_down] = WorkPhase.IDLE
        return phase

    def request_wave(self, now: int) -> Floats:
        """The request rate over the day: highest at 15:00 UTC, with occasional bursts."""
        wave = 0.52 + 0.38 * np.cos(2 * np.pi * (now - 15 * 3600) / DAY_SECONDS)
        burst = np.where((now + self._offset) % self._epoch < 40, 0.3, 0.0)
        requests: Floats = np.clip(wave * self._density + burst, 0.05, 1.2)
        return requests

    def _busy_share(self, pool: str) -> float:
        nodes_of_pool = self._pools[pool]
        return 1.0 - float(self._free[nodes_of_pool].sum()) / float(self._gpus[nodes_of_pool].sum())

    def _start_new_job(self, pool: str, now: int, *, is_running: bool) -> bool:
        template = self.rng.choice([candidate for candidate in TEMPLATES if pool in candidate.pools])
        rows = self._find_free_gpus(pool, self.rng.choice(template.gpus))
        if rows is not None:
            self._start(template, rows, now, is_running=is_running)
        return rows is not None

    def _find_free_gpus(self, pool: str, gpus: int) -> tuple[int, ...] | None:
        """Whole nodes for a large job, else the fullest node with enough free GPUs; None if there is none."""
        usable = self._pools[pool] & self.is_schedulable
        if gpus >= 8:
            empty = np.flatnonzero(usable & (self._free == 8))[: gpus // 8]
            nodes = [self.layout.nodes[row] for row in empty]
            return None if len(nodes) < gpus // 8 else tuple(gpu.row for node in nodes for gpu in node.gpus)
        candidates = np.flatnonzero(usable & (self._free >= gpus))
        if not len(candidates):
            return None
        node = self.layout.nodes[int(candidates[np.argmin(self._free[candidates])])]
        return tuple(gpu.row for gpu in node.gpus if self.job_of_gpu[gpu.row] < 0)[:gpus]

    def _start(
        self, template: JobTemplate, rows: tuple[int, ...], now: int, *, is_running: bool, suffix: str | None = None
    ) -> SimJob:
        self._next_number += 1
        rng, gpu_rows = self.rng, list(rows)
        seconds = rng.uniform(*template.hours) * 3600 * (rng.random() if is_running else 1.0)
        node_rows = list(dict.fromkeys(int(row) for row in self.layout.node_of_gpu[gpu_rows]))
        is_slurm = self.layout.nodes[node_rows[0]].pool.scheduler == "slurm"
        suffix = suffix or f"{rng.getrandbits(20):05x}"
        job = SimJob(self._next_number, template, rows, now + 60 + round(seconds), is_slurm, suffix)
        job.pod_names = {row: f"{job.name}-worker-{rank}" for rank, row in enumerate(node_rows)}
        if template.kind is not SimJobKind.TRAINING:
            job.pod_names = {node_rows[0]: f"{job.name}-{rng.getrandbits(20):05x}"}
        self.running[job.number] = job
        heapq.heappush(self._timers, (job.ends, job.number, "end"))
        self.job_of_gpu[gpu_rows], self.kind[gpu_rows] = job.number, template.kind
        self.memory_share[gpu_rows] = rng.uniform(*template.memory)
        # Replicas of a service do not wait for each other.
        self._first_rank[gpu_rows] = gpu_rows[0] if template.kind is SimJobKind.TRAINING else gpu_rows
        self._offset[gpu_rows] = rng.randrange(3600)
        # Denser models keep the tensor cores busier (a training job near 2.5 reaches the power cap).
        self._density[gpu_rows] = rng.uniform(*((0.7, 1.1) if template.kind is SimJobKind.SERVING else (0.8, 2.4)))
        self._exchange[gpu_rows], self._epoch[gpu_rows] = rng.randrange(14, 56), rng.randrange(240, 900)
        self._checkpoint[gpu_rows] = rng.randrange(900, 2400)
        self._update_nodes(job, -1)
        return job

    def _update_nodes(self, job: SimJob, gpus_freed: int) -> None:
        for row in job.rows:
            node = int(self.layout.node_of_gpu[row])
            self._free[node] += gpus_freed
            self.label_version[node] += 1
