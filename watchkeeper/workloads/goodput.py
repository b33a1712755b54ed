"""Goodput: how much of the wall time of a job became steps, and what took the rest.

Steps count at their usual length, learned from the job itself, so a slower stretch loses what it is slower. A stretch
without a step is a failure while the process or a rank was gone, a restart until the next step after that, a stall
where an alert said so or it was longer than any usual pause, and a pause where the job went on by itself. One that goes
on may become either: it is unknown until then, unless the job says that it pauses. `report` asks for the points of a
job and calls `account`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchkeeper.model.jobs import Goodput, LostReason, LostTime

# As in packs/rules/training.yaml, where nothing is learned yet.
UNKNOWN_LIMIT_SECONDS = 600.0
ORDER = (
    LostReason.STALL,
    LostReason.RESTART,
    LostReason.FAILURE,
    LostReason.QUEUE,
    LostReason.PAUSE,
    LostReason.UNKNOWN,
)


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """What a job said at a time; `steps` None: its process said nothing."""

    at: float
    steps: float | None
    restarts: float | None = None
    # Fewer ranks speak than it has and no step is made; an alert says that it stands still; it says that it pauses.
    lacks_ranks: bool = False
    is_stalled: bool = False
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class UsualPace:
    """What is usual for a job; None: not learned yet."""

    step_seconds: float | None
    longest_pause_seconds: float | None
    limit_seconds: float | None


@dataclass(slots=True)
class _Tally:
    usual: float
    limit: float
    productive: float = 0.0
    steps: float = 0.0
    lost: dict[LostReason, float] = field(default_factory=lambda: dict.fromkeys(LostReason, 0.0))
    # The stretch without a step that goes on, and what is known of it: None may still become a stall or a pause.
    still: float = 0.0
    reason: LostReason | None = None

    def moved(self, seconds: float, steps: float) -> None:
        # A step that takes longer than the time between two points was under way while nothing seemed to move.
        whole = self.still + seconds
        worked = min(steps * self.usual, whole)
        stood = self.still > 0
        self.productive += worked
        self.steps += steps
        self.still = whole - worked
        self.end(went_on=stood)

    def stood(self, seconds: float, point: ProgressPoint) -> None:
        if point.lacks_ranks:
            self.broke(seconds, LostReason.FAILURE)
            return
        if self.reason is LostReason.FAILURE:
            self.end(then=LostReason.RESTART)
        elif self.reason is LostReason.RESTART and point.is_stalled:
            self.end(then=LostReason.STALL)
        self.still += seconds
        if self.reason in (None, LostReason.PAUSE):
            self.reason = LostReason.STALL if point.is_stalled else LostReason.PAUSE if point.is_paused else None

    def broke(self, seconds: float, reason: LostReason) -> None:
        """What went before was the same failure, unless it had been a stall already."""
        if self.reason in (None, LostReason.PAUSE):
            self.reason = LostReason.FAILURE
        self.end(then=reason)
        self.still = seconds

    def end(self, *, went_on: bool = False, then: LostReason | None = None) -> None:
        reason = self.reason
        if reason is None:
            is_pause = went_on and self.still > self.usual
            reason = (
                LostReason.STALL if self.still > self.limit else LostReason.PAUSE if is_pause else LostReason.UNKNOWN
            )
        self.lost[reason] += self.still
        self.still, self.reason = 0.0, then


def account_time(points: Sequence[ProgressPoint], usual: UsualPace, *, queue_seconds: float | None = None) -> Goodput:
    """Where the time from the first point to the last went; without a word about steps only the wall is known."""
    wall = (points[-1].at - points[0].at if points else 0.0) + (queue_seconds or 0.0)
    told = [point for point in points if point.steps is not None]
    step = usual.step_seconds
    if len(told) < 2 or step is None:
        lost = tuple(LostTime(LostReason.QUEUE, queue_seconds) for _ in (1,) if queue_seconds)
        return Goodput(wall, None, None, None, step, usual.longest_pause_seconds, lost)
    tally = _Tally(step, usual.limit_seconds or UNKNOWN_LIMIT_SECONDS)
    before = told[0]
    for earlier, point in itertools.pairwise(points):
        seconds = point.at - earlier.at
        if point.steps is None:
            tally.broke(seconds, LostReason.FAILURE)
            continue
        began_anew = before.steps is not None and point.steps < before.steps
        began_anew = began_anew or (point.restarts or 0) > (before.restarts or 0)
        made = point.steps - (before.steps or 0.0)
        if began_anew:
            tally.broke(seconds, LostReason.RESTART)
        elif made > 0:
            tally.moved(seconds, made)
        else:
            tally.stood(seconds, point)
        before = point
    tally.end()
    tally.lost[LostReason.QUEUE] = queue_seconds or 0.0
    found = tuple(LostTime(reason, tally.lost[reason]) for reason in ORDER if tally.lost[reason] > 0)
    share = tally.productive / wall if wall > 0 else None
    return Goodput(wall, tally.productive, share, tally.steps, step, usual.longest_pause_seconds, found)
