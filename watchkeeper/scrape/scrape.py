"""Scrape every target on its schedule, with a limit on concurrent scrapes.

Each target is a `target_loop.TargetLoop`; this module decides when it runs. The hub passes in the appender, the
inventory and the clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from watchkeeper.errors import StoreFull
from watchkeeper.kit import clock, logs, own_metrics
from watchkeeper.readers import exposition
from watchkeeper.scrape import schedule
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.scrape.jobs import Target
from watchkeeper.scrape.target_loop import ScrapeSettings, TargetConnection, TargetHealth, TargetLoop, TargetState
from watchkeeper.store import interfaces

__all__ = ["ScrapeSettings", "Scraper", "TargetConnection", "TargetHealth", "TargetLoop", "TargetState"]

log = logging.getLogger(__name__)


class Scraper:
    def __init__(
        self,
        settings: ScrapeSettings,
        *,
        time: clock.Clock,
        sink: Callable[[], interfaces.Appender],
        inventory: ScrapedInventory,
        metrics: own_metrics.Registry | None = None,
    ) -> None:
        """`sink` is called for each new target: while a hub starts, the store on disk replaces the one in memory."""
        self._settings, self._clock, self._sink, self._fleet = settings, time, sink, inventory
        self._dropped = (metrics or own_metrics.Registry()).counter(
            "watchkeeper_scrape_samples_dropped_total", "Scraped samples that were dropped, by reason"
        )
        self._concurrency = asyncio.Semaphore(settings.concurrency)
        self._parse_lock = asyncio.Lock()
        self._loops: dict[Target, tuple[TargetLoop, asyncio.Task[None]]] = {}

    def states(self) -> list[TargetState]:
        return [loop.state for loop, _ in self._loops.values()]

    def families(self) -> dict[str, exposition.FamilyMetadata]:
        """The metadata that exporters report; if two differ, the last target wins."""
        return {name: family for loop, _ in self._loops.values() for name, family in loop.state.families.items()}

    async def set_targets(self, targets: Iterable[Target]) -> None:
        """Scrape exactly these targets from now on; unchanged targets continue undisturbed."""
        new_targets = dict.fromkeys(targets)
        await self._end([target for target in self._loops if target not in new_targets])
        for target in new_targets:
            if target not in self._loops:
                try:
                    loop = TargetLoop(
                        target, self._settings, sink=self._sink(), inventory=self._fleet, parse_lock=self._parse_lock
                    )
                except StoreFull:
                    # The store has no room even for `up` and reports that it is full; the next call retries.
                    continue
                self._loops[target] = (loop, asyncio.create_task(self._run(loop, target.key)))

    async def close(self) -> None:
        await self._end(list(self._loops))

    async def _end(self, targets: Iterable[Target]) -> None:
        ended = [self._loops.pop(target) for target in targets]
        for _, task in ended:
            task.cancel()
        await asyncio.gather(*(task for _, task in ended), return_exceptions=True)
        for loop, _ in ended:
            await loop.close(clock.to_ms(self._clock.now()))

    async def _run(self, loop: TargetLoop, key: str) -> None:
        interval_ms = loop.interval_ms
        offset = schedule.offset_ms(key, interval_ms)
        slot = clock.to_ms(self._clock.now())
        while True:
            now_ms = clock.to_ms(self._clock.now())
            slot = schedule.following_slot(slot, now_ms, offset, interval_ms=interval_ms)
            await self._clock.sleep((slot - now_ms) / 1000)
            async with self._concurrency:
                now_ms = clock.to_ms(self._clock.now())
                try:
                    await loop.scrape(schedule.sample_time(slot, now_ms, interval_ms=interval_ms))
                except Exception:
                    # A bug in one scrape must not end this loop.
                    log.exception("scrape failed with an unexpected error", extra=logs.fields(target=key))
                for reason, count in loop.dropped_samples.items():
                    self._dropped.add(count, reason=reason)
                loop.dropped_samples.clear()
