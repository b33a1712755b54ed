"""Renders the metrics of a training rank, under the names and labels that the shipped rules use.

`TrainingMonitor.write` calls this for each scrape. Values that were never reported are omitted.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from watchkeeper.instrument.checkpoints import Checkpoints
from watchkeeper.instrument.mirrors import MirrorSet
from watchkeeper.instrument.page import MetricsPage, format_labels
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
    mirrors: MirrorSet

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the guides; `job` is reserved for Prometheus."""
        return {"job_name": self.job_name, "rank": str(self.place.rank), "world_size": str(self.place.world_size)}


def write_page(page: MetricsPage, snapshot: RankSnapshot, *, model_utilisation: float | None, tells_all: bool) -> None:
    _write_heartbeat(page, snapshot)
    _write_times(page, snapshot)
    _write_events(page, snapshot)
    if tells_all:
        _write_training_metrics(page, snapshot, model_utilisation)
        _write_checkpoints(page, snapshot)
        _write_runs(page, snapshot)


def _write_heartbeat(page: MetricsPage, snapshot: RankSnapshot) -> None:
    labels, place, progress = format_labels(snapshot.labels), snapshot.place, snapshot.progress
    page.add_family(
        "training_last_step_timestamp_seconds", "gauge", "Time when this rank finished its last step",
        labels=labels, value=progress.last_step_at,
    )  # fmt: skip
    page.begin_family("training_world_size", "gauge", "Number of ranks of the complete job")
    page.add(labels, place.world_size)
    page.begin_family("training_iterations_total", "counter", "Steps that this rank has finished since it started")
    page.add(labels, snapshot.clock.steps)
    page.begin_family("training_step", "gauge", "Number of the last step, as the program counts them")
    page.add(labels, progress.step)
    page.begin_family("training_restarts_total", "counter", "Restarts of this rank by torchrun and Slurm")
    page.add(labels, place.restarts)
    page.begin_family("training_rank_info", "gauge", "1; labels have the node and GPU of this rank")
    page.add(format_labels({**snapshot.labels, "Hostname": place.node, "gpu": place.gpu, "UUID": place.uuid}), 1)
    page.add_family(
        "training_cuda_ooms_total", "counter", "CUDA out-of-memory errors (torch.cuda.memory_stats num_ooms)",
        labels=labels, value=_count_ooms(),
    )  # fmt: skip


def _write_times(page: MetricsPage, snapshot: RankSnapshot) -> None:
    labels, clock = format_labels(snapshot.labels), snapshot.clock
    page.add_family(
        "training_step_compute_seconds", "gauge",
        "Median step time of the last minute, without waits for input or other ranks, and without pauses",
        labels=labels, value=clock.compute_seconds(perf_counter()),
    )  # fmt: skip
    page.begin_family(
        "training_step_seconds_total", "counter", "Total time of all steps, each from the end of the previous step"
    )
    page.add(labels, clock.wall_seconds)
    page.begin_family("training_data_wait_seconds_total", "counter", "Total time that steps waited for input")
    page.add(labels, clock.totals[Phase.INPUT])
    page.begin_family("training_phase_seconds_total", "counter", "Total time of all steps, by phase")
    for phase in Phase:
        if clock.totals[phase]:
            page.add(format_labels({**snapshot.labels, "phase": phase.label}), clock.totals[phase])
    pause = clock.current_pause()
    page.begin_family("training_paused", "gauge", "1 while the program validates or writes a checkpoint")
    page.add(labels, pause is not None)


def _write_events(page: MetricsPage, snapshot: RankSnapshot) -> None:
    rows = [
        (format_labels({**snapshot.labels, "kind": kind}), event) for kind, event in snapshot.progress.events.items()
    ]
    page.begin_family("training_events_total", "counter", "Events of the loss and the gradient norm, by kind")
    for labels, event in rows:
        page.add(labels, event.count)
    recorded = [(labels, event) for labels, event in rows if event.count]
    if recorded:
        page.begin_family("training_event_step", "gauge", "Step at which the last event of this kind started")
        for labels, event in recorded:
            page.add(labels, event.step)
        page.begin_family(
            "training_event_timestamp_seconds", "gauge", "Time at which the last event of this kind started"
        )
        for labels, event in recorded:
            page.add(labels, event.started_at)


def _write_training_metrics(page: MetricsPage, snapshot: RankSnapshot, model_utilisation: float | None) -> None:
    labels, progress = format_labels(snapshot.labels), snapshot.progress
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
        ("training_samples_total", "counter", "Samples that this rank processed", progress.rates.samples or None),
        ("training_tokens_total", "counter", "Tokens that this rank processed", progress.rates.tokens or None),
        (
            "training_samples_per_second",
            "gauge",
            "Samples per second of this rank, over the last minute",
            samples if progress.rates.samples else None,
        ),
        (
            "training_tokens_per_second",
            "gauge",
            "Tokens per second of this rank, over the last minute",
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
        page.add_family(name, kind, help, labels=labels, value=value)


def _write_checkpoints(page: MetricsPage, snapshot: RankSnapshot) -> None:
    labels, checkpoints = format_labels(snapshot.labels), snapshot.checkpoints
    rows = (
        ("training_checkpoint_starts_total", "counter", "Checkpoints started", checkpoints.started),
        ("training_checkpoint_writes_total", "counter", "Checkpoints written", checkpoints.written),
        ("training_checkpoint_failures_total", "counter", "Checkpoints that failed", checkpoints.failed),
        (
            "training_checkpoint_last_start_timestamp_seconds",
            "gauge",
            "Time when the last checkpoint started",
            checkpoints.last_started_at,
        ),
        (
            "training_checkpoint_last_success_timestamp_seconds",
            "gauge",
            "Time when the last checkpoint was complete",
            checkpoints.last_written_at,
        ),
        ("training_checkpoint_bytes", "gauge", "Size of the last checkpoint", checkpoints.last_bytes),
        ("training_checkpoint_seconds", "gauge", "Duration of the last checkpoint", checkpoints.last_seconds),
    )
    for name, kind, help, value in rows:
        page.add_family(name, kind, help, labels=labels, value=value)


def _write_runs(page: MetricsPage, snapshot: RankSnapshot) -> None:
    runs = [run for run in snapshot.mirrors.list_runs() if run.url]
    if runs:
        page.begin_family("training_run_info", "gauge", "1; labels have the job's run in an experiment tracker")
        for run in runs:
            page.add(
                format_labels({**snapshot.labels, "tracker": run.tracker, "run_id": run.id, "run_url": run.url}), 1
            )
    failures = snapshot.mirrors.count_failures()
    if failures:
        page.begin_family("training_mirror_failures_total", "counter", "Failed writes to an experiment tracker")
        for tracker, count in failures.items():
            page.add(format_labels({**snapshot.labels, "tracker": tracker}), count)


def _count_ooms() -> float | None:
    """PyTorch's count of out-of-memory errors, if the program uses PyTorch on a GPU; imports nothing."""
    torch = sys.modules.get("torch")
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            return float(torch.cuda.memory_stats().get("num_ooms", 0))
    return None
