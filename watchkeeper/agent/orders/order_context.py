"""What the work of an order may touch: the tools of this node, and how a program is run with them.

`agent.control` makes one `Bench` from the agent's options; the functions of `order_work` and `order_repairs` get it.
A program is a list of arguments, never a line for a shell, and ends with the order that started it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from watchkeeper.agent import node_facts, profiling
from watchkeeper.errors import CollectError
from watchkeeper.model import actions, orders

# How long a killed child may take to go; one that sits in the kernel is left behind.
KILL_SECONDS = 1.0
PIECE_BYTES = 64 * 1024
OWN_UNIT = "watchkeeper-agent"
# What NVIDIA's own services are called; each may be restarted without a GPU losing anything but its clients.
UNITS = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-dcgm", OWN_UNIT)
MIG_CONFIG = Path("/etc/nvidia-mig-manager/config.yaml")


@dataclass(frozen=True, slots=True)
class Tools:
    """Programs and files of this node. No order names any of them: it can only ask for what is here."""

    nvidia_smi: str = "nvidia-smi"
    systemctl: str = "systemctl"
    mig_parted: str = "nvidia-mig-parted"
    mig_config: Path = MIG_CONFIG
    # The layout of `mig_config` that this node has unless an order names another.
    mig_layout: str | None = None
    units: tuple[str, ...] = UNITS
    # How long programs that still hold a GPU are waited for: pods of a drained node take a moment to go.
    patience_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class OrderContext:
    """What work may touch, and how a scan of this node is called. `environment` is for children, None: the agent's."""

    pause_file: profiling.PauseFile
    scan_options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    tools: Tools = field(default_factory=Tools)
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)
    # The agent's own reader lets go of the GPUs while the block runs: the driver resets none that anybody has open.
    gpus_released: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    text: str
    output: str = ""
    result: actions.Result = actions.Result.DONE


OrderFunction = Callable[[OrderContext, Mapping[str, str], datetime], Awaitable[OrderOutcome]]


def refused(text: str, output: str = "") -> OrderOutcome:
    return OrderOutcome(text, output, actions.Result.REFUSED)


async def run_program(
    line: list[str], environment: Mapping[str, str] | None, *, has_errors: bool = False
) -> tuple[int, str]:
    """Exit status and output of a program, which ends with us; with `has_errors` also what it complains of."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *line,
            stdin=nothing,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT if has_errors else nothing,
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
