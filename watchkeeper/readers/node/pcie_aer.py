"""Read the kernel's PCIe error counters of each device: the `aer_dev_*` files in /sys/bus/pci/devices.

Each GPU, NVSwitch and network adapter has one file for each severity, with a line such as `BadTLP 4` for each kind of
error and the total in the last line. A device without advanced error reporting has no such files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from watchkeeper.readers.node.host import read_text
from watchkeeper.readers.node.pci_sysfs import CLASSES, NVIDIA

SEVERITIES = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}
# PCI's class codes: Ethernet controller, InfiniBand controller; of these, Mellanox' (NVIDIA's) adapters.
NETWORK_CLASSES = frozenset({"0x0200", "0x0207"})
MELLANOX = "0x15b3"
MAX_DEVICES = 512


@dataclass(frozen=True, slots=True)
class AerCounts:
    """The error counters of one PCI function and one severity; `errors` has the kinds that are not zero."""

    pci: str
    kind: str
    severity: str
    total: int
    errors: Mapping[str, int]


def read(sysfs: Path) -> list[AerCounts]:
    aer_counts: list[AerCounts] = []
    for folder in sorted((sysfs / "bus/pci/devices").glob("*"))[: MAX_DEVICES * 8]:
        kind = _device_kind(folder)
        if kind is None or len(aer_counts) >= MAX_DEVICES * len(SEVERITIES):
            continue
        for severity, sum_name in SEVERITIES.items():
            text = read_text(folder / f"aer_dev_{severity}")
            if text is None:
                continue
            rows = (line.split() for line in text.splitlines())
            counts = {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isascii() and row[1].isdigit()}
            total = counts.pop(sum_name, None)
            errors = {name: count for name, count in counts.items() if count}
            total = sum(errors.values()) if total is None else total
            aer_counts.append(AerCounts(folder.name, kind, severity, total, errors))
    return aer_counts


def _device_kind(folder: Path) -> str | None:
    code, vendor = (read_text(folder / "class") or "")[:6], read_text(folder / "vendor")
    if vendor == NVIDIA and code in CLASSES:
        return str(CLASSES[code])
    return "nic" if vendor == MELLANOX and code in NETWORK_CLASSES else None
