"""Orders that change this machine: reset, power limit, MIG layout, services, reboot; and the test that loads its GPUs.

An agent does one of these only where its own `--allow-order` names it. Each looks before it acts, refuses while
somebody's program would be hurt, runs one fixed program, and looks again afterwards: the receipt says what is so then.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from watchkeeper.agent.gpus.gpu_samples import GpuSample
from watchkeeper.agent.orders import order_gpus
from watchkeeper.agent.orders.order_context import (
    OWN_UNIT,
    OrderContext,
    OrderFunction,
    OrderOutcome,
    refused,
    run_program,
)
from watchkeeper.errors import CollectError
from watchkeeper.kit import files
from watchkeeper.model import actions, fleet

LOOK_SECONDS = 2.0
SAID = 300
LEVELS = ("1", "2", "3")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# GPU 00000000:3B:00.0 … as nvidia-smi names GPUs, also those that it wants reset together with ours.
PCI = re.compile(r"\b[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\b")
# A limit that NVML shows within this of the wanted one is the wanted one: boards round.
SAME_WATTS = 1.0


async def reset_gpu(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Reset one GPU that nobody holds."""
    async with bench.gpus_released():
        gpu = order_gpus.find_gpu(await order_gpus.read_gpus(bench), arguments.get("gpu", ""))
        uuid = gpu.identity["uuid"]
        if held := await _still_held(bench, [gpu]):
            return refused(f"{uuid} is held by {order_gpus.format_holders(held)}; nothing was reset", _listed(held))
        status, output = await run_program(
            [bench.tools.nvidia_smi, "--gpu-reset", "-i", uuid], bench.environment, has_errors=True
        )
    if status != 0:
        others = sorted({found for found in PCI.findall(output) if not _is_same(found, gpu.identity["pci"])})
        together = f"; the driver names {', '.join(others)} too, to be reset together with it" if others else ""
        raise CollectError(f"{uuid} was not reset, nvidia-smi ended with {status}{together}: {_said(output)}")
    if all(found.identity["uuid"] != uuid for found in await order_gpus.read_gpus(bench)):
        raise CollectError(f"{uuid} was reset and does not answer since: {_said(output)}")
    return OrderOutcome(f"{uuid} was reset, and answers", output)


