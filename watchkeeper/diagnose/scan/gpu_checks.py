"""The checks of one GPU: `GpuFacts, scan seconds → ScanResult`, or None if the GPU does not support the feature.

Features that a GPU model does not have (page retirement on Ampere and later, NVLink on PCIe GPUs) have no result. A
reading that every GPU has and this one does not report is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.diagnose.scan.verdicts import GpuFacts, ScanResult, ScanVerdict, judge, limits

Check = Callable[[GpuFacts, float], ScanResult | None]
LANES_OF_LIMIT = 16
LIMIT_SECONDS = 60.0


def value_check(name: str, family: str, detail: str) -> Check:
    """Return a check of one value against the limit of the check's name."""

    def check(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
        value = gpu.value(family)
        return judge(name, value, detail=detail.format(value=value or 0, limit=limits()[name].limit))

    check.__name__ = name
    return check


def temperature_known(gpu: GpuFacts, _seconds: float) -> ScanResult:
    """Every GPU reports a temperature: without it, no other reading can be trusted."""
    celsius = gpu.value("DCGM_FI_DEV_GPU_TEMP")
    if celsius is None:
        return ScanResult("temperature_known", "THERMAL", ScanVerdict.UNKNOWN, "the GPU reports no temperature")
    return ScanResult("temperature_known", "THERMAL", ScanVerdict.HEALTHY, f"{celsius:g} °C")


def power_readable(gpu: GpuFacts, _seconds: float) -> ScanResult:
    watts = gpu.value("DCGM_FI_DEV_POWER_USAGE")
    detail = "the GPU reports no power" if watts is None else f"{watts:.0f} W"
    return limits()["power_readable"].result("power_readable", detail, is_exceeded=watts is None)


def slowdown_margin(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    margin, row = gpu.value("watchkeeper_gpu_slowdown_margin_celsius"), limits()["slowdown_margin"]
    if margin is None:
        return None
    detail = f"{margin:g} °C below the slowdown temperature, the limit is {row.limit:g} °C"
    return row.result("slowdown_margin", detail, is_exceeded=margin <= row.limit)


def thermal_violation(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    increase = gpu.increases.get("DCGM_FI_DEV_THERMAL_VIOLATION")
    detail = f"{(increase or 0) / 1e6:.0f} ms of thermal slowdown in {seconds:.0f} s"
    return judge("thermal_violation", increase, detail=detail)


def hw_slowdown(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    reasons = [gpu.state("watchkeeper_gpu_clocks_event_reason", name) for name in ("hw_slowdown", "hw_thermal")]
    value = max((reason for reason in reasons if reason is not None), default=None)
    return judge("hw_slowdown", value, detail=f"hardware slowdown {'on' if value else 'off'}")


def power_brake(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.state("watchkeeper_gpu_clocks_event_reason", "hw_power_brake")
    return judge("power_brake", value, detail=f"power brake {'on' if value else 'off'}")


def retired_pages(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    single, double = gpu.value("DCGM_FI_DEV_RETIRED_SBE"), gpu.value("DCGM_FI_DEV_RETIRED_DBE")
    if single is None or double is None:
        return None
    limit = limits()["retired_pages"].limit
    return judge("retired_pages", single + double, detail=f"{single + double:g} pages, the limit is {limit:g}")


def inforom(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    valid, row = gpu.value("DCGM_FI_DEV_INFOROM_CONFIG_VALID"), limits()["inforom"]
    if valid is None:
        return None
    return row.result("inforom", f"InfoROM {'valid' if valid else 'corrupted'}", is_exceeded=valid < row.limit)


def pcie_replays(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    """Compare the replays during the scan with the limit per minute; a shorter scan is compared with a full minute."""
    increase, lanes = gpu.increases.get("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH")
    row = limits().get(f"replay_gen{gpu.value('DCGM_FI_DEV_PCIE_LINK_GEN') or 0:g}")
    if increase is None or lanes is None or row is None:
        return None
    allowed = row.limit * lanes / LANES_OF_LIMIT * max(1.0, seconds / LIMIT_SECONDS)
    detail = f"{increase:g} replays in {seconds:.0f} s, the limit is {allowed:.0f}"
    return row.result("pcie_replays", detail, is_exceeded=increase > allowed)


def link_width(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    width, max_width = gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.value("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if width is None or not max_width:
        return None
    row = limits()["link_width"]
    detail = f"{width:g} of {max_width:g} PCIe lanes"
    return row.result("link_width", detail, is_exceeded=width / max_width < row.limit)


def nvlink_errors(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    increase = gpu.increases.get("watchkeeper_gpu_nvlink_errors_total")
    return judge("nvlink_errors", increase, detail=f"{increase or 0:g} new NVLink errors in {seconds:.0f} s")


def fabric(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    """Check DCGM's fabric status; NVML's state is `completed` even if the probe failed."""
    status, row = gpu.value("DCGM_FI_DEV_FABRIC_MANAGER_STATUS"), limits()["fabric_in_progress"]
    if status is None:
        return None
    return row.result("fabric", f"fabric status {status:g}", is_exceeded=status != row.limit)


def recovery_action(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    action = gpu.value("watchkeeper_gpu_recovery_action")
    if action is None:
        return None
    drain_p2p = limits()["recovery_drain_p2p"]
    row = drain_p2p if action == drain_p2p.limit else limits()["recovery_action"]
    detail = f"the driver requests recovery action {action:g}"
    return row.result("recovery_action", detail, is_exceeded=action >= row.limit)


CHECKS: tuple[Check, ...] = (
    temperature_known, power_readable, slowdown_margin, thermal_violation, hw_slowdown, power_brake,
    value_check("volatile_dbe", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "{value:g} uncorrectable errors since the last reset"),
    value_check("pages_pending", "DCGM_FI_DEV_RETIRED_PENDING", "page retirement pending: {value:g}"),
    retired_pages,
    value_check("remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "row remap failure flag {value:g}"),
    value_check("remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", "row remap pending flag {value:g}"),
    value_check(
        "remapped_rows", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "{value:g} rows remapped after uncorrectable errors, the limit is {limit:g}",
    ),
    value_check("unrepairable_memory", "DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", "unrepairable memory flag {value:g}"),
    value_check("sram_threshold", "DCGM_FI_DEV_THRESHOLD_SRM", "SRAM error threshold flag {value:g}"),
    inforom, pcie_replays, link_width, nvlink_errors, fabric, recovery_action,
)  # fmt: skip
