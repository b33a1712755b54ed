"""Measures the phases of a training step: each moment belongs to the innermost open phase.

`TrainingMonitor` enters and leaves phases in the program's own thread; `training_page` reads the totals in another. The
compute time of a step excludes waits for input and other ranks, and pauses; it identifies a slow rank.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from statistics import median
from time import perf_counter

from watchkeeper.instrument.gpu_wait import GpuWait

# The median of several steps, because a single step varies; the rules look at one minute.
RECENT_STEPS, RECENT_SECONDS = 64, 60.0


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


class StepClock:
    """Times the steps of one rank, in seconds."""

    def __init__(self) -> None:
        self.steps = 0
        self.wall_seconds = 0.0
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
