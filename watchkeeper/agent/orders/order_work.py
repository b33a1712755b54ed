"""The work behind each kind of order: one function, named like its row in `model.orders.KINDS`.

`agent.orders.orders` calls it after every check, with a deadline around it, and writes the receipt. A function gives
the words for that receipt, or raises CollectError if the work could not be done. What changes a machine is in
`order_repairs`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import datetime, timedelta

from watchkeeper.agent import profiling
from watchkeeper.agent.orders import order_repairs
from watchkeeper.agent.orders.order_context import OrderContext, OrderFunction, OrderOutcome, run_program
from watchkeeper.errors import CollectError
from watchkeeper.model import actions


async def profiling_pause(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:
    text = arguments.get("seconds", str(int(profiling.DEFAULT_PAUSE.total_seconds())))
    most = int(profiling.MAX_PAUSE.total_seconds())
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= most:
        raise CollectError(f"`seconds` is {text[:20]}, it must be from 1 to {most}")
    pause = profiling.Pause(now, now + timedelta(seconds=int(text)), arguments.get("by", "an order"))
    bench.pause_file.write(pause)
    return OrderOutcome(f"profiling is paused until {pause.until:%Y-%m-%d %H:%M:%S} UTC")


async def profiling_resume(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    if bench.pause_file.clear():
        return OrderOutcome("profiling goes on")
    return OrderOutcome("profiling was not paused", result=actions.Result.ALREADY_SO)


async def scan(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """The node's own scan in a process of its own: what it finds is the output, whether good or bad."""
    line = [sys.executable, "-m", "watchkeeper.cli.main", "scan", "--json", *bench.scan_options]
    status, output = await run_program(line, bench.environment)
    verdict = {0: "healthy", 1: "degraded or unhealthy", 3: "unknown"}.get(status)
    if verdict is None:
        raise CollectError(f"the scan ended with {status}: {output[-200:].strip()}")
    return OrderOutcome(f"this node is {verdict}", output)


async def diag_software(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """What `preflight` asks of every node: level 1, which loads no GPU, so that it needs no plan."""
    return await order_repairs.diag(bench, {"level": "1"}, now)


async def describe_gpus(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Everything the driver tells of its GPUs, in the words that a vendor asks for."""
    status, output = await run_program([bench.tools.nvidia_smi, "-q"], bench.environment, has_errors=True)
    if status != 0:
        raise CollectError(f"{bench.tools.nvidia_smi} -q ended with {status}: {output[-200:].strip()}")
    return OrderOutcome("what nvidia-smi -q says", output)


WORK: Mapping[str, OrderFunction] = {
    work.__name__: work
    for work in (profiling_pause, profiling_resume, scan, diag_software, describe_gpus, *order_repairs.WORK)
}
