"""TrainingMonitor: exports the metrics of a training program, under the names that the shipped rules use.

    monitor = TrainingMonitor("llama-7b", Exports(port=9500))
    for batch in monitor.batches(loader):
        with monitor.forward():
            loss = model(batch)
        …
        monitor.step(loss=loss, samples=len(batch))

A step costs microseconds: the program's thread writes numbers, other threads render and export them. Every rank exports
its heartbeat, times and events; loss, rates and checkpoints come from rank 0, or from all ranks with `tells_all=True`.
`frameworks` has callbacks for Lightning and Hugging Face's Trainer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter, time
from types import TracebackType
from typing import Any, TypeVar

from watchkeeper.instrument import barrier, frameworks, placement
from watchkeeper.instrument import exports as exporting
from watchkeeper.instrument.kernels import KernelTimes
from watchkeeper.instrument.mirrors import Mirror, MirrorSet
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.progress import Checkpoint, Checkpoints, TrainingProgress
from watchkeeper.instrument.step_clock import Phase, StepClock, TimedPhase
from watchkeeper.instrument.training_page import RankSnapshot, write_page

log = logging.getLogger("watchkeeper.instrument")
Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class ModelCost:
    """For MFU: floating-point operations per token or per sample, and the peak of one GPU in operations per second.

    Operations are those of forward and backward together, 6 × parameters per token for a dense transformer. The peak is
    that of the precision in use.
    """

    peak_flops: float
    flops_per_token: float | None = None
    flops_per_sample: float | None = None

    def __post_init__(self) -> None:
        if (self.flops_per_token is None) == (self.flops_per_sample is None):
            raise ValueError("ModelCost: set exactly one of flops_per_token and flops_per_sample")
        if self.peak_flops <= 0:
            raise ValueError(
                f"ModelCost: peak_flops is {self.peak_flops:g}. Set the dense peak of one GPU from its data sheet, "
                "such as 989e12 for 16-bit on an H100 SXM"
            )

    def utilisation(self, samples: float, tokens: float) -> float:
        """The share of the peak that these samples and tokens per second use."""
        if self.flops_per_token is not None:
            return self.flops_per_token * tokens / self.peak_flops
        return (self.flops_per_sample or 0.0) * samples / self.peak_flops


class TrainingMonitor:
    """Monitors one rank of a training job; defaults of `exports` and `job_name` come from environment variables."""

    def __init__(
        self,
        job_name: str | None = None,
        exports: exporting.Exports | None = None,
        *,
        cost: ModelCost | None = None,
        mirrors: Sequence[Mirror] = (),
        place: placement.Placement | None = None,
        tells_all: bool | None = None,
    ) -> None:
        self.job_name = job_name or placement.job_name()
        self.place = place or placement.from_environment()
        self.clock, self.progress, self.checkpoints = StepClock(), TrainingProgress(self.place.rank), Checkpoints()
        self.kernels = KernelTimes()
        self._tells_all = self.place.rank == 0 if tells_all is None else tells_all
        self._cost = cost
        self._timed_phases = {phase: TimedPhase(self.clock, phase) for phase in Phase}
        self._mirrors = MirrorSet(mirrors if self._tells_all else ())
        name = f"{self.job_name[:80]}_{self.place.rank}"
        labels = {"job_name": self.job_name, "rank": str(self.place.rank)}
        source = exporting.MetricsSource(name, labels, self.write, self.place.node, self.place.local_rank)
        self.exporter = exporting.Exporter(exports or exporting.from_environment(), source)
        self._pid, self._is_closed = os.getpid(), False
        threading.Thread(target=self._publish_place, name="watchkeeper-locate", daemon=True).start()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over a loader; the time until each batch arrives counts as the wait for input."""
        return _Batches(iter(loader), self.clock)

    def forward(self) -> TimedPhase:
        return self._timed_phases[Phase.FORWARD]

    def backward(self) -> TimedPhase:
        return self._timed_phases[Phase.BACKWARD]

    def optimizer(self) -> TimedPhase:
        return self._timed_phases[Phase.OPTIMIZER]

    def waiting_for_input(self) -> TimedPhase:
        """Time the wait for input, in loops that cannot use `batches`."""
        return self._timed_phases[Phase.INPUT]

    def communication(self) -> TimedPhase:
        """Time collectives that the program calls itself; `watch_communication` times those of DDP."""
        return self._timed_phases[Phase.COMMUNICATION]

    def validation(self) -> TimedPhase:
        """Time a validation, a pause in which no step is expected."""
        return self._timed_phases[Phase.VALIDATION]

    def checkpoint(self, path: str | os.PathLike[str] | None = None) -> Checkpoint:
        """Count and time the writing of a checkpoint, and record the size of the file or directory at `path`."""
        return Checkpoint(self.checkpoints, self.clock, path)

    def report(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: float | None = None,
        validation_loss: Any = None,
        epoch: float | None = None,
        number: int | None = None,
    ) -> None:
        """Report the newest values of the current step or of step `number`; this does not end a step.

        Values may be tensors; a tensor on a GPU is read once a second, because reading it waits for the GPU.
        """
        now = perf_counter()
        progress = self.progress
        step = progress.step + 1 if number is None else number
        if loss is not None:
            progress.record_loss(loss, step, now=now)
        if grad_norm is not None:
            progress.record_grad_norm(grad_norm, step, now=now)
        if learning_rate is not None:
            progress.learning_rate.value = learning_rate
        if validation_loss is not None:
            progress.validation_loss.update(validation_loss, now)
        if epoch is not None:
            progress.epoch = epoch

    def step(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: float | None = None,
        samples: float = 0,
        tokens: float = 0,
        number: int | None = None,
    ) -> None:
        """End a step, with this rank's samples and tokens, and the values that `report` accepts. Steps count from 1."""
        now = perf_counter()
        progress = self.progress
        progress.step = progress.step + 1 if number is None else number
        progress.last_step_at = time()
        self.clock.end_step(now)
        progress.rates.add(samples, tokens, now=now)
        if loss is not None:
            progress.record_loss(loss, progress.step, now=now)
        if grad_norm is not None:
            progress.record_grad_norm(grad_norm, progress.step, now=now)
        if learning_rate is not None:
            progress.learning_rate.value = learning_rate
        if now >= self._mirrors.due_at:
            self._mirrors.enqueue(self._build_mirror_metrics(now), progress.step, now=now)

    def watch(self, model: Any, optimizer: Any) -> None:
        """Time forward, backward and optimizer of a PyTorch loop; each `optimizer.step()` ends a step.

        The loop then reports only the rest: `report(loss=…)` and `add_samples(samples=…)`.
        """
        frameworks.watch(self, model, optimizer)

    def add_samples(self, samples: float = 0, tokens: float = 0) -> None:
        """Add the samples and tokens of a batch, if something else ends the step."""
        self.progress.rates.add(samples, tokens, now=perf_counter())

    def watch_communication(self, model: Any) -> None:
        """Measure how long the backward pass of a DistributedDataParallel model waits for other ranks."""
        frameworks.watch_communication(self, model)

    def record_kernels(self, profiler: Any) -> None:
        """Add the kernel times of a profile: `torch.profiler.profile(…, on_trace_ready=monitor.record_kernels)`."""
        self.kernels.record(profiler)

    # The names until release 0.1; kept until release 0.3.
    tell = report
    saw = add_samples

    def lightning(self) -> Any:
        """A callback for `lightning.Trainer(callbacks=[monitor.lightning()])`."""
        return frameworks.lightning_callback(self)

    def hugging_face(self) -> Any:
        """A callback for `transformers.Trainer(callbacks=[monitor.hugging_face()])`."""
        return frameworks.hugging_face_callback(self)

    def write(self, page: MetricsPage) -> None:
        """Write all series; values that were never reported are omitted."""
        snapshot = RankSnapshot(
            self.job_name, self.place, self.clock, self.progress, self.checkpoints, self.kernels, self._mirrors
        )
        samples, tokens = self.progress.rates.per_second(perf_counter())
        utilisation = None if self._cost is None else self._cost.utilisation(samples, tokens)
        write_page(page, snapshot, model_utilisation=utilisation, tells_all=self._tells_all)

    def close(self) -> None:
        """Stop exporting, delete files and pushed metrics, and send the last metrics to the mirrors."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._mirrors.enqueue(self._build_mirror_metrics(perf_counter()), self.progress.step, now=perf_counter())
        self._mirrors.close()
        self.exporter.close()

    def __enter__(self) -> TrainingMonitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            log.error(
                "[rank%d] %s ended at step %d: %s: %s",
                self.place.rank, self.job_name, self.progress.step, type(error).__name__, error,
            )  # fmt: skip
        self.close()

    def _build_mirror_metrics(self, now: float) -> dict[str, float]:
        progress, clock = self.progress, self.clock
        samples, tokens = progress.rates.per_second(now)
        metrics = {
            "loss": progress.loss.value,
            "validation_loss": progress.validation_loss.value,
            "grad_norm": progress.grad_norm.value,
            "learning_rate": progress.learning_rate.value,
            "step_compute_seconds": clock.compute_seconds(now),
            "samples_per_second": samples,
            "tokens_per_second": tokens,
        }
        return {f"training_{name}": value for name, value in metrics.items() if value is not None}

    def _publish_place(self) -> None:
        """Read this rank's GPU from the driver and publish its placement; runs in its own thread."""
        with contextlib.suppress(Exception):
            self.place = placement.with_uuid(self.place)
            barrier.publish_place(self.place)


class _Batches(Iterator[Batch]):
    __slots__ = ("_clock", "_iterator")

    def __init__(self, iterator: Iterator[Batch], clock: StepClock) -> None:
        self._iterator, self._clock = iterator, clock

    def __next__(self) -> Batch:
        self._clock.enter(Phase.INPUT)
        try:
            return next(self._iterator)
        finally:
            self._clock.leave()
