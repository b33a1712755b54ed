"""Finds the workload of each process on a GPU: a Slurm job, a pod, or the process itself.

NVML reports pids; /proc has the user, command, container and Slurm job of each. The pod of a container is read from the
names of the kubelet's log files, which needs no API permission.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.agent.attribution.attribution import RunningProgram
from watchkeeper.agent.gpus.gpu_samples import Program
from watchkeeper.kit import files
from watchkeeper.model.workloads import Workload, WorkloadKind
from watchkeeper.readers.node import proc_programs

# <pod>_<namespace>_<container>-<container id>.log, links that the kubelet creates for log collectors.
CONTAINER_LOGS = Path("var/log/containers")
MAX_PODS = 5000
SHORT_ID_CHARACTERS = 12


@dataclass(slots=True)
class ProgramWorkloads:
    """Finds workloads and caches users and pods; for one thread at a time."""

    proc: Path = Path("/proc")
    root: Path = Path("/")
    _users: dict[int, str] = field(default_factory=dict)
    _passwd_stamp: files.FileStamp | None = None
    _pods_by_container: dict[str, Workload] = field(default_factory=dict)

    def find_workloads(self, programs: Sequence[Program]) -> Mapping[int, RunningProgram]:
        """The workload of each pid; a pid that /proc does not show is named by its number, because it holds the GPU."""
        passwd = self.root / "etc/passwd"
        if (stamp := files.read_stamp(passwd)) not in (None, self._passwd_stamp):
            self._users, self._passwd_stamp = proc_programs.read_users(passwd), stamp
        return {program.pid: self._find_workload(program) for program in programs}

    def _find_workload(self, program: Program) -> RunningProgram:
        facts = proc_programs.read(self.proc, program.pid, self._users)
        if facts is None:
            # An agent in a pod without hostPID sees other pids than the driver.
            return RunningProgram(program, Workload(WorkloadKind.PROGRAM, f"pid {program.pid}"))
        if facts.slurm_job:
            return RunningProgram(program, Workload(WorkloadKind.SLURM_JOB, facts.slurm_job, user=facts.user))
        if facts.container and (pod := self._find_pod(facts.container)) is not None:
            return RunningProgram(program, pod, is_in_pod=True, pod_hostname=pod.name)
        name, container = facts.command or f"pid {program.pid}", facts.container[:SHORT_ID_CHARACTERS]
        workload = Workload(WorkloadKind.PROGRAM, name, container=container, user=facts.user)
        hostname = facts.environment.get("HOSTNAME", "")
        return RunningProgram(program, workload, pod_hostname=hostname, is_in_pod=bool(facts.pod_uid))

    def _find_pod(self, container: str) -> Workload | None:
        if container not in self._pods_by_container:
            self._pods_by_container |= self._read_pods()
            if len(self._pods_by_container) > MAX_PODS:
                self._pods_by_container = self._read_pods()
        return self._pods_by_container.get(container)

    def _read_pods(self) -> dict[str, Workload]:
        pods: dict[str, Workload] = {}
        try:
            names = sorted(path.name for path in (self.root / CONTAINER_LOGS).iterdir())[:MAX_PODS]
        except OSError:
            return pods
        for name in names:
            pod, _, rest = name.removesuffix(".log").partition("_")
            namespace, _, last = rest.partition("_")
            container, _, identity = last.rpartition("-")
            if identity and container:
                pods[identity] = Workload(WorkloadKind.POD, pod, namespace=namespace, container=container)
        return pods
