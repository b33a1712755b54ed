"""Threads that read the journal for pages: a page may wait for a commit or a slow disk, the event loop for neither.

The hub has one `JournalReaders`; every page that shows something of the journal asks through `hub.journal_reader`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Those that read much have a thread of their own, which they keep until they have read it, also when nobody waits for
# the answer any more: a short one never waits for those.
SHORT_AT_ONCE, LONG_AT_ONCE = 2, 1


class JournalReaders:
    def __init__(self) -> None:
        self._short = ThreadPoolExecutor(SHORT_AT_ONCE, thread_name_prefix="reader")
        self._long = ThreadPoolExecutor(LONG_AT_ONCE, thread_name_prefix="long reader")

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Whatever reads the journal for a page; `is_long` where that may be thousands of rows."""
        threads = self._long if is_long else self._short
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def close(self) -> None:
        for threads in (self._short, self._long):
            threads.shutdown(cancel_futures=True)
