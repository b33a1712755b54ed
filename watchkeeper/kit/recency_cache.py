"""A memory of what was asked for lately: what nobody asked for during a whole turn is forgotten with it.

For work about things that come again and again and then are gone for good, such as the label sets of jobs. A cache of
so many entries fills up with those that are gone, and on a small fleet is larger than all that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecencyCache(Generic[K, V]):
    """Calls `work` for what was not asked for in this turn or the one before; `most` entries end a turn by themselves.

    May be asked from several threads: what two work out at once is worked out twice, and nothing else happens.
    """

    def __init__(self, work: Callable[[K], V], *, most: int = 100_000) -> None:
        self._work, self._most = work, most
        self._now: dict[K, V] = {}
        self._before: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._now) + len(self._before)

    def __call__(self, key: K) -> V:
        known = self._now
        if key in known:
            return known[key]
        before = self._before
        found = before[key] if key in before else self._work(key)
        if len(known) >= self._most:
            self.start_generation()
            known = self._now
        known[key] = found
        return found

    def start_generation(self) -> None:
        """Begin a turn, and forget what was not asked for in the last one."""
        self._before, self._now = self._now, {}
