"""What the tests of software and configuration look at, as values: read once, before anything works on a GPU.

`gather` reads what lies in files; NVML's and CUDA's words come from children (`diag_run` puts them in). `diag_software`
judges.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.model import fleet
from watchkeeper.readers.node import host, pci_sysfs
from watchkeeper.readers.node.node import NodeFacts

CONTROL_FILES = ("nvidiactl", "nvidia-uvm")
NOUVEAU = "module/nouveau"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as NVML gave it; `programs` None: it does not tell."""

    uuid: str
    index: int
    pci: str
    model: str
    minor: str
    values: Mapping[str, Any]
    programs: Sequence[Sequence[int | None]] | None = None

    def number(self, family: str) -> float | None:
        value = self.values.get(family)
        return None if value is None or isinstance(value, Mapping) else float(value)

    def parts(self, family: str) -> Mapping[str, float]:
        value = self.values.get(family)
        return value if isinstance(value, Mapping) else {}


@dataclass(frozen=True, slots=True)
class NvmlStatus:
    """What NVML said when it was opened; `broken` is the library's own word, such as DRIVER_NOT_LOADED."""

    version: str | None = None
    library: str | None = None
    count: int = 0
    broken: str | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """What cuInit said; `library` is CUDA's version times a thousand, None without libcuda.so.1."""

    library: int | None = None
    code: int | None = None
    name: str = ""
    count: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    path: str
    is_there: bool
    is_usable: bool


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """Where this machine's files lie; a test makes its own."""

    dev: Path = Path("/dev")
    sysfs: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class SoftwareFacts:
    """Everything that level 1 judges. `local_cpus` by PCI address: those near the GPU; `allowed_cpus` are ours."""

    driver: NvmlStatus = field(default_factory=NvmlStatus)
    cuda: CudaStatus | None = None
    gpus: tuple[GpuReading, ...] = ()
    lost: tuple[str, ...] = ()
    node: NodeFacts | None = None
    expected_gpus: int | None = None
    device_files: tuple[DeviceFile, ...] = ()
    has_nouveau: bool = False
    local_cpus: Mapping[str, frozenset[int]] = field(default_factory=dict)
    allowed_cpus: frozenset[int] = frozenset()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_bus(self) -> int:
        devices = self.node.pci if self.node is not None else ()
        return sum(device.kind is pci_sysfs.DeviceKind.GPU for device in devices)


def read_gpus(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[GpuReading, ...], tuple[str, ...]]:
    """GPUs that answered, and a sentence about each that did not, from one line of `diag_watch`."""
    found, lost = [], []
    for row in rows:
        identity = row.get("identity")
        if not identity or row.get("lost") or row.get("refused"):
            name = identity["uuid"] if identity else f"GPU {row['index']}"
            gone = f"is lost: {row['lost']} says GPU_IS_LOST" if row.get("lost") else row.get("refused")
            lost.append(f"{name} {gone or 'does not answer'}")
            continue
        pci = fleet.normalise_pci(identity["pci"])
        found.append(
            GpuReading(
                identity["uuid"],
                int(row["index"]),
                pci,
                identity["model"],
                identity["minor"],
                row.get("values", {}),
                row.get("programs"),
            )
        )
    return tuple(found), tuple(lost)


def device_files(gpus: Sequence[GpuReading], dev: Path) -> tuple[DeviceFile, ...]:
    names = [*CONTROL_FILES, *(f"nvidia{gpu.minor}" for gpu in gpus)]
    return tuple(
        DeviceFile(str(path), path.exists(), os.access(path, os.R_OK | os.W_OK))
        for path in (dev / name for name in names)
    )


def local_cpus(gpus: Sequence[GpuReading], sysfs: Path) -> dict[str, frozenset[int]]:
    found = {}
    for gpu in gpus:
        text = host.read_text(sysfs / "bus/pci/devices" / gpu.pci / "local_cpulist")
        if text:
            found[gpu.pci] = read_cpus(text)
    return found


def read_cpus(text: str) -> frozenset[int]:
    """`0-3,8` → 0, 1, 2, 3, 8, as the kernel writes lists of processors."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
