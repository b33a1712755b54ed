"""Keeps what a training program has reported: the newest values, rates over the last minute, events and checkpoints.

The program's thread writes plain attributes, so a step costs microseconds; `training_page` reads them in another
thread.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from time import perf_counter, time
from typing import Any

from watchkeeper.instrument.step_clock import Phase, StepClock

log = logging.getLogger("watchkeeper.instrument")
RATE_SECONDS = 60
# Reading a tensor waits for its GPU, so it is done once a second and not at each step.
TENSOR_SECONDS = 1.0
# A jump of ten times precedes a divergence (packs/metric_guide.csv); the first steps have no usual norm.
SPIKE_FACTOR, WARM_UP_STEPS, SMOOTHING = 10.0, 20, 0.05
MAX_LOGGED_EVENTS = 100
# Each file of a checkpoint is one call to a file system that may be remote.
MAX_FILES = 1_000


class TrainingEvent(StrEnum):
    LOSS_NOT_FINITE = "loss_not_finite"
    GRAD_NORM_NOT_FINITE = "grad_norm_not_finite"
    GRAD_NORM_SPIKE = "grad_norm_spike"


class TrainingEventCount:
    """One kind of event: how often it started, and the step and time of its last start."""

    __slots__ = ("count", "is_active", "started_at", "step")

    def __init__(self) -> None:
        self.count, self.step, self.started_at, self.is_active = 0, 0, 0.0, False


class ScalarReading:
    """A value that may be a tensor on a GPU, which is read at most once a second.

    It is read only in the program's own thread: a hung GPU must not block the page, which shows that no step ends.
    """

    __slots__ = ("_due_at", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._due_at = float("-inf")

    def update(self, value: Any, now: float) -> float | None:
        """Set the value and return it; None if the tensor is not read now."""
        if type(value) is not float:
            value = self._read_number(value, now)
            if value is None:
                return None
        self.value = value
        return self.value

    def _read_number(self, value: Any, now: float) -> float | None:
        device = getattr(value, "device", None)
        if device is None:
            return float(value)
        if device.type != "cpu":
            if now < self._due_at:
                return None
            self._due_at = now + TENSOR_SECONDS
        return float(value.detach())


class ThroughputRates:
    """Samples and tokens, in total and per second over the last minute."""

    def __init__(self) -> None:
        self.samples = 0.0
        self.tokens = 0.0
        self._history: deque[tuple[float, float, float]] = deque([(perf_counter(), 0.0, 0.0)], maxlen=RATE_SECONDS + 1)

    def add(self, samples: float, tokens: float, *, now: float) -> None:
        self.samples += samples
        self.tokens += tokens
        if now - self._history[-1][0] >= 1.0:
            self._history.append((now, self.samples, self.tokens))

    def per_second(self, now: float) -> tuple[float, float]:
        """Samples and tokens per second; they fall to zero within a minute after a program stalls."""
        history = list(self._history)
        at, samples, tokens = next((entry for entry in history if now - entry[0] <= RATE_SECONDS), history[-1])
        elapsed = max(now - at, 1e-3)
        return (self.samples - samples) / elapsed, (self.tokens - tokens) / elapsed


class TrainingProgress:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.loss, self.validation_loss, self.grad_norm, self.learning_rate = (ScalarReading() for _ in range(4))
        self.step = 0
        self.epoch: float | None = None
        self.last_step_at: float | None = None
        self.rates = ThroughputRates()
        self.events = {kind: TrainingEventCount() for kind in TrainingEvent}
        self._usual_norm, self._norm_count, self._logged_events = 0.0, 0, 0

    def record_loss(self, loss: Any, step: int, *, now: float) -> None:
        value = self.loss.update(loss, now)
        if value is not None and (self.events[TrainingEvent.LOSS_NOT_FINITE].is_active or not math.isfinite(value)):
            self._update_event(TrainingEvent.LOSS_NOT_FINITE, not math.isfinite(value), value, step=step)

    def record_grad_norm(self, norm: Any, step: int, *, now: float) -> None:
        value = self.grad_norm.update(norm, now)
        if value is None:
            return
        is_finite = math.isfinite(value)
        self._update_event(TrainingEvent.GRAD_NORM_NOT_FINITE, not is_finite, value, step=step)
        is_spike = is_finite and self._norm_count >= WARM_UP_STEPS and value > SPIKE_FACTOR * self._usual_norm
        self._update_event(TrainingEvent.GRAD_NORM_SPIKE, is_spike, value, step=step)
        if is_finite and not is_spike:
            self._norm_count += 1
            self._usual_norm += max(SMOOTHING, 1 / self._norm_count) * (value - self._usual_norm)

    def _update_event(self, kind: TrainingEvent, is_active: bool, value: float, *, step: int) -> None:
        event = self.events[kind]
        if is_active and not event.is_active:
            event.count += 1
            event.step, event.started_at = step, time()
            if self._logged_events < MAX_LOGGED_EVENTS:
                self._logged_events += 1
                name = "loss" if kind is TrainingEvent.LOSS_NOT_FINITE else "grad_norm"
                usual = f" (usual: {self._usual_norm:.3g})" if kind is TrainingEvent.GRAD_NORM_SPIKE else ""
                log.warning("[rank%d] step %d %s: %s%s", self._rank, step, name, value, usual)
        event.is_active = is_active


class Checkpoints:
    """The totals of all checkpoints; None: not recorded yet."""

    def __init__(self) -> None:
        self.started, self.written, self.failed = 0, 0, 0
        self.last_started_at: float | None = None
        self.last_written_at: float | None = None
        self.last_bytes: float | None = None
        self.last_seconds: float | None = None

    def record_start(self) -> None:
        self.started += 1
        self.last_started_at = time()

    def record_success(self, *, bytes: float | None = None, path: Path | None = None) -> None:
        self.written += 1
        self.last_written_at = time()
        size_bytes = bytes if bytes is not None or path is None else _measure_bytes(path)
        if size_bytes is not None:
            self.last_bytes = size_bytes


class Checkpoint:
    """One checkpoint as a `with` block; an exception inside counts as a failure and is raised again."""

    def __init__(self, checkpoints: Checkpoints, clock: StepClock, path: str | os.PathLike[str] | None) -> None:
        self._checkpoints, self._clock, self._path = checkpoints, clock, path
        self._started_at = 0.0
        self.bytes: float | None = None

    def __enter__(self) -> Checkpoint:
        self._clock.enter(Phase.CHECKPOINT)
        self._started_at = perf_counter()
        self._checkpoints.record_start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._clock.leave()
        self._checkpoints.last_seconds = perf_counter() - self._started_at
        if kind is not None:
            self._checkpoints.failed += 1
            return
        self._checkpoints.record_success(bytes=self.bytes, path=None if self._path is None else Path(self._path))


def _measure_bytes(path: Path) -> float | None:
    """The size of a file or of all files below a directory; None if it is unknown."""
    with suppress(OSError):
        if path.is_file():
            return path.stat().st_size
        total, file_count = 0, 0
        for folder, _, names in os.walk(path):
            for name in names:
                file_count += 1
                if file_count > MAX_FILES:
                    return None
                total += os.stat(os.path.join(folder, name)).st_size
        return total if file_count else None
    return None
