"""The table of NVML calls: the NVML function of each, how it is called, and the value that it returns.

A new metric is a row here and a row in packs/. The session makes the calls and handles their errors.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from watchkeeper.model import clock_reasons

Answer = float | Mapping[str, float]

NVLINK_COUNTERS = {"replay": 0, "recovery": 1, "crc_flit": 2, "crc_data": 3, "ecc_data": 4}
# nvml.h: traffic of one NVLink in KiB; the scope of the field is the link.
NVLINK_TRAFFIC = {138: "transmitted", 139: "received"}
# The highest number so far: Hopper and Blackwell.
MAX_NVLINKS = 18
TEMPERATURE_SLOWDOWN_TLIMIT = 194
REMAP_BANKS = ("max", "high", "partial", "low", "none")
REMAPPED_ROWS = ("correctable", "uncorrectable", "pending", "failure")
# nvml.h: states of the fabric probe. DCGM adds a state for a probe that ended with an error, and one for an unknown
# state (DCGM 4.6 dcgm_structs.h, dcgmFabricManagerStatus_t).
FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3
FABRIC_FAILED, FABRIC_UNRECOGNIZED = 4, 5


class Unsupported(Exception):
    """The call works, but this GPU does not have the feature."""


class NvmlCall(NamedTuple):
    """One NVML call; `function` is its name in nvml.h, for error messages."""

    function: str
    read: Callable[[Any, Any], Answer] | None = None
    read_part: Callable[[Any, Any, int], float] | None = None


def field_number(value: Any) -> float:
    """The number in an nvmlFieldValue_t, read by its value type."""
    member = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[value.valueType]
    number: float = getattr(value.value, member)
    return number


def _memory(nvml: Any, gpu: Any) -> Answer:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    usable = memory.total - memory.reserved
    ratio = {"used_ratio": memory.used / usable} if usable > 0 else {}
    return {"total": memory.total, "free": memory.free, "used": memory.used, "reserved": memory.reserved, **ratio}


def _clocks_event_reason(nvml: Any, gpu: Any) -> Answer:
    mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
    return {name: int(bool(mask & bit)) for name, bit in clock_reasons.BITS.items()}


def _slowdown_margin(nvml: Any, gpu: Any) -> Answer:
    try:
        # 4 µs on an H200, compared with 1.3 ms for the margin below; both give the same value there.
        slowdown = nvml.nvmlDeviceGetTemperatureThreshold(gpu, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return float(slowdown - nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU))
    except nvml.NVMLError_NotSupported:
        pass
    # T.Limit counts down to the highest operating temperature; slowdown is slightly above it (−2 on an H200).
    limit = nvml.nvmlDeviceGetFieldValues(gpu, [TEMPERATURE_SLOWDOWN_TLIMIT])[0]
    if limit.nvmlReturn != nvml.NVML_SUCCESS:
        raise Unsupported("no slowdown temperature")
    return float(nvml.nvmlDeviceGetMarginTemperature(gpu) - field_number(limit))


def _nvlink_errors(nvml: Any, gpu: Any) -> Answer:
    """Part `3.replay` is the replay counter of link 3; links that do not exist or are inactive are absent."""
    errors: dict[str, float] = {}
    for link in range(MAX_NVLINKS):
        for kind, counter in NVLINK_COUNTERS.items():
            try:
                errors[f"{link}.{kind}"] = nvml.nvmlDeviceGetNvLinkErrorCounter(gpu, link, counter)
            except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
                continue
        if link == 0 and not errors:
            raise Unsupported("no NVLink counters")
    return errors


def _nvlink_up(nvml: Any, gpu: Any) -> Answer:
    """1 for a link that is up, 0 for a link that is down; the part is the link number."""
    link_states: dict[str, float] = {}
    for link in range(MAX_NVLINKS):
        try:
            link_states[str(link)] = nvml.nvmlDeviceGetNvLinkState(gpu, link)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
    if not link_states:
        raise Unsupported("no NVLink")
    return link_states


def _nvlink_traffic(nvml: Any, gpu: Any) -> Answer:
    """Part `3.received` is the received traffic of link 3; one call reads all links."""
    fields = [(field, link) for link in range(MAX_NVLINKS) for field in NVLINK_TRAFFIC]
    answers = nvml.nvmlDeviceGetFieldValues(gpu, fields)
    traffic = {
        f"{link}.{NVLINK_TRAFFIC[field]}": field_number(answer)
        for (field, link), answer in zip(fields, answers, strict=True)
        if answer.nvmlReturn == 0
    }
    if not traffic:
        raise Unsupported("no NVLink traffic counters")
    return traffic


def _fabric(nvml: Any, gpu: Any) -> Answer:
    fabric = nvml.c_nvmlGpuFabricInfoV_t()
    fabric.version = nvml.nvmlGpuFabricInfo_v2
    nvml.nvmlDeviceGetGpuFabricInfoV(gpu, ctypes.byref(fabric))
    if fabric.state == FABRIC_NOT_SUPPORTED:
        raise Unsupported("not part of a fabric")
    # DCGM's status of the probe: NVML's state, except that a probe that completed with an error is failed.
    status = int(fabric.state)
    if status > FABRIC_COMPLETED:
        status = FABRIC_UNRECOGNIZED
    elif status == FABRIC_COMPLETED and fabric.status:
        status = FABRIC_FAILED
    return {"state": fabric.state, "status": status, "health": fabric.healthMask}


def _processes(nvml: Any, gpu: Any) -> Answer:
    processes = [
        *nvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu),
        *nvml.nvmlDeviceGetGraphicsRunningProcesses_v3(gpu),
    ]
    return float(len({entry.pid for entry in processes}))


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


def _read_number(function: str) -> NvmlCall:
    """A call that takes a handle and returns a number."""
    return NvmlCall(function, lambda module, gpu: getattr(module, function)(gpu))


def _read_first(function: str) -> NvmlCall:
    """A call that takes a handle and returns a pair; the first value is used."""
    return NvmlCall(function, lambda module, gpu: getattr(module, function)(gpu)[0])


def _read_tuple(function: str, *names: str) -> NvmlCall:
    """A call that takes a handle and returns a value for each of these parts."""
    return NvmlCall(function, lambda module, gpu: dict(zip(names, getattr(module, function)(gpu), strict=True)))


def _read_members(function: str, **members: str) -> NvmlCall:
    """A call that takes a handle and returns a structure; each part is one of its members."""

    def read(module: Any, gpu: Any) -> Answer:
        answer = getattr(module, function)(gpu)
        return {part: getattr(answer, member) for part, member in members.items()}

    return NvmlCall(function, read)


def _read_pcie(what: str) -> NvmlCall:
    """The generation or width of the PCIe link, now and at most."""
    current, maximum = f"nvmlDeviceGetCurrPcieLink{what}", f"nvmlDeviceGetMaxPcieLink{what}"
    return NvmlCall(
        current, lambda module, gpu: {"now": getattr(module, current)(gpu), "max": getattr(module, maximum)(gpu)}
    )


def _read_by_part(function: str) -> NvmlCall:
    """A call that takes a handle and one number, such as a clock domain."""
    return NvmlCall(function, read_part=lambda module, gpu, part: getattr(module, function)(gpu, part))


CALLS: Mapping[str, NvmlCall] = {
    "utilization": _read_members("nvmlDeviceGetUtilizationRates", gpu="gpu", memory="memory"),
    "memory": NvmlCall("nvmlDeviceGetMemoryInfo_v2", _memory),
    "bar1": _read_members("nvmlDeviceGetBAR1MemoryInfo", total="bar1Total", free="bar1Free", used="bar1Used"),
    "temperature": NvmlCall("nvmlDeviceGetTemperature", lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, 0)),
    "margin": _read_number("nvmlDeviceGetMarginTemperature"),
    "slowdown_margin": NvmlCall("nvmlDeviceGetMarginTemperature", _slowdown_margin),
    "threshold": _read_by_part("nvmlDeviceGetTemperatureThreshold"),
    "clock": _read_by_part("nvmlDeviceGetClockInfo"),
    "max_clock": _read_by_part("nvmlDeviceGetMaxClockInfo"),
    "clocks_event": _read_number("nvmlDeviceGetCurrentClocksEventReasons"),
    "clocks_event_reason": NvmlCall("nvmlDeviceGetCurrentClocksEventReasons", _clocks_event_reason),
    "pstate": _read_number("nvmlDeviceGetPerformanceState"),
    "fan": _read_number("nvmlDeviceGetFanSpeed"),
    "power": _read_number("nvmlDeviceGetPowerUsage"),
    "power_limit": _read_number("nvmlDeviceGetPowerManagementLimit"),
    "power_default": _read_number("nvmlDeviceGetPowerManagementDefaultLimit"),
    "power_constraints": _read_tuple("nvmlDeviceGetPowerManagementLimitConstraints", "min", "max"),
    "power_enforced": _read_number("nvmlDeviceGetEnforcedPowerLimit"),
    "energy": _read_number("nvmlDeviceGetTotalEnergyConsumption"),
    "pcie_throughput": _read_by_part("nvmlDeviceGetPcieThroughput"),
    "pcie_replay": _read_number("nvmlDeviceGetPcieReplayCounter"),
    "pcie_generation": _read_pcie("Generation"),
    "pcie_width": _read_pcie("Width"),
    "encoder": _read_first("nvmlDeviceGetEncoderUtilization"),
    "decoder": _read_first("nvmlDeviceGetDecoderUtilization"),
    "remap_banks": _read_members("nvmlDeviceGetRowRemapperHistogram", **{name: name for name in REMAP_BANKS}),
    "remapped_rows": _read_tuple("nvmlDeviceGetRemappedRows", *REMAPPED_ROWS),
    "nvlink_errors": NvmlCall("nvmlDeviceGetNvLinkErrorCounter", _nvlink_errors),
    "nvlink_up": NvmlCall("nvmlDeviceGetNvLinkState", _nvlink_up),
    "nvlink_traffic": NvmlCall("nvmlDeviceGetFieldValues", _nvlink_traffic),
    "fabric": NvmlCall("nvmlDeviceGetGpuFabricInfoV", _fabric),
    "processes": NvmlCall("nvmlDeviceGetComputeRunningProcesses_v3", _processes),
    "inforom_valid": NvmlCall("nvmlDeviceValidateInforom", _inforom_valid),
    "sram_threshold": NvmlCall("nvmlDeviceGetSramEccErrorStatus", _sram_threshold),
    "unrepairable": _read_number("nvmlDeviceGetUnrepairableMemoryFlag_v1"),
    "vgpu_license": NvmlCall("nvmlDeviceGetGridLicensableFeatures_v4", _vgpu_license),
    "persistence": _read_number("nvmlDeviceGetPersistenceMode"),
    "mig_mode": _read_first("nvmlDeviceGetMigMode"),
    "compute_mode": _read_number("nvmlDeviceGetComputeMode"),
}
