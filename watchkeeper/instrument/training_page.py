"""Renders the metrics of a training rank, under the names and labels that the shipped rules use.

`TrainingMonitor.write` calls this for each scrape. Values that were never reported are omitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from watchkeeper.instrument import allocator
from watchkeeper.instrument.kernels import KernelTimes
from watchkeeper.instrument.mirrors import MirrorSet
from watchkeeper.instrument.page import MetricsPage, format_labels
from watchkeeper.instrument.placement import Placement
from watchkeeper.instrument.progress import Checkpoints, TrainingProgress
from watchkeeper.instrument.step_clock import Phase, StepClock

# Name, help, value; None: unknown.
Row = tuple[str, str, float | None]


@dataclass(frozen=True, slots=True)
class RankSnapshot:
    job_name: str
    place: Placement
    clock: StepClock
    progress: TrainingProgress
    checkpoints: Checkpoints
    kernels: KernelTimes
    mirrors: MirrorSet

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the guides; `job` is reserved for Prometheus."""
        return {"job_name": self.job_name, "rank": str(self.place.rank), "world_size": str(self.place.world_size)}


def write_page(page: MetricsPage, snapshot: RankSnapshot, *, model_utilisation: float | None, tells_all: bool) -> None:
    labels, place = snapshot.labels, snapshot.place
    rows = _list_rank_rows(snapshot) + allocator.list_rows()
    if tells_all:
        rows += _list_training_rows(snapshot.progress, model_utilisation)
        rows += _list_checkpoint_rows(snapshot.checkpoints)
    label_text = format_labels(labels)
    for name, help, value in rows:
        page.add_family(name, help, labels=label_text, value=value)
    page.begin_family("training_rank_info", "1; labels have the node and GPU of this rank")
    page.add(format_labels({**labels, "Hostname": place.node, "gpu": place.gpu, "UUID": place.uuid}), 1)
    page.begin_family("training_phase_seconds_total", "Total time of all steps, by phase")
    for phase in Phase:
        if snapshot.clock.totals[phase]:
            page.add(format_labels({**labels, "phase": phase.label}), snapshot.clock.totals[phase])
    _write_events(page, snapshot)
    _write_kernels(page, snapshot)
    if tells_all:
        page.begin_family("training_step_duration_seconds", "Time of a step, without pauses", is_histogram=True)
        page.add_histogram(labels, snapshot.clock.durations)
        _write_runs(page, snapshot)


def _list_rank_rows(snapshot: RankSnapshot) -> list[Row]:
    clock, progress = snapshot.clock, snapshot.progress
    return [
        ("training_last_step_timestamp_seconds", "Time when this rank finished its last step", progress.last_step_at),
        ("training_world_size", "Number of ranks of the complete job", snapshot.place.world_size),
        ("training_iterations_total", "Steps that this rank has finished since it started", clock.steps),
        ("training_step", "Number of the last step, as the program counts them", progress.step),
        ("training_restarts_total", "Restarts of this rank by torchrun and Slurm", snapshot.place.restarts),
        (
            "training_step_compute_seconds",
            "Median step time of the last minute, without waits for input or other ranks, and without pauses",
            clock.compute_seconds(perf_counter()),
        ),
        (
            "training_step_seconds_total",
            "Total time of all steps, each from the end of the previous step",
            clock.wall_seconds,
        ),
        ("training_data_wait_seconds_total", "Total time that steps waited for input", clock.totals[Phase.INPUT]),
        ("training_paused", "1 while the program validates or writes a checkpoint", clock.current_pause() is not None),
    ]


def _list_training_rows(progress: TrainingProgress, model_utilisation: float | None) -> list[Row]:
    rates = progress.rates
    samples, tokens = rates.per_second(perf_counter())
    return [
        ("training_loss", "Current training loss", progress.loss.value),
        ("training_validation_loss", "Validation loss of the last evaluation", progress.validation_loss.value),
        ("training_grad_norm", "Norm of the last gradient", progress.grad_norm.value),
        ("training_learning_rate", "Current learning rate", progress.learning_rate.value),
        ("training_epoch", "Current epoch", progress.epoch),
        ("training_samples_total", "Samples that this rank processed", rates.samples or None),
        ("training_tokens_total", "Tokens that this rank processed", rates.tokens or None),
        (
            "training_samples_per_second",
            "Samples per second of this rank, over the last minute",
            samples if rates.samples else None,
        ),
        (
            "training_tokens_per_second",
            "Tokens per second of this rank, over the last minute",
            tokens if rates.tokens else None,
        ),
        (
            "training_model_flops_utilization",
            "Share of the GPU's peak that the model uses (MFU), over the last minute",
            model_utilisation,
        ),
    ]


def _list_checkpoint_rows(checkpoints: Checkpoints) -> list[Row]:
    return [
        ("training_checkpoint_starts_total", "Checkpoints started", checkpoints.started),
        ("training_checkpoint_writes_total", "Checkpoints written", checkpoints.written),
        ("training_checkpoint_failures_total", "Checkpoints that failed", checkpoints.failed),
        (
            "training_checkpoint_last_start_timestamp_seconds",
            "Time when the last checkpoint started",
            checkpoints.last_started_at,
        ),
        (
            "training_checkpoint_last_success_timestamp_seconds",
            "Time when the last checkpoint was complete",
            checkpoints.last_written_at,
        ),
        ("training_checkpoint_bytes", "Size of the last checkpoint", checkpoints.last_bytes),
        ("training_checkpoint_seconds", "Duration of the last checkpoint", checkpoints.last_seconds),
    ]


def _write_events(page: MetricsPage, snapshot: RankSnapshot) -> None:
    events = snapshot.progress.events.items()
    rows = [(format_labels({**snapshot.labels, "kind": kind}), event) for kind, event in events]
    page.begin_family("training_events_total", "Events of the loss and the gradient norm, by kind")
    for labels, event in rows:
        page.add(labels, event.count)
    recorded = [(labels, event) for labels, event in rows if event.count]
    if recorded:
        page.begin_family("training_event_step", "Step at which the last event of this kind started")
        for labels, event in recorded:
            page.add(labels, event.step)
        page.begin_family("training_event_timestamp_seconds", "Time at which the last event of this kind started")
        for labels, event in recorded:
            page.add(labels, event.started_at)


def _write_runs(page: MetricsPage, snapshot: RankSnapshot) -> None:
    runs = [run for run in snapshot.mirrors.list_runs() if run.url]
    if runs:
        page.begin_family("training_run_info", "1; labels have the job's run in an experiment tracker")
        for run in runs:
            run_labels = {"tracker": run.tracker, "run_id": run.id, "run_url": run.url}
            page.add(format_labels({**snapshot.labels, **run_labels}), 1)
    failures = snapshot.mirrors.count_failures()
    if failures:
        page.begin_family("training_mirror_failures_total", "Failed writes to an experiment tracker")
        for tracker, count in failures.items():
            page.add(format_labels({**snapshot.labels, "tracker": tracker}), count)


def _write_kernels(page: MetricsPage, snapshot: RankSnapshot) -> None:
    kernels = snapshot.kernels
    if not kernels.profiled_seconds:
        return
    page.begin_family("training_kernel_seconds_total", "Time of GPU kernels in the recorded profiles, by kind")
    for kind, seconds in kernels.seconds_by_kind.items():
        page.add(format_labels({**snapshot.labels, "kind": kind}), seconds)
    page.begin_family("training_profiled_seconds_total", "Time that the recorded profiles cover")
    page.add(format_labels(snapshot.labels), kernels.profiled_seconds)
