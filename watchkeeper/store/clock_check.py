"""Whether the store is ahead of the clock: after a clock was put back, samples of now are too old to be taken.

The hub looks each second. When that has lasted for a moment, what is ahead is set aside and samples of now are taken
again; a clock that was wrong for a moment only costs nothing. What was done is said by the hub's status.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from watchkeeper.store.durable import DurableStore
from watchkeeper.store.quarantine import QuarantinedSamples

# Longer than a clock that is being set takes to settle; shorter than anybody takes to ask why nothing is new.
PATIENCE_SECONDS = 20.0
# Clocks are put back by seconds all the time; whoever takes no late samples waits for that.
SOON_MS = 60_000


class ClockCheck:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._behind_since: float | None = None

    def sync(self, store: DurableStore, now_ms: int) -> str:
        """Bring samples to the disk, then look. Waits for the disk; StoreError if that refuses."""
        store.sync()
        return self.quarantine_if_ahead(store, now_ms)

    def quarantine_if_ahead(self, store: DurableStore, now_ms: int) -> str:
        """What was set aside, in words; an empty text when there was no reason to."""
        if not _ahead_ms(store, now_ms):
            self._behind_since = None
            return ""
        if self._behind_since is None:
            self._behind_since = self._monotonic()
        if self._monotonic() - self._behind_since < PATIENCE_SECONDS:
            return ""
        return describe_quarantine(store.quarantine_future_samples())


def describe_problem(store: DurableStore | None, now_ms: int) -> str:
    """A sentence for people, or an empty text while the clock and the newest sample agree."""
    ahead_ms = 0 if store is None else _ahead_ms(store, now_ms)
    if not ahead_ms:
        return ""
    return (
        f"samples: the newest is {_hours(ahead_ms)} ahead of the clock, so those of now are refused. After"
        f" {PATIENCE_SECONDS:g} s of that, what is ahead is set aside"
    )


def describe_quarantine(found: QuarantinedSamples) -> str:
    return (
        f"it was put back by {_hours(found.ahead_ms)}: {found.samples:,} samples that were ahead of it are set aside in"
        f" {found.folder}, where queries do not see them"
    )


def _ahead_ms(store: DurableStore, now_ms: int) -> int:
    """How far the newest sample is ahead; 0 while samples of now are taken, be it as late ones, or will be soon."""
    ahead_ms = (store.newest_ms or 0) - now_ms
    return ahead_ms if ahead_ms > max(store.late_ms, SOON_MS) else 0


def _hours(ms: int) -> str:
    return f"{ms / 3_600_000:.1f} h"
