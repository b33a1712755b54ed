"""Programs on a GPU, each with the workload it belongs to: a Slurm job, a pod, or nobody's but its user's.

NVML gives pids; /proc gives user, command, container and Slurm job of each. A container is found in the names of the
kubelet's log files, which need no permission of any API. `Attributor` calls `look_up` in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.agent.attribution.attribution import RunningProgram
from watchkeeper.agent.gpus.gpu_samples import Program
from watchkeeper.model.workloads import Workload, WorkloadKind
from watchkeeper.readers.node import proc_programs

# <pod>_<namespace>_<container>-<container id>.log, links that the kubelet makes for log collectors.
CONTAINER_LOGS = Path("var/log/containers")
MAX_LOGS = 5000
SHORT_ID = 12


@dataclass(slots=True)
class ProgramOwners:
    """Remembers users and containers between questions; one thread at a time."""

    proc: Path = Path("/proc")
    root: Path = Path("/")
    _users: dict[int, str] = field(default_factory=dict)
    _users_at: float = -1.0
    _pods: dict[str, Workload] = field(default_factory=dict)

    def look_up(self, programs: Sequence[Program]) -> Mapping[int, RunningProgram]:
        """The owner of each pid; one that /proc does not show is named by its number, because it does hold the GPU."""
        self._reread_users()
        return {program.pid: self._owner(program) for program in programs}

    def _owner(self, program: Program) -> RunningProgram:
        facts = proc_programs.read(self.proc, program.pid, self._users)
        if facts is None:
            # An agent in a pod without hostPID sees other numbers than the driver.
            return RunningProgram(program, Workload(WorkloadKind.PROGRAM, f"pid {program.pid}"))
        if facts.slurm_job:
            return RunningProgram(program, Workload(WorkloadKind.SLURM_JOB, facts.slurm_job, user=facts.user))
        if facts.container and (pod := self._pod(facts.container)) is not None:
            return RunningProgram(program, pod, is_in_pod=True, pod_hostname=pod.name)
        own = Workload(
            WorkloadKind.PROGRAM,
            facts.command or f"pid {program.pid}",
            container=facts.container[:SHORT_ID],
            user=facts.user,
        )
        hostname = facts.environment.get("HOSTNAME", "")
        return RunningProgram(program, own, pod_hostname=hostname, is_in_pod=bool(facts.pod_uid))

    def _pod(self, container: str) -> Workload | None:
        if container not in self._pods:
            self._pods |= self._read_logs()
            if len(self._pods) > MAX_LOGS:
                self._pods = self._read_logs()
        return self._pods.get(container)

    def _read_logs(self) -> dict[str, Workload]:
        found: dict[str, Workload] = {}
        try:
            names = sorted(path.name for path in (self.root / CONTAINER_LOGS).iterdir())[:MAX_LOGS]
        except OSError:
            return found
        for name in names:
            pod, _, rest = name.removesuffix(".log").partition("_")
            namespace, _, last = rest.partition("_")
            container, _, identity = last.rpartition("-")
            if identity and container:
                found[identity] = Workload(WorkloadKind.POD, pod, namespace=namespace, container=container)
        return found

    def _reread_users(self) -> None:
        passwd = self.root / "etc/passwd"
        try:
            changed_at = passwd.stat().st_mtime
        except OSError:
            return
        if changed_at != self._users_at:
            self._users, self._users_at = proc_programs.read_users(passwd), changed_at
