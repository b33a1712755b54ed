"""Signals and limits of the long-running commands: stop on SIGTERM, reload on SIGHUP, raise the open file limit."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from collections.abc import Awaitable, Callable


async def run_until_stopped(body: Callable[[asyncio.Event], Awaitable[None]], *, stop_with_input: bool = False) -> None:
    """Run `body`, which returns when its event is set: by SIGTERM or SIGINT.

    `stop_with_input` also sets it at the end of standard input: a child whose input is a pipe of its parent stops with
    the parent, even if the parent is killed.
    """
    raise_open_file_limit()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stop.set)
    if stop_with_input:
        loop.add_reader(sys.stdin.fileno(), stop.set)
    await body(stop)


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit: the default of 1,024 is too low at two files per node."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def on_hangup(callback: Callable[[], object]) -> None:
    """Call `callback` on SIGHUP, which would end the process otherwise."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, callback)
