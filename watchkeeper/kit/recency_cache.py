"""Cache results that were used recently: entries that were not used during a whole generation are dropped.

For keys that repeat for a time and then never again, such as the label sets of jobs. A cache with a fixed number of
entries fills up with keys that no longer occur, and on a small fleet is larger than all keys in use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecencyCache(Generic[K, V]):
    """Calls `compute` for a key that was not used in this generation or the one before.

    A generation ends at `max_entries`, if `start_generation` is not called before. Several threads may use it: two that
    need the same new key at the same time both compute it.
    """

    def __init__(self, compute: Callable[[K], V], *, max_entries: int = 100_000) -> None:
        self._compute, self._max_entries = compute, max_entries
        self._current: dict[K, V] = {}
        self._previous: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._current) + len(self._previous)

    def __call__(self, key: K) -> V:
        current = self._current
        if key in current:
            return current[key]
        previous = self._previous
        value = previous[key] if key in previous else self._compute(key)
        if len(current) >= self._max_entries:
            self.start_generation()
            current = self._current
        current[key] = value
        return value

    def start_generation(self) -> None:
        """Start a generation, and drop the entries that were not used in the last one."""
        self._previous, self._current = self._current, {}
