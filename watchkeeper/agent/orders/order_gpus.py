"""Reads this node's GPUs for an order: their power limits, MIG instances, and the processes that hold them.

NVML is called in a reader process, so that a hung call does not block the agent. Processes without a context
(monitoring, a debugger) are found by their open device files; a source that cannot be read is an error, and never means
that no process holds the GPU.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution.programs import ProgramWorkloads
from watchkeeper.agent.gpus import scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample, Program
from watchkeeper.agent.orders.order_context import OrderContext
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.model import fleet, workloads
from watchkeeper.readers.node import proc_programs
from watchkeeper.readers.nvml import choice, families

POWER_LIMIT, MIN_POWER_LIMIT, MAX_POWER_LIMIT, DEFAULT_POWER_LIMIT = (
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
)
# nvidia-smi makes it release the GPU before a reset and open it again afterwards.
PERSISTENCE_DAEMON = "nvidia-persistenced"
MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds a GPU; fields that could not be read are empty."""

    pid: int
    command: str = ""
    user: str = ""
    workload: str = ""

    def __str__(self) -> str:
        user = f" of {self.user}" if self.user else ""
        return f"pid {self.pid} {self.command or 'unknown'}{user}" + (f" ({self.workload})" if self.workload else "")


async def read_gpus(context: OrderContext) -> tuple[GpuSample, ...]:
    """Every GPU that NVML can read now; empty if NVML cannot be opened."""
    families_by_name = choice.load_dcgm_families()
    # All in the first round: this reader process reads only once.
    power_families = tuple(
        families_by_name[name][0]._replace(cadence=families.Cadence.FAST)
        for name in (POWER_LIMIT, MIN_POWER_LIMIT, MAX_POWER_LIMIT, DEFAULT_POWER_LIMIT)
    )
    options = scan_readings.ReadingOptions(choice.FamilyChoice(power_families), environment=context.environment)

    def read() -> tuple[GpuSample, ...]:
        with scan_readings.running_sampler(options, clock.ScaledClock()) as sampler:
            return sampler.snapshot().gpus

    return await asyncio.to_thread(read)


def find_gpu(gpus: Sequence[GpuSample], name: str) -> GpuSample:
    """The GPU with this UUID, index or PCI address; CollectError lists the GPUs if there is none."""
    for gpu in gpus:
        if name in (gpu.identity["uuid"], str(gpu.index)) or _has_address(gpu, name):
            return gpu
    listed = ", ".join(gpu.identity["uuid"] for gpu in gpus[:MAX_LISTED]) or "none"
    raise CollectError(f"this node has no GPU `{name[:60]}`; NVML lists: {listed}")


def _has_address(gpu: GpuSample, name: str) -> bool:
    try:
        return fleet.normalise_pci(name) == fleet.normalise_pci(gpu.identity["pci"])
    except ValueError:
        return False


async def find_holders(
    context: OrderContext, gpus: Iterable[GpuSample], *, with_context_only: bool = False
) -> list[GpuProcess]:
    """Processes with an open GPU, or with a context on one (`with_context_only`); CollectError if they are unknown."""
    selected = tuple(gpus)
    if unreported := [gpu.identity["uuid"] for gpu in selected if gpu.programs is None]:
        raise CollectError(f"NVML does not report the processes on {', '.join(unreported[:MAX_LISTED])}")
    pids = {program.pid for gpu in selected for program in gpu.programs or ()}
    files = set() if with_context_only else {f"/dev/nvidia{gpu.identity['minor']}" for gpu in selected}
    return await asyncio.to_thread(_describe_processes, context.roots, pids, files)


def _describe_processes(roots: node_facts.Roots, context_pids: set[int], files: set[str]) -> list[GpuProcess]:
    if not (proc_pids := proc_programs.list_pids(roots.proc)):
        raise CollectError("cannot be read, so it is unknown which processes have a GPU open", where=str(roots.proc))
    opened = {pid for pid in proc_pids if pid != os.getpid() and files.intersection(_list_open_files(roots, pid))}
    daemons = {pid for pid in opened if proc_programs.read_name(roots.proc, pid) == PERSISTENCE_DAEMON[:15]}
    users = proc_programs.read_users(roots.root / "etc/passwd")
    finder = ProgramWorkloads(roots.proc, roots.root)
    pids = sorted(context_pids | opened - daemons)
    return [_describe_process(roots, pid, finder=finder, users=users) for pid in pids]


def _list_open_files(roots: node_facts.Roots, pid: int) -> set[str]:
    """The files that a process has open; empty if it has exited or may not be read."""
    paths = set()
    with suppress(OSError):
        for entry in os.scandir(roots.proc / str(pid) / "fd"):
            paths.add(os.readlink(entry.path))
    return paths


def _describe_process(
    roots: node_facts.Roots, pid: int, *, finder: ProgramWorkloads, users: dict[int, str]
) -> GpuProcess:
    facts = proc_programs.read(roots.proc, pid, users)
    if facts is None:
        return GpuProcess(pid)
    workload = finder.find_workloads([Program(pid)])[pid].workload
    kind = {workloads.WorkloadKind.POD: "pod", workloads.WorkloadKind.SLURM_JOB: "Slurm job"}.get(workload.kind)
    return GpuProcess(pid, facts.command, facts.user, f"{kind} {workload}" if kind else "")


def format_holders(processes: Sequence[GpuProcess]) -> str:
    rest = f" and {len(processes) - MAX_LISTED} more" if len(processes) > MAX_LISTED else ""
    return "; ".join(map(str, processes[:MAX_LISTED])) + rest
