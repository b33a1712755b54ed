"""Facts for the tests of software and configuration, read once before any test uses a GPU.

`gather` fills them from files and from the NVML and CUDA children; `software_checks` judges them.
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
NOUVEAU_MODULE = "module/nouveau"


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU as NVML reports it; `programs` is None if NVML does not list processes."""

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
    """The result of opening NVML; `error_name` is the library's name, such as DRIVER_NOT_LOADED."""

    version: str | None = None
    library: str | None = None
    error_name: str | None = None
    error_text: str = ""


@dataclass(frozen=True, slots=True)
class CudaStatus:
    """The result of cuInit; `library` is the CUDA version times 1000, None without libcuda.so.1."""

    version: int | None = None
    error_code: int | None = None
    error_name: str = ""
    gpu_count: int = 0
    error_text: str = ""


@dataclass(frozen=True, slots=True)
class DeviceFile:
    path: str
    exists: bool
    is_usable: bool


@dataclass(frozen=True, slots=True)
class SystemPaths:
    """The paths of system files; tests set their own."""

    dev: Path = Path("/dev")
    sysfs: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class SoftwareFacts:
    """All facts of level 1; `local_cpus` are near each GPU, by PCI address, `allowed_cpus` those of this process."""

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
    def gpus_on_bus(self) -> int:
        devices = self.node.pci if self.node is not None else ()
        return sum(device.kind is pci_sysfs.DeviceKind.GPU for device in devices)


def read_gpus(rows: Sequence[Mapping[str, Any]]) -> tuple[tuple[GpuReading, ...], tuple[str, ...]]:
    """GPUs that answered, and a text for each that did not, from one message of `nvml_child`."""
    readings, lost = [], []
    for row in rows:
        identity = row.get("identity")
        if not identity or row.get("lost") or row.get("refused"):
            name = identity["uuid"] if identity else f"GPU {row['index']}"
            reason = f"is lost: {row['lost']} returned GPU_IS_LOST" if row.get("lost") else row.get("refused")
            lost.append(f"{name} {reason or 'does not answer'}")
            continue
        pci = fleet.normalise_pci(identity["pci"])
        readings.append(
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
    return tuple(readings), tuple(lost)


def device_files(gpus: Sequence[GpuReading], dev: Path) -> tuple[DeviceFile, ...]:
    names = [*CONTROL_FILES, *(f"nvidia{gpu.minor}" for gpu in gpus)]
    return tuple(
        DeviceFile(str(path), path.exists(), os.access(path, os.R_OK | os.W_OK))
        for path in (dev / name for name in names)
    )


def local_cpus(gpus: Sequence[GpuReading], sysfs: Path) -> dict[str, frozenset[int]]:
    cpus_by_address = {}
    for gpu in gpus:
        text = host.read_text(sysfs / "bus/pci/devices" / gpu.pci / "local_cpulist")
        if text:
            cpus_by_address[gpu.pci] = parse_cpu_list(text)
    return cpus_by_address


def parse_cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` → 0, 1, 2, 3, 8: the kernel's format of CPU lists."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
