"""Facts about a healthy node, and kernel lines with faults."""

from __future__ import annotations

from watchkeeper.diagnose.scan.verdicts import GpuFacts
from watchkeeper.readers.logs import kernel_log
from watchkeeper.readers.node import host, pci_sysfs
from watchkeeper.readers.node.node import NodeFacts

HEALTHY_NUMBERS: dict[str, float] = {
    "DCGM_FI_DEV_GPU_TEMP": 40,
    "DCGM_FI_DEV_POWER_USAGE": 120,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_PCIE_LINK_GEN": 5,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": 16,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16,
}
GPU = GpuFacts("GPU-1", 0, "0000:10:00", HEALTHY_NUMBERS)
NODE = NodeFacts(memory=host.Memory(100, 50))
SWITCH = pci_sysfs.PciDevice("0000:05:00", pci_sysfs.DeviceKind.SWITCH)


def kernel(*lines: str) -> tuple[kernel_log.KernelFact, ...]:
    facts = [kernel_log.read_line(line) for line in lines]
    return tuple(fact for fact in facts if isinstance(fact, kernel_log.KernelFact))
