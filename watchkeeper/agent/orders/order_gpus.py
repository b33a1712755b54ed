"""One look at this node's GPUs on behalf of an order: which there are, their limits and slices, and who holds them.

NVML is asked in a reader child, which may hang without us. Programs without a context (monitoring, a debugger) are
found by the device files they have open: the driver resets no GPU that anybody has open. Nobody who can be seen is not
nobody: where neither source can be read, that is said.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from watchkeeper.agent import node_facts
from watchkeeper.agent.attribution.programs import ProgramOwners
from watchkeeper.agent.gpus import scan_readings
from watchkeeper.agent.gpus.gpu_samples import GpuSample, Program
from watchkeeper.agent.orders.order_context import OrderContext
from watchkeeper.errors import CollectError
from watchkeeper.kit import clock
from watchkeeper.model import fleet, workloads
from watchkeeper.readers.node import proc_programs
from watchkeeper.readers.nvml import choice, families

LIMIT, LOWEST, HIGHEST, DEFAULT = (
    "DCGM_FI_DEV_POWER_MGMT_LIMIT",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX",
    "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF",
)
# nvidia-smi asks it to let go, and tells it to come back.
LETS_GO = "nvidia-persistenced"
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A program that holds a GPU; what could not be read is empty."""

    pid: int
    command: str = ""
    user: str = ""
    workload: str = ""

    def __str__(self) -> str:
        user = f" of {self.user}" if self.user else ""
        return f"pid {self.pid} {self.command or 'unknown'}{user}" + (f" ({self.workload})" if self.workload else "")


async def read_gpus(bench: OrderContext) -> tuple[GpuSample, ...]:
    """Every GPU that NVML can read now; none where it cannot be opened."""
    rows = choice.dcgm_families()
    # All at once: this reader lives for one reading.
    wanted = tuple(rows[name][0]._replace(cadence=families.Cadence.FAST) for name in (LIMIT, LOWEST, HIGHEST, DEFAULT))
    way = scan_readings.ReadingOptions(choice.Choice(wanted), environment=bench.environment)

    def read() -> tuple[GpuSample, ...]:
        with scan_readings.running_sampler(way, clock.ScaledClock()) as sampler:
            return sampler.snapshot().gpus

    return await asyncio.to_thread(read)


def find_gpu(gpus: Sequence[GpuSample], named: str) -> GpuSample:
    """The GPU of this UUID, index or PCI address; CollectError says which there are."""
    for gpu in gpus:
        if named in (gpu.identity["uuid"], str(gpu.index)) or _is_at(gpu, named):
            return gpu
    known = ", ".join(gpu.identity["uuid"] for gpu in gpus[:MOST_NAMED]) or "none"
    raise CollectError(f"NVML shows no GPU `{named[:60]}` here; it shows: {known}")


def _is_at(gpu: GpuSample, named: str) -> bool:
    try:
        return fleet.normalise_pci(named) == fleet.normalise_pci(gpu.identity["pci"])
    except ValueError:
        return False


async def find_holders(
    bench: OrderContext, gpus: Iterable[GpuSample], *, only_working: bool = False
) -> list[GpuHolder]:
    """Who holds any of these GPUs; `only_working`: who has a context on one. CollectError where it cannot be seen."""
    chosen = tuple(gpus)
    if silent := [gpu.identity["uuid"] for gpu in chosen if gpu.programs is None]:
        raise CollectError(f"NVML does not say who uses {', '.join(silent[:MOST_NAMED])}")
    pids = {program.pid for gpu in chosen for program in gpu.programs or ()}
    files = set() if only_working else {f"/dev/nvidia{gpu.identity['minor']}" for gpu in chosen}
    return await asyncio.to_thread(_described, bench.roots, pids, files)


def _described(roots: node_facts.Roots, listed: set[int], files: set[str]) -> list[GpuHolder]:
    if not (proc_pids := proc_programs.pids(roots.proc)):
        raise CollectError("cannot be read, so nobody knows who has a GPU open", where=str(roots.proc))
    opened = {pid for pid in proc_pids if pid != os.getpid() and files.intersection(_open_files(roots, pid))}
    silent = {pid for pid in opened if proc_programs.name(roots.proc, pid) == LETS_GO[:15]}
    users = proc_programs.read_users(roots.root / "etc/passwd")
    owners = ProgramOwners(roots.proc, roots.root)
    return [_holder(roots, pid, owners=owners, users=users) for pid in sorted(listed | (opened - silent))]


def _open_files(roots: node_facts.Roots, pid: int) -> set[str]:
    """The files a program has open; none where it has ended or may not be looked at."""
    folder = roots.proc / str(pid) / "fd"
    found = set()
    try:
        for entry in os.scandir(folder):
            found.add(os.readlink(entry.path))
    except OSError:
        return found
    return found


def _holder(roots: node_facts.Roots, pid: int, *, owners: ProgramOwners, users: dict[int, str]) -> GpuHolder:
    facts = proc_programs.read(roots.proc, pid, users)
    owner = owners.look_up([Program(pid)])[pid].workload
    words = {workloads.WorkloadKind.POD: f"pod {owner}", workloads.WorkloadKind.SLURM_JOB: f"Slurm job {owner}"}
    if facts is None:
        return GpuHolder(pid)
    return GpuHolder(pid, facts.command, facts.user, words.get(owner.kind, ""))


def format_holders(found: Sequence[GpuHolder]) -> str:
    rest = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return "; ".join(map(str, found[:MOST_NAMED])) + rest
