"""The checks of one GPU: `GpuFacts, seconds watched → Result`, or None where the GPU does not have the thing.

What a whole family of GPUs lacks (page retirement on Ampere and later, NVLink on PCIe cards) is no reason to doubt
a GPU, so it has no result; a number that every GPU has and this one does not give is `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.diagnose.scan.verdicts import GpuFacts, ScanResult, ScanVerdict, judge, limits

Check = Callable[[GpuFacts, float], ScanResult | None]
LANES_OF_LIMIT = 16
LIMIT_SECONDS = 60.0


def temperature_known(gpu: GpuFacts, _seconds: float) -> ScanResult:
    """Every GPU has a temperature: without one nothing else that was read can be trusted."""
    celsius = gpu.value("DCGM_FI_DEV_GPU_TEMP")
    if celsius is None:
        return ScanResult("temperature_known", "THERMAL", ScanVerdict.UNKNOWN, "the GPU gives no temperature")
    return ScanResult("temperature_known", "THERMAL", ScanVerdict.HEALTHY, f"{celsius:g} °C")


def power_readable(gpu: GpuFacts, _seconds: float) -> ScanResult:
    watts = gpu.value("DCGM_FI_DEV_POWER_USAGE")
    if watts is None:
        return ScanResult("power_readable", "POWER", limits()["power_readable"].verdict, "the GPU gives no power")
    return ScanResult("power_readable", "POWER", ScanVerdict.HEALTHY, f"{watts:.0f} W")


def slowdown_margin(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    margin = gpu.value("watchkeeper_gpu_slowdown_margin_celsius")
    if margin is None:
        return None
    row = limits()["slowdown_margin"]
    verdict = row.verdict if margin <= row.limit else ScanVerdict.HEALTHY
    words = f"{margin:g} °C below the slowdown temperature, the limit is {row.limit:g} °C"
    return ScanResult("slowdown_margin", "THERMAL", verdict, words)


def thermal_violation(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    grown = gpu.grown.get("DCGM_FI_DEV_THERMAL_VIOLATION")
    words = f"{(grown or 0) / 1e6:.0f} ms slowed by heat in {seconds:.0f} s"
    return judge("thermal_violation", grown, looked_at=words)


def hw_slowdown(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    reasons = [gpu.state("watchkeeper_gpu_clocks_event_reason", name) for name in ("hw_slowdown", "hw_thermal")]
    known = [reason for reason in reasons if reason is not None]
    value = max(known) if known else None
    return judge("hw_slowdown", value, looked_at=f"hardware slowdown {'on' if value else 'off'}")


def power_brake(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.state("watchkeeper_gpu_clocks_event_reason", "hw_power_brake")
    return judge("power_brake", value, looked_at=f"power brake {'on' if value else 'off'}")


def volatile_dbe(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    count = gpu.value("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")
    return judge("volatile_dbe", count, looked_at=f"{count or 0:g} uncorrectable errors since the last reset")


def pages_pending(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_RETIRED_PENDING")
    return judge("pages_pending", value, looked_at=f"page retirement pending: {value or 0:g}")


def retired_pages(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    single, double = gpu.value("DCGM_FI_DEV_RETIRED_SBE"), gpu.value("DCGM_FI_DEV_RETIRED_DBE")
    if single is None or double is None:
        return None
    row = limits()["retired_pages"]
    return judge("retired_pages", single + double, looked_at=f"{single + double:g} pages, the limit is {row.limit:g}")


def remap_failed(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_ROW_REMAP_FAILURE")
    return judge("remap_failed", value, looked_at=f"row remap failure flag {value or 0:g}")


def remap_pending(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_ROW_REMAP_PENDING")
    return judge("remap_pending", value, looked_at=f"row remap pending flag {value or 0:g}")


def remapped_rows(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    rows = gpu.value("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS")
    words = f"{rows or 0:g} rows remapped after uncorrectable errors, the limit is {limits()['remapped_rows'].limit:g}"
    return judge("remapped_rows", rows, looked_at=words)


def unrepairable_memory(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG")
    return judge("unrepairable_memory", value, looked_at=f"unrepairable memory flag {value or 0:g}")


def sram_threshold(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    value = gpu.value("DCGM_FI_DEV_THRESHOLD_SRM")
    return judge("sram_threshold", value, looked_at=f"SRAM error threshold flag {value or 0:g}")


def inforom(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    valid = gpu.value("DCGM_FI_DEV_INFOROM_CONFIG_VALID")
    if valid is None:
        return None
    row = limits()["inforom"]
    verdict = ScanVerdict.HEALTHY if valid >= row.limit else row.verdict
    return ScanResult("inforom", "INFOROM", verdict, f"InfoROM {'valid' if valid else 'corrupted'}")


def pcie_replays(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    """Replays since the scan began, against what a whole minute allows: less than a minute can only acquit."""
    grown, lanes = gpu.grown.get("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"), gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH")
    row = limits().get(f"replay_gen{gpu.value('DCGM_FI_DEV_PCIE_LINK_GEN') or 0:g}")
    if grown is None or lanes is None or row is None:
        return None
    allowed = row.limit * lanes / LANES_OF_LIMIT * max(1.0, seconds / LIMIT_SECONDS)
    verdict = row.verdict if grown > allowed else ScanVerdict.HEALTHY
    return ScanResult(
        "pcie_replays", "PCIE", verdict, f"{grown:g} replays in {seconds:.0f} s, {allowed:.0f} are allowed"
    )


def link_width(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    now, most = gpu.value("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.value("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if now is None or not most:
        return None
    row = limits()["link_width"]
    verdict = row.verdict if now / most < row.limit else ScanVerdict.HEALTHY
    return ScanResult("link_width", "PCIE", verdict, f"{now:g} of {most:g} PCIe lanes")


def nvlink_errors(gpu: GpuFacts, seconds: float) -> ScanResult | None:
    grown = gpu.grown.get("watchkeeper_gpu_nvlink_errors_total")
    return judge("nvlink_errors", grown, looked_at=f"{grown or 0:g} new NVLink errors in {seconds:.0f} s")


def fabric(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    """DCGM's status and not NVML's state, which is completed also where the probe failed."""
    status = gpu.value("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if status is None:
        return None
    row = limits()["fabric_in_progress"]
    return ScanResult(
        "fabric", "NVLINK", ScanVerdict.HEALTHY if status == row.limit else row.verdict, f"fabric status {status:g}"
    )


def recovery_action(gpu: GpuFacts, _seconds: float) -> ScanResult | None:
    action = gpu.value("watchkeeper_gpu_recovery_action")
    words = f"the driver asks for recovery action {action or 0:g}"
    is_drain_p2p = action == limits()["recovery_drain_p2p"].limit
    found = judge("recovery_drain_p2p" if is_drain_p2p else "recovery_action", action, looked_at=words)
    return found and ScanResult("recovery_action", found.system, found.verdict, found.looked_at)


CHECKS: tuple[Check, ...] = (
    temperature_known,
    power_readable,
    slowdown_margin,
    thermal_violation,
    hw_slowdown,
    power_brake,
    volatile_dbe,
    pages_pending,
    retired_pages,
    remap_failed,
    remap_pending,
    remapped_rows,
    unrepairable_memory,
    sram_threshold,
    inforom,
    pcie_replays,
    link_width,
    nvlink_errors,
    fabric,
    recovery_action,
)
