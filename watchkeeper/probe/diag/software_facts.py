"""Facts for the tests of software and configuration, read once before any test uses a GPU.

`gather_facts` reads them from files and from the NVML and CUDA children; a timeout is also a fact. `software_checks`
judges them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watchkeeper.model import fleet
from watchkeeper.probe.diag import child_processes
from watchkeeper.readers.node import host, pci_sysfs
from watchkeeper.readers.node.node import NodeFacts

CONTROL_FILES = ("nvidiactl", "nvidia-uvm")
NOUVEAU_MODULE = "module/nouveau"
# Without persistence mode, the driver initialises each GPU first, which takes seconds per GPU.
TIMEOUT_SECONDS = 90.0
NVML, CUDA = "nvml", "cuda"


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
        uuid, model, minor = identity["uuid"], identity["model"], identity["minor"]
        pci, values = fleet.normalise_pci(identity["pci"]), row.get("values", {})
        readings.append(GpuReading(uuid, int(row["index"]), pci, model, minor, values, row.get("programs")))
    return tuple(readings), tuple(lost)


def device_files(gpus: Sequence[GpuReading], dev: Path) -> tuple[DeviceFile, ...]:
    names = [*CONTROL_FILES, *(f"nvidia{gpu.minor}" for gpu in gpus)]
    return tuple(
        DeviceFile(str(path), path.exists(), os.access(path, os.R_OK | os.W_OK))
        for path in (dev / name for name in names)
    )


def local_cpus(gpus: Sequence[GpuReading], sysfs: Path) -> dict[str, frozenset[int]]:
    folder = sysfs / "bus/pci/devices"
    texts = {gpu.pci: host.read_text(folder / gpu.pci / "local_cpulist") for gpu in gpus}
    return {pci: parse_cpu_list(text) for pci, text in texts.items() if text}


def parse_cpu_list(text: str) -> frozenset[int]:
    """`0-3,8` → 0, 1, 2, 3, 8: the kernel's format of CPU lists."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


class _FactsCollector:
    def __init__(self) -> None:
        self.driver: NvmlStatus | None = None
        self.cuda: CudaStatus | None = None
        self.gpus: tuple[GpuReading, ...] = ()
        self.lost: tuple[str, ...] = ()
        self.is_nvml_done = False

    @property
    def is_complete(self) -> bool:
        return self.is_nvml_done and self.cuda is not None

    def add_message(self, message: child_processes.ChildMessage) -> None:
        body: Mapping[str, Any] = message.body or {"type": "ended", "why": message.exit_reason}
        if message.child == CUDA:
            self.cuda = self.cuda or _parse_cuda_status(body)
        elif body["type"] == "ready":
            self.driver = NvmlStatus(str(body["driver"]), str(body["library"]))
        elif body["type"] == "reading":
            self.gpus, self.lost = read_gpus(body["gpus"])
            self.is_nvml_done = True
        elif body["type"] in ("start_failed", "ended"):
            # The child exits after it reports an error: the first message has the reason.
            if self.driver is None or self.driver.error_name is None:
                self.driver = NvmlStatus(error_name=str(body.get("reason", "UNKNOWN")), error_text=str(body["why"]))
            self.is_nvml_done = True


def gather_facts(
    children: child_processes.Children,
    programs: Mapping[str, child_processes.ChildProgram],
    *,
    node: NodeFacts | None,
    paths: SystemPaths,
    expected_gpus: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> SoftwareFacts:
    """Start both children and collect their facts; the NVML child keeps running."""
    for name in (CUDA, NVML):
        children.start(name, programs[name])
    collector, deadline = _FactsCollector(), time.monotonic() + timeout_seconds
    while not collector.is_complete and time.monotonic() < deadline:
        message = children.next_message(deadline)
        if message is not None:
            collector.add_message(message)
    timeout_text = f"no answer within {timeout_seconds:g} s"
    driver = collector.driver
    if driver is None or not collector.is_nvml_done:
        driver = NvmlStatus(error_name="TIMEOUT", error_text=timeout_text)
    return SoftwareFacts(
        driver,
        collector.cuda or CudaStatus(0, -1, "no answer", error_text=timeout_text),
        gpus=collector.gpus,
        lost=collector.lost,
        node=node,
        expected_gpus=expected_gpus,
        device_files=device_files(collector.gpus, paths.dev),
        has_nouveau=(paths.sysfs / NOUVEAU_MODULE).is_dir(),
        local_cpus=local_cpus(collector.gpus, paths.sysfs),
        allowed_cpus=frozenset(os.sched_getaffinity(0)),
        environment=dict(os.environ),
    )


def _parse_cuda_status(body: Mapping[str, Any]) -> CudaStatus:
    why = str(body.get("why", ""))
    if body["type"] != "cuda":
        return CudaStatus(0, -1, "no answer", error_text=why)
    gpu_count = int(body.get("count") or 0)
    return CudaStatus(body.get("library"), body.get("code"), str(body.get("name", "")), gpu_count, why)
