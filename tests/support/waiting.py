"""Waiting for what another program, thread or task brings about: the one place where tests sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
# Long for a test that waits in vain and free for all others: two busy cores may need a minute for a second's work.
PATIENCE_SECONDS = 60.0
# Other programs are asked now and then; tasks of the same loop, and threads, are looked at more often.
PROGRAM_SECONDS = 0.05
THREAD_SECONDS = 0.005
What = str | Callable[[], str]


def until(
    condition: Callable[[], T | None],
    *,
    what: What = "the condition",
    timeout_seconds: float = PATIENCE_SECONDS,
    interval_seconds: float = THREAD_SECONDS,
) -> T:
    """Its first true answer; AssertionError with `what` when there is none in time."""
    deadline = time.monotonic() + timeout_seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, _complaint(what, timeout_seconds)
        time.sleep(interval_seconds)
    return answer


async def until_async(
    condition: Callable[[], T | Awaitable[T | None] | None],
    *,
    what: What = "the condition",
    timeout_seconds: float = PATIENCE_SECONDS,
    interval_seconds: float = THREAD_SECONDS,
) -> T:
    """The same in an event loop that goes on meanwhile; the condition may be a coroutine, and move a clock."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        given = condition()
        answer = await given if inspect.isawaitable(given) else given
        if answer:
            return answer
        assert time.monotonic() < deadline, _complaint(what, timeout_seconds)
        await asyncio.sleep(interval_seconds)


async def turns(count: int = 1) -> None:
    """Let the other tasks of the loop run so many times; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)


def _complaint(what: What, timeout_seconds: float) -> str:
    return f"{what if isinstance(what, str) else what()}: not within {timeout_seconds:g} s"
