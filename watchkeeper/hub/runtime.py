"""What all services of a hub share: settings, clock, metrics, change notifications, and loops that survive failures.

`cli` and `drill` create a `Runtime` for each hub; a replayed recording has one too. It is the first parameter of
services.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from watchkeeper import __version__
from watchkeeper.config.settings import Settings
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import broadcast, own_metrics, recent_failures
from watchkeeper.kit.clock import Clock
from watchkeeper.kit.logs import fields

log = logging.getLogger(__name__)

# The shortest pause after a failure.
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Runtime:
    settings: Settings
    clock: Clock
    metrics: own_metrics.Registry = field(default_factory=own_metrics.Registry)
    changes: broadcast.Broadcast = field(default_factory=broadcast.Broadcast)
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Loop:
    name: str
    body: Callable[[], Awaitable[None]]
    pause_seconds: float


class LoopRunner:
    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self.failures = recent_failures.RecentFailures()
        self._failures = runtime.metrics.counter(
            "watchkeeper_hub_loop_failures_total", "Failed runs of a hub loop, by loop; the loop is retried"
        )

    async def repeat(self, loop: Loop) -> None:
        """Run a loop's body repeatedly; after a failure, log, count and pause."""
        while True:
            try:
                await loop.body()
            except Exception as error:  # Deliberately everything: one broken loop must not stop the others.
                self.report_failure(loop.name, error)
                await self._clock.sleep(max(loop.pause_seconds, RETRY_SECONDS))
            else:
                self.failures.clear(loop.name)
                await self._clock.sleep(loop.pause_seconds)

    def report_failure(self, name: str, error: Exception) -> None:
        self._failures.add(loop=name)
        self.failures.record(name, str(error) or type(error).__name__, now=self._clock.now())
        unexpected = None if isinstance(error, WatchkeeperError) else error
        log.error("hub loop failed, retrying", extra=fields(loop=name, error=error), exc_info=unexpected)

    def problems(self) -> list[str]:
        return [f"{failure.name}: {failure.problem}" for failure in self.failures.current(self._clock.now())]
