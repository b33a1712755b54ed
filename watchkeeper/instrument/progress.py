"""What a training program has told about itself: the newest values, rates of the last minute, and events.

The program's thread writes plain attributes, so a step costs microseconds; `training_page` reads them from another
thread.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from enum import StrEnum
from time import perf_counter, time
from typing import Any

log = logging.getLogger("watchkeeper.instrument")
RATE_SECONDS = 60
# Reading a tensor waits for its GPU, so that is done once in a second and not at each step.
TENSOR_SECONDS = 1.0
# A jump of ten times comes before a divergence (packs/metric_guide.csv); the first steps have no usual norm.
SPIKE_FACTOR, WARM_STEPS, SMOOTHING = 10.0, 20, 0.05
MOST_EVENT_LINES = 100


class TrainingEvent(StrEnum):
    LOSS_NOT_FINITE = "loss_not_finite"
    GRAD_NORM_NOT_FINITE = "grad_norm_not_finite"
    GRAD_NORM_SPIKE = "grad_norm_spike"


class EventCount:
    """One kind of event: how often it began, and the step and time at which it began last."""

    __slots__ = ("at", "count", "is_on", "step")

    def __init__(self) -> None:
        self.count, self.step, self.at, self.is_on = 0, 0, 0.0, False


class ScalarReading:
    """A number that may come as a tensor of a GPU, which is then read at most once a second.

    Only ever in the program's own thread: a GPU that hangs must not hang the page, which says that no step ends.
    """

    __slots__ = ("_due", "value")

    def __init__(self) -> None:
        self.value: float | None = None
        self._due = float("-inf")

    def offer(self, given: Any, now: float) -> float | None:
        """The number, if it is known now."""
        if type(given) is not float:
            given = self._number(given, now)
            if given is None:
                return None
        self.value = given
        return self.value

    def _number(self, given: Any, now: float) -> float | None:
        device = getattr(given, "device", None)
        if device is None:
            return float(given)
        if device.type != "cpu":
            if now < self._due:
                return None
            self._due = now + TENSOR_SECONDS
        return float(given.detach())


class ThroughputRates:
    """Samples and tokens, in all and by second over the last minute."""

    def __init__(self) -> None:
        self.samples = 0.0
        self.tokens = 0.0
        self._marks: deque[tuple[float, float, float]] = deque([(perf_counter(), 0.0, 0.0)], maxlen=RATE_SECONDS + 1)

    def add(self, samples: float, tokens: float, *, now: float) -> None:
        self.samples += samples
        self.tokens += tokens
        if now - self._marks[-1][0] >= 1.0:
            self._marks.append((now, self.samples, self.tokens))

    def per_second(self, now: float) -> tuple[float, float]:
        """A program that stands still comes down to zero within the minute."""
        marks = list(self._marks)
        at, samples, tokens = next((mark for mark in marks if now - mark[0] <= RATE_SECONDS), marks[-1])
        passed = max(now - at, 1e-3)
        return (self.samples - samples) / passed, (self.tokens - tokens) / passed


class TrainingProgress:
    """Everything but times of phases."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.loss, self.validation_loss, self.grad_norm, self.learning_rate = (ScalarReading() for _ in range(4))
        self.step = 0
        self.epoch: float | None = None
        self.last_step_at: float | None = None
        self.rates = ThroughputRates()
        self.events = {kind: EventCount() for kind in TrainingEvent}
        self._usual_norm, self._norms, self._lines = 0.0, 0, 0

    def take_loss(self, loss: Any, step: int, *, now: float) -> None:
        value = self.loss.offer(loss, now)
        if value is not None and (self.events[TrainingEvent.LOSS_NOT_FINITE].is_on or not math.isfinite(value)):
            self._judge(TrainingEvent.LOSS_NOT_FINITE, not math.isfinite(value), value, step=step)

    def take_grad_norm(self, norm: Any, step: int, *, now: float) -> None:
        value = self.grad_norm.offer(norm, now)
        if value is None:
            return
        is_finite = math.isfinite(value)
        self._judge(TrainingEvent.GRAD_NORM_NOT_FINITE, not is_finite, value, step=step)
        is_spike = is_finite and self._norms >= WARM_STEPS and value > SPIKE_FACTOR * self._usual_norm
        self._judge(TrainingEvent.GRAD_NORM_SPIKE, is_spike, value, step=step)
        if is_finite and not is_spike:
            self._norms += 1
            weight = max(SMOOTHING, 1 / self._norms)
            self._usual_norm += weight * (value - self._usual_norm)

    def _judge(self, kind: TrainingEvent, is_so: bool, value: float, *, step: int) -> None:
        event = self.events[kind]
        if is_so and not event.is_on:
            event.count += 1
            event.step, event.at = step, time()
            if self._lines < MOST_EVENT_LINES:
                self._lines += 1
                name = "loss" if kind is TrainingEvent.LOSS_NOT_FINITE else "grad_norm"
                usual = f" (usual: {self._usual_norm:.3g})" if kind is TrainingEvent.GRAD_NORM_SPIKE else ""
                log.warning("[rank%d] step %d %s: %s%s", self._rank, step, name, value, usual)
        event.is_on = is_so
