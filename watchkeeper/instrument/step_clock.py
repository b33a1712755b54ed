"""Measures the phases of a training step: each moment belongs to the innermost open phase.

`TrainingMonitor` enters and leaves phases in the program's own thread; `training_page` reads the totals in another. The
compute time of a step excludes waits for input and other ranks, and pauses; it identifies a slow rank.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from enum import IntEnum
from statistics import median
from time import perf_counter
from typing import Any

from watchkeeper.instrument.page import Histogram

# The median of several steps, because a single step varies; the rules look at one minute.
RECENT_STEPS, RECENT_SECONDS = 64, 60.0
GPU_WAIT_SECONDS = 1.0
# A step of a small model takes milliseconds, one of a large model with gradient accumulation a minute.
STEP_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0)


class Phase(IntEnum):
    """What a rank does; the last four are waits or pauses, not work of this rank."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    INPUT = 3
    COMMUNICATION = 4
    CHECKPOINT = 5
    VALIDATION = 6

    @property
    def label(self) -> str:
        # The guides call the wait for input `data`.
        return "data" if self is Phase.INPUT else self.name.lower()


NOT_COMPUTE_PHASES = (Phase.INPUT, Phase.COMMUNICATION, Phase.CHECKPOINT, Phase.VALIDATION)
PAUSE_PHASES = (Phase.CHECKPOINT, Phase.VALIDATION)


class GpuWait:
    """The wait of one GPU (`cuda` is torch.cuda) for other ranks, in one step per second.

    The host runs ahead of its GPU, so its clock does not show the wait: it is the time between an event after this
    rank's last gradient and one after the all-reduce, both on the compute stream. The events are read one step later,
    when they have completed, so that the host never waits for the GPU. If a call fails, the last wait stays.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._sent_event: Any = None
        self._reduced_event: Any = None
        self._due_at = float("-inf")
        self.seconds = 0.0

    def is_due(self) -> bool:
        return self._sent_event is None and perf_counter() >= self._due_at

    def record_sent(self) -> bool:
        """Record that all gradients of this rank are sent; True if this step is measured."""
        if self.is_due():
            with suppress(Exception):
                self._sent_event = self._record_event()
                return True
        return False

    def record_reduced(self) -> None:
        """Record that the stream has only the all-reduce left to wait for."""
        with suppress(Exception):
            if self._sent_event is not None and self._reduced_event is None:
                self._reduced_event = self._record_event()

    def read_wait(self) -> float:
        """The last measured wait in seconds; call it when the backward pass has ended on the host."""
        with suppress(Exception):
            if self._sent_event is not None and self._reduced_event is None:
                # `record_reduced` was not called: later work of the program, such as clipping, counts too.
                self._reduced_event = self._record_event()
            elif self._reduced_event is not None and self._reduced_event.query():
                self.seconds = self._sent_event.elapsed_time(self._reduced_event) / 1000
                self._sent_event = self._reduced_event = None
                self._due_at = perf_counter() + GPU_WAIT_SECONDS
        return self.seconds

    def _record_event(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event


class StepClock:
    def __init__(self) -> None:
        self.steps = 0
        self.wall_seconds = 0.0
        # Without pauses, and without the first step, which starts with the set-up of the program.
        self.durations = Histogram(STEP_BOUNDS)
        self.totals = [0.0] * len(Phase)
        self._spent = [0.0] * len(Phase)
        self._open_phases: list[Phase] = []
        self._phase_started_at = self._step_started_at = perf_counter()
        self._gradients_sent_at: float | None = None
        # Set if the gradients are on a GPU, whose waits the host's clock does not show.
        self.gpu_wait: GpuWait | None = None
        self._recent_steps: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)

    def enter(self, phase: Phase) -> None:
        now = perf_counter()
        if self._open_phases:
            self._spent[self._open_phases[-1]] += now - self._phase_started_at
        self._open_phases.append(phase)
        self._phase_started_at = now

    def leave(self) -> None:
        self.move_to(None)

    def move_to(self, phase: Phase | None) -> None:
        """Leave the innermost phase and enter this one, for frameworks that report only starts.

        Deliberately flat: it runs four times in a step with cold caches, and each call less saves a microsecond.
        """
        now = perf_counter()
        if self._open_phases:
            phase_left = self._open_phases.pop()
            if phase_left is Phase.BACKWARD:
                self._end_backward(now)
            else:
                self._spent[phase_left] += now - self._phase_started_at
        if phase is not None:
            self._open_phases.append(phase)
        self._phase_started_at = now

    def _end_backward(self, now: float) -> None:
        if self._gradients_sent_at is not None:
            # All gradients of this rank were sent by then: the rest of the backward pass waited for other ranks.
            sent_at = max(self._phase_started_at, self._gradients_sent_at)
            self._spent[Phase.COMMUNICATION] += now - sent_at
            self._spent[Phase.BACKWARD] += sent_at - self._phase_started_at
            self._gradients_sent_at = None
            return
        self._spent[Phase.BACKWARD] += now - self._phase_started_at
        if self.gpu_wait is not None:
            self._spent[Phase.COMMUNICATION] += self.gpu_wait.read_wait()

    def record_gradients_sent(self) -> None:
        self._gradients_sent_at = perf_counter()

    def end_step(self, now: float) -> None:
        spent, totals = self._spent, self.totals
        wall_seconds = now - self._step_started_at
        self._step_started_at = now
        if self.steps:
            self.durations.observe(max(0.0, wall_seconds - spent[Phase.CHECKPOINT] - spent[Phase.VALIDATION]))
        waited_seconds = 0.0
        for phase in NOT_COMPUTE_PHASES:
            waited_seconds += spent[phase]
        for index, seconds in enumerate(spent):
            if seconds:
                totals[index] += seconds
                spent[index] = 0.0
        self.steps += 1
        self.wall_seconds += wall_seconds
        self._recent_steps.append((now, max(0.0, wall_seconds - waited_seconds)))

    def compute_seconds(self, now: float) -> float | None:
        """The median compute time of the last minute's steps, or of the last step; None before the first."""
        recent_steps = list(self._recent_steps)
        if not recent_steps:
            return None
        recent_seconds = [seconds for ended, seconds in recent_steps if now - ended <= RECENT_SECONDS]
        return median(recent_seconds) if recent_seconds else recent_steps[-1][1]

    def current_pause(self) -> Phase | None:
        return next((phase for phase in self._open_phases if phase in PAUSE_PHASES), None)


class TimedPhase:
    """A phase as a `with` block; one object for each phase is enough, because the clock tracks the nesting."""

    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: StepClock, phase: Phase) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()
