"""Rules of the classifier for recordings without GPM: NVML's utilisation, power and PCIe.

`gpu_util` counts any kernel and any copy, so power shows how heavy the work is. These rules are less reliable, and
`classify` lowers their confidence.
"""

from __future__ import annotations

from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.verdict import Bound, WorkloadVerdict, confidence_beyond, limits, percent


def detect_waiting(features: Features) -> WorkloadVerdict | None:
    busy, power, pcie_mib = features.gpu_util or 0.0, features.power_over_idle, features.pcie_in_mib
    if busy >= limits()["busy"]:
        return None
    power_text = "power unknown" if power is None else f"power at {percent(max(0.0, power))} between idle and limit"
    why = f"gpu_util {percent(busy)}, {power_text}"
    # The power of kernels that fill the GPU is proportional to their time.
    if power is not None and power / max(busy, 0.01) >= limits()["power_weight"]:
        return WorkloadVerdict(Bound.DATA_STARVED, 0.75, f"{why}: heavy kernels with waits in between")
    launches_mib = limits()["launch_mib_per_second"]
    if pcie_mib is not None and pcie_mib >= max(launches_mib, 100 * busy * limits()["launch_mib_most"]):
        why = f"{why}: {pcie_mib:.0f} MiB/s of input over PCIe and little work"
        return WorkloadVerdict(Bound.DATA_STARVED, 0.55, why)
    if busy >= limits()["launch_busy_least"] and (pcie_mib is None or pcie_mib >= launches_mib):
        confidence = 0.75 if pcie_mib is not None else 0.55
        return WorkloadVerdict(Bound.LAUNCH, confidence, f"{why}: busy at low power, many launches")
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.75 if busy < 0.1 else 0.55, f"{why}: little work")


def detect_light_work(features: Features) -> WorkloadVerdict | None:
    """High `gpu_util` at low power: kernels that do not fill the SMs."""
    power, pcie_mib = features.power_over_idle, features.pcie_in_mib
    if power is None or power >= limits()["light_power"]:
        return None
    power_text = f"power only at {percent(max(0.0, power))} between idle and limit"
    why = f"gpu_util {percent(features.gpu_util)} with {power_text}"
    if pcie_mib is None or pcie_mib >= limits()["launch_mib_per_second"]:
        return WorkloadVerdict(Bound.LAUNCH, 0.65, f"{why}: kernels too small to draw power")
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.6, f"{why}, few launches: kernels that do not fill the GPU")


def classify_by_unit(features: Features) -> WorkloadVerdict:
    """The class of a busy GPU: by memory, and by the clock at the power cap, which tensor cores reduce most."""
    memory, capped, power = features.mem_copy, features.power_capped or 0.0, features.power_over_idle or 0.0
    clock = features.sm_clock_share
    why = f"gpu_util {percent(features.gpu_util)}, mem_copy_util {percent(memory)}"
    why = f"{why}, power cap {percent(capped)} of the time"
    if memory is None:
        return WorkloadVerdict(Bound.MIXED, 0.4, why)
    if memory >= limits()["memory_used_dominant"]:
        return WorkloadVerdict(Bound.MEMORY, confidence_beyond(memory, limits()["memory_used_dominant"]) + 0.2, why)
    if memory >= limits()["memory_used_mixed"]:
        is_light = features.power_over_idle is not None and power < limits()["training_power"]
        return WorkloadVerdict(Bound.MEMORY if is_light else Bound.MIXED, 0.5 if is_light else 0.6, why)
    if capped >= 0.5 and power >= limits()["heavy_power"]:
        if clock is not None and clock >= limits()["clock_by_tensor"]:
            why = f"{why}, SM clock only reduced to {percent(clock)}"
            return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.6, why)
        return WorkloadVerdict(Bound.COMPUTE, 0.75, why)
    if memory >= limits()["memory_used_by_scatter"]:
        return WorkloadVerdict(Bound.MEMORY, 0.45, f"{why}: scattered accesses keep memory busy at a low rate")
    return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.55, f"{why}; tensor work is not visible")
