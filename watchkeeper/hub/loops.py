"""Loops that survive their own failures: each is said in the log, counted, and shown until the loop works again.

Services list their loops as `Loop`; the hub runs every one of them with `Loops.repeat`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import recent_failures
from watchkeeper.kit.logs import fields

log = logging.getLogger(__name__)

# How soon after a failure a loop is tried again at the earliest.
RETRY_SECONDS = 1.0


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
            "watchkeeper_hub_loop_failures_total", "Failures that a loop of the hub survived"
        )

    async def repeat(self, loop: Loop) -> None:
        """Run a loop's body for ever; a failure is said, counted, and followed by a pause."""
        while True:
            try:
                await loop.body()
            except Exception as error:  # Deliberately everything: one broken loop must not blind the others.
                self.report_failure(loop.name, error)
                await self._clock.sleep(max(loop.pause_seconds, RETRY_SECONDS))
            else:
                self.failures.clear(loop.name)
                await self._clock.sleep(loop.pause_seconds)

    def report_failure(self, name: str, error: Exception) -> None:
        self._failures.add(loop=name)
        self.failures.record(name, str(error) or type(error).__name__, now=self._clock.now())
        is_ours = isinstance(error, WatchkeeperError)
        log.error("A loop of the hub failed", extra=fields(loop=name, error=error), exc_info=None if is_ours else error)

    def problems(self) -> list[str]:
        """What failed of late, in a sentence each."""
        return [f"{each.what}: {each.problem}" for each in self.failures.current(self._clock.now())]
