"""The classifier's rules for recordings without GPM: NVML's own utilisation, power and PCIe.

`classify` puts them in order. `gpu_util` counts any kernel and any copy, so power has to say how heavy the work was.
What these rules find is worth less, and `classify` lowers their confidence.
"""

from __future__ import annotations

from watchkeeper.probe.profile.features import Features
from watchkeeper.probe.profile.limits import limits
from watchkeeper.probe.profile.verdict import Bound, WorkloadVerdict, confidence_beyond, known, percent


def waiting(features: Features) -> WorkloadVerdict | None:
    """NVML's counters: a GPU that is free much of the time."""
    busy, over = features.gpu_util or 0.0, features.power_over_idle
    if busy >= limits()["busy"]:
        return None
    rate = features.pcie_in_mib
    # Kernels that fill the GPU draw power in proportion to the time they take.
    weight = None if over is None else max(0.0, over) / max(busy, 0.01)
    drawn = "power unknown" if over is None else f"power {percent(max(0.0, over))} of the way from idle to the limit"
    why = f"gpu_util {percent(busy)}, {drawn}"
    if weight is not None and weight >= limits()["power_weight"]:
        return WorkloadVerdict(Bound.DATA_STARVED, 0.75, f"{why}: heavy kernels, and waiting in between")
    if rate is not None and rate >= max(limits()["launch_mib_per_second"], 100 * busy * limits()["launch_mib_most"]):
        return WorkloadVerdict(
            Bound.DATA_STARVED, 0.55, f"{why}: {rate:.0f} MiB/s of input over PCIe, and little done with it"
        )
    if busy >= limits()["launch_busy_least"] and (rate is None or rate >= limits()["launch_mib_per_second"]):
        return WorkloadVerdict(
            Bound.LAUNCH, 0.75 if rate is not None else 0.55, f"{why}: busy with hardly any power, many launches"
        )
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.75 if busy < 0.1 else 0.55, f"{why}: little work")


def light(features: Features) -> WorkloadVerdict | None:
    """`gpu_util` is high and power is not: kernels that leave the SMs empty."""
    over, rate = features.power_over_idle, features.pcie_in_mib
    if over is None or over >= limits()["light_power"]:
        return None
    why = f"gpu_util {known(features.gpu_util)} with power only {percent(max(0.0, over))} above idle"
    if rate is None or rate >= limits()["launch_mib_per_second"]:
        return WorkloadVerdict(Bound.LAUNCH, 0.65, f"{why}: kernels too small to draw power")
    return WorkloadVerdict(Bound.UNDERUTILIZED, 0.6, f"{why}, few launches: kernels that do not fill the GPU")


def unit(features: Features) -> WorkloadVerdict:
    """Which unit: by how busy memory was, and by the power cap, where tensor cores pull the clock down deepest."""
    memory, capped, over = features.mem_copy, features.power_capped or 0.0, features.power_over_idle or 0.0
    clock = features.sm_clock_share
    why = f"gpu_util {known(features.gpu_util)}, mem_copy_util {known(memory)}, power cap {percent(capped)} of the time"
    if memory is None:
        return WorkloadVerdict(Bound.MIXED, 0.4, why)
    if memory >= limits()["memory_used_dominant"]:
        return WorkloadVerdict(Bound.MEMORY, confidence_beyond(memory, limits()["memory_used_dominant"]) + 0.2, why)
    if memory >= limits()["memory_used_mixed"]:
        is_light = features.power_over_idle is not None and over < limits()["training_power"]
        return WorkloadVerdict(Bound.MEMORY if is_light else Bound.MIXED, 0.5 if is_light else 0.6, why)
    if capped >= 0.5 and over >= limits()["heavy_power"]:
        if clock is not None and clock >= limits()["clock_by_tensor"]:
            return WorkloadVerdict(
                Bound.COMPUTE_NO_TENSOR, 0.6, f"{why}, and the SM clock only down to {percent(clock)}"
            )
        return WorkloadVerdict(Bound.COMPUTE, 0.75, why)
    if memory >= limits()["memory_used_by_scatter"]:
        return WorkloadVerdict(Bound.MEMORY, 0.45, f"{why}: accesses that are scattered keep memory busy at a low rate")
    return WorkloadVerdict(Bound.COMPUTE_NO_TENSOR, 0.55, f"{why}; whether tensor cores work cannot be seen")
