"""Own the query engine, its query threads and its store: sync the WAL, compact blocks, copy usage into a ledger.

The hub opens this service first, so that pages can query. Other services use `Queries`; a replayed recording has one
with its own engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from watchkeeper import errors
from watchkeeper.accounting import budget_watch, ledger, usage_reader
from watchkeeper.hub import backends
from watchkeeper.hub.runtime import Loop, Runtime
from watchkeeper.kit import allowance, clock, files, recent_failures
from watchkeeper.query import engine
from watchkeeper.store import clock_check, durable

SYNC_SECONDS = 1.0
LEDGER_SECONDS = 600.0
# For the queries of the hub's own pages, and for those of users: heavy queries of users do not delay pages. With more
# threads they would only compete for cores; further queries queue.
PAGE_THREADS, USER_THREADS = 4, 4
# Prometheus' default of --query.timeout; a request can set a shorter one.
QUERY_TIMEOUT_SECONDS = 120.0
T = TypeVar("T")


class Queries:
    """Runs queries in separate threads, so that neither the fsync of the WAL nor rules wait for them.

    A query has a deadline, and ends soon after its caller is cancelled.
    """

    def __init__(self, backend: engine.Engine, time: clock.Clock) -> None:
        self.engine, self._clock = backend, time
        self._page_threads = ThreadPoolExecutor(PAGE_THREADS, thread_name_prefix="query")
        self._user_threads = ThreadPoolExecutor(USER_THREADS, thread_name_prefix="user-query")
        self._deadlines: set[allowance.Deadline] = set()

    @property
    def now_ms(self) -> int:
        return clock.to_ms(self._clock.now())

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.QueryResult:
        at = self.now_ms if at_ms is None else at_ms
        return await self._run_in_thread(self._page_threads, lambda: self.engine.instant(expr, at))

    async def range(self, expr: str, window: engine.QueryRange) -> engine.QueryResult:
        result = self.range_if_cheap(expr, window)
        if result is not None:
            return result
        return await self._run_in_thread(self._page_threads, lambda: self.engine.range(expr, window))

    def range_if_cheap(self, expr: str, window: engine.QueryRange) -> engine.QueryResult | None:
        local = self.engine.local
        return None if local is None else local.range_if_cheap(expr, window)

    async def run_for_user(self, work: Callable[[], T], *, timeout_seconds: float = QUERY_TIMEOUT_SECONDS) -> T:
        """Evaluate a query of a user and write its answer; QueryTimeout after the timeout."""
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._run_in_thread(self._user_threads, work, timeout_seconds=timeout_seconds)
        except TimeoutError as error:
            problem = f"query timed out in expression evaluation after {timeout_seconds:g} s"
            raise errors.QueryTimeout(problem) from error

    async def _run_in_thread(
        self, threads: ThreadPoolExecutor, work: Callable[[], T], *, timeout_seconds: float = QUERY_TIMEOUT_SECONDS
    ) -> T:
        deadline, memory = allowance.Deadline(timeout_seconds), allowance.Memory(self.engine.limits().max_bytes)

        def run() -> T:
            with deadline.applied(), memory:
                return work()

        self._deadlines.add(deadline)
        try:
            return await asyncio.get_running_loop().run_in_executor(threads, run)
        except asyncio.CancelledError:
            deadline.cancel()
            raise
        finally:
            self._deadlines.discard(deadline)

    def close(self) -> None:
        for deadline in list(self._deadlines):
            deadline.cancel()
        self._page_threads.shutdown(cancel_futures=True)
        self._user_threads.shutdown(cancel_futures=True)


class Samples:
    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.engine = backends.build_engine(runtime.settings)
        self.queries = Queries(self.engine, runtime.clock)
        self._directory = files.DataDirectory(Path(runtime.settings.hub.data))
        # Callbacks that close the users of samples before the samples.
        self.closing = contextlib.ExitStack()
        self._store: durable.DurableStore | None = None
        self._clock_check = clock_check.ClockCheck()
        self._budgets = budget_watch.create_budget_watch(runtime.settings, runtime.metrics)
        gauge = runtime.metrics.gauge
        self._gauges = {
            "series": gauge("watchkeeper_store_series", "Series in memory"),
            "blocks": gauge("watchkeeper_store_blocks", "Blocks of samples on disk"),
            "block_bytes": gauge("watchkeeper_store_block_bytes", "Size of the blocks of samples on disk"),
            "log_bytes": gauge("watchkeeper_store_log_bytes", "Size of the write-ahead log"),
            "lost_samples": gauge(
                "watchkeeper_store_lost_samples", "Samples lost at the last start because the WAL was damaged"
            ),
            "unlogged_samples": gauge(
                "watchkeeper_store_unlogged_samples", "Samples that are in memory only because the WAL was full"
            ),
            "damages": gauge("watchkeeper_store_damages", "Damaged places in files of the store"),
        }

    def open(self) -> None:
        """Lock the data directory and open its samples; StartRefused or StoreError if that fails."""
        settings = self.runtime.settings
        self._directory.claim()
        self.closing.callback(self._directory.release)
        try:
            if (local := self.engine.local) is not None:
                # With `query.data`, hubs with different data directories could use the same folder.
                self.closing.callback(os.close, files.lock_folder(settings.samples_path))
                limits = durable.StoreSettings.from_settings(settings.query)
                self._store = durable.open_store(settings.samples_path, limits, clock_ms=self._now_ms)
                local.head = self._store
        except (OSError, errors.WatchkeeperError):
            self.close()
            raise
        self.closing.callback(self.engine.close)
        self.closing.callback(self.queries.close)

    def close(self) -> None:
        self.closing.close()

    @property
    def are_stored_here(self) -> bool:
        """Whether samples are stored in this process and not on a server."""
        return self._store is not None

    @property
    def newest_ms(self) -> int | None:
        return None if self._store is None else self._store.newest_ms

    def problems(self) -> Iterator[str]:
        """Damaged files, samples ahead of the clock, and a full store, one sentence each."""
        if self._store is None:
            return
        if self._store.damages:
            count, first = self._store.status().damages, self._store.damages[0]
            yield f"samples: {count} damaged places, the first is {first}. Run `watchkeeper store verify`"
        if ahead := clock_check.describe_problem(self._store, self._now_ms()):
            yield ahead
        if len(self._store) >= (max_series := self.runtime.settings.query.max_series):
            yield (
                f"samples: the store is full: {len(self._store):,} series, the limit is {max_series:,}. New series"
                " are dropped, and targets with dropped series are neither up nor down. Raise `query.max_series` (about"
                " 2.3 KiB of memory for each series), or drop labels that change often"
            )

    def loops(self, failures: recent_failures.RecentFailures) -> list[Loop]:
        return [
            Loop("usage", self._update_ledger, LEDGER_SECONDS),
            Loop("samples", lambda: self._sync(failures), 0.0),
            Loop("blocks", self._maintain_blocks, durable.MAINTENANCE_SECONDS),
        ]

    async def _sync(self, failures: recent_failures.RecentFailures) -> None:
        """Sync samples to disk each second of real time, also with a fast simulated clock."""
        await asyncio.sleep(SYNC_SECONDS)
        if self._store is not None:
            now = self.runtime.clock.now()
            if problem := await asyncio.to_thread(self._clock_check.sync, self._store, clock.to_ms(now)):
                failures.record("clock", problem, now=now)

    async def _update_ledger(self) -> None:
        usage_ledger, time = ledger.UsageLedger(Path(self.runtime.settings.hub.data) / "usage"), self.runtime.clock
        now = time.now().timestamp()
        await asyncio.to_thread(usage_reader.update_ledger, self.engine, usage_ledger, now=now)
        await asyncio.to_thread(self._budgets.update, self.engine, time.now())

    async def _maintain_blocks(self) -> None:
        if self._store is None:
            return
        try:
            await asyncio.to_thread(self._store.maintain, self._now_ms())
        finally:
            # Also on a full disk, where maintenance fails: that is when these numbers are read.
            status = self._store.status()
            for name, metric in self._gauges.items():
                metric.set(getattr(status, name))

    def _now_ms(self) -> int:
        return clock.to_ms(self.runtime.clock.now())