async def reboot(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Restart the machine. Nobody returns from this: the agent that starts then answers, by the boot id."""
    if arguments.get("drained") != "yes":
        gpus = await order_gpus.read_gpus(bench)
        if not gpus:
            return refused(
                "NVML shows no GPU, so nobody knows whose programs a reboot would end; say that it is drained"
            )
        if held := await order_gpus.find_holders(bench, gpus, only_working=True):
            return refused(f"a reboot would end {order_gpus.format_holders(held)}; nothing was done", _listed(held))
    status, output = await run_program([bench.tools.systemctl, "reboot"], bench.environment, has_errors=True)
    if status != 0:
        raise CollectError(f"{bench.tools.systemctl} reboot ended with {status}: {_said(output)}")
    return await _for_ever()


async def apply_mig(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Make the slices of a named layout, and compare."""
    tools, layout = bench.tools, arguments.get("layout") or bench.tools.mig_layout or ""
    if not NAME.fullmatch(layout):
        return refused(f"`{layout[:40]}` is not the name of a layout; the agent's --mig-layout may name one")
    async with bench.gpus_released():
        if held := await _still_held(bench, await order_gpus.read_gpus(bench)):
            return refused(f"GPUs are held by {order_gpus.format_holders(held)}; no layout was changed", _listed(held))
        which = ["-f", str(tools.mig_config), "-c", layout]
        status, output = await run_program([tools.mig_parted, "apply", *which], bench.environment, has_errors=True)
        if status != 0:
            raise CollectError(f"{tools.mig_parted} apply ended with {status}: {_said(output)}")
        status, compared = await run_program([tools.mig_parted, "assert", *which], bench.environment, has_errors=True)
    found = (
        "; ".join(f"gpu {gpu.index}: {_slices(gpu)}" for gpu in await order_gpus.read_gpus(bench)) or "no GPU answers"
    )
    if status != 0:
        raise CollectError(f"{layout} was applied, but the GPUs are not so: {_said(compared)}. Now {found}")
    return OrderOutcome(f"the layout is {layout}: {found}", output + compared)


async def restart_service(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    unit, systemctl = arguments.get("service", "").removesuffix(".service"), bench.tools.systemctl
    if unit not in bench.tools.units:
        return refused(f"`{unit[:60]}` is not among the services of this agent: {', '.join(bench.tools.units)}")
    status, output = await run_program([systemctl, "restart", f"{unit}.service"], bench.environment, has_errors=True)
    if unit == OWN_UNIT and status == 0:
        return await _for_ever()
    if status != 0:
        raise CollectError(f"{systemctl} restart {unit} ended with {status}: {_said(output)}")
    status, state = await run_program([systemctl, "is-active", f"{unit}.service"], bench.environment, has_errors=True)
    if status != 0:
        raise CollectError(f"{unit} was restarted and is {_said(state)}")
    return OrderOutcome(f"{unit} was restarted and is {state.strip()}", output)


async def lower_power(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Set a power limit within the board's own range, or the one that was there before we did."""
    gpu = order_gpus.find_gpu(await order_gpus.read_gpus(bench), arguments.get("gpu", ""))
    uuid, memory = gpu.identity["uuid"], SavedPowerLimits(bench.pause_file.directory / "power_limits.json")
    before, lowest, highest = (_watts(gpu, name) for name in (order_gpus.LIMIT, order_gpus.LOWEST, order_gpus.HIGHEST))
    is_undo = "restore" in arguments
    wanted = memory.read().get(uuid, _watts(gpu, order_gpus.DEFAULT)) if is_undo else _wanted_watts(gpu, arguments)
    if not lowest <= wanted <= highest:
        return refused(
            f"{wanted:g} W is outside of what {uuid} allows, {lowest:g} to {highest:g} W; it has {before:g} W"
        )
    if abs(before - wanted) < SAME_WATTS or (before < wanted and not is_undo):
        if is_undo:
            memory.forget(uuid)
        return OrderOutcome(f"{uuid} has a limit of {before:g} W already", result=actions.Result.ALREADY_SO)
    if not is_undo:
        memory.keep(uuid, before)
    line = [bench.tools.nvidia_smi, "-i", uuid, "--power-limit", f"{wanted:.2f}"]
    status, output = await run_program(line, bench.environment, has_errors=True)
    after = _watts(order_gpus.find_gpu(await order_gpus.read_gpus(bench), uuid), order_gpus.LIMIT)
    if status != 0 or abs(after - wanted) >= SAME_WATTS:
        raise CollectError(
            f"{uuid} has {after:g} W, wanted were {wanted:g} W; nvidia-smi ended with {status}: {_said(output)}"
        )
    if is_undo:
        memory.forget(uuid)
    return OrderOutcome(f"{uuid} may draw {after:g} W; before it was {before:g} W", output)


async def diag(bench: OrderContext, arguments: Mapping[str, str], now: datetime) -> OrderOutcome:  # noqa: ARG001
    """Test the GPUs in a child of its own: what it finds is the output, whether good or bad."""
    level = arguments.get("level", "2")
    if level not in LEVELS:
        return refused(f"`level` is {level[:20]}, it must be one of {', '.join(LEVELS)}")
    spool = ["--spool", str(bench.pause_file.directory)]
    line = [sys.executable, "-m", "watchkeeper.cli.main", "diag", "-r", level, "--json", *spool]
    status, output = await run_program(line, bench.environment)
    verdict = {0: "passed", 1: "failed", 3: "could not tell"}.get(status)
    if verdict is None:
        raise CollectError(f"the test ended with {status}: {_said(output)}")
    return OrderOutcome(f"diag -r {level} {verdict}", output)


WORK: Sequence[OrderFunction] = (diag, reset_gpu, apply_mig, lower_power, restart_service, reboot)


class SavedPowerLimits:
    """Power limits as they were before we lowered them, by GPU; a file, because an agent may restart in between."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, float]:
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CollectError("the limits before ours cannot be read", where=str(self._path)) from error
        return {str(uuid): float(watts) for uuid, watts in found.items()}

    def keep(self, uuid: str, watts: float) -> None:
        """Unless there is one: lowered twice, the first is what it was without us."""
        self._write({uuid: watts, **self.read()})

    def forget(self, uuid: str) -> None:
        self._write({known: watts for known, watts in self.read().items() if known != uuid})

    def _write(self, limits: Mapping[str, float]) -> None:
        try:
            files.write_atomically(self._path, json.dumps(limits).encode(), mode=0o600)
        except OSError as error:
            raise CollectError(
                f"the limit before ours cannot be kept: {error.strerror}", where=str(self._path)
            ) from error


async def _still_held(bench: OrderContext, gpus: Sequence[GpuSample]) -> list[order_gpus.GpuHolder]:
    """Who holds these GPUs even after a moment's patience."""
    until = time.monotonic() + bench.tools.patience_seconds
    while held := await order_gpus.find_holders(bench, gpus):
        if time.monotonic() >= until:
            return held
        await asyncio.sleep(LOOK_SECONDS)
        known = {gpu.identity["uuid"] for gpu in gpus}
        gpus = [gpu for gpu in await order_gpus.read_gpus(bench) if gpu.identity["uuid"] in known]
        if len(gpus) < len(known):
            raise CollectError(f"only {len(gpus)} of {len(known)} GPUs answer NVML any more; nothing was done")
    return []


async def _for_ever() -> NoReturn:
    """Until the machine, or this agent, is ended; or the deadline of the order is over."""
    while True:
        await asyncio.sleep(3600)


def _wanted_watts(gpu: GpuSample, arguments: Mapping[str, str]) -> float:
    try:
        if "watts" in arguments:
            return float(arguments["watts"])
        return round(_watts(gpu, order_gpus.DEFAULT) * float(arguments.get("percent", "")) / 100)
    except ValueError as error:
        raise CollectError("`watts` or `percent` must be a number") from error


def _watts(gpu: GpuSample, name: str) -> float:
    value = gpu.values.get(name)
    if value is None or isinstance(value, Mapping):
        raise CollectError(f"{gpu.identity['uuid']} does not tell its power limits, so none is changed")
    return value


def _slices(gpu: GpuSample) -> str:
    return ", ".join(part.profile for part in gpu.mig_instances) or "not sliced"


def _listed(held: Sequence[order_gpus.GpuHolder]) -> str:
    return "\n".join(map(str, held))


def _is_same(left: str, right: str) -> bool:
    return fleet.normalise_pci(left) == fleet.normalise_pci(right)


def _said(output: str) -> str:
    return " ".join(output.split())[:SAID] or "it said nothing"
