"""Finds the Slurm job that holds each GPU of this node, also before its first process uses the GPU.

It combines three sources: job files as dcgm-exporter reads them (a file for each GPU index, written by a prolog),
`scontrol` for each job with step daemons on this node, and the environment that slurmd gave the job. Each job is
queried once, so that a thousand nodes do not query slurmctld every two seconds.
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
# a MIG instance is `<gpu>.<instance>`.
JOB_FILE = re.compile(r"^(?P<gpu>\d{1,3})(?:\.(?P<slice>\d{1,2}))?$")
MAX_FILE_BYTES = 4096
JOB_ID = re.compile(r"^\d{1,12}(?:_\d{1,9})?$")
# A job whose GPUs are unknown is queried again: slurmctld may have been busy.
RETRY_SECONDS = 15.0
# Limit of jobs; a node with more of them does not run GPU jobs.
MAX_JOBS = 512

RESCAN_SECONDS = 60.0
SLURMD, STEPD = "slurmd", "slurmstepd"

GpuIndexes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _JobGpus:
    """The GPUs of one job by device number; None: unknown."""

    gpus: GpuIndexes | None
    user: str = ""
    read_at: float = 0.0


@dataclass(slots=True)
class StepDaemons:
    """Finds Slurm's step daemons; the name of every other process is read only once."""

    _other_pids: set[int] = field(default_factory=set)
    _rescan_at: float = 0.0
    _has_seen_slurm: bool = False

    def has_slurm(self, proc: Path) -> bool:
        if not self._has_seen_slurm:
            self.find_jobs(proc, self._rescan_at)
        return self._has_seen_slurm

    def find_jobs(self, proc: Path, now: float) -> dict[str, list[int]]:
        """Jobs with a step on this node, each with the pids that its step daemons started."""
        if now > self._rescan_at:
            # Pids are reused.
            self._other_pids, self._rescan_at = set(), now + RESCAN_SECONDS
        pids_by_job: dict[str, list[int]] = {}
        pids = proc_programs.list_pids(proc)
        self._other_pids.intersection_update(pids)
        for pid in pids:
            if pid in self._other_pids:
                continue
            name = proc_programs.read_name(proc, pid)
            self._has_seen_slurm |= name.startswith((SLURMD, STEPD))
            if job := proc_programs.find_step_job(proc, pid) if name.startswith(STEPD) else "":
                pids_by_job.setdefault(job, []).extend(proc_programs.list_children(proc, pid))
            elif not name.startswith((SLURMD, STEPD)):
                # slurmd becomes a step daemon shortly after it has forked; other processes never do.
                self._other_pids.add(pid)
        return pids_by_job


@dataclass(slots=True)
class SlurmJobs:
    """Finds the jobs of this node; `node` is its name in Slurm, `job_directory` has the job files."""

    node: str
    proc: Path = Path("/proc")
    job_directory: Path | None = None
    runner: commands.CommandRunner = field(default_factory=commands.CommandRunner)
    uses_scontrol: bool = True
    step_daemons: StepDaemons = field(default_factory=StepDaemons)
    _jobs: dict[str, _JobGpus] = field(default_factory=dict)

    def is_present(self) -> bool:
        return self.job_directory is not None or self.step_daemons.has_slurm(self.proc)

    async def read(self) -> Mapping[str, tuple[Holding, ...]]:
        return await asyncio.to_thread(self.find_holders, asyncio.get_running_loop().time())

    def find_holders(self, now: float) -> dict[str, tuple[Holding, ...]]:
        """Holders by GPU index (job files) and by device file (others); CollectError if job files cannot be read."""
        holders: dict[str, dict[Holding, None]] = defaultdict(dict)
        for key, holding in self._read_job_files():
            holders[key][holding] = None
        pids_by_job = self.step_daemons.find_jobs(self.proc, now)
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in pids_by_job}
        for job_id, pids in list(pids_by_job.items())[:MAX_JOBS]:
            job = self._find_job(job_id, pids, now=now)
            for index in job.gpus or ():
                holders[f"nvidia{index}"][Holding(Workload(WorkloadKind.SLURM_JOB, job_id, user=job.user))] = None
        return {key: tuple(holdings) for key, holdings in holders.items()}

    def _read_job_files(self) -> list[tuple[str, Holding]]:
        if self.job_directory is None:
            return []
        try:
            paths = sorted(path for path in self.job_directory.iterdir() if JOB_FILE.match(path.name))
            texts = [(JOB_FILE.match(path.name), path.read_bytes()[:MAX_FILE_BYTES]) for path in paths]
        except OSError as error:
            raise CollectError(f"job files cannot be read: {error.strerror}", where=str(self.job_directory)) from error
        return [
            (name["gpu"], Holding(Workload(WorkloadKind.SLURM_JOB, job_id), slice=name["slice"]))
            for name, text in texts
            if name is not None
            for job_id in text.decode("ascii", "replace").split()
            if JOB_ID.match(job_id)
        ]

    def _find_job(self, job_id: str, pids: list[int], *, now: float) -> _JobGpus:
        cached = self._jobs.get(job_id)
        if cached is not None and (cached.gpus is not None or now - cached.read_at < RETRY_SECONDS):
            return cached
        job = self._query_scontrol(job_id, now) or self._read_environment(pids, now) or _JobGpus(None, read_at=now)
        self._jobs[job_id] = job
        return job

    def _query_scontrol(self, job_id: str, now: float) -> _JobGpus | None:
        """Query slurmctld; None if scontrol is not installed or does not report the job's GPUs."""
        if not self.uses_scontrol:
            return None
        answer = self.runner.run(["scontrol", "-d", "show", "job", job_id])
        if answer.outcome is not commands.CommandOutcome.ANSWERED:
            return None
        # Imported here: a node without Slurm saves half a MiB.
        from watchkeeper.readers.clusters import slurm_records

        job = slurm_records.read_job_text(answer.text, job_id)
        if job is None or not job.gpus_by_node:
            return None
        return _JobGpus(job.gpus_by_node.get(self.node, ()), user=job.user, read_at=now)

    def _read_environment(self, pids: list[int], now: float) -> _JobGpus | None:
        """Read SLURM_JOB_GPUS, which has the node's GPU numbers; CUDA_VISIBLE_DEVICES starts at 0 in a cgroup."""
        for pid in pids:
            facts = proc_programs.read(self.proc, pid, {})
            listed = facts.environment.get("SLURM_JOB_GPUS", "") if facts is not None else ""
            numbers = [word for word in listed.split(",") if word.isascii() and word.isdigit()]
            if numbers:
                return _JobGpus(tuple(int(word) for word in numbers), read_at=now)
        return None
