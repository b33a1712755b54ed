"""Threads that read the journal for pages: a page may wait for a commit or a slow disk, the event loop for neither.

The hub has one `JournalReaders`; every page that shows something of the journal asks through `Hub.read`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

# Reads at the same time, and among them those that read much: a short one never waits for those.
AT_ONCE, LONG_AT_ONCE = 3, 1


class JournalReaders:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="reader")
        self._long = asyncio.Semaphore(LONG_AT_ONCE)

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        """Whatever reads the journal for a page; `is_long` where that may be thousands of rows."""
        async with self._long if is_long else contextlib.nullcontext():
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
