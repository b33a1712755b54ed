"""Detect a store that is ahead of the clock: after the clock was set back, current samples are refused as too old.

The hub checks each second. If the store stays ahead, its future samples are moved to quarantine, so that current
samples are accepted again; a clock that is wrong only for a moment changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from watchkeeper.store.durable import DurableStore
from watchkeeper.store.quarantine import QuarantinedSamples

# Longer than a clock needs to settle after it was set, and shorter than users wait before they miss new samples.
QUARANTINE_AFTER_SECONDS = 20.0
# Clocks are often set back by seconds; a store without out-of-order samples waits for that long.
MIN_AHEAD_MS = 60_000


class ClockCheck:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._behind_since: float | None = None

    def sync(self, store: DurableStore, now_ms: int) -> str:
        """Write samples to disk, then check the clock. Waits for the disk; StoreError if the write fails."""
        store.sync()
        return self.quarantine_if_ahead(store, now_ms)

    def quarantine_if_ahead(self, store: DurableStore, now_ms: int) -> str:
        """Quarantine future samples if the store stays ahead; return what was done, or an empty text."""
        if not _ahead_ms(store, now_ms):
            self._behind_since = None
            return ""
        if self._behind_since is None:
            self._behind_since = self._monotonic()
        if self._monotonic() - self._behind_since < QUARANTINE_AFTER_SECONDS:
            return ""
        return describe_quarantine(store.quarantine_future_samples())


def describe_problem(store: DurableStore | None, now_ms: int) -> str:
    """The problem for the hub's status, or an empty text while the newest sample is not ahead of the clock."""
    ahead_ms = 0 if store is None else _ahead_ms(store, now_ms)
    if not ahead_ms:
        return ""
    return (
        f"samples: the newest sample is {_hours(ahead_ms)} ahead of the clock, so current samples are refused. After"
        f" {QUARANTINE_AFTER_SECONDS:g} s, samples ahead of the clock are moved to quarantine"
    )


def describe_quarantine(quarantined: QuarantinedSamples) -> str:
    return (
        f"set back by {_hours(quarantined.ahead_ms)}: {quarantined.samples:,} samples ahead of it were moved to"
        f" {quarantined.folder} and are not queried"
    )


def _ahead_ms(store: DurableStore, now_ms: int) -> int:
    """How far the newest sample is ahead of the clock; 0 while current samples are accepted, or will be soon."""
    ahead_ms = (store.newest_ms or 0) - now_ms
    return ahead_ms if ahead_ms > max(store.late_ms, MIN_AHEAD_MS) else 0


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:.1f} h"
