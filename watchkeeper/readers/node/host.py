"""Read CPUs, memory, load, mounts, kernel and driver version of a node from /proc and /sys.

Each function takes the root of the tree that it reads, for tests, and returns None for a missing value.
`agent.node_facts` calls all of them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.model import fleet

# Filesystems whose statfs sends a request to a server, which may not answer.
NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "fuse.sshfs", "fuse.glusterfs"}
)
LOCAL_FILESYSTEMS = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "bcachefs"})
OWN_PROC = Path("/proc")
# A container host has thousands of mounts; the first ones are the node's own.
MAX_MOUNTS = 4_000
# 2⁶⁴ has 20 digits.
MAX_DIGITS = 20
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)
DRIVER_VERSION = re.compile(r"NVRM version:.*?\s(\d{3,4}\.\d+(?:\.\d+)?)\s")


@dataclass(frozen=True, slots=True)
class Memory:
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted filesystem; `kind` is its type in /proc/self/mounts, `root` the folder under which it is visible."""

    device: str
    path: str
    kind: str
    root: str = ""

    @property
    def is_remote(self) -> bool:
        return self.kind in NETWORK_FILESYSTEMS


@dataclass(frozen=True, slots=True)
class Space:
    """Size and free space of a filesystem, for users who are not root."""

    path: str
    size_bytes: int
    free_bytes: int

    @property
    def used_ratio(self) -> float | None:
        return None if self.size_bytes <= 0 else 1 - self.free_bytes / self.size_bytes


def read_text(path: Path) -> str | None:
    """Read a small file of /proc or /sys; None if it is missing or cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Read a count; None for anything else, such as -1, which is unknown."""
    text = read_text(path) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def read_cpu_count(proc: Path) -> int | None:
    text = read_text(proc / "stat")
    return None if text is None else len(re.findall(r"^cpu\d+ ", text, re.MULTILINE)) or None


def read_load_average(proc: Path) -> tuple[float, float, float] | None:
    """Read the load average over 1, 5 and 15 minutes."""
    parts = (read_text(proc / "loadavg") or "").split()
    try:
        return (float(parts[0]), float(parts[1]), float(parts[2]))
    except (IndexError, ValueError):
        return None


def read_memory(proc: Path) -> Memory | None:
    kib = dict(re.findall(r"^(\w+):\s+(\d+) kB", read_text(proc / "meminfo") or "", re.MULTILINE))
    if "MemTotal" not in kib or "MemAvailable" not in kib:
        return None
    return Memory(int(kib["MemTotal"]) * 1024, int(kib["MemAvailable"]) * 1024)


def read_uptime_seconds(proc: Path) -> float | None:
    parts = (read_text(proc / "uptime") or "").split()
    try:
        return float(parts[0])
    except (IndexError, ValueError):
        return None


def read_kernel_release(proc: Path) -> str | None:
    return read_text(proc / "sys/kernel/osrelease") or None


def read_boot_id(proc: Path) -> str | None:
    return read_text(proc / "sys/kernel/random/boot_id") or None


def read_host_file(proc: Path, name: str) -> tuple[str, str]:
    """Read a file about mounts of the node, and the root under which its paths are visible."""
    # In a container with the node's /proc, `self` is the container; the node's file is that of process 1, if it is
    # readable.
    host_text = None if proc == OWN_PROC else read_text(proc / "1" / name)
    return (read_text(proc / "self" / name) or "", "") if host_text is None else (host_text, str(proc / "1/root"))


def read_mounts(proc: Path) -> list[Mount]:
    """Read the mounts of local disks, /dev/shm and network filesystems, each path once."""
    mounts_by_path: dict[str, Mount] = {}
    mounts_text, root = read_host_file(proc, "mounts")
    for line in mounts_text.splitlines()[:MAX_MOUNTS]:
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        mount = Mount(_unescape(parts[0]), _unescape(parts[1]), parts[2], root)
        if mount.is_remote or mount.kind in LOCAL_FILESYSTEMS or mount.path == "/dev/shm":  # noqa: S108
            mounts_by_path[mount.path] = mount
    return list(mounts_by_path.values())


def read_space(mount: Mount) -> Space | None:
    """Read the space of a local filesystem with statvfs, which can hang on a remote one."""
    try:
        stats = os.statvfs(mount.root + mount.path)
    except OSError:
        return None
    return Space(mount.path, stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize)


def read_driver_version(proc: Path, sysfs: Path) -> str | None:
    """Read the version of the loaded NVIDIA kernel driver; None if none is loaded."""
    from_proc = DRIVER_VERSION.search((read_text(proc / "driver/nvidia/version") or "") + " ")
    return from_proc[1] if from_proc else read_text(sysfs / "module/nvidia/version") or None


def read_gpu_information(text: str) -> fleet.Gpu | None:
    """The GPU in a file /proc/driver/nvidia/gpus/<pci>/information; None while the driver does not know its UUID."""
    # It can be read without NVML and after the GPU was lost.
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, _, value in pairs}
    uuid, bus_location = fields.get("GPU UUID", ""), fields.get("Bus Location", "")
    # A GPU that no process has opened yet reads GPU-????????-????-????-????-????????????.
    if not uuid.startswith("GPU-") or "?" in uuid:
        return None
    try:
        pci = fleet.normalise_pci(bus_location)
    except ValueError:
        pci = None
    return fleet.Gpu(uuid, pci=pci, model=fields.get("Model") or None)


def _unescape(text: str) -> str:
    r"""`/mnt/my\040disk` → `/mnt/my disk`, as in getmntent(3)."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
