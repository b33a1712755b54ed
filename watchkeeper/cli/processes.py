"""What the long-running commands share: stopping on a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable


async def until_stopped(body: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run until SIGTERM or SIGINT sets the event that the body watches; a second signal ends at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await body(stop)
