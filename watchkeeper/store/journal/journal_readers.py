"""Threads that read the journal for web pages, so that the event loop never waits for a commit or a slow disk.

The hub has one `JournalReaders`; every page that shows journal data uses it through `hub.journal_reader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Long reads have a separate thread, which they occupy until the end, even if the client has disconnected: short reads
# never wait for them.
SHORT_READ_THREADS, LONG_READ_THREADS = 2, 1


class JournalReaders:
    def __init__(self) -> None:
        self._short_reads = ThreadPoolExecutor(SHORT_READ_THREADS, thread_name_prefix="reader")
        self._long_reads = ThreadPoolExecutor(LONG_READ_THREADS, thread_name_prefix="long reader")

    async def read(self, read_journal: Callable[[], T], *, is_long: bool = False) -> T:
        """Run a function that reads the journal; set `is_long` if it may read thousands of rows."""
        threads = self._long_reads if is_long else self._short_reads
        return await asyncio.get_running_loop().run_in_executor(threads, read_journal)

    def close(self) -> None:
        for threads in (self._short_reads, self._long_reads):
            threads.shutdown(cancel_futures=True)
