"""What /proc says about a running program: whose it is, what it is called, and which container or Slurm job it is in.

The agent asks for the programs that NVML lists on a GPU, and for Slurm's own steps. Nothing here follows a link or
runs anything, each file is read up to a limit, and a program that ends meanwhile is simply not there.
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
STEP = re.compile(rb"^slurmstepd: \[(\d+)\.")
INTERPRETERS = re.compile(r"^(?:python[\d.]*|bash|sh|perl|ruby|julia|java|node)$")
# What is asked of a program's environment; everything else in there is nobody's business.
READ_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES", "HOSTNAME")


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """One program; what could not be read is empty."""

    pid: int
    command: str = ""
    user: str = ""
    container: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def read(proc: Path, pid: int, users: Mapping[int, str]) -> ProgramFacts | None:
    """The program, or None if this /proc has no such pid."""
    folder = proc / str(pid)
    status = _text(folder / "status")
    if status is None:
        return None
    cgroup = _text(folder / "cgroup") or ""
    environment = _environment(folder / "environ")
    job, container, pod = SLURM_CGROUP.search(cgroup), CONTAINER.search(cgroup), POD.search(cgroup)
    return ProgramFacts(
        pid,
        command=_command(folder, status),
        user=_user(status, users),
        container=container[1] if container else "",
        pod_uid=pod[1].replace("_", "-") if pod else "",
        # A login shell inside a job keeps the job's environment after it has ended; the cgroup does not lie.
        slurm_job=job[1] if job else environment.get("SLURM_JOB_ID", ""),
        environment=environment,
    )


def pids(proc: Path) -> list[int]:
    try:
        return [int(folder.name) for folder in proc.iterdir() if folder.name.isdigit()]
    except OSError:
        return []


def name(proc: Path, pid: int) -> str:
    """The short name of a program; empty if it has ended."""
    return (_text(proc / str(pid) / "comm") or "").strip()


def step_job(proc: Path, pid: int) -> str:
    """The job that a step daemon of Slurm serves, by its title; empty for everything else."""
    title = STEP.match(_bytes(proc / str(pid) / "cmdline") or b"")
    return title[1].decode() if title is not None else ""


def children(proc: Path, pid: int) -> list[int]:
    listed = (_text(proc / str(pid) / "task" / str(pid) / "children") or "").split()
    return [int(child) for child in listed if child.isdigit()]


def read_users(passwd: Path) -> dict[int, str]:
    """User names of a passwd file. Directory services are not asked: they can hang, and a number is a name too."""
    found: dict[int, str] = {}
    for line in (_text(passwd) or "").splitlines():
        cells = line.split(":")
        if len(cells) > 2 and cells[2].isdigit():
            found.setdefault(int(cells[2]), cells[0])
    return found


def _command(folder: Path, status: str) -> str:
    """`train.py` of `python -u /srv/ada/train.py --lr 1`: arguments may be secret, and hardly ever repeat."""
    words = [word.decode("utf-8", "replace") for word in (_bytes(folder / "cmdline") or b"").split(b"\0") if word]
    if not words:
        return _clean(status.partition("\n")[0].partition(":")[2])
    first = words[0].rpartition("/")[2]
    if INTERPRETERS.match(first):
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        return _clean(script.rpartition("/")[2] or first)
    return _clean(first)


def _user(status: str, users: Mapping[int, str]) -> str:
    for line in status.splitlines():
        if line.startswith("Uid:"):
            uid = line.split()[1]
            return users.get(int(uid), uid) if uid.isdigit() else ""
    return ""


def _environment(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in (_bytes(path) or b"").split(b"\0"):
        name, _, value = entry.partition(b"=")
        if (known := name.decode("ascii", "replace")) in READ_VARIABLES:
            found[known] = _clean(value.decode("utf-8", "replace"), limit=1024)
    return found


def _clean(text: str, limit: int = MAX_COMMAND) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text.strip()[:limit])


def _text(path: Path) -> str | None:
    found = _bytes(path)
    return None if found is None else found.decode("utf-8", "replace")


def _bytes(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES)
    except OSError:
        return None
