"""What order functions may use: the tools of this node, and how a program is run.

`agent.control` builds one `OrderContext` from the agent's options; the functions of `order_work` get it. A program is a
list of arguments, never a shell line, and is killed when its order ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from watchkeeper.agent import node_facts, profiling
from watchkeeper.errors import CollectError
from watchkeeper.model import actions, orders

# How long to wait for a killed process to exit; one that waits in the kernel is abandoned.
KILL_SECONDS = 1.0
READ_BYTES = 64 * 1024
# Output of a failed program that is quoted in an error.
MAX_OUTPUT_CHARACTERS = 300
AGENT_UNIT = "watchkeeper-agent"
# NVIDIA's services; a restart of one disconnects its clients and does not affect work on the GPUs.
UNITS = ("nvidia-fabricmanager", "nvidia-persistenced", "nvidia-dcgm", AGENT_UNIT)
MIG_CONFIG = Path("/etc/nvidia-mig-manager/config.yaml")


@dataclass(frozen=True, slots=True)
class NodeTools:
    """Programs and files of this node; an order cannot name others."""

    nvidia_smi: str = "nvidia-smi"
    systemctl: str = "systemctl"
    mig_parted: str = "nvidia-mig-parted"
    mig_config: Path = MIG_CONFIG
    # The layout of `mig_config` that is applied if the order names none.
    mig_layout: str | None = None
    units: tuple[str, ...] = UNITS
    # How long to wait for processes that hold a GPU: pods of a drained node take some time to exit.
    holder_timeout_seconds: float = 20.0


@dataclass(frozen=True, slots=True)
class OrderContext:
    """What order functions may use.

    `scan_options` are arguments of a scan of this node; `environment` is for programs (None: the agent's environment).
    """

    pause_file: profiling.PauseFile
    scan_options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    tools: NodeTools = field(default_factory=NodeTools)
    roots: node_facts.Roots = field(default_factory=node_facts.Roots)
    # The agent closes the GPUs while the block runs: the driver resets no GPU that a process has open.
    gpus_released: Callable[[], AbstractAsyncContextManager[None]] = nullcontext


@dataclass(frozen=True, slots=True)
class OrderOutcome:
    text: str
    output: str = ""
    result: actions.Result = actions.Result.DONE


OrderFunction = Callable[[OrderContext, Mapping[str, str], datetime], Awaitable[OrderOutcome]]


def refuse(text: str, output: str = "") -> OrderOutcome:
    return OrderOutcome(text, output, actions.Result.REFUSED)


async def run(context: OrderContext, *command: str) -> tuple[int, str]:
    """Run a program; its exit status, and its output with standard error."""
    return await run_program(list(command), context.environment, with_stderr=True)


async def run_or_raise(context: OrderContext, *command: str) -> str:
    """Run a program; its output with standard error, or CollectError if it failed."""
    status, output = await run(context, *command)
    if status != 0:
        raise CollectError(f"{' '.join(command)} exited with status {status}: {summarise_output(output)}")
    return output


async def run_watchkeeper(context: OrderContext, *arguments: str, verdicts: Mapping[int, str]) -> tuple[str, str]:
    """Run a watchkeeper command in a separate process; its verdict by exit status, and its report."""
    status, output = await run_program([sys.executable, "-m", "watchkeeper.cli.main", *arguments], context.environment)
    if status not in verdicts:
        raise CollectError(f"the {arguments[0]} exited with status {status}: {summarise_output(output)}")
    return verdicts[status], output


def summarise_output(output: str) -> str:
    return " ".join(output.split())[:MAX_OUTPUT_CHARACTERS] or "no output"


async def run_program(
    command: list[str], environment: Mapping[str, str] | None, *, with_stderr: bool = False
) -> tuple[int, str]:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        child = await asyncio.create_subprocess_exec(
            *command,
            stdin=null,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT if with_stderr else null,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
    except OSError as error:
        raise CollectError(f"cannot be started: {error.strerror}", where=command[0]) from error
    assert child.stdout is not None
    output = b""
    try:
        while block := await child.stdout.read(READ_BYTES):
            output += block
            if len(output) > orders.MAX_OUTPUT_BYTES:
                limit = orders.MAX_OUTPUT_BYTES
                raise CollectError(f"the program wrote {len(output)} bytes or more, the limit is {limit}")
        return await child.wait(), output.decode("utf-8", "replace")
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    await child.wait()
