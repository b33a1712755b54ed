"""A clock that tests advance by hand."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from tests.support import waiting


class ManualClock:
    """A clock that moves only when a test advances it; sleepers wake in the order of their deadlines."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._sleepers: list[tuple[datetime, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._now + timedelta(seconds=max(0.0, seconds)), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move time forward; each sleeper wakes at its deadline."""
        until = self._now + timedelta(seconds=seconds)
        while True:
            due = min((s for s in self._sleepers if s[0] <= until), key=lambda s: s[0], default=None)
            if due is None:
                break
            self._sleepers.remove(due)
            self._now = max(self._now, due[0])
            if not due[1].cancelled():
                due[1].set_result(None)
            await settle()
        self._now = until
        await settle()


async def settle() -> None:
    """Run every ready task until it waits again."""
    await waiting.turns(20)
