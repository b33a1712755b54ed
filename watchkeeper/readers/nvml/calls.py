"""The table of NVML calls: what each is called, how it is made, and what its answer holds.

A row answers either with one number or with named parts; a row with `by_part` is one call for each part
(a clock, a threshold). A new signal is a row here and a row in packs/. The session makes the calls, and
whatever they raise is its business.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from watchkeeper.model import clock_reasons

Answer = float | Mapping[str, float]

NVLINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
# nvml.h: what one NVLink has carried, in KiB; the scope of the field is the link.
NVLINK_TRAFFIC = {138: "transmitted", 139: "received"}
# Eighteen on Hopper and Blackwell, the most so far.
MAX_NVLINKS = 18
TEMPERATURE_SLOWDOWN_TLIMIT = 194
# nvml.h: states of the fabric probe. DCGM counts on from there for a probe that ended with an error, and for a state
# that it does not know (DCGM 4.6 dcgm_structs.h, dcgmFabricManagerStatus_t).
FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3
FABRIC_FAILED, FABRIC_UNRECOGNIZED = 4, 5


class Unsupported(Exception):
    """The call works and says that this GPU does not have the thing."""


class NvmlCall(NamedTuple):
    """One NVML call; `nvml` is its name in nvml.h, for people who read a fault."""

    nvml: str
    ask: Callable[[Any, Any], Answer] | None = None
    by_part: Callable[[Any, Any, int], float] | None = None


def field_number(value: Any) -> float:
    """The number in an nvmlFieldValue_t, by its type."""
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value.valueType]
    number: float = getattr(value.value, member)
    return number


def _utilization(nvml: Any, gpu: Any) -> Answer:
    rates = nvml.nvmlDeviceGetUtilizationRates(gpu)
    return {"gpu": rates.gpu, "memory": rates.memory}


def _memory(nvml: Any, gpu: Any) -> Answer:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    usable = memory.total - memory.reserved
    ratio = {"used_ratio": memory.used / usable} if usable > 0 else {}
    return {"total": memory.total, "free": memory.free, "used": memory.used, "reserved": memory.reserved, **ratio}


def _bar1(nvml: Any, gpu: Any) -> Answer:
    bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(gpu)
    return {"total": bar1.bar1Total, "free": bar1.bar1Free, "used": bar1.bar1Used}


def _clocks_event_reason(nvml: Any, gpu: Any) -> Answer:
    mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return {name: int(bool(mask & bit)) for name, bit in clock_reasons.BITS.items()}


def _slowdown_margin(nvml: Any, gpu: Any) -> Answer:
    try:
        # 4 µs on an H200, against 1.3 ms for the margin below; both say the same there.
        slowdown = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return float(slowdown - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError_NotSupported:
        pass
    # T.Limit counts down to the highest operating temperature; slowdown lies a little beyond it (−2 on an H200).
    limit = nvml.nvmlDeviceGetFieldValues(gpu, [TEMPERATURE_SLOWDOWN_TLIMIT])[0]
    if limit.nvmlReturn != nvml.NVML_SUCCESS:
        raise Unsupported("no slowdown temperature")
    return float(nvml.nvmlDeviceGetMarginTemperature(gpu) - field_number(limit))


def _remap_banks(nvml: Any, gpu: Any) -> Answer:
    banks = nvml.nvmlDeviceGetRowRemapperHistogram(gpu)
    return {name: getattr(banks, name) for name in ("max", "high", "partial", "low", "none")}


def _remapped_rows(nvml: Any, gpu: Any) -> Answer:
    names = ("correctable", "uncorrectable", "pending", "failure")
    return dict(zip(names, nvml.nvmlDeviceGetRemappedRows(gpu), strict=True))


def _pcie_generation(nvml: Any, gpu: Any) -> Answer:
    now, most = nvml.nvmlDeviceGetCurrPcieLinkGeneration(gpu), nvml.nvmlDeviceGetMaxPcieLinkGeneration(gpu)
    return {"now": now, "max": most}


def _pcie_width(nvml: Any, gpu: Any) -> Answer:
    return {"now": nvml.nvmlDeviceGetCurrPcieLinkWidth(gpu), "max": nvml.nvmlDeviceGetMaxPcieLinkWidth(gpu)}


def _power_constraints(nvml: Any, gpu: Any) -> Answer:
    lowest, highest = nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu)
    return {"min": lowest, "max": highest}


def _nvlink_errors(nvml: Any, gpu: Any) -> Answer:
    """Part `3.replay` is the replay counter of link 3; links that do not exist or sleep are absent."""
    found: dict[str, float] = {}
    for link in range(MAX_NVLINKS):
        for kind, counter in NVLINK_COUNTERS.items():
            try:
                found[f"{link}.{kind}"] = nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, counter)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
        if link == 0 and not found:
            raise Unsupported("no NVLink counters")
    return found


def _nvlink_up(nvml: Any, gpu: Any) -> Answer:
    """1 for a link that is up, 0 for one that is down; part is the link."""
    found: dict[str, float] = {}
    for link in range(MAX_NVLINKS):
        try:
            found[str(link)] = nvml.nvmlDeviceGetNvLinkState(gpu, link)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
    if not found:
        raise Unsupported("no NVLink")
    return found


def _nvlink_traffic(nvml: Any, gpu: Any) -> Answer:
    """Part `3.received` is what link 3 has received; all links in one call."""
    asked = [(field, link) for link in range(MAX_NVLINKS) for field in NVLINK_TRAFFIC]
    answers = nvml.nvmlDeviceGetFieldValues(gpu, asked)
    found = {
        f"{link}.{NVLINK_TRAFFIC[field]}": field_number(answer)
        for (field, link), answer in zip(asked, answers, strict=True)
        if answer.nvmlReturn == 0
    }
    if not found:
        raise Unsupported("no NVLink traffic counters")
    return found


def _fabric(nvml: Any, gpu: Any) -> Answer:
    fabric = nvml.c_nvmlGpuFabricInfoV_t()
    fabric.version = nvml.nvmlGpuFabricInfo_v2
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(fabric))
    if fabric.state == FABRIC_NOT_SUPPORTED:
        raise Unsupported("not part of a fabric")
    return {"state": fabric.state, "status": _fabric_status(fabric), "health": fabric.healthMask}


def _fabric_status(fabric: Any) -> int:
    """DCGM's word for the probe: NVML's state, but a completed probe counts only if it also ended well."""
    state = int(fabric.state)
    if state > FABRIC_COMPLETED:
        return FABRIC_UNRECOGNIZED
    return FABRIC_FAILED if state == FABRIC_COMPLETED and fabric.status else state


def _processes(nvml: Any, gpu: Any) -> Answer:
    seen = [*nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu), *nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu)]
    return float(len({entry.pid for entry in seen}))


def _inforom_valid(nvml: Any, gpu: Any) -> Answer:
    try:
        nvml.nvmlDeviceValidateInforom(gpu)
    except nvml.NVMLError_CorruptedInforom:
        return 0
    return 1


def _sram_threshold(nvml: Any, gpu: Any) -> Answer:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(gpu, ctypes.byref(status))
    return int(status.bThresholdExceeded)


def _vgpu_license(nvml: Any, gpu: Any) -> Answer:
    features = nvml.nvmlDeviceGetGridLicensableFeatures_v4(gpu)
    if not features.isGridLicenseSupported:
        raise Unsupported("not a vGPU")
    count = features.licensableFeaturesCount
    return int(any(feature.featureState for feature in features.gridLicensableFeatures[:count]))


def _plain(nvml: str) -> NvmlCall:
    """A call that takes a handle and gives a number."""
    return NvmlCall(nvml, lambda module, gpu: getattr(module, nvml)(gpu))


def _first(nvml: str) -> NvmlCall:
    """A call that takes a handle and gives a pair, of which the first is meant."""
    return NvmlCall(nvml, lambda module, gpu: getattr(module, nvml)(gpu)[0])


def _by_part(nvml: str) -> NvmlCall:
    """A call that takes a handle and one number, such as a clock domain."""
    return NvmlCall(nvml, by_part=lambda module, gpu, part: getattr(module, nvml)(gpu, part))


CALLS: Mapping[str, NvmlCall] = {
    "utilization": NvmlCall("nvmlDeviceGetUtilizationRates", _utilization),
    "memory": NvmlCall("nvmlDeviceGetMemoryInfo_v2", _memory),
    "bar1": NvmlCall("nvmlDeviceGetBAR1MemoryInfo", _bar1),
    "temperature": NvmlCall("nvmlDeviceGetTemperature", lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    "margin": _plain("nvmlDeviceGetMarginTemperature"),
    "slowdown_margin": NvmlCall("nvmlDeviceGetMarginTemperature", _slowdown_margin),
    "threshold": _by_part("nvmlDeviceGetTemperatureThreshold"),
    "clock": _by_part("nvmlDeviceGetClockInfo"),
    "max_clock": _by_part("nvmlDeviceGetMaxClockInfo"),
    "clocks_event": _plain("nvmlDeviceGetCurrentClocksEventReasons"),
    "clocks_event_reason": NvmlCall("nvmlDeviceGetCurrentClocksEventReasons", _clocks_event_reason),
    "pstate": _plain("nvmlDeviceGetPerformanceState"),
    "fan": _plain("nvmlDeviceGetFanSpeed"),
    "power": _plain("nvmlDeviceGetPowerUsage"),
    "power_limit": _plain("nvmlDeviceGetPowerManagementLimit"),
    "power_default": _plain("nvmlDeviceGetPowerManagementDefaultLimit"),
    "power_constraints": NvmlCall("nvmlDeviceGetPowerManagementLimitConstraints", _power_constraints),
    "power_enforced": _plain("nvmlDeviceGetEnforcedPowerLimit"),
    "energy": _plain("nvmlDeviceGetTotalEnergyConsumption"),
    "pcie_throughput": _by_part("nvmlDeviceGetPcieThroughput"),
    "pcie_replay": _plain("nvmlDeviceGetPcieReplayCounter"),
    "pcie_generation": NvmlCall("nvmlDeviceGetCurrPcieLinkGeneration", _pcie_generation),
    "pcie_width": NvmlCall("nvmlDeviceGetCurrPcieLinkWidth", _pcie_width),
    "encoder": _first("nvmlDeviceGetEncoderUtilization"),
    "decoder": _first("nvmlDeviceGetDecoderUtilization"),
    "remap_banks": NvmlCall("nvmlDeviceGetRowRemapperHistogram", _remap_banks),
    "remapped_rows": NvmlCall("nvmlDeviceGetRemappedRows", _remapped_rows),
    "nvlink_errors": NvmlCall("nvmlDeviceGetNvLinkErrorCounter", _nvlink_errors),
    "nvlink_up": NvmlCall("nvmlDeviceGetNvLinkState", _nvlink_up),
    "nvlink_traffic": NvmlCall("nvmlDeviceGetFieldValues", _nvlink_traffic),
    "fabric": NvmlCall("nvmlDeviceGetGpuFabricInfoV", _fabric),
    "processes": NvmlCall("nvmlDeviceGetComputeRunningProcesses_v3", _processes),
    "inforom_valid": NvmlCall("nvmlDeviceValidateInforom", _inforom_valid),
    "sram_threshold": NvmlCall("nvmlDeviceGetSramEccErrorStatus", _sram_threshold),
    "unrepairable": _plain("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    "vgpu_license": NvmlCall("nvmlDeviceGetGridLicensableFeatures_v4", _vgpu_license),
    "persistence": _plain("nvmlDeviceGetPersistenceMode"),
    "mig_mode": _first("nvmlDeviceGetMigMode"),
    "compute_mode": _plain("nvmlDeviceGetComputeMode"),
}
