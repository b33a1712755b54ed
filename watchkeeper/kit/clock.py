"""Clocks that are passed as parameters, so that tests and simulated fleets control the time.

`hub.py`, `agent.py` and the simulator own a clock and pass `now` to the stages below them; no stage reads a clock
itself. A `ScaledClock` can run faster, for example one hour per minute: the hub and the simulator share its epoch and
speed, so they have the same time without exchanging it.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

DAY_SECONDS = 86_400.0


class Clock(Protocol):
    def now(self) -> datetime: ...

    async def sleep(self, seconds: float) -> None: ...


class ScaledClock:
    """Wall time multiplied by `speed` from an epoch on; speed 1 is the normal clock."""

    def __init__(self, *, speed: float = 1.0, epoch_seconds: float | None = None) -> None:
        if speed <= 0:
            raise ValueError(f"clock speed {speed} must be above 0")
        self.speed = speed
        self.epoch_seconds = time.time() if epoch_seconds is None else epoch_seconds

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_seconds + (time.time() - self.epoch_seconds) * self.speed, UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / self.speed)


class ClockJumpGuard:
    """Refuses to remove old data for a day after the clock jumped forward, because it may be set back.

    `interval_seconds` is the time between two checks; time that passed over a restart is not a jump.
    """

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._last_seconds: float | None = None
        self._checks_to_skip = 0

    def may_remove(self, now: float) -> bool:
        """Whether old data may be removed; call this once in each interval, with the time in seconds."""
        if self._last_seconds is not None and now - self._last_seconds > DAY_SECONDS:
            self._checks_to_skip = round(DAY_SECONDS / self._interval_seconds)
        elif self._last_seconds is not None and now < self._last_seconds:
            self._checks_to_skip = 0
        self._last_seconds = now
        self._checks_to_skip = max(0, self._checks_to_skip - 1)
        return self._checks_to_skip == 0


def to_ms(at: datetime) -> int:
    """Milliseconds since 1970, the unit of Prometheus' timestamps."""
    return round(at.timestamp() * 1000)


def from_ms(at_ms: int | float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def from_unix_seconds(seconds: float) -> datetime | None:
    """The time for seconds since 1970 from an external source; None if they are out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None
