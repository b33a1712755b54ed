"""Simulate the metrics of workloads: steps of training jobs here, requests of services in `serving`.

`step` advances all running workloads every few seconds; `page` returns the metrics of all training jobs, with the names
of our guides. A crashed training job has no metrics.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from watchkeeper.sim.effects import EffectTotals, LossFault, TrainingEffect
from watchkeeper.sim.jobs import REQUEUE_LIMIT, SimJob, SimJobKind, SimJobs, WorkPhase
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.serving import ModelServer, observe
from watchkeeper.sim.text_page import MetricsPage, format_labels

STEP_SECONDS = 5
# A failed checkpoint or allocation is retried after this time.
RETRY_SECONDS = 60
HEALTHY = TrainingEffect()
# Buckets of `watchkeeper.instrument` for the steps of training jobs that take seconds.
STEP_BUCKETS = ("0.5", "1", "2.5", "5", "10", "25", "60", "120", "300", "+Inf")
STEP_BOUNDS = tuple(map(float, STEP_BUCKETS))
# How a fault changes the loss: it rises to several times its value, or is no number.
LOSS_FACTORS: dict[str, float] = {LossFault.NAN: math.nan, LossFault.RISING: 3.0}
# How long the page of a server that ended still answers, so that discovery drops its target before a scrape fails.
GRACE_SECONDS = 60


@dataclass(slots=True)
class SimTraining:
    """One training job; labels are in the order of its GPUs."""

    job: SimJob
    step_seconds: float
    batch: int
    mean_clock: float
    steps: float = 0.0
    # The steps of the last checkpoint.
    saved_steps: float = 0.0
    last_step_at: float = 0.0
    speed: float = 1.0
    checkpoint_at: float = 0.0
    checkpoints: int = 0
    failed_checkpoints: int = 0
    failed_at: int = 0
    ooms: int = 0
    data_wait: float = 0.0
    compute_seconds: float = 0.0
    durations: list[float] = field(default_factory=lambda: [0.0] * len(STEP_BUCKETS))
    labels: list[str] = field(default_factory=list)
    place_labels: list[str] = field(default_factory=list)


class SimWorkloads:
    def __init__(self, jobs: SimJobs, physics: Physics, rng: random.Random) -> None:
        self._jobs, self._physics, self._rng = jobs, physics, rng
        self._training: dict[int, SimTraining] = {}
        # By service: a moved service keeps its kind of server.
        self.servers: dict[str, ModelServer] = {}
        self._next_kind: Counter[str] = Counter()
        # Training jobs that do not run now, by name: a moved job continues from its checkpoint.
        self._paused: dict[str, SimTraining] = {}

    def step(self, total: EffectTotals, now: int) -> None:
        """Simulate STEP_SECONDS of work."""
        running = self._jobs.running
        self._paused |= {run.job.name: run for number, run in self._training.items() if number not in running}
        while len(self._paused) > REQUEUE_LIMIT:
            del self._paused[next(iter(self._paused))]
        self._training = {number: run for number, run in self._training.items() if number in running}
        phases = self._jobs.phases(now)
        waves = self._jobs.request_wave(now)
        for number, job in running.items():
            if not job.template.reports_metrics:
                continue
            if job.template.kind is SimJobKind.TRAINING:
                run = self._training.get(number) or self._start_training(job, now)
                phase = WorkPhase(int(phases[job.rows[0]]))
                self._step_training(run, total.training.get(number, HEALTHY), phase=phase, now=now)
            elif job.template.kind is SimJobKind.SERVING:
                wave, server = float(waves[job.rows[0]]), self._server_of(job)
                server.step(total.serving.get(number), wave=wave, seconds=STEP_SECONDS)
        self._end_servers(now)

    def page(self, total: EffectTotals) -> bytes:
        page = MetricsPage()
        alive = [run for run in self._training.values() if not self._jobs.is_down[run.job.rows[0]]]
        _write_training(page, alive, total)
        return page.content()

    def _server_of(self, job: SimJob) -> ModelServer:
        server = self.servers.get(job.name)
        if server is None or server.job.number != job.number:
            capacity = self._rng.uniform(8, 25) * len(job.rows)
            kind = self._choose_kind(job) if server is None else server.kind
            server = self.servers[job.name] = ModelServer(job, kind, capacity)
        return server

    def _choose_kind(self, job: SimJob) -> str:
        """Each kind of server of a template in turn, so that a small fleet has all of them."""
        kinds, name = job.template.servers, job.template.base_name
        self._next_kind[name] += 1
        return kinds[(self._next_kind[name] - 1) % len(kinds)]

    def _end_servers(self, now: int) -> None:
        for server in self.servers.values():
            if server.job.number not in self._jobs.running and server.ended_at is None:
                server.ended_at = now
        kept = (server for server in self.servers.values() if now - (server.ended_at or now) < GRACE_SECONDS)
        self.servers = {server.job.name: server for server in kept}

    def _start_training(self, job: SimJob, now: int) -> SimTraining:
        rng, paused = self._rng, self._paused.pop(job.name, None)
        clock = max(float(self._physics.clock_share[list(job.rows)].min()), 0.3)
        if paused is None:
            step_seconds, batch = rng.uniform(0.8, 4.0), len(job.rows) * rng.choice([2, 4, 8])
            run = SimTraining(job, step_seconds, batch, clock, last_step_at=now, checkpoint_at=now)
        else:
            model = (paused.step_seconds, paused.batch, clock, paused.saved_steps)
            run = SimTraining(job, *model, saved_steps=paused.saved_steps, last_step_at=now, checkpoint_at=now)
        layout = self._jobs.layout
        for rank, row in enumerate(job.rows):
            labels = {"job_name": job.name, "rank": str(rank), "world_size": str(len(job.rows))}
            node = layout.nodes[int(layout.node_of_gpu[row])]
            gpu = node.gpus[row - node.first_row]
            place = {"Hostname": node.name, "gpu": str(gpu.index), "UUID": gpu.uuid}
            run.labels.append(format_labels(labels))
            run.place_labels.append(format_labels(labels | place))
        self._training[job.number] = run
        return run

    def _step_training(self, run: SimTraining, effect: TrainingEffect, *, phase: WorkPhase, now: int) -> None:
        rows = list(run.job.rows)
        if self._jobs.is_down[rows[0]]:
            run.last_step_at = now
            return
        is_stuck = phase is WorkPhase.STALLED or effect.dead_rank
        clock = float(self._physics.clock_share[rows].min())
        run.mean_clock += 0.002 * (clock - run.mean_clock)
        speed = min(1.2, clock / run.mean_clock) * (effect.pace if effect.pace is not None else 1.0)
        speed *= (1 - effect.data_wait) / max(1.0, effect.slow_rank)
        if is_stuck or phase in (WorkPhase.LOADING, WorkPhase.CHECKPOINT):
            speed = 0.0
        run.speed += (speed - run.speed) * STEP_SECONDS / 60
        run.steps += STEP_SECONDS / run.step_seconds * speed
        if speed > 0:
            run.last_step_at = now - self._rng.random() * run.step_seconds
            seconds = run.step_seconds / speed
            count = STEP_SECONDS / seconds
            observe(run.durations, STEP_BOUNDS, count, median=seconds / 10, delay=seconds * 0.9)
        if phase is WorkPhase.CHECKPOINT and now - run.checkpoint_at > 120 and not effect.checkpoints_fail:
            run.checkpoint_at = now
            run.checkpoints += 1
            run.saved_steps = run.steps
        if (effect.checkpoints_fail or effect.ooms) and now - run.failed_at >= RETRY_SECONDS:
            run.failed_at = now
            run.failed_checkpoints += effect.checkpoints_fail
            run.ooms += effect.ooms
        run.data_wait += STEP_SECONDS * (effect.data_wait or (0.02 if not is_stuck else 0.0))
        run.compute_seconds = run.step_seconds * 0.8 / max(speed, 0.05) if not is_stuck else run.compute_seconds


def _write_training(page: MetricsPage, runs: list[SimTraining], total: EffectTotals) -> None:
    effects = [(run, total.training.get(run.job.number, HEALTHY)) for run in runs]
    # The last rank is the one that died or is slow.
    page.begin("training_last_step_timestamp_seconds", "gauge", "Time when this rank finished its last step")
    for run, effect in effects:
        for labels in run.labels[: len(run.labels) - effect.dead_rank]:
            page.add(labels, round(run.last_step_at, 3))
    page.begin("training_step_compute_seconds", "gauge", "Time of the last step before this rank waited for the others")
    for run, effect in effects:
        for rank, labels in enumerate(run.labels[: len(run.labels) - effect.dead_rank]):
            is_slow = effect.slow_rank > 1 and rank == len(run.labels) - 1
            compute_seconds = run.compute_seconds / (1 if is_slow else max(1.0, effect.slow_rank))
            page.add(labels, round(compute_seconds * (1 + 0.03 * math.sin(rank + run.steps)), 4))
    page.begin("training_rank_info", "gauge", "Node and GPU of this rank")
    for run, effect in effects:
        for labels in run.place_labels[: len(run.place_labels) - effect.dead_rank]:
            page.add(labels, 1)
    for name, kind, help, value_of in JOB_METRICS:
        page.begin(name, kind, help)
        for run, effect in effects:
            page.add(run.labels[0], value_of(run, effect))
    page.begin("training_step_duration_seconds", "histogram", "Time of a step, without pauses")
    for run in runs:
        for bound, count in zip(STEP_BUCKETS, run.durations, strict=True):
            page.add(f'{run.labels[0][:-1]},le="{bound}"}}', int(count), suffix="_bucket")
        page.add(run.labels[0], int(run.steps), suffix="_count")


def _loss(run: SimTraining, effect: TrainingEffect) -> float:
    to_learn = 0.0 if effect.loss is LossFault.OVERFIT else 7.0 * math.exp(-run.steps / 3000)
    loss = 1.8 + to_learn + 0.02 * math.sin(run.steps / 3)
    return round(loss * LOSS_FACTORS.get(effect.loss or "", 1.0), 4)


def _validation_loss(run: SimTraining, effect: TrainingEffect) -> float:
    return round(_loss(run, effect) * (1.5 if effect.loss is LossFault.OVERFIT else 1.04), 4)


def _gradient_norm(run: SimTraining, effect: TrainingEffect) -> float:
    return math.inf if effect.loss is LossFault.NAN else round(0.5 + 0.3 * math.sin(run.steps / 7), 4)


# Name, type, help and value of the metrics of a whole job, which only its first rank exports.
JOB_METRICS: tuple[tuple[str, str, str, Callable[[SimTraining, TrainingEffect], float]], ...] = (
    ("training_world_size", "gauge", "Expected number of ranks of the job", lambda run, _: len(run.labels)),
    (
        "training_data_wait_seconds_total", "counter", "Time that steps waited for input",
        lambda run, _: round(run.data_wait, 3),
    ),
    (
        "training_cuda_ooms_total", "counter", "CUDA out-of-memory errors (torch.cuda.memory_stats num_ooms)",
        lambda run, _: run.ooms,
    ),
    ("training_iterations_total", "counter", "Total training iterations", lambda run, _: int(run.steps)),
    ("training_loss", "gauge", "Current training loss", _loss),
    (
        "training_validation_loss", "gauge", "Validation loss of the last evaluation",
        _validation_loss,
    ),
    ("training_grad_norm", "gauge", "Norm of the last gradient", _gradient_norm),
    (
        "training_samples_per_second", "gauge", "Samples per second over the last minute",
        lambda run, _: round(run.batch / run.step_seconds * run.speed, 4),
    ),
    (
        "training_checkpoint_last_success_timestamp_seconds", "gauge", "Time of the last complete checkpoint",
        lambda run, _: run.checkpoint_at,
    ),
    ("training_checkpoint_writes_total", "counter", "Checkpoints written", lambda run, _: run.checkpoints),
    ("training_checkpoint_failures_total", "counter", "Failed checkpoints", lambda run, _: run.failed_checkpoints),
)  # fmt: skip
