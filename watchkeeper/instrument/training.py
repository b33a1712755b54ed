"""TrainingMonitor: what a training program says about its steps, in the names that the shipped rules read.

    monitor = TrainingMonitor("llama-7b", Exports(port=9500))
    for batch in monitor.batches(loader):
        with monitor.forward():
            loss = model(batch)
        …
        monitor.step(loss=loss, samples=len(batch))

A step costs microseconds: the program's thread writes numbers, other threads make pages, files and pushes of them.
Every rank tells its heartbeat, its times and its events; loss, rates and checkpoints come from rank 0 unless all are
asked for. `frameworks` has the same as callbacks for Lightning and Hugging Face's Trainer.
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
from watchkeeper.instrument.checkpoints import Checkpoint, Checkpoints
from watchkeeper.instrument.mirrors import Mirror, MirrorSet
from watchkeeper.instrument.page import MetricsPage
from watchkeeper.instrument.progress import TrainingProgress
from watchkeeper.instrument.step_clock import Phase, StepClock, TimedPhase
from watchkeeper.instrument.training_page import RankSnapshot, write

log = logging.getLogger("watchkeeper.instrument")
Batch = TypeVar("Batch")


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What MFU needs: floating-point operations of one token or sample, and the peak of one GPU in operations a second.

    Forward and backward together: 6 × parameters for a token of a dense transformer. The peak at the precision in use.
    """

    peak_flops: float
    flops_per_token: float | None = None
    flops_per_sample: float | None = None

    def __post_init__(self) -> None:
        if (self.flops_per_token is None) == (self.flops_per_sample is None):
            raise ValueError("ModelCost: give either flops_per_token or flops_per_sample; exactly one of them")
        if self.peak_flops <= 0:
            raise ValueError(
                f"ModelCost: peak_flops is {self.peak_flops:g}. Give the dense peak of one GPU from its data sheet, "
                "such as 989e12 for 16-bit on an H100 SXM"
            )

    def utilisation(self, samples: float, tokens: float) -> float:
        """The share of the peak that so many samples and tokens a second use."""
        if self.flops_per_token is not None:
            return self.flops_per_token * tokens / self.peak_flops
        return (self.flops_per_sample or 0.0) * samples / self.peak_flops


