"""Send one message to many subscribers; a slow subscriber never delays the sender."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

# A subscriber this far behind reloads everything; a longer queue would not help it.
QUEUE_LIMIT = 100
RESYNC = "resync"


class Broadcast:
    """Sends short text messages; a subscriber that falls behind loses its queue and gets `resync` instead."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[str]] = set()

    def send(self, message: str) -> None:
        for queue in self._queues:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(RESYNC)
            else:
                queue.put_nowait(message)

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[asyncio.Queue[str]]:
        queue: asyncio.Queue[str] = asyncio.Queue(QUEUE_LIMIT)
        self._queues.add(queue)
        try:
            yield queue
        finally:
            self._queues.discard(queue)
