"""Own the query engine, its query threads, and the maintenance of its store.

The hub opens this service first, so that pages can query. Other services use `Queries`; a replayed recording has one
with its own engine.
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

# More threads would only compete for cores; further queries queue.
QUERY_THREADS = 4


class Queries:
    """Runs queries of users in separate threads, so that neither the fsync of the WAL nor rules wait for them."""

    def __init__(self, backend: engine.Engine, time: clock.Clock) -> None:
        self.engine, self._clock = backend, time
        self._threads = ThreadPoolExecutor(QUERY_THREADS, thread_name_prefix="query")

    @property
    def now_ms(self) -> int:
        return clock.to_ms(self._clock.now())

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.QueryResult:
        at = self.now_ms if at_ms is None else at_ms
        return await self._run_in_thread(lambda: self.engine.instant(expr, at))

    async def range(self, expr: str, window: engine.QueryRange) -> engine.QueryResult:
        local = self.engine.local
        result = None if local is None else local.range_if_cheap(expr, window)
        return result if result is not None else await self._run_in_thread(lambda: self.engine.range(expr, window))

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


class Samples:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.engine = backends.build_engine(runtime.settings)
        self.queries = Queries(self.engine, runtime.clock)
        self._maintenance = store_maintenance.StoreMaintenance(
            runtime.settings, self.engine, time=runtime.clock, metrics=runtime.metrics
        )
        self._directory = files.DataDirectory(Path(runtime.settings.hub.data))
        # Callbacks that close the users of samples before the samples.
        self.closing = contextlib.ExitStack()

    def open(self) -> None:
        """Lock the data directory and open its samples; StartRefused or StoreError if that fails."""
        self._directory.claim()
        self.closing.callback(self._directory.release)
        try:
            self._maintenance.open()
        except (OSError, WatchkeeperError):
            self.close()
            raise
        self.closing.callback(self.engine.close)
        self.closing.callback(self.queries.close)

    def close(self) -> None:
        self.closing.close()

    @property
    def are_stored_here(self) -> bool:
        """Whether samples are stored in this process and not on a server."""
        return self._maintenance.is_embedded

    @property
    def newest_ms(self) -> int | None:
        return self._maintenance.newest_ms

    def problems(self) -> Iterable[str]:
        return self._maintenance.problems()

    def loops(self, failures: recent_failures.RecentFailures) -> list[Loop]:
        return self._maintenance.loops(failures)
