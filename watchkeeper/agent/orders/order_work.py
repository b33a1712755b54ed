"""Runs each kind of order: one function for each kind, named like its row in `model.orders.KINDS`.

Each function runs after all checks, with a timeout; CollectError means that the work failed. A function that changes
the node checks it, refuses if it would harm a running process, runs one fixed program, and checks again: the receipt
has the state afterwards.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

from watchkeeper.agent import profiling
from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.orders import order_gpus
from watchkeeper.agent.orders.order_context import (
    AGENT_UNIT,
    OrderContext,
    OrderFunction,
    OrderOutcome,
    refuse,
    run,
    run_or_raise,
    run_watchkeeper,
    summarise_output,
)
from watchkeeper.errors import CollectError
from watchkeeper.kit import files
from watchkeeper.model import actions, fleet, orders

POLL_SECONDS = 2.0
DIAG_LEVELS = ("1", "2", "3")
LAYOUT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# GPU 00000000:3B:00.0 … as nvidia-smi names GPUs, also those that must be reset together with this one.
PCI = re.compile(r"\b[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\b")
# Boards round their power limit: a difference up to this counts as equal.
WATTS_TOLERANCE = 1.0


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
    return await diag(context, {"level": "1"}, now)


async def describe_gpus(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """The driver's complete report about its GPUs, as vendors request it."""
    return OrderOutcome("output of nvidia-smi -q", await run_or_raise(context, context.tools.nvidia_smi, "-q"))


