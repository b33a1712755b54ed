"""Samples: the engine that answers about them, the threads that ask it, and what their store needs all the time.

The first service that a hub opens: questions of pages are answered from then on. `Queries` is what others ask; a
recording that is played has one over its own engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import backends, store_maintenance
from watchkeeper.hub.loops import Loop
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import clock, files, recent_failures
from watchkeeper.query import engine

T = TypeVar("T")

# More would only wait for one another's cores; the rest of the questions queue up.
QUESTIONS_AT_ONCE = 4


class Queries:
    """Questions of people: they wait for one another, never the log's fsync or a rule for them."""

    def __init__(self, asked: engine.Engine, time: clock.Clock) -> None:
        self.engine, self._clock = asked, time
        self._threads = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="query")

    @property
    def now_ms(self) -> int:
        return clock.to_ms(self._clock.now())

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.QueryResult:
        """The answer at a time, or now."""
        at = self.now_ms if at_ms is None else at_ms
        return await self._in_thread(lambda: self.engine.instant(expr, at))

    async def range(self, expr: str, span: engine.QueryRange) -> engine.QueryResult:
        local = self.engine.local
        answer = None if local is None else local.range_if_cheap(expr, span)
        if answer is not None:
            return answer
        return await self._in_thread(lambda: self.engine.range(expr, span))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class Samples:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.engine = backends.build_engine(runtime.settings)
        self.queries = Queries(self.engine, runtime.clock)
        self._upkeep = store_maintenance.StoreMaintenance(
            runtime.settings, self.engine, time=runtime.clock, metrics=runtime.metrics
        )
        self._directory = files.DataDirectory(Path(runtime.settings.hub.data))
        # Whoever works on samples is closed before them.
        self.closing = contextlib.ExitStack()

    def open(self) -> None:
        """Claim the data directory and read the samples in it; StartRefused or StoreError if that cannot be."""
        self._directory.claim()
        self.closing.callback(self._directory.release)
        try:
            self._upkeep.open()
        except (OSError, WatchkeeperError):
            self.close()
            raise
        self.closing.callback(self.engine.close)
        self.closing.callback(self.queries.close)

    def close(self) -> None:
        self.closing.close()

    @property
    def are_stored_here(self) -> bool:
        """Whether samples are kept here and not by a server."""
        return self._upkeep.is_ours

    @property
    def newest_ms(self) -> int | None:
        return self._upkeep.newest_ms

    def problems(self) -> Iterable[str]:
        return self._upkeep.problems()

    def loops(self, failing: recent_failures.RecentFailures) -> list[Loop]:
        return self._upkeep.loops(failing)
