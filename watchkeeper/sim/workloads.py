"""Simulate the metrics of workloads: steps of training jobs, and requests of services.

`step` advances all running workloads every few seconds; `page` returns the metrics of all of them. Metric names are
those of our guides for training, and those of the guides and vLLM for serving. A crashed job has no metrics.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

from watchkeeper.sim.effects import EffectTotals, LossFault, ServingEffect, TrainingEffect
from watchkeeper.sim.jobs import REQUEUE_LIMIT, SimJob, SimJobKind, SimJobs, WorkPhase
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.text_page import MetricsPage, format_labels

STEP_SECONDS = 5
# A failed checkpoint or allocation is retried after this time.
RETRY_SECONDS = 60
HEALTHY = TrainingEffect()
# Buckets of the guides, and of vLLM for the first token.
DURATION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, math.inf)
TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf
)  # fmt: skip
# Buckets of `watchkeeper.instrument` for the steps of training jobs that take seconds.
STEP_BUCKETS = (0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, math.inf)
# Median latencies without load; SPREAD is the sigma of the log-normal distribution.
MEDIAN_SECONDS, FIRST_TOKEN_SECONDS, SPREAD = 0.06, 0.03, 0.45
ERROR_SHARE = 1e-5
# Requests beyond this queue length are rejected.
MAX_WAITING = 400


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


@dataclass(slots=True)
class SimServing:
    job: SimJob
    capacity: float
    answered: float = 0.0
    failed: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    durations: list[float] = field(default_factory=lambda: [0.0] * len(DURATION_BUCKETS))
    first_tokens: list[float] = field(default_factory=lambda: [0.0] * len(TTFT_BUCKETS))
    seconds: float = 0.0


class SimWorkloads:
    def __init__(self, jobs: SimJobs, physics: Physics, rng: random.Random) -> None:
        self._jobs, self._physics, self._rng = jobs, physics, rng
        self._training: dict[int, SimTraining] = {}
        self._serving: dict[int, SimServing] = {}
        # Training jobs that do not run now, by name: a moved job continues from its checkpoint.
        self._paused: dict[str, SimTraining] = {}

    def step(self, total: EffectTotals, now: int) -> None:
        """Simulate STEP_SECONDS of work."""
        running = self._jobs.running
        self._paused |= {run.job.name: run for number, run in self._training.items() if number not in running}
        while len(self._paused) > REQUEUE_LIMIT:
            del self._paused[next(iter(self._paused))]
        self._training = {number: run for number, run in self._training.items() if number in running}
        self._serving = {number: run for number, run in self._serving.items() if number in running}
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
                if number not in self._serving:
                    self._serving[number] = SimServing(job, self._rng.uniform(8, 25) * len(job.rows))
                wave = float(waves[job.rows[0]])
                self._step_serving(self._serving[number], total.serving.get(number), wave=wave)

    def page(self, total: EffectTotals) -> bytes:
        page = MetricsPage()
        alive = [run for run in self._training.values() if not self._jobs.is_down[run.job.rows[0]]]
        _write_training(page, alive, total)
        _write_serving(page, list(self._serving.values()))
        return page.content()

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
            _observe(run.durations, STEP_BUCKETS, count, median=seconds / 10, delay=seconds * 0.9)
        if phase is WorkPhase.CHECKPOINT and now - run.checkpoint_at > 120:
            run.checkpoint_at = now
            run.checkpoints += not effect.checkpoints_fail
            run.saved_steps = run.saved_steps if effect.checkpoints_fail else run.steps
        if (effect.checkpoints_fail or effect.ooms) and now - run.failed_at >= RETRY_SECONDS:
            run.failed_at = now
            run.failed_checkpoints += effect.checkpoints_fail
            run.ooms += effect.ooms
        run.data_wait += STEP_SECONDS * (effect.data_wait or (0.02 if not is_stuck else 0.0))
        run.compute_seconds = run.step_seconds * 0.8 / max(speed, 0.05) if not is_stuck else run.compute_seconds

    def _step_serving(self, run: SimServing, effect: ServingEffect | None, *, wave: float) -> None:
        """Serve the requests of this step: requests beyond the capacity wait, and beyond MAX_WAITING fail."""
        requests = run.capacity * (effect.demand if effect else min(0.75, 0.6 * wave)) * STEP_SECONDS
        capacity = run.capacity * STEP_SECONDS
        run.waiting = max(0.0, run.waiting + requests - capacity)
        rejected = max(0.0, run.waiting - MAX_WAITING)
        run.waiting -= rejected
        answered = min(requests, capacity)
        load = min(0.95, requests / capacity)
        delay = run.waiting / run.capacity
        run.running = 4 * load * len(run.job.rows)
        run.answered += answered
        run.failed += rejected + answered * ERROR_SHARE
        run.seconds += answered * (MEDIAN_SECONDS / (1 - load / 2) + delay)
        _observe(run.durations, DURATION_BUCKETS, answered, median=MEDIAN_SECONDS / (1 - load / 2), delay=delay)
        _observe(run.first_tokens, TTFT_BUCKETS, answered, median=FIRST_TOKEN_SECONDS / (1 - load / 2), delay=delay)


def _observe(buckets: list[float], bounds: tuple[float, ...], number: float, *, median: float, delay: float) -> None:
    """Add `number` observations with a log-normal distribution after a delay to cumulative buckets."""
    for bucket, share in enumerate(_shares_below(bounds, round(median, 4), round(delay, 2))):
        buckets[bucket] += number * share


@lru_cache(maxsize=4096)
def _shares_below(bounds: tuple[float, ...], median: float, delay: float) -> tuple[float, ...]:
    return tuple(_share_below(bound - delay, median) for bound in bounds)


def _share_below(bound: float, median: float) -> float:
    if bound <= 0:
        return 0.0
    if math.isinf(bound):
        return 1.0
    return 0.5 * (1 + math.erf(math.log(bound / median) / (SPREAD * math.sqrt(2))))


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
            page.add(f'{run.labels[0][:-1]},le="{_bound(bound)}"}}', int(count), suffix="_bucket")
        page.add(run.labels[0], int(run.steps), suffix="_count")


def _loss(run: SimTraining, effect: TrainingEffect) -> float:
    loss = 1.8 + 7.0 * math.exp(-run.steps / 3000) + 0.02 * math.sin(run.steps / 3)
    return math.nan if effect.loss is LossFault.NAN else round(loss, 4)


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
        lambda run, effect: round(1.04 * _loss(run, effect), 4),
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


def _write_serving(page: MetricsPage, runs: list[SimServing]) -> None:
    by_name = [(run.job.name, run) for run in runs]
    page.begin("inference_request_duration_seconds", "histogram", "End-to-end inference latency")
    for name, run in by_name:
        _add_buckets(page, name, DURATION_BUCKETS, run.durations)
        page.add(_model_labels(name), round(run.seconds, 3), suffix="_sum")
        page.add(_model_labels(name), int(run.durations[-1]), suffix="_count")
    page.begin("vllm:time_to_first_token_seconds", "histogram", "Histogram of time to first token in seconds.")
    for name, run in by_name:
        _add_buckets(page, name, TTFT_BUCKETS, run.first_tokens)
        page.add(_model_labels(name), int(run.first_tokens[-1]), suffix="_count")
    page.begin("inference_requests_total", "counter", "Requests by status code")
    for name, run in by_name:
        page.add(_model_labels(name, "code", "200"), int(run.answered))
        page.add(_model_labels(name, "code", "503"), int(run.failed))
    page.begin("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
    for name, run in by_name:
        page.add(_model_labels(name), int(run.waiting))
    page.begin("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.")
    for name, run in by_name:
        page.add(_model_labels(name), int(run.running))


def _add_buckets(page: MetricsPage, model: str, bounds: Sequence[float], counts: Sequence[float]) -> None:
    for bound, count in zip(bounds, counts, strict=True):
        page.add(_model_labels(model, "le", _bound(bound)), int(count), suffix="_bucket")


@lru_cache(maxsize=1 << 15)
def _model_labels(model: str, label: str = "", value: str = "") -> str:
    return format_labels({"model_name": model, **({label: value} if label else {})})


@cache
def _bound(value: float) -> str:
    return "+Inf" if math.isinf(value) else f"{value:g}"