async def reset_gpu(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    async with context.gpus_released():
        gpu = order_gpus.find_gpu(await order_gpus.read_gpus(context), arguments.get("gpu", ""))
        uuid = gpu.identity["uuid"]
        if processes := await _wait_until_free(context, [gpu]):
            return _refuse_held(f"{uuid} is held by", processes, "nothing was reset")
        status, output = await run(context, context.tools.nvidia_smi, "--gpu-reset", "-i", uuid)
    summary = summarise_output(output)
    if status != 0:
        named = {fleet.normalise_pci(address): address for address in PCI.findall(output)}
        named.pop(fleet.normalise_pci(gpu.identity["pci"]), None)
        addresses = sorted(named.values())
        others = f"; the driver requires a reset together with {', '.join(addresses)}" if addresses else ""
        raise CollectError(f"{uuid} was not reset, nvidia-smi exited with status {status}{others}: {summary}")
    if all(gpu.identity["uuid"] != uuid for gpu in await order_gpus.read_gpus(context)):
        raise CollectError(f"{uuid} was reset but does not answer: {summary}")
    return OrderOutcome(f"{uuid} was reset and answers", output)


async def reboot(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Reboot the node; the agent that starts afterwards sends the receipt, after it has compared the boot ids."""
    if arguments.get("drained") != "yes":
        gpus = await order_gpus.read_gpus(context)
        if not gpus:
            return refuse(
                "NVML lists no GPU, so it is unknown which processes a reboot would end. "
                "Drain the node, then order the reboot with drained=yes"
            )
        if processes := await order_gpus.find_holders(context, gpus, with_context_only=True):
            return _refuse_held("a reboot would end", processes, "nothing was done")
    await run_or_raise(context, context.tools.systemctl, "reboot")
    return await _wait_for_restart()


async def apply_mig(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    tools, layout = context.tools, arguments.get("layout") or context.tools.mig_layout or ""
    if not LAYOUT_NAME.fullmatch(layout):
        return refuse(f"`{layout[:40]}` is not a layout name; name one in the order or with the agent's --mig-layout")
    async with context.gpus_released():
        if processes := await _wait_until_free(context, await order_gpus.read_gpus(context)):
            return _refuse_held("GPUs are held by", processes, "no layout was changed")
        layout_arguments = ["-f", str(tools.mig_config), "-c", layout]
        output = await run_or_raise(context, tools.mig_parted, "apply", *layout_arguments)
        status, compared = await run(context, tools.mig_parted, "assert", *layout_arguments)
    gpus = await order_gpus.read_gpus(context)
    profiles = {gpu.index: ", ".join(instance.profile for instance in gpu.mig_instances) for gpu in gpus}
    instances = "; ".join(f"gpu {index}: {text or 'no MIG instances'}" for index, text in profiles.items())
    instances = instances or "no GPU answers"
    if status != 0:
        problem = summarise_output(compared)
        raise CollectError(f"{layout} was applied, but the GPUs do not match it: {problem}. Now: {instances}")
    return OrderOutcome(f"layout {layout} applied: {instances}", output + compared)


async def restart_service(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    unit, systemctl = arguments.get("service", "").removesuffix(".service"), context.tools.systemctl
    if unit not in context.tools.units:
        return refuse(f"`{unit[:60]}` is not a service that this agent may restart: {', '.join(context.tools.units)}")
    output = await run_or_raise(context, systemctl, "restart", f"{unit}.service")
    if unit == AGENT_UNIT:
        return await _wait_for_restart()
    status, state = await run(context, systemctl, "is-active", f"{unit}.service")
    if status != 0:
        raise CollectError(f"{unit} was restarted but is {summarise_output(state)}")
    return OrderOutcome(f"{unit} was restarted and is {state.strip()}", output)


async def lower_power(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Lower the power limit of a GPU, or of all, within the board's range; or restore the limits from before."""
    gpus = await order_gpus.read_gpus(context)
    saved_limits = SavedPowerLimits(context.pause_file.directory / "power_limits.json")
    if arguments.get("gpu") != orders.ALL_GPUS:
        gpus = (order_gpus.find_gpu(gpus, arguments.get("gpu", "")),)
    elif "restore" in arguments:
        # A limit that the agent did not lower stays.
        saved = saved_limits.read()
        gpus = tuple(gpu for gpu in gpus if gpu.identity["uuid"] in saved)
        if not gpus:
            return OrderOutcome("no power limit of this node was lowered", result=actions.Result.ALREADY_SO)
    if not gpus:
        raise CollectError("NVML lists no GPU, so no power limit was changed")
    changes = [_plan_limit(gpu, arguments, saved_limits) for gpu in gpus]
    # All are checked before the first one is changed.
    if refused := [change.refusal for change in changes if change.refusal]:
        more = f" ({len(refused)} of {len(changes)} GPUs)" if len(changes) > 1 else ""
        return refuse(f"{refused[0]}{more}")
    outcomes = [await _set_limit(context, change, saved_limits) for change in changes]
    is_done = any(outcome.result is actions.Result.DONE for outcome in outcomes)
    result = actions.Result.DONE if is_done else actions.Result.ALREADY_SO
    texts, output = "; ".join(outcome.text for outcome in outcomes), "".join(outcome.output for outcome in outcomes)
    return OrderOutcome(texts, output, result=result)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The power limit that a GPU gets; `refusal` says why the board does not allow it."""

    uuid: str
    current_watts: float
    target_watts: float
    is_restore: bool
    refusal: str = ""


def _plan_limit(gpu: GpuSample, arguments: Mapping[str, str], saved_limits: SavedPowerLimits) -> LimitChange:
    uuid, current_watts = gpu.identity["uuid"], _read_watts(gpu, order_gpus.POWER_LIMIT)
    min_watts, max_watts = _read_watts(gpu, order_gpus.MIN_POWER_LIMIT), _read_watts(gpu, order_gpus.MAX_POWER_LIMIT)
    is_restore = "restore" in arguments
    if is_restore:
        target_watts = saved_limits.read().get(uuid, _read_watts(gpu, order_gpus.DEFAULT_POWER_LIMIT))
    else:
        try:
            if "watts" in arguments:
                target_watts = float(arguments["watts"])
            else:
                default_watts = _read_watts(gpu, order_gpus.DEFAULT_POWER_LIMIT)
                target_watts = round(default_watts * float(arguments.get("percent", "")) / 100)
        except ValueError as error:
            raise CollectError("`watts` or `percent` must be a number") from error
    allowed = f"{min_watts:g} to {max_watts:g} W"
    refusal = f"{uuid} allows {allowed}, not {target_watts:g} W; its limit is {current_watts:g} W"
    is_allowed = min_watts <= target_watts <= max_watts
    return LimitChange(uuid, current_watts, target_watts, is_restore, "" if is_allowed else refusal)


async def _set_limit(context: OrderContext, change: LimitChange, saved_limits: SavedPowerLimits) -> OrderOutcome:
    uuid, current_watts, target_watts, is_restore = (
        change.uuid, change.current_watts, change.target_watts, change.is_restore,
    )  # fmt: skip
    if abs(current_watts - target_watts) < WATTS_TOLERANCE or (current_watts < target_watts and not is_restore):
        if is_restore:
            saved_limits.remove(uuid)
        return OrderOutcome(f"{uuid} has a limit of {current_watts:g} W already", result=actions.Result.ALREADY_SO)
    if not is_restore:
        saved_limits.add(uuid, current_watts)
    status, output = await run(context, context.tools.nvidia_smi, "-i", uuid, "--power-limit", f"{target_watts:.2f}")
    new_watts = _read_watts(order_gpus.find_gpu(await order_gpus.read_gpus(context), uuid), order_gpus.POWER_LIMIT)
    if status != 0 or abs(new_watts - target_watts) >= WATTS_TOLERANCE:
        problem = f"nvidia-smi exited with status {status}: {summarise_output(output)}"
        raise CollectError(f"{uuid} has a limit of {new_watts:g} W, not {target_watts:g} W; {problem}")
    if is_restore:
        saved_limits.remove(uuid)
    return OrderOutcome(f"{uuid} has a limit of {new_watts:g} W; it was {current_watts:g} W", output)


async def diag(context: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Test the GPUs in a separate process; the report is the output, whatever the verdict."""
    level = arguments.get("level", "2")
    if level not in DIAG_LEVELS:
        return refuse(f"`level` is {level[:20]}, it must be one of {', '.join(DIAG_LEVELS)}")
    diag_arguments = ("diag", "-r", level, "--json", "--spool", str(context.pause_file.directory))
    verdicts = {0: "passed", 1: "failed", 3: "inconclusive"}
    verdict, output = await run_watchkeeper(context, *diag_arguments, verdicts=verdicts)
    return OrderOutcome(f"diag -r {level} {verdict}", output)


ORDER_FUNCTIONS: Mapping[str, OrderFunction] = {
    function.__name__: function
    for function in (
        profiling_pause,
        profiling_resume,
        scan,
        diag_software,
        describe_gpus,
        diag,
        reset_gpu,
        apply_mig,
        lower_power,
        restart_service,
        reboot,
    )
}


class SavedPowerLimits:
    """Power limits from before the agent lowered them, by GPU; a file, because the agent may restart in between."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, float]:
        try:
            limits = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CollectError("the saved power limits cannot be read", where=str(self._path)) from error
        return {str(uuid): float(watts) for uuid, watts in limits.items()}

    def add(self, uuid: str, watts: float) -> None:
        """Save the limit of a GPU unless one is saved: after two orders, the first limit is the original."""
        self._write({uuid: watts, **self.read()})

    def remove(self, uuid: str) -> None:
        self._write({saved_uuid: watts for saved_uuid, watts in self.read().items() if saved_uuid != uuid})

    def _write(self, limits: Mapping[str, float]) -> None:
        try:
            files.write_atomically(self._path, json.dumps(limits).encode(), mode=0o600)
        except OSError as error:
            raise CollectError(f"the power limit cannot be saved: {error.strerror}", where=str(self._path)) from error


async def _wait_until_free(context: OrderContext, gpus: Sequence[GpuSample]) -> list[order_gpus.GpuProcess]:
    """Wait until no process holds these GPUs; returns the processes that still do after the timeout."""
    deadline = time.monotonic() + context.tools.holder_timeout_seconds
    while processes := await order_gpus.find_holders(context, gpus):
        if time.monotonic() >= deadline:
            return processes
        await asyncio.sleep(POLL_SECONDS)
        uuids = {gpu.identity["uuid"] for gpu in gpus}
        gpus = [gpu for gpu in await order_gpus.read_gpus(context) if gpu.identity["uuid"] in uuids]
        if len(gpus) < len(uuids):
            raise CollectError(f"only {len(gpus)} of {len(uuids)} GPUs still answer; nothing was done")
    return []


async def _wait_for_restart() -> NoReturn:
    """Wait until the node or this agent stops, or the order times out."""
    while True:
        await asyncio.sleep(3600)


def _read_watts(gpu: GpuSample, name: str) -> float:
    value = gpu.values.get(name)
    if value is None or isinstance(value, Mapping):
        raise CollectError(f"{gpu.identity['uuid']} does not report its power limits, so none was changed")
    return value


def _refuse_held(problem: str, processes: Sequence[order_gpus.GpuProcess], unchanged: str) -> OrderOutcome:
    return refuse(f"{problem} {order_gpus.format_holders(processes)}; {unchanged}", "\n".join(map(str, processes)))
