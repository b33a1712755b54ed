"""What was worked out about label sets, remembered as far as memory allows.

`remote_write` reads and writes the same label sets with every request. Who sends 250,000 series sends each of them
again after a quarter of a million others: a memory that forgets the one used longest ago, and is a little too small,
would then have forgotten each of them just before it comes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Of the machine's memory: 1.4 GiB of 23, which is enough for two million label sets of GPUs.
SHARE = 16
LEAST_BYTES = 64 << 20


def allowed_bytes() -> int:
    return max(LEAST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE)


class Remembered(Generic[K, V]):
    """`make(key)`, made once for each key while there is room; `cost` is what remembering one takes, in bytes.

    When it is full the newcomers are made each time. Once they have been as many as those remembered, the older half
    goes: series that have ended give way, and of more series than fit in most are still remembered.
    """

    def __init__(self, make: Callable[[K], V], cost: Callable[[K, V], int], *, limit_bytes: int) -> None:
        self._make, self._cost, self._limit_bytes = make, cost, limit_bytes
        self._known: dict[K, V] = {}
        self._used_bytes = 0
        self._turned_away = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def get(self, key: K) -> V:
        try:
            return self._known[key]
        except KeyError:
            pass
        value = self._make(key)
        with self._lock:
            self._keep(key, value)
        return value

    def known(self, key: K) -> V | None:
        """What is remembered; None where nothing is."""
        return self._known.get(key)

    def _keep(self, key: K, value: V) -> None:
        cost = self._cost(key, value)
        if key in self._known:
            return
        if self._used_bytes + cost > self._limit_bytes:
            self._turned_away += 1
            if self._turned_away > len(self._known):
                self._forget_older_half()
            return
        self._known[key] = value
        self._used_bytes += cost

    def _forget_older_half(self) -> None:
        for key in list(islice(self._known, -(-len(self._known) // 2))):
            self._used_bytes -= self._cost(key, self._known.pop(key))
        self._turned_away = 0
