"""An asyncio loop whose time passes only while all tasks sleep: an hour of requests takes seconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any


class _Jumps(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Does not wait: it says how long it would have waited."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout:
            self.loop.now += timeout
        return list(ready)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        jumps = _Jumps()
        jumps.loop = self
        self.now = 0.0
        super().__init__(jumps)

    def time(self) -> float:
        return self.now


def run(make: Any) -> None:
    """Run `make(loop)` to its end."""
    loop = VirtualLoop()
    try:
        work: Coroutine[Any, Any, None] = make(loop)
        loop.run_until_complete(work)
    finally:
        loop.close()
