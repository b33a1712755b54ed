"""What did not work a moment ago, in words: kept by whoever survives failures, shown by the hub's status.

`hub.loops` notes each failure that a loop survived and takes it back when the loop has worked again. `/api/status`
shows `current`, and the console with it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime, timedelta

MOST = 50
# The slowest loops that matter come round every minute; one that nobody took back has ended by then.
REMEMBERED = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class RecentFailure:
    """`since` the first failure of an unbroken row of them, `last` the newest."""

    what: str
    problem: str
    since: datetime
    last: datetime


class RecentFailures:
    def __init__(self) -> None:
        self._known: dict[str, RecentFailure] = {}

    def record(self, what: str, problem: str, *, now: datetime) -> None:
        before = self._known.pop(what, None)
        since = now if before is None or not _is_fresh(before, now) else before.since
        self._known[what] = RecentFailure(what, problem[:300], since, now)
        while len(self._known) > MOST:
            del self._known[next(iter(self._known))]

    def clear(self, what: str) -> None:
        self._known.pop(what, None)

    def any_of(self, kinds: Container[str], *, now: datetime) -> bool:
        """Whether something of these kinds fails; `rules thermal` is of the kind `rules`."""
        return any(each.what.partition(" ")[0] in kinds for each in self.current(now))

    def current(self, now: datetime) -> list[RecentFailure]:
        """Those of the last minutes, the longest first."""
        return sorted((each for each in self._known.values() if _is_fresh(each, now)), key=lambda each: each.since)


def _is_fresh(trouble: RecentFailure, now: datetime) -> bool:
    # Both ways: a clock that was put back must not keep a trouble for ever.
    return abs(now - trouble.last) <= REMEMBERED
