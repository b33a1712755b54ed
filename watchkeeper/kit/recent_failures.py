"""The failures of the last minutes, which the hub's status shows.

`hub.runtime` records each failure of a loop, and clears it when the loop succeeds again. `/api/status` and the console
show `current`.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime, timedelta

MAX_FAILURES = 50
# The slowest important loops run every minute; an older failure is of a loop that has ended.
FRESH_FOR = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """A failure that repeats: `since` is the first time without a success since then, `last_at` the newest."""

    name: str
    problem: str
    since: datetime
    last_at: datetime


class RecentFailures:
    def __init__(self) -> None:
        self._failure_by_name: dict[str, RecentFailure] = {}

    def record(self, name: str, problem: str, *, now: datetime) -> None:
        previous = self._failure_by_name.pop(name, None)
        since = now if previous is None or not _is_fresh(previous, now) else previous.since
        self._failure_by_name[name] = RecentFailure(name, problem[:300], since, now)
        while len(self._failure_by_name) > MAX_FAILURES:
            del self._failure_by_name[next(iter(self._failure_by_name))]

    def clear(self, name: str) -> None:
        self._failure_by_name.pop(name, None)

    def has_any(self, kinds: Container[str], *, now: datetime) -> bool:
        """Whether a loop of these kinds fails; the kind of `rules thermal` is `rules`."""
        return any(failure.name.partition(" ")[0] in kinds for failure in self.current(now))

    def current(self, now: datetime) -> list[RecentFailure]:
        """The failures of the last minutes, the longest first."""
        fresh = [failure for failure in self._failure_by_name.values() if _is_fresh(failure, now)]
        return sorted(fresh, key=lambda failure: failure.since)


def _is_fresh(failure: RecentFailure, now: datetime) -> bool:
    # In both directions: a failure must not stay forever after the clock was set back.
    return abs(now - failure.last_at) <= FRESH_FOR
