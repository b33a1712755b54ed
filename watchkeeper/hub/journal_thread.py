"""Run all writes of incidents and the journal on one thread, which avoids locks and fsync on the event loop.

Incidents, deliveries of notifications and trimming run here; pages read in other threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class JournalThread:
    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._waiting = 0

    async def run(self, work: Callable[[], T]) -> T:
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._waiting -= 1

    @property
    def is_busy(self) -> bool:
        return self._waiting > 0

    def close(self) -> None:
        self._thread.shutdown()
