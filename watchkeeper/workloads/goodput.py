"""Account for the goodput of a job: the share of its wall time that made progress, and the reasons of the rest.

A step counts with its learned normal duration, so the excess of slower steps is lost time, and so is the time in which
ranks waited for input, even if the job has always waited. A gap without a step is a
failure while the process or a rank is missing, a restart from then until the next step, a stall if an alert fires or
the gap is longer than any normal pause, a pause if steps resume or the job reports one, and else unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchkeeper.model.jobs import Goodput, LostReason, LostTime

# The limit before one is learned, as in packs/rules/training.yaml.
UNKNOWN_LIMIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """The progress of a job at one time; `steps` None: its process exported nothing."""

    at: float
    steps: float | None
    restarts: float | None = None
    # Ranks are missing and no step is made; a stall alert fires; the job reports a pause.
    lacks_ranks: bool = False
    is_stalled: bool = False
    is_paused: bool = False
    # Total time that the ranks waited for input; None: not reported.
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class LearnedPace:
    """The learned step time, longest pause and stall limit of a job; None: not learned yet."""

    step_seconds: float | None
    longest_pause_seconds: float | None
    limit_seconds: float | None


@dataclass(slots=True)
class _TimeTally:
    step_seconds: float
    limit_seconds: float
    productive: float = 0.0
    steps: float = 0.0
    lost: dict[LostReason, float] = field(default_factory=lambda: dict.fromkeys(LostReason, 0.0))
    # The current gap without a step, and its reason; None may still become a stall or a pause.
    gap_seconds: float = 0.0
    gap_reason: LostReason | None = None
    gap_waited: float = 0.0
    # The current time without a step, whatever its reasons, and the longest.
    pause_seconds: float = 0.0
    longest_pause_seconds: float = 0.0

    def add_progress(self, seconds: float, steps: float, *, waited: float) -> None:
        # A step longer than the time between two points was in progress during the gap.
        available = self.gap_seconds + seconds
        waited = min(waited, seconds) if self.gap_reason else min(self.gap_waited + waited, available)
        productive = min(steps * self.step_seconds, available - waited)
        had_gap = self.gap_seconds > 0
        self.productive += productive
        self.steps += steps
        self.lost[LostReason.INPUT] += waited
        self.gap_seconds = available - productive - waited
        self.close_gap(is_resumed=had_gap)
        self.pause_seconds = 0.0

    def add_pause(self, seconds: float) -> None:
        self.pause_seconds += seconds
        self.longest_pause_seconds = max(self.longest_pause_seconds, self.pause_seconds)

    def add_gap(self, seconds: float, point: ProgressPoint, *, waited: float) -> None:
        if point.lacks_ranks:
            self.add_failure(seconds, LostReason.FAILURE)
            return
        if self.gap_reason is LostReason.FAILURE:
            self.close_gap(next_reason=LostReason.RESTART)
        elif self.gap_reason is LostReason.RESTART and point.is_stalled:
            self.close_gap(next_reason=LostReason.STALL)
        self.gap_seconds += seconds
        self.gap_waited += waited
        if self.gap_reason in (None, LostReason.PAUSE):
            self.gap_reason = LostReason.STALL if point.is_stalled else LostReason.PAUSE if point.is_paused else None

    def add_failure(self, seconds: float, reason: LostReason) -> None:
        """Start a gap of a failure or restart; an open gap before it is the same failure, unless it is a stall."""
        if self.gap_reason in (None, LostReason.PAUSE):
            self.gap_reason = LostReason.FAILURE
        self.close_gap(next_reason=reason)
        self.gap_seconds = seconds

    def close_gap(self, *, is_resumed: bool = False, next_reason: LostReason | None = None) -> None:
        reason = self.gap_reason
        if reason is None:
            is_pause = is_resumed and self.gap_seconds > self.step_seconds
            reason = LostReason.PAUSE if is_pause else LostReason.UNKNOWN
            reason = LostReason.STALL if self.gap_seconds > self.limit_seconds else reason
        self.lost[reason] += self.gap_seconds
        self.gap_seconds, self.gap_reason, self.gap_waited = 0.0, next_reason, 0.0


def account_time(points: Sequence[ProgressPoint], pace: LearnedPace, *, queue_seconds: float | None = None) -> Goodput:
    """Account for the time from the first point to the last; without steps, only the wall time is known."""
    wall = (points[-1].at - points[0].at if points else 0.0) + (queue_seconds or 0.0)
    reported = [point for point in points if point.steps is not None]
    step_seconds = pace.step_seconds
    if len(reported) < 2 or step_seconds is None:
        queue = (LostTime(LostReason.QUEUE, queue_seconds),) if queue_seconds else ()
        return Goodput(wall, None, None, None, step_seconds, pace.longest_pause_seconds, queue)
    tally = _TimeTally(step_seconds, pace.limit_seconds or UNKNOWN_LIMIT_SECONDS)
    previous = reported[0]
    for earlier, point in itertools.pairwise(points):
        seconds = point.at - earlier.at
        if point.steps is None:
            tally.add_pause(seconds)
            tally.add_failure(seconds, LostReason.FAILURE)
            continue
        new_steps = point.steps - (previous.steps or 0.0)
        waited = max(0.0, (point.waited or 0.0) - (previous.waited or 0.0)) if previous.waited is not None else 0.0
        if new_steps <= 0:
            tally.add_pause(seconds)
        if new_steps < 0 or (point.restarts or 0) > (previous.restarts or 0):
            tally.add_failure(seconds, LostReason.RESTART)
        elif new_steps > 0:
            tally.add_progress(seconds, new_steps, waited=waited)
        else:
            tally.add_gap(seconds, point, waited=waited)
        previous = point
    tally.close_gap()
    tally.lost[LostReason.QUEUE] = queue_seconds or 0.0
    lost = tuple(LostTime(reason, tally.lost[reason]) for reason in LostReason if tally.lost[reason] > 0)
    share = tally.productive / wall if wall > 0 else None
    longest_pause = max(tally.longest_pause_seconds, pace.longest_pause_seconds or 0.0) or None
    return Goodput(wall, tally.productive, share, tally.steps, step_seconds, longest_pause, lost)
