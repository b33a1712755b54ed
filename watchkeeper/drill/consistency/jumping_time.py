"""An event loop whose time jumps to the next timer when there is nothing to do, and a clock that follows it.

`running_product` runs simulator, hub and agent on one such loop, so that an hour of a real hub takes a minute. While a
thread of the loop works, time does not jump: it passes as on the wall, in case the thread waits for a timer.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from watchkeeper.kit import clock

THREAD_POLL_SECONDS = 0.05


class JumpingSelector(selectors.BaseSelector):
    """Waits only for threads and packets; any other wait is added to `elapsed_seconds`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.elapsed_seconds, self.working_threads, self.is_frozen = 0.0, 0, False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            return self._selector.select(0)
        if timeout is None:
            return self._selector.select(None)
        if not self.working_threads and not self.is_frozen:
            # A packet that arrives a moment later costs one jump: uvicorn's timers are a tenth of a second apart.
            if not (ready := self._selector.select(0)):
                self.elapsed_seconds += timeout
            return ready
        began = time.perf_counter()
        if not (ready := self._selector.select(min(timeout, THREAD_POLL_SECONDS))):
            self.elapsed_seconds += 0.0 if self.is_frozen else min(timeout, time.perf_counter() - began)
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._selector.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._selector.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._selector.get_map()

    def close(self) -> None:
        self._selector.close()


class JumpingLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.elapsed_seconds

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the block no time passes and no timer is due, so that all answers are of one moment."""
        self._jumping.is_frozen = True
        try:
            yield
        finally:
            self._jumping.is_frozen = False

    # The signature of asyncio has a type variable for each argument.
    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self._jumping.working_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._count_end)
        return future

    def _count_end(self, _: object) -> None:
        self._jumping.working_threads -= 1


class LoopClock(clock.ScaledClock):
    """The time of a JumpingLoop as a wall clock."""

    def __init__(self, loop: JumpingLoop, epoch_seconds: float) -> None:
        super().__init__(epoch_seconds=epoch_seconds)
        self._loop = loop

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.epoch_seconds + self._loop.time(), UTC)
