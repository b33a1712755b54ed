"""What the long-running commands share: stopping on a signal, reading rules again on another, and enough open files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Awaitable, Callable


async def until_stopped(body: Callable[[asyncio.Event], Awaitable[None]], *, stop_with_input: bool = False) -> None:
    """Run until SIGTERM or SIGINT sets the event that the body watches.

    `stop_with_input` also stops when standard input ends: a child that holds a pipe of its parent does
    not outlive it, even if the parent is killed.
    """
    open_many_files()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if stop_with_input:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    await body(stop)


def open_many_files() -> None:
    """Let the process open as many files as it may: shells and systemd begin with 1,024, and each node needs two."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def on_hangup(act: Callable[[], object]) -> None:
    """Call this on SIGHUP, which would end the process otherwise."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, act)
