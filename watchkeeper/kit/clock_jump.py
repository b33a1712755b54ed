"""Whether what is old may be removed: not for a day after the clock leapt forward, because it may be put back.

Whoever removes by age comes round regularly and asks here first (`store.durable`, the hub for its journal). Time that
passed while nobody came round, as over a restart, is no leap.
"""

from __future__ import annotations

DAY_SECONDS = 86_400.0


class ClockJumpGuard:
    """`turn_seconds` is how often its owner comes round."""

    def __init__(self, turn_seconds: float) -> None:
        self._turn_seconds = turn_seconds
        self._last: float | None = None
        self._turns = 0

    def may_remove(self, now: float) -> bool:
        """Asked once in each turn, with the time in seconds."""
        if self._last is not None and now - self._last > DAY_SECONDS:
            self._turns = round(DAY_SECONDS / self._turn_seconds)
        elif self._last is not None and now < self._last:
            self._turns = 0
        self._last = now
        self._turns = max(0, self._turns - 1)
        return self._turns == 0
