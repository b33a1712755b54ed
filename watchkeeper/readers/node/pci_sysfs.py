"""Read the NVIDIA devices on the PCI bus, which works without the driver.

/sys/bus/pci/devices has a folder for each device with its class, vendor, driver, NUMA node and link. A GPU on the bus
that NVML does not list is lost to the driver or not bound to it; a GPU that is missing here is off the bus.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from watchkeeper.model import fleet
from watchkeeper.readers.node.host import read_number, read_text

NVIDIA = "0x10de"


class DeviceKind(StrEnum):
    GPU = "gpu"
    SWITCH = "nvswitch"


# The first four digits of PCI's class code: VGA controller, 3D controller, other bridge (NVSwitch).
CLASSES = {"0x0300": DeviceKind.GPU, "0x0302": DeviceKind.GPU, "0x0680": DeviceKind.SWITCH}


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI device; `pci` is normalised, unknown values are None. `bridges` is the chain of bridges above it."""

    pci: str
    kind: DeviceKind
    driver: str | None = None
    numa_node: int | None = None
    width: int | None = None
    bridges: tuple[str, ...] = ()


def read(sysfs: Path) -> list[PciDevice]:
    """Read every NVIDIA GPU and NVSwitch on the bus, sorted by address."""
    devices = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*")):
        kind = CLASSES.get((read_text(folder / "class") or "")[:6])
        if kind is None or read_text(folder / "vendor") != NVIDIA:
            continue
        resolved, driver = folder.resolve(), folder / "driver"
        devices.append(
            PciDevice(
                fleet.normalise_pci(folder.name),
                kind,
                driver=driver.resolve().name if driver.exists() else None,
                numa_node=read_number(folder / "numa_node"),
                # A lost device has a link width of 63 (all bits set).
                width=read_number(folder / "current_link_width"),
                bridges=tuple(part for part in resolved.parts if part.count(":") >= 1 and part != resolved.name),
            )
        )
    return devices


def topology_distance(device: PciDevice, other_device: PciDevice) -> str:
    """The connection of two devices as in `nvidia-smi topo`: PIX, PXB, PHB, NODE or SYS; `?` if unknown."""
    if not device.bridges or not other_device.bridges:
        return "?"
    shared = sum(map(operator.eq, device.bridges, other_device.bridges))
    if shared > 1:
        return "PIX" if max(len(device.bridges), len(other_device.bridges)) - shared <= 1 else "PXB"
    # The first part is the host bridge, pci0000:00.
    if shared == 1:
        return "PHB"
    if device.numa_node is None or other_device.numa_node is None:
        return "?"
    return "NODE" if device.numa_node == other_device.numa_node else "SYS"
