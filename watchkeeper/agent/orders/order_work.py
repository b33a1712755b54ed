"""Runs each kind of order: one function for each kind, named like its row in `model.orders.KINDS`.

`agent.orders.orders` calls it after all checks, with a timeout, and writes the receipt. A function returns the text of
the receipt, or raises CollectError if the work failed. Orders that change the node are in `order_repairs`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from watchkeeper.agent import profiling
from watchkeeper.agent.orders import order_repairs
from watchkeeper.agent.orders.order_context import (
    OrderContext,
    OrderFunction,
    OrderOutcome,
    run_or_raise,
    run_watchkeeper,
)
from watchkeeper.errors import CollectError
from watchkeeper.model import actions


async def profiling_pause(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:
    text = arguments.get("seconds", str(int(profiling.DEFAULT_PAUSE.total_seconds())))
    max_seconds = int(profiling.MAX_PAUSE.total_seconds())
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= max_seconds:
        raise CollectError(f"`seconds` is {text[:20]}, it must be from 1 to {max_seconds}")
    pause = profiling.Pause(now, now + timedelta(seconds=int(text)), arguments.get("by", "an order"))
    context.pause_file.write(pause)
    return OrderOutcome(f"profiling is paused until {pause.until:%Y-%m-%d %H:%M:%S} UTC")


async def profiling_resume(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    if context.pause_file.clear():
        return OrderOutcome("profiling resumed")
    return OrderOutcome("profiling was not paused", result=actions.Result.ALREADY_SO)


async def scan(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Scan the node in a separate process; the report is the output, whatever the verdict."""
    verdicts = {0: "healthy", 1: "degraded or unhealthy", 3: "unknown"}
    verdict, output = await run_watchkeeper(context, "scan", "--json", *context.scan_options, verdicts=verdicts)
    return OrderOutcome(f"this node is {verdict}", output)


async def diag_software(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Run the tests of level 1, which put no load on a GPU and need no plan; `preflight` orders them."""
    return await order_repairs.diag(context, {"level": "1"}, now)


async def describe_gpus(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """The driver's complete report about its GPUs, as vendors request it."""
    return OrderOutcome("output of nvidia-smi -q", await run_or_raise(context, context.tools.nvidia_smi, "-q"))


ORDER_FUNCTIONS: Mapping[str, OrderFunction] = {
    function.__name__: function
    for function in (
        profiling_pause,
        profiling_resume,
        scan,
        diag_software,
        describe_gpus,
        *order_repairs.REPAIR_FUNCTIONS,
    )
}
