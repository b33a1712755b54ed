"""NVIDIA devices as the PCI bus shows them, which needs no driver and answers when the driver does not.

Under /sys/bus/pci/devices each device is a folder with its class, vendor, driver, NUMA node and link. A GPU that
is here and not in NVML is one that the driver has lost or does not have; one that is not here is off the bus.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from watchkeeper.model import fleet
from watchkeeper.readers.node.host import read_text

NVIDIA = "0x10de"


class DeviceKind(StrEnum):
    GPU = "gpu"
    SWITCH = "nvswitch"


# The first four digits of PCI's class code: VGA controller, 3D controller, other bridge (NVSwitch).
CLASSES = {"0x0300": DeviceKind.GPU, "0x0302": DeviceKind.GPU, "0x0680": DeviceKind.SWITCH}


@dataclass(frozen=True, slots=True)
class PciDevice:
    """`pci` in our one spelling; what the kernel does not say is None. `way` is the chain of bridges above it."""

    pci: str
    kind: DeviceKind
    driver: str | None = None
    numa_node: int | None = None
    width: int | None = None
    bridges: tuple[str, ...] = ()


def read(sysfs: Path) -> list[PciDevice]:
    """Every NVIDIA GPU and NVSwitch on the bus, by address."""
    found = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        kind = CLASSES.get((read_text(folder / "class") or "")[:6])
        if kind is None or read_text(folder / "vendor") != NVIDIA:
            continue
        real = folder.resolve()
        found.append(
            PciDevice(
                fleet.normalise_pci(folder.name),
                kind,
                driver=_driver(folder),
                numa_node=_whole(folder / "numa_node"),
                width=_whole(folder / "current_link_width"),
                bridges=tuple(part for part in real.parts if part.count(":") >= 1 and part != real.name),
            )
        )
    return found


def _driver(folder: Path) -> str | None:
    link = folder / "driver"
    return link.resolve().name if link.exists() else None


def _whole(path: Path) -> int | None:
    """A number of the kernel; -1 is its word for unknown, and a lost device has a link width of 63 (all ones)."""
    text = read_text(path) or ""
    return int(text) if text.isdigit() else None


def distance(device: PciDevice, other_device: PciDevice) -> str:
    """The shared way of two devices in the words of `nvidia-smi topo`: PIX, PXB, PHB, NODE or SYS; `?` if unknown."""
    if not device.bridges or not other_device.bridges:
        return "?"
    shared = [left for left, right in zip(device.bridges, other_device.bridges, strict=False) if left == right]
    # The first part is the host bridge, pci0000:00.
    bridges = len(shared) - 1
    if bridges >= 1:
        left, right = len(device.bridges) - len(shared), len(other_device.bridges) - len(shared)
        return "PIX" if max(left, right) <= 1 else "PXB"
    if bridges == 0:
        return "PHB"
    if device.numa_node is None or other_device.numa_node is None:
        return "?"
    return "NODE" if device.numa_node == other_device.numa_node else "SYS"
