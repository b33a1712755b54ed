"""Maintain the sample store: sync the WAL each second, compact blocks, and copy recorded usage into a ledger.

`Samples` opens this before the stages, and the hub runs its loops. If a server stores the samples, only the ledger is
maintained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from watchkeeper.accounting import budget_watch, ledger, usage_reader
from watchkeeper.config import settings as config
from watchkeeper.hub.loops import Loop
from watchkeeper.kit import clock, own_metrics, recent_failures
from watchkeeper.query import engine
from watchkeeper.store import clock_check, durable

SYNC_SECONDS = 1.0
LEDGER_SECONDS = 600.0


class StoreMaintenance:
    def __init__(
        self, settings: config.Settings, backend: engine.Engine, *, time: clock.Clock, metrics: own_metrics.Registry
    ) -> None:
        self._settings, self._engine, self._clock = settings, backend, time
        self._samples: durable.DurableStore | None = None
        self._clock_check = clock_check.ClockCheck()
        self._budgets = budget_watch.create_budget_watch(settings, metrics)
        gauge = metrics.gauge
        self._stored = {
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
        """Open the store of the embedded engine; StoreError if that fails."""
        if (local := self._engine.local) is not None:
            limits = durable.StoreSettings.from_settings(self._settings.query)
            self._samples = durable.open_store(self._settings.samples_path, limits, clock_ms=self._now_ms)
            local.head = self._samples

    @property
    def is_embedded(self) -> bool:
        """Whether samples are stored in this process and not on a server."""
        return self._samples is not None

    @property
    def newest_ms(self) -> int | None:
        return None if self._samples is None else self._samples.newest_ms

    def problems(self) -> Iterator[str]:
        """Samples ahead of the clock, and a full store, one sentence each."""
        if self._samples is None:
            return
        if ahead := clock_check.describe_problem(self._samples, self._now_ms()):
            yield ahead
        if len(self._samples) >= (max_series := self._settings.query.max_series):
            yield (
                f"samples: the store is full: {len(self._samples):,} series, the limit is {max_series:,}. New series"
                " are dropped, and targets with dropped series are neither up nor down. Raise `query.max_series` (about"
                " 2.3 KiB of memory for each series), or drop labels that change often"
            )

    def loops(self, failures: recent_failures.RecentFailures) -> list[Loop]:
        async def sync() -> None:
            await self._sync(failures)

        return [
            Loop("usage", self._update_ledger, LEDGER_SECONDS),
            Loop("samples", sync, 0.0),
            Loop("blocks", self._maintain_blocks, durable.MAINTENANCE_SECONDS),
        ]

    async def _sync(self, failures: recent_failures.RecentFailures) -> None:
        """Sync samples to disk each second of real time, also with a fast simulated clock."""
        await asyncio.sleep(SYNC_SECONDS)
        if self._samples is not None:
            now = self._clock.now()
            if problem := await asyncio.to_thread(self._clock_check.sync, self._samples, clock.to_ms(now)):
                failures.record("clock", problem, now=now)

    async def _update_ledger(self) -> None:
        """Copy recorded usage into the ledger, which is kept longer than the samples."""
        usage_ledger = ledger.UsageLedger(Path(self._settings.hub.data) / "usage")
        await asyncio.to_thread(
            usage_reader.update_ledger, self._engine, usage_ledger, now=self._clock.now().timestamp()
        )
        await asyncio.to_thread(self._budgets.update, self._engine, self._clock.now())

    async def _maintain_blocks(self) -> None:
        if self._samples is not None:
            await asyncio.to_thread(self._samples.maintain, self._now_ms())
            status = self._samples.status()
            for name, metric in self._stored.items():
                metric.set(getattr(status, name))

    def _now_ms(self) -> int:
        return clock.to_ms(self._clock.now())
