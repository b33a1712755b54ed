"""The work behind each kind of order: one function, named like its row in `model.orders.KINDS`.

`collect.orders` calls it after every check, with a deadline around it, and writes the receipt. A function gives the
words for that receipt, or raises CollectError if the work could not be done.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.collect import profiling
from watchkeeper.errors import CollectError
from watchkeeper.model import actions, orders

# How long a killed child may take to go; one that sits in the kernel is left behind.
KILL_SECONDS = 1.0
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Bench:
    """What work may touch, and how a scan of this node is called. `environment` is for children, None: the agent's."""

    pause: profiling.PauseFile
    scan_options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Done:
    text: str
    output: str = ""
    result: actions.Result = actions.Result.DONE


Work = Callable[[Bench, Mapping[str, str], datetime], Awaitable[Done]]


async def profiling_pause(bench: Bench, arguments: Mapping[str, str], now: datetime) -> Done:
    text = arguments.get("seconds", str(int(profiling.USUAL.total_seconds())))
    most = int(profiling.LONGEST.total_seconds())
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise CollectError(f"`seconds` is {text[:20]}, it must be from 1 to {most}")
    pause = profiling.Pause(now, now + timedelta(seconds=int(text)), arguments.get("by", "an order"))
    bench.pause.write(pause)
    return Done(f"profiling is paused until {pause.until:%Y-%m-%d %H:%M:%S} UTC")


async def profiling_resume(bench: Bench, arguments: Mapping[str, str], now: datetime) -> Done:  # noqa: ARG001
    if bench.pause.clear():
        return Done("profiling goes on")
    return Done("profiling was not paused", result=actions.Result.ALREADY_SO)


async def scan(bench: Bench, arguments: Mapping[str, str], now: datetime) -> Done:  # noqa: ARG001
    """The node's own scan in a process of its own: what it finds is the output, whether good or bad."""
    line = [sys.executable, "-m", "watchkeeper.cli.main", "scan", "--json", *bench.scan_options]
    status, output = await _ask(line, bench.environment)
    verdict = {0: "healthy", 1: "degraded or unhealthy", 3: "unknown"}.get(status)
    if verdict is None:
        raise CollectError(f"the scan ended with {status}: {output[-200:].strip()}")
    return Done(f"this node is {verdict}", output)


WORK: Mapping[str, Work] = {work.__name__: work for work in (profiling_pause, profiling_resume, scan)}


async def _ask(line: list[str], environment: Mapping[str, str] | None) -> tuple[int, str]:
    """Exit status and output of a program, which ends with us."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *line,
            stdin=nothing,
            stdout=pipe,
            stderr=nothing,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
    except OSError as error:
        raise CollectError(f"cannot be started: {error.strerror}", where=line[0]) from error
    assert child.stdout is not None
    output = b""
    try:
        while piece := await child.stdout.read(PIECE_BYTES):
            output += piece
            if len(output) > orders.MOST_OUTPUT_BYTES:
                limit = orders.MOST_OUTPUT_BYTES
                raise CollectError(f"it wrote {len(output)} bytes or more, the limit is {limit}")
        return await child.wait(), output.decode("utf-8", "replace")
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    await child.wait()
