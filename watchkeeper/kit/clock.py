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


class Clock(Protocol):
    """The current time, and a way to wait."""

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
