"""Which Slurm job holds which GPU of this node, also before its first program touches the GPU.

Three ways, joined: a folder of job files as dcgm-exporter knows it (a file for each GPU index, written by a prolog),
`scontrol` for each job whose step daemons run here, and the environment that slurmd gave the job. Each job is asked for
once, so that a thousand nodes do not ask slurmctld every two seconds. Programs on the GPU are matched to jobs by
`collect/programs`, which needs none of this.
"""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.errors import CollectError
from watchkeeper.kit import commands
from watchkeeper.model.workloads import Holding, Workload, WorkloadKind
from watchkeeper.readers.node import proc_programs

# https://github.com/NVIDIA/dcgm-exporter: `--hpc-job-mapping-dir`, one file for each GPU index, job ids one a line;
# a MIG slice is `<gpu>.<slice>`.
JOB_FILE = re.compile(r"^(?P<gpu>\d{1,3})(?:\.(?P<slice>\d{1,2}))?$")
MAX_FILE_BYTES = 4096
JOB_ID = re.compile(r"^\d{1,12}(?:_\d{1,9})?$")
# scontrol is asked again for a job that it could not tell: slurmctld may only have been busy.
RETRY_SECONDS = 15.0
# More jobs than this on one node are not jobs that hold GPUs.
MAX_JOBS = 512

FORGET_SECONDS = 60.0
SLURMD, STEPD = "slurmd", "slurmstepd"

Indexes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _JobGpus:
    """What is known of one job: GPUs by device number, or None where the answer said nothing."""

    gpus: Indexes | None
    user: str = ""
    asked_at: float = 0.0


@dataclass(slots=True)
class StepDaemons:
    """Slurm's step daemons among all programs; each program is looked at once, as most of them stay what they are."""

    _others: set[int] = field(default_factory=set)
    _forget_at: float = 0.0
    _is_there: bool = False

    def has_slurm(self, proc: Path) -> bool:
        """True once slurmd or a step of it has been seen on this node."""
        if not self._is_there:
            self.find_jobs(proc, self._forget_at)
        return self._is_there

    def find_jobs(self, proc: Path, now: float) -> dict[str, list[int]]:
        """Jobs that have a step here, each with the pids that the step daemons started."""
        if now > self._forget_at:
            # A number may be given to another program.
            self._others, self._forget_at = set(), now + FORGET_SECONDS
        found: dict[str, list[int]] = {}
        there = proc_programs.pids(proc)
        self._others.intersection_update(there)
        for pid in there:
            if pid in self._others:
                continue
            name = proc_programs.name(proc, pid)
            self._is_there |= name.startswith((SLURMD, STEPD))
            if job := proc_programs.step_job(proc, pid) if name.startswith(STEPD) else "":
                found.setdefault(job, []).extend(proc_programs.children(proc, pid))
            elif not name.startswith((SLURMD, STEPD)):
                # slurmd becomes a step daemon a moment after it has forked; everything else does not.
                self._others.add(pid)
        return found


@dataclass(slots=True)
class SlurmJobs:
    """The jobs of this node; `node` is Slurm's name for it, `mapping` the folder of job files."""

    node: str
    proc: Path = Path("/proc")
    mapping: Path | None = None
    ask: commands.CommandRunner = field(default_factory=commands.CommandRunner)
    uses_scontrol: bool = True
    steps: StepDaemons = field(default_factory=StepDaemons)
    _jobs: dict[str, _JobGpus] = field(default_factory=dict)

    def is_present(self) -> bool:
        """True with job files, or once Slurm has been seen on this node: a cluster without it has no gap."""
        return self.mapping is not None or self.steps.has_slurm(self.proc)

    async def read(self) -> Mapping[str, tuple[Holding, ...]]:
        return await asyncio.to_thread(self.find_holders, asyncio.get_running_loop().time())

    def find_holders(self, now: float) -> dict[str, tuple[Holding, ...]]:
        """Holders by GPU index (job files) and by device file (the rest); CollectError if files cannot be read."""
        found: dict[str, dict[Holding, None]] = defaultdict(dict)
        for key, holding in self._files():
            found[key][holding] = None
        steps = self.steps.find_jobs(self.proc, now)
        self._jobs = {id: job for id, job in self._jobs.items() if id in steps}
        for id, pids in list(steps.items())[:MAX_JOBS]:
            job = self._job(id, pids, now=now)
            for index in job.gpus or ():
                found[f"nvidia{index}"][Holding(Workload(WorkloadKind.SLURM_JOB, id, user=job.user))] = None
        return {key: tuple(those) for key, those in found.items()}

    def _files(self) -> list[tuple[str, Holding]]:
        if self.mapping is None:
            return []
        try:
            paths = sorted(path for path in self.mapping.iterdir() if JOB_FILE.match(path.name))
            texts = [(JOB_FILE.match(path.name), path.read_bytes()[:MAX_FILE_BYTES]) for path in paths]
        except OSError as error:
            raise CollectError(f"job files cannot be read: {error.strerror}", where=str(self.mapping)) from error
        return [
            (name["gpu"], Holding(Workload(WorkloadKind.SLURM_JOB, id), slice=name["slice"]))
            for name, text in texts
            if name is not None
            for id in text.decode("ascii", "replace").split()
            if JOB_ID.match(id)
        ]

    def _job(self, id: str, pids: list[int], *, now: float) -> _JobGpus:
        known = self._jobs.get(id)
        if known is not None and (known.gpus is not None or now - known.asked_at < RETRY_SECONDS):
            return known
        asked = self._ask_scontrol(id, now) or self._ask_environment(pids, now) or _JobGpus(None, asked_at=now)
        self._jobs[id] = asked
        return asked

    def _ask_scontrol(self, id: str, now: float) -> _JobGpus | None:
        """What slurmctld says; None where there is no scontrol, or it does not know the job's GPUs."""
        if not self.uses_scontrol:
            return None
        answer = self.ask.run(["scontrol", "-d", "show", "job", id])
        if answer.outcome is not commands.CommandOutcome.ANSWERED:
            return None
        # Imported here: a node without Slurm saves half a MiB.
        from watchkeeper.readers.clusters import slurm_records

        job = slurm_records.job_of_text(answer.text, id)
        if job is None or not job.gpus_by_node:
            return None
        return _JobGpus(job.gpus_by_node.get(self.node, ()), user=job.user, asked_at=now)

    def _ask_environment(self, pids: list[int], now: float) -> _JobGpus | None:
        """SLURM_JOB_GPUS counts the node's GPUs; CUDA_VISIBLE_DEVICES starts at 0 in a cgroup, so it says nothing."""
        for pid in pids:
            facts = proc_programs.read(self.proc, pid, {})
            listed = facts.environment.get("SLURM_JOB_GPUS", "") if facts is not None else ""
            numbers = [word for word in listed.split(",") if word.isascii() and word.isdigit()]
            if numbers:
                return _JobGpus(tuple(int(word) for word in numbers), asked_at=now)
        return None
