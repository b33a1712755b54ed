"""Whether old data may be removed: not for a day after the clock jumped forward, because it may be set back.

A module that removes data by age checks at a fixed interval (`store.durable`, the hub for its journal). Time that
passed over a restart is not a jump.
"""

from __future__ import annotations

DAY_SECONDS = 86_400.0


class ClockJumpGuard:
    """Refuses removal for a day after a jump; `interval_seconds` is the time between two checks."""

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
