"""Where the time of a step goes: each moment belongs to the innermost phase that is open.

`TrainingMonitor` enters and leaves phases in the program's own thread; `training_page` reads the sums from another.
What a step takes without waiting for input, for other ranks, or for a pause is its compute time, which tells a slow
rank.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from statistics import median
from time import perf_counter

from watchkeeper.instrument.gpu_wait import GpuWait

# The middle of some steps: one step alone jumps, and a minute is what the rules look at.
RECENT_STEPS, RECENT_SECONDS = 64, 60.0


class Phase(IntEnum):
    """What a rank does; the first three of the last four are waits or pauses and no work of this rank."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    INPUT = 3
    COMMUNICATION = 4
    CHECKPOINT = 5
    VALIDATION = 6

    @property
    def label(self) -> str:
        # The guides' word for the wait for input.
        return "data" if self is Phase.INPUT else self.name.lower()


NOT_COMPUTE = (Phase.INPUT, Phase.COMMUNICATION, Phase.CHECKPOINT, Phase.VALIDATION)
PAUSES = (Phase.CHECKPOINT, Phase.VALIDATION)


class StepClock:
    """One rank's steps; all numbers in seconds."""

    def __init__(self) -> None:
        self.steps = 0
        self.wall_seconds = 0.0
        self.totals = [0.0] * len(Phase)
        self._spent = [0.0] * len(Phase)
        self._open: list[Phase] = []
        self._mark = self._began = perf_counter()
        self._sent_at: float | None = None
        # Where the gradients lie on a GPU, whose waits the host's clock does not see.
        self.gpu_wait: GpuWait | None = None
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_STEPS)

    def enter(self, phase: Phase) -> None:
        now = perf_counter()
        if self._open:
            self._spent[self._open[-1]] += now - self._mark
        self._open.append(phase)
        self._mark = now

    def leave(self) -> None:
        self.move_to(None)

    def move_to(self, phase: Phase | None) -> None:
        """Leave the innermost phase, and enter this one: for frameworks that only say what begins.

        Flat, because it runs four times in a step, each time with cold caches: each call less saves a microsecond.
        """
        now = perf_counter()
        if self._open:
            left = self._open.pop()
            if left is Phase.BACKWARD:
                self._end_backward(now)
            else:
                self._spent[left] += now - self._mark
        if phase is not None:
            self._open.append(phase)
        self._mark = now

    def _end_backward(self, now: float) -> None:
        if self._sent_at is not None:
            # All gradients of this rank were on their way by then: the rest of the backward pass waited for others.
            sent = max(self._mark, self._sent_at)
            self._spent[Phase.COMMUNICATION] += now - sent
            self._spent[Phase.BACKWARD] += sent - self._mark
            self._sent_at = None
            return
        self._spent[Phase.BACKWARD] += now - self._mark
        if self.gpu_wait is not None:
            self._spent[Phase.COMMUNICATION] += self.gpu_wait.came()

    def sent_last_gradients(self) -> None:
        self._sent_at = perf_counter()

    def end_step(self, now: float) -> None:
        spent, totals = self._spent, self.totals
        wall = now - self._began
        self._began = now
        waited = 0.0
        for phase in NOT_COMPUTE:
            waited += spent[phase]
        for at, seconds in enumerate(spent):
            if seconds:
                totals[at] += seconds
                spent[at] = 0.0
        self.steps += 1
        self.wall_seconds += wall
        self._recent.append((now, max(0.0, wall - waited)))

    def compute_seconds(self, now: float) -> float | None:
        """The middle of the last minute's steps, at least of the last one; None before the first."""
        recent = list(self._recent)
        if not recent:
            return None
        young = [seconds for ended, seconds in recent if now - ended <= RECENT_SECONDS]
        return median(young) if young else recent[-1][1]

    def pause(self) -> Phase | None:
        """The pause that is on now."""
        return next((phase for phase in self._open if phase in PAUSES), None)


class TimedPhase:
    """A phase as a `with` block; one object for each phase is enough, because the clock keeps the nesting."""

    __slots__ = ("_clock", "_phase")

    def __init__(self, clock: StepClock, phase: Phase) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(self, *_: object) -> None:
        self._clock.leave()
