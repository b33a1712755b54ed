"""What a machine says about itself in /proc and /sys: processors, memory, load, mounts, kernel, driver version.

Each function takes the root of the tree it reads, so that a test can hand in one of its own, and answers None
for what is not there. `agent.node_facts` asks for all of it at once.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

# Filesystems whose statfs asks another machine, which may not answer.
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs", "fuse.glusterfs"}
)
LOCAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "bcachefs"})
OWN_PROC = Path("/proc")
# A container host has thousands of mounts; the first ones are the machine's own.
MAX_MOUNTS = 4_000
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)
DRIVER_VERSION = re.compile(r"NVRM version:.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s")


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem; `kind` as /proc/self/mounts calls it, `seen_from` the root under which we reach it."""

    device: str
    path: str
    kind: str
    root: str = ""

    @property
    def is_remote(self) -> bool:
        return self.kind in NETWORK_FILESYSTEMS


@dataclass(frozen=True, slots=True)
class Space:
    """How full a filesystem is, for people who are not root."""

    path: str
    size_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float | None:
        return None if self.size_bytes <= 0 else 1 - self.free_bytes / self.size_bytes


def read_text(path: Path) -> str | None:
    """A small file of /proc or /sys, or None if it is not there or does not want to be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def cpu_count(proc: Path) -> int | None:
    text = read_text(proc / "stat")
    return None if text is None else len(re.findall(r"^cpu\d+ ", text, re.MULTILINE)) or None


def load_average(proc: Path) -> tuple[float, float, float] | None:
    """Over 1, 5 and 15 minutes."""
    parts = (read_text(proc / "loadavg") or "").split()
    try:
        return (float(parts[0]), float(parts[1]), float(parts[2]))
    except (IndexError, ValueError):
        return None


def memory(proc: Path) -> Memory | None:
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text(proc / "meminfo") or "", re.MULTILINE))
    if "MemTotal" not in kib or "MemAvailable" not in kib:
        return None
    return Memory(int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024)


def uptime_seconds(proc: Path) -> float | None:
    parts = (read_text(proc / "uptime") or "").split()
    try:
        return float(parts[0])
    except (IndexError, ValueError):
        return None


def kernel_release(proc: Path) -> str | None:
    return read_text(proc / "sys/kernel/osrelease") or None


def boot_id(proc: Path) -> str | None:
    return read_text(proc / "sys/kernel/random/boot_id") or None


def read_machine_file(proc: Path, name: str) -> tuple[str, str]:
    """A page about mounts, and the root under which we reach what it names.

    A container that was given the machine's /proc is `self` there: the machine's own page is that of its init, which
    only some may read.
    """
    machine = None if proc == OWN_PROC else read_text(proc / "1" / name)
    return (read_text(proc / "self" / name) or "", "") if machine is None else (machine, str(proc / "1/root"))


def mounts(proc: Path) -> list[Mount]:
    """Local disks, /dev/shm and network filesystems; the kernel's own filesystems are left out, and each path once."""
    found: dict[str, Mount] = {}
    listed, root = read_machine_file(proc, "mounts")
    for line in listed.splitlines()[:MAX_MOUNTS]:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        mount = Mount(_unescaped(parts[0]), _unescaped(parts[1]), parts[2], root)
        if mount.is_remote or mount.kind in LOCAL_FILESYSTEMS or mount.path == "/dev/shm":  # noqa: S108
            found[mount.path] = mount
    return list(found.values())


def space(mount: Mount) -> Space | None:
    """Asks the filesystem itself: only for local ones, because a remote one may never answer."""
    try:
        found = os.statvfs(mount.root + mount.path)
    except OSError:
        return None
    return Space(mount.path, found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def driver_version(proc: Path, sysfs: Path) -> str | None:
    """The version of the loaded NVIDIA kernel module, or None if none is loaded."""
    from_proc = DRIVER_VERSION.search((read_text(proc / "driver/nvidia/version") or "") + " ")
    return from_proc[1] if from_proc else read_text(sysfs / "module/nvidia/version") or None


def _unescaped(text: str) -> str:
    r"""`/mnt/my\040disk` → `/mnt/my disk`, as getmntent(3) has it."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
