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


def temperature_known(gpu: GpuFacts, _seconds: float) -> ScanResult:
    """Every GPU reports a temperature: without it, no other reading can be trusted."""
    celsius = gpu.value("DCGM_FI_DEV_GPU_TEMP")
    if celsius is None:
        return ScanResult("temperature_known", "THERMAL", ScanVerdict.UNKNOWN, "the GPU reports no temperature")
    return ScanResult("temperature_known", "THERMAL", ScanVerdict.HEALTHY, f"{celsius:g} °C")


def power_readable(gpu: GpuFacts, _seconds: float) -> ScanResult:
    watts = gpu.value("DCGM_FI_DEV_POWER_USAGE")
    if watts is None:
        return ScanResult("power_readable", "POWER", limits()["power_readable"].verdict, "the GPU reports no power")
    return ScanResult("power_readable", "POWER", ScanVerdict.HEALTHY, f"{watts:.0f} W")


def slowdown_margin(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    margin = gpu.value("watchkeeper_gpu_slowdown_margin_celsius")
    if margin is None:
        return None
    row = limits()["slowdown_margin"]
    verdict = row.verdict if margin <= row.limit else ScanVerdict.HEALTHY
    detail = f"{margin:g} °C below the slowdown temperature, the limit is {row.limit:g} °C"
    return ScanResult("slowdown_margin", "THERMAL", verdict, detail)


def thermal_violation(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    increase = gpu.increases.get("DCGM_FI_DEV_THERMAL_VIOLATION")
    detail = f"{(increase or 0) / 1e6:.0f} ms of thermal slowdown in {seconds:.0f} s"
    return judge("thermal_violation", increase, detail=detail)


def hw_slowdown(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    reasons = [gpu.state("watchkeeper_gpu_clocks_event_reason", name) for name in ("hw_slowdown", "hw_thermal")]
    reported = [reason for reason in reasons if reason is not None]
    value = max(reported) if reported else None
    return judge("hw_slowdown", value, detail=f"hardware slowdown {'on' if value else 'off'}")


def power_brake(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.state("watchkeeper_gpu_clocks_event_reason", "hw_power_brake")
    return judge("power_brake", value, detail=f"power brake {'on' if value else 'off'}")


def volatile_dbe(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    count = gpu.value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
    return judge("volatile_dbe", count, detail=f"{count or 0:g} uncorrectable errors since the last reset")


def pages_pending(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_RETIRED_PENDING")
    return judge("pages_pending", value, detail=f"page retirement pending: {value or 0:g}")


def retired_pages(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    single, double = gpu.value("DCGM_FI_DEV_RETIRED_SBE"), gpu.value("DCGM_FI_DEV_RETIRED_DBE")
    if single is None or double is None:
        return None
    row = limits()["retired_pages"]
    return judge("retired_pages", single + double, detail=f"{single + double:g} pages, the limit is {row.limit:g}")


def remap_failed(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_ROW_REMAP_FAILURE")
    return judge("remap_failed", value, detail=f"row remap failure flag {value or 0:g}")


def remap_pending(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_ROW_REMAP_PENDING")
    return judge("remap_pending", value, detail=f"row remap pending flag {value or 0:g}")


def remapped_rows(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    rows = gpu.value("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")
    detail = f"{rows or 0:g} rows remapped after uncorrectable errors, the limit is {limits()['remapped_rows'].limit:g}"
    return judge("remapped_rows", rows, detail=detail)


def unrepairable_memory(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG")
    return judge("unrepairable_memory", value, detail=f"unrepairable memory flag {value or 0:g}")


def sram_threshold(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_THRESHOLD_SRM")
    return judge("sram_threshold", value, detail=f"SRAM error threshold flag {value or 0:g}")


def inforom(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    valid = gpu.value("DCGM_FI_DEV_INFOROM_CONFIG_VALID")
    if valid is None:
        return None
    row = limits()["inforom"]
    verdict = ScanVerdict.HEALTHY if valid >= row.limit else row.verdict
    return ScanResult("inforom", "INFOROM", verdict, f"InfoROM {'valid' if valid else 'corrupted'}")


def pcie_replays(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    """Compare the replays during the scan with the limit per minute; a shorter scan is compared with a full minute."""
    increase, lanes = gpu.increases.get("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH")
    row = limits().get(f"replay_gen{gpu.value('DCGM_FI_DEV_PCIE_LINK_GEN') or 0:g}")
    if increase is None or lanes is None or row is None:
        return None
    allowed = row.limit * lanes / LANES_OF_LIMIT * max(1.0, seconds / LIMIT_SECONDS)
    verdict = row.verdict if increase > allowed else ScanVerdict.HEALTHY
    return ScanResult(
        "pcie_replays", "PCIE", verdict, f"{increase:g} replays in {seconds:.0f} s, the limit is {allowed:.0f}"
    )


def link_width(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    width, max_width = gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.value("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if width is None or not max_width:
        return None
    row = limits()["link_width"]
    verdict = row.verdict if width / max_width < row.limit else ScanVerdict.HEALTHY
    return ScanResult("link_width", "PCIE", verdict, f"{width:g} of {max_width:g} PCIe lanes")


def nvlink_errors(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    increase = gpu.increases.get("watchkeeper_gpu_nvlink_errors_total")
    return judge("nvlink_errors", increase, detail=f"{increase or 0:g} new NVLink errors in {seconds:.0f} s")


def fabric(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    """Check DCGM's fabric status; NVML's state is `completed` even if the probe failed."""
    status = gpu.value("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if status is None:
        return None
    row = limits()["fabric_in_progress"]
    return ScanResult(
        "fabric", "NVLINK", ScanVerdict.HEALTHY if status == row.limit else row.verdict, f"fabric status {status:g}"
    )


def recovery_action(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    action = gpu.value("watchkeeper_gpu_recovery_action")
    detail = f"the driver requests recovery action {action or 0:g}"
    is_drain_p2p = action == limits()["recovery_drain_p2p"].limit
    result = judge("recovery_drain_p2p" if is_drain_p2p else "recovery_action", action, detail=detail)
    return result and ScanResult("recovery_action", result.system, result.verdict, result.detail)


CHECKS: tuple[Check, ...] = (
    temperature_known, power_readable, slowdown_margin, thermal_violation, hw_slowdown, power_brake, volatile_dbe,
    pages_pending, retired_pages, remap_failed, remap_pending, remapped_rows, unrepairable_memory, sram_threshold,
    inforom, pcie_replays, link_width, nvlink_errors, fabric, recovery_action,
)  # fmt: skip