class TrainingMonitor:
    """One rank of one training job. Without `exports` the environment decides; without `job_name` it is Slurm's id."""

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
        self._tells_all = self.place.rank == 0 if tells_all is None else tells_all
        self._cost = cost
        self._timed = {phase: TimedPhase(self.clock, phase) for phase in Phase}
        self._mirroring = MirrorSet(mirrors if self._tells_all else ())
        name = f"{self.job_name[:80]}_{self.place.rank}"
        labels = {"job_name": self.job_name, "rank": str(self.place.rank)}
        source = exporting.MetricsSource(name, labels, self.write, self.place.node, self.place.local_rank)
        self.exporter = exporting.Exporter(exports or exporting.from_environment(), source)
        self._pid, self._is_closed = os.getpid(), False
        threading.Thread(target=self._locate, name="watchkeeper-locate", daemon=True).start()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches; the time until each of them comes is the step's wait for input."""
        return _Batches(iter(loader), self.clock)

    def forward(self) -> TimedPhase:
        return self._timed[Phase.FORWARD]

    def backward(self) -> TimedPhase:
        return self._timed[Phase.BACKWARD]

    def optimizer(self) -> TimedPhase:
        return self._timed[Phase.OPTIMIZER]

    def waiting_for_input(self) -> TimedPhase:
        """For loops that cannot use `batches`."""
        return self._timed[Phase.INPUT]

    def communication(self) -> TimedPhase:
        """Around collectives that the program calls itself; `watch_communication` sees those of DDP."""
        return self._timed[Phase.COMMUNICATION]

    def validation(self) -> TimedPhase:
        """A pause in which no step is expected."""
        return self._timed[Phase.VALIDATION]

    def checkpoint(self, path: str | os.PathLike[str] | None = None) -> Checkpoint:
        """Around the writing of one: counts it, times it, and weighs the file or folder at `path`."""
        return self.checkpoints.writing(self.clock, path)

    def tell(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: float | None = None,
        validation_loss: Any = None,
        epoch: float | None = None,
        number: int | None = None,
    ) -> None:
        """Newest values, of the step in progress or of step `number`. It does not end a step.

        Tensors are welcome; one on a GPU is read once a second, because reading it waits for the GPU.
        """
        now = perf_counter()
        progress = self.progress
        step = progress.step + 1 if number is None else number
        if loss is not None:
            progress.take_loss(loss, step, now=now)
        if grad_norm is not None:
            progress.take_grad_norm(grad_norm, step, now=now)
        if learning_rate is not None:
            progress.learning_rate.value = learning_rate
        if validation_loss is not None:
            progress.validation_loss.offer(validation_loss, now)
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
        """A step ended: this rank's samples and tokens of it, and what `tell` takes. Steps count from 1."""
        now = perf_counter()
        progress = self.progress
        progress.step = progress.step + 1 if number is None else number
        progress.last_step_at = time()
        self.clock.end_step(now)
        progress.rates.add(samples, tokens, now=now)
        if loss is not None:
            progress.take_loss(loss, progress.step, now=now)
        if grad_norm is not None:
            progress.take_grad_norm(grad_norm, progress.step, now=now)
        if learning_rate is not None:
            progress.learning_rate.value = learning_rate
        if now >= self._mirroring.due:
            self._mirroring.offer(self._mirrored(now), progress.step, now=now)

    def watch(self, model: Any, optimizer: Any) -> None:
        """See forward, backward and optimizer of a PyTorch loop by itself, and end a step with each `optimizer.step()`.

        The loop then only says what cannot be seen: `tell(loss=…)` and `saw(samples=…)`.
        """
        frameworks.watch(self, model, optimizer)

    def saw(self, samples: float = 0, tokens: float = 0) -> None:
        """Samples and tokens of a batch, where something else ends the step."""
        self.progress.rates.add(samples, tokens, now=perf_counter())

    def watch_communication(self, model: Any) -> None:
        """See how long the backward pass of a DistributedDataParallel model waits for other ranks."""
        frameworks.watch_communication(self, model)

    def lightning(self) -> Any:
        """A callback for `lightning.Trainer(callbacks=[monitor.lightning()])`."""
        return frameworks.lightning_callback(self)

    def hugging_face(self) -> Any:
        """A callback for `transformers.Trainer(callbacks=[monitor.hugging_face()])`."""
        return frameworks.hugging_face_callback(self)

    def write(self, page: MetricsPage) -> None:
        """Every series that is known now; what was never told is not there."""
        shown = RankSnapshot(self.job_name, self.place, self.clock, self.progress, self.checkpoints, self._mirroring)
        samples, tokens = self.progress.rates.per_second(perf_counter())
        used = None if self._cost is None else self._cost.utilisation(samples, tokens)
        write(page, shown, model_utilisation=used, tells_all=self._tells_all)

    def close(self) -> None:
        """The program is over: the page ends, files and pushes are taken back, mirrors get what is left."""
        if self._is_closed or os.getpid() != self._pid:
            return
        self._is_closed = True
        self._mirroring.offer(self._mirrored(perf_counter()), self.progress.step, now=perf_counter())
        self._mirroring.close()
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

    def _mirrored(self, now: float) -> dict[str, float]:
        progress, clock = self.progress, self.clock
        samples, tokens = progress.rates.per_second(now)
        found = {
            "loss": progress.loss.value,
            "validation_loss": progress.validation_loss.value,
            "grad_norm": progress.grad_norm.value,
            "learning_rate": progress.learning_rate.value,
            "step_compute_seconds": clock.compute_seconds(now),
            "samples_per_second": samples,
            "tokens_per_second": tokens,
        }
        return {f"training_{name}": value for name, value in found.items() if value is not None}

    def _locate(self) -> None:
        """Ask the driver which GPU it is, away from the program's thread, and tell the other ranks."""
        with contextlib.suppress(Exception):
            self.place = placement.with_uuid(self.place)
            barrier.introduce(self.place)


class _Batches(Iterator[Batch]):
    __slots__ = ("_clock", "_inner")

    def __init__(self, inner: Iterator[Batch], clock: StepClock) -> None:
        self._inner, self._clock = inner, clock

    def __next__(self) -> Batch:
        self._clock.enter(Phase.INPUT)
        try:
            return next(self._inner)
        finally:
            self._clock.leave()
