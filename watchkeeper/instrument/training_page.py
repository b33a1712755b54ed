"""A rank's page: every series of a training program, by the names and labels that the shipped rules read.

`TrainingMonitor.write` calls it whenever somebody asks. What was never told is absent.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from watchkeeper.instrument.checkpoints import Checkpoints
from watchkeeper.instrument.mirrors import MirrorSet
from watchkeeper.instrument.page import MetricsPage, braces
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.progress import TrainingProgress
from watchkeeper.instrument.step_clock import Phase, StepClock


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    job_name: str
    place: Placement
    clock: StepClock
    progress: TrainingProgress
    checkpoints: Checkpoints
    mirroring: MirrorSet

    @property
    def labels(self) -> dict[str, str]:
        """The guides' labels; `job` is Prometheus' own."""
        return {"job_name": self.job_name, "rank": str(self.place.rank), "world_size": str(self.place.world_size)}


def write(page: MetricsPage, shown: RankSnapshot, *, model_utilisation: float | None, tells_all: bool) -> None:
    _write_heartbeat(page, shown)
    _write_times(page, shown)
    _write_events(page, shown)
    if tells_all:
        _write_curves(page, shown, model_utilisation)
        _write_checkpoints(page, shown)
        _write_runs(page, shown)


def _write_heartbeat(page: MetricsPage, shown: RankSnapshot) -> None:
    labels, place, progress = braces(shown.labels), shown.place, shown.progress
    page.single(
        "training_last_step_timestamp_seconds", "gauge", "When this rank finished its last step",
        labels=labels, value=progress.last_step_at,
    )  # fmt: skip
    page.begin("training_world_size", "gauge", "Ranks that the job has when it is whole")
    page.add(labels, place.world_size)
    page.begin("training_iterations_total", "counter", "Steps that this rank finished since it was started")
    page.add(labels, shown.clock.steps)
    page.begin("training_step", "gauge", "Number of the last step, as the program counts")
    page.add(labels, progress.step)
    page.begin("training_restarts_total", "counter", "How often torchrun and Slurm have started this rank again")
    page.add(labels, place.restarts)
    page.begin("training_rank_info", "gauge", "Where this rank runs: its node and GPU")
    page.add(braces({**shown.labels, "Hostname": place.node, "gpu": place.gpu, "UUID": place.uuid}), 1)
    page.single(
        "training_cuda_ooms_total", "counter", "CUDA out-of-memory errors (torch.cuda.memory_stats num_ooms)",
        labels=labels, value=_ooms(),
    )  # fmt: skip


def _write_times(page: MetricsPage, shown: RankSnapshot) -> None:
    labels, clock = braces(shown.labels), shown.clock
    page.single(
        "training_step_compute_seconds", "gauge",
        "Middle of the last minute's steps, without waiting for input or other ranks, and without pauses",
        labels=labels, value=clock.compute_seconds(perf_counter()),
    )  # fmt: skip
    page.begin(
        "training_step_seconds_total", "counter", "Time of all steps, from the end of one to the end of the next"
    )
    page.add(labels, clock.wall_seconds)
    page.begin("training_data_wait_seconds_total", "counter", "Time that steps waited for input")
    page.add(labels, clock.totals[Phase.INPUT])
    page.begin("training_phase_seconds_total", "counter", "Time of all steps, by what the rank did")
    for phase in Phase:
        if clock.totals[phase]:
            page.add(braces({**shown.labels, "phase": phase.label}), clock.totals[phase])
    pause = clock.pause()
    page.begin("training_paused", "gauge", "1 while the program says that it validates or writes a checkpoint")
    page.add(labels, pause is not None)


def _write_events(page: MetricsPage, shown: RankSnapshot) -> None:
    rows = [(braces({**shown.labels, "kind": kind}), event) for kind, event in shown.progress.events.items()]
    page.begin("training_events_total", "counter", "How often a loss or a gradient became bad, by kind")
    for labels, event in rows:
        page.add(labels, event.count)
    seen = [(labels, event) for labels, event in rows if event.count]
    if seen:
        page.begin("training_event_step", "gauge", "The step at which it last began")
        for labels, event in seen:
            page.add(labels, event.step)
        page.begin("training_event_timestamp_seconds", "gauge", "When it last began")
        for labels, event in seen:
            page.add(labels, event.at)


def _write_curves(page: MetricsPage, shown: RankSnapshot, model_utilisation: float | None) -> None:
    labels, progress = braces(shown.labels), shown.progress
    samples, tokens = progress.rates.per_second(perf_counter())
    rows = (
        ("training_loss", "gauge", "Current training loss", progress.loss.value),
        (
            "training_validation_loss",
            "gauge",
            "Validation loss of the last evaluation",
            progress.validation_loss.value,
        ),
        ("training_grad_norm", "gauge", "Norm of the last gradient", progress.grad_norm.value),
        ("training_learning_rate", "gauge", "Current learning rate", progress.learning_rate.value),
        ("training_epoch", "gauge", "Current epoch", progress.epoch),
        ("training_samples_total", "counter", "Samples of this rank", progress.rates.samples or None),
        ("training_tokens_total", "counter", "Tokens of this rank", progress.rates.tokens or None),
        (
            "training_samples_per_second",
            "gauge",
            "Samples a second of this rank, over the last minute",
            samples if progress.rates.samples else None,
        ),
        (
            "training_tokens_per_second",
            "gauge",
            "Tokens a second of this rank, over the last minute",
            tokens if progress.rates.tokens else None,
        ),
        (
            "training_model_flops_utilization",
            "gauge",
            "Share of the GPU's peak that the model uses (MFU), over the last minute",
            model_utilisation,
        ),
    )
    for name, kind, help, value in rows:
        page.single(name, kind, help, labels=labels, value=value)


def _write_checkpoints(page: MetricsPage, shown: RankSnapshot) -> None:
    labels, sums = braces(shown.labels), shown.checkpoints
    rows = (
        ("training_checkpoint_starts_total", "counter", "Checkpoints that were begun", sums.begun),
        ("training_checkpoint_writes_total", "counter", "Checkpoints that were written", sums.written),
        ("training_checkpoint_failures_total", "counter", "Checkpoints that could not be written", sums.failed),
        (
            "training_checkpoint_last_start_timestamp_seconds",
            "gauge",
            "When the last checkpoint was begun",
            sums.last_begun_at,
        ),
        (
            "training_checkpoint_last_success_timestamp_seconds",
            "gauge",
            "When the last checkpoint was complete",
            sums.last_written_at,
        ),
        ("training_checkpoint_bytes", "gauge", "Size of the last checkpoint", sums.last_bytes),
        ("training_checkpoint_seconds", "gauge", "Time that the last checkpoint took", sums.last_seconds),
    )
    for name, kind, help, value in rows:
        page.single(name, kind, help, labels=labels, value=value)


def _write_runs(page: MetricsPage, shown: RankSnapshot) -> None:
    runs = [run for run in shown.mirroring.runs() if run.url]
    if runs:
        page.begin("training_run_info", "gauge", "The run of this job in an experiment tracker")
        for run in runs:
            page.add(braces({**shown.labels, "tracker": run.tracker, "run_id": run.id, "run_url": run.url}), 1)
    failures = shown.mirroring.failures()
    if failures:
        page.begin("training_mirror_failures_total", "counter", "Writes to an experiment tracker that failed")
        for tracker, count in failures.items():
            page.add(braces({**shown.labels, "tracker": tracker}), count)


def _ooms() -> float | None:
    """What PyTorch counts, where the program uses it on a GPU; nothing is imported for it."""
    torch = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return float(torch.cuda.memory_stats().get("num_ooms", 0))
    return None
