"""Read the user, command, container and Slurm job of a running process from /proc.

The agent reads the processes that NVML lists on a GPU, and Slurm's step daemons. No link is followed, each file is
read up to a limit, and a process that ends during the read is absent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MAX_BYTES = 128 * 1024
MAX_COMMAND = 64
# 0::/system.slice/slurmstepd.scope/job_123/step_0/user/task_0 · 5:devices:/slurm_n1/uid_1000/job_123/step_batch
SLURM_CGROUP = re.compile(r"/(?:slurm|slurmstepd)[^/\n]*/(?:[^/\n]+/)*?job_(\d+)(?:/|$)", re.MULTILINE)
# docker-<id>.scope · cri-containerd-<id>.scope · crio-<id>.scope · /docker/<id> · /kubepods/burstable/pod<uid>/<id>
CONTAINER = re.compile(r"(?<![0-9a-f])([0-9a-f]{64})(?![0-9a-f])")
POD = re.compile(r"kubepods[^\n]*?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
# slurmstepd: [123.batch] · slurmstepd: [123.0]
STEP_DAEMON = re.compile(rb"^slurmstepd: \[(\d+)\.")
INTERPRETERS = re.compile(r"^(?:python[\d.]*|bash|sh|perl|ruby|julia|java|node)$")
# The only environment variables that are read; others may contain secrets.
READ_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "HOSTNAME")


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """One process; a value that could not be read is empty."""

    pid: int
    command: str = ""
    user: str = ""
    container: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def read(proc: Path, pid: int, users: Mapping[int, str]) -> ProgramFacts | None:
    """Read a process; None if /proc has no such pid."""
    folder = proc / str(pid)
    status = _read_text(folder / "status")
    if status is None:
        return None
    cgroup = _read_text(folder / "cgroup") or ""
    environment = _read_environment(folder / "environ")
    job, container, pod = SLURM_CGROUP.search(cgroup), CONTAINER.search(cgroup), POD.search(cgroup)
    return ProgramFacts(
        pid,
        command=_read_command(folder, status),
        user=_find_user(status, users),
        container=container[1] if container else "",
        pod_uid=pod[1].replace("_", "-") if pod else "",
        # The cgroup has precedence: a login shell in a job keeps the job's environment after the job has ended.
        slurm_job=job[1] if job else environment.get("SLURM_JOB_ID", ""),
        environment=environment,
    )


def list_pids(proc: Path) -> list[int]:
    try:
        return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()]
    except OSError:
        return []


def read_name(proc: Path, pid: int) -> str:
    """Read the short name of a process; empty if it has ended."""
    return (_read_text(proc / str(pid) / "comm") or "").strip()


def find_step_job(proc: Path, pid: int) -> str:
    """The job id of a Slurm step daemon, from its process title; empty for other processes."""
    title = STEP_DAEMON.match(_read_bytes(proc / str(pid) / "cmdline") or b"")
    return title[1].decode() if title is not None else ""


def list_children(proc: Path, pid: int) -> list[int]:
    child_pids = (_read_text(proc / str(pid) / "task" / str(pid) / "children") or "").split()
    return [int(child) for child in child_pids if child.isdigit()]


def read_users(passwd: Path) -> dict[int, str]:
    """Read the user names of a passwd file by uid. Directory services are not queried, because they can hang."""
    users: dict[int, str] = {}
    for line in (_read_text(passwd) or "").splitlines():
        cells = line.split(":")
        if len(cells) > 2 and cells[2].isdigit():
            users.setdefault(int(cells[2]), cells[0])
    return users


def _read_command(folder: Path, status: str) -> str:
    """`train.py` of `python -u /srv/ada/train.py --lr 1`, without arguments, which may be secret and rarely repeat."""
    words = [word.decode("utf-8", "replace") for word in (_read_bytes(folder / "cmdline") or b"").split(b"\0") if word]
    if not words:
        return _clean(status.partition("\n")[0].partition(":")[2])
    program = words[0].rpartition("/")[2]
    if INTERPRETERS.match(program):
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        return _clean(script.rpartition("/")[2] or program)
    return _clean(program)


def _find_user(status: str, users: Mapping[int, str]) -> str:
    for line in status.splitlines():
        if line.startswith("Uid:"):
            uid = line.split()[1]
            return users.get(int(uid), uid) if uid.isdigit() else ""
    return ""


def _read_environment(path: Path) -> dict[str, str]:
    variables: dict[str, str] = {}
    for entry in (_read_bytes(path) or b"").split(b"\0"):
        raw_name, _, value = entry.partition(b"=")
        if (variable := raw_name.decode("ascii", "replace")) in READ_VARIABLES:
            variables[variable] = _clean(value.decode("utf-8", "replace"), limit=1024)
    return variables


def _clean(text: str, limit: int = MAX_COMMAND) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text.strip()[:limit])


def _read_text(path: Path) -> str | None:
    content = _read_bytes(path)
    return None if content is None else content.decode("utf-8", "replace")


def _read_bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
