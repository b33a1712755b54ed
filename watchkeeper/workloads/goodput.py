"""Goodput: how much of the wall time of a job became steps, and what took the rest.

Steps count at their usual length, learned from the job itself, so a slower stretch loses what it is slower. A stretch
without a step is a restart or a failure where the process was gone or began anew, a stall where it was longer than any
usual pause, and a pause else. `report` asks for the points of a job and calls `account`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchkeeper.model.jobs import Goodput, Lost, LostTime

# As in packs/rules/training.yaml, where nothing is learned yet.
UNKNOWN_LIMIT_SECONDS = 600.0
ORDER = (Lost.STALL, Lost.RESTART, Lost.FAILURE, Lost.QUEUE, Lost.PAUSE, Lost.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Point:
    """What a job said at a time; `steps` None: its process said nothing."""

    at: float
    steps: float | None
    restarts: float | None = None


@dataclass(frozen=True, slots=True)
class Usual:
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
    lost: dict[Lost, float] = field(default_factory=lambda: dict.fromkeys(Lost, 0.0))
    # Of the stretch without a step that goes on.
    still: float = 0.0
    gone: float = 0.0
    is_restart: bool = False

    def moved(self, seconds: float, steps: float) -> None:
        self.close()
        worked = min(steps * self.usual, seconds)
        self.productive += worked
        self.steps += steps
        self.lost[Lost.UNKNOWN] += seconds - worked

    def close(self) -> None:
        if self.is_restart:
            self.lost[Lost.RESTART] += self.still
        else:
            self.lost[Lost.STALL if self.still > self.limit else Lost.PAUSE] += self.still
        self.lost[Lost.FAILURE] += self.gone
        self.still = self.gone = 0.0
        self.is_restart = False


def account(points: Sequence[Point], usual: Usual, *, queue_seconds: float | None = None) -> Goodput:
    """Where the time from the first point to the last went; without a word about steps only the wall is known."""
    wall = (points[-1].at - points[0].at if points else 0.0) + (queue_seconds or 0.0)
    told = [point for point in points if point.steps is not None]
    step = usual.step_seconds
    if len(told) < 2 or step is None:
        lost = tuple(LostTime(Lost.QUEUE, queue_seconds) for _ in (1,) if queue_seconds)
        return Goodput(wall, None, None, None, step, usual.longest_pause_seconds, lost)
    tally = _Tally(step, usual.limit_seconds or UNKNOWN_LIMIT_SECONDS)
    before = told[0]
    for earlier, point in itertools.pairwise(points):
        seconds = point.at - earlier.at
        if point.steps is None:
            tally.gone += seconds
            continue
        began_anew = before.steps is not None and point.steps < before.steps
        began_anew = began_anew or (point.restarts or 0) > (before.restarts or 0)
        made = point.steps - (0.0 if began_anew or before.steps is None else before.steps)
        tally.is_restart = tally.is_restart or began_anew or tally.gone > 0
        if made > 0 and not began_anew:
            tally.moved(seconds, made)
        else:
            tally.still += seconds
        before = point
    tally.close()
    tally.lost[Lost.QUEUE] = queue_seconds or 0.0
    found = tuple(LostTime(reason, tally.lost[reason]) for reason in ORDER if tally.lost[reason] > 0)
    share = tally.productive / wall if wall > 0 else None
    return Goodput(wall, tally.productive, share, tally.steps, step, usual.longest_pause_seconds, found)
