"""The memory of all labels and selections that are cached for queries; above a limit, all of them are dropped.

Queries of one expression share these results, so a repeated query does no work on labels. Each cache charges its bytes
here and credits what it frees. Rules fill the caches again in one evaluation, so it does little harm to drop all.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import Protocol

# A series of GPU metrics needs 1.2 KiB for the shipped rules; the store itself takes about 2.3 KiB for a series.
FIXED_LIMIT_BYTES, BYTES_PER_SERIES = 128 << 20, 3072


class QueryCache(Protocol):
    def drop_results(self) -> None:
        """Drop all cached results, now or at the next use; called from any thread."""


class CacheMemory:
    def __init__(self) -> None:
        self.fixed_bytes, self._series = FIXED_LIMIT_BYTES, 0
        # Results of an earlier generation were dropped, and are not credited when they are freed.
        self.generation = 0
        self.used_bytes = 0
        # Credits come from destructors, which run in any thread and must not wait for a lock.
        self._credits: deque[tuple[int, int]] = deque()
        self._caches: weakref.WeakSet[QueryCache] = weakref.WeakSet()
        self._lock = threading.Lock()

    def register(self, cache: QueryCache) -> None:
        with self._lock:
            self._caches.add(cache)

    def allow_for(self, series: int) -> None:
        """Raise the limit for a store of this many series."""
        self._series = max(self._series, series)

    @property
    def limit_bytes(self) -> int:
        return self.fixed_bytes + BYTES_PER_SERIES * self._series

    def charge(self, size: int) -> None:
        with self._lock:
            while self._credits:
                generation, freed = self._credits.popleft()
                self.used_bytes -= freed if generation == self.generation else 0
            self.used_bytes += size
            if self.used_bytes <= self.limit_bytes:
                return
            self.generation += 1
            self.used_bytes = 0
            caches = list(self._caches)
        for cache in caches:
            cache.drop_results()

    def credit(self, size: int, generation: int) -> None:
        self._credits.append((generation, size))


CACHE_MEMORY = CacheMemory()
