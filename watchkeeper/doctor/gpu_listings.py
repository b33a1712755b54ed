"""Read nvidia-smi output in all formats and exporter pages, and add a sign for each value that indicates a fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from watchkeeper.catalogue import tables
from watchkeeper.doctor.listing import Listing
from watchkeeper.model import fleet
from watchkeeper.readers import nvidia_smi
from watchkeeper.readers.nvidia_smi import GpuReading

# Corrected errors need no action; this many since the last reset are worth a check.
CORRECTED_STORM = 10_000
# One degree below the limit counts as at the limit: the sensor reads whole degrees.
LIMIT_MARGIN_CELSIUS = 1
# A power limit above this share of the default is a rounding of the vendor's tool.
LOW_POWER_SHARE = 0.9
IDLE_SAMPLES = 10
SEVERAL_GPUS = 3
SMI_MARKS = (
    "NVSMI LOG", "Attached GPUs", "NVIDIA-SMI", "Volatile", "Slowdown", "Remapp", "GPU Current Temp", "ECC Errors",
    "Clocks ", "Power Limit",
)  # fmt: skip
REMAP_PENDING = (
    "remapped_rows/pending", "remapped_row_pending", "retired_pages/pending_page_blacklist", "pending_retirement",
    "channel_repair_pending",
)  # fmt: skip
REMAP_FAILURE = (
    "remapping_failure_occurred", "remapped_row_failure", "unrepairable_memory", "sram_threshold_exceeded",
)  # fmt: skip
TRAINING_BOARD = re.compile(r"\b(?:V100|A100|A800|H100|H800|H20|H200|GH200|B100|B200|B300|GB200|GB300)\b")
# DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-…",…} 79
SERIES = re.compile(
    r"^(?P<name>(?:DCGM_FI|DCGM_EXP|nvidia_smi)_\w+)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+\d.eE]+)\s*$", re.M
)
LABEL = re.compile(r'(\w+)="([^"]*)"')
# #Entity    XIDER        then      GPU 1      120          (dcgmi dmon -e 230)
DMON_HEADER = re.compile(r"^#\s?Entity\s+(.*)$")
DMON_ROW = re.compile(r"^GPU (\d+)\s+(.*)$")
# GPU models without NVSwitch; the table shortens their names: `NVIDIA GeForce ...`, `NVIDIA A100-PCI...`.
FABRIC_MANAGER = re.compile(r"(?i)fabric[ -]?manager")
WITHOUT_NVSWITCH = re.compile(r"GeForce|GTX|RTX|TITAN|Quadro|PCI|\b(?:T4|P4|P40|M60|L4|L40S?|A2|A10G?|A16|A30|A40)\b")


def read_gpu_signs(listing: Listing) -> None:
    gpus = _read_gpus(listing)
    hot = [gpu for gpu in gpus if _add_gpu_signs(gpu, listing)]
    if len(hot) >= SEVERAL_GPUS:
        listing.add_sign("smi-several-hot", hot[0].line, gpus=str(len(hot)))
    if "Link " in listing.text and "(UUID:" in listing.text:
        _add_nvlink_signs(listing)
    if "_FI_DEV_" in listing.text or "nvidia_smi_" in listing.text:
        _add_page_signs(listing)
    if listing.kind == "nvidia_smi_csv" or "utilization.gpu" in listing.text or "--query-gpu" in listing.text:
        _add_sample_signs(listing)
    if "XIDER" in listing.text:
        _add_dmon_signs(listing)
    models = [model.text for gpu in gpus if (model := gpu.find("product_name")) is not None]
    if models and all(map(WITHOUT_NVSWITCH.search, models)) and FABRIC_MANAGER.search(listing.text):
        listing.add_sign("gpu-without-nvswitch", gpus[0].line)


def _read_gpus(listing: Listing) -> Sequence[GpuReading]:
    if listing.kind == "nvidia_smi_xml" or "<nvidia_smi_log" in listing.text[:2000]:
        try:
            return nvidia_smi.read_xml(listing.text)
        except nvidia_smi.NotNvidiaSmi:
            return []
    if listing.kind != "nvidia_smi_q" and not any(mark in listing.text for mark in SMI_MARKS):
        return []
    readings = nvidia_smi.read_query(listing.lines) + nvidia_smi.read_table(listing.lines)
    query_keys = (key for gpu in readings for key in gpu.values if not key.startswith("table/"))
    if listing.kind.startswith("nvidia_smi") and not any("/" in key for key in query_keys):
        excerpt = nvidia_smi.read_query_excerpt(listing.lines)
        readings += [excerpt] if excerpt is not None else []
    return readings


def _add_gpu_signs(gpu: GpuReading, listing: Listing) -> bool:
    """Add every sign of one GPU; True if it is at its temperature limit."""
    place = {"gpu": gpu.index or ""}
    if gpu.name:
        place["pci"] = fleet.normalise_pci(gpu.name)
    for sign, line in (*_memory_signs(gpu), *_clock_signs(gpu), *_link_signs(gpu), *_mode_signs(gpu)):
        listing.add_sign(sign, line, **place)
    limit_line = _limit_line(gpu)
    if limit_line is not None:
        listing.add_sign("smi-at-limit", limit_line, **place)
    return limit_line is not None


def _memory_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    for key, value in gpu.values.items():
        number = value.number or 0
        if ("volatile" in key and "uncorrectable" in key) or key.endswith("volatile/double_bit/total"):
            if number > 0:
                yield "smi-ecc-volatile", value.line
        elif "volatile" in key and "correctable" in key and number >= CORRECTED_STORM:
            yield "smi-ecc-corrected", value.line
        elif value.text == "Yes" and key.endswith(REMAP_PENDING):
            yield "smi-remap-pending", value.line
        elif value.text == "Yes" and key.endswith(REMAP_FAILURE):
            yield "smi-remap-failure", value.line


def _clock_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    # Another section has counters of the same names, with times instead of states.
    active = {key: value for key, value in gpu.values.items() if value.text == "Active" and "reason" in key}
    has_reason = any(key.endswith(("thermal_slowdown", "brake_slowdown", "power_brake")) for key in active)
    for key, value in active.items():
        if key.endswith(("hw_thermal_slowdown", "sw_thermal_slowdown")):
            yield "smi-thermal", value.line
        elif key.endswith(("hw_power_brake_slowdown", "hw_power_brake")):
            yield "smi-power-brake", value.line
        elif key.endswith("hw_slowdown") and not has_reason:
            yield "smi-hw-slowdown", value.line
    enforced = gpu.find("enforced_power_limit", "current_power_limit", "/power_limit")
    default_watts, watts = _number(gpu.find("default_power_limit")), _number(enforced)
    is_capped = any(key.endswith("sw_power_cap") for key in active)
    if is_capped and enforced and default_watts and watts and watts < LOW_POWER_SHARE * default_watts:
        yield "smi-power-limit-low", enforced.line


def _number(value: nvidia_smi.Value | None) -> float | None:
    return None if value is None else value.number


def _limit_line(gpu: GpuReading) -> int | None:
    """The line of a temperature at the limit that the GPU reports; without a reported limit there is none."""
    temperature = gpu.find("gpu_current_temp", "temperature/gpu_temp")
    limit = _number(gpu.find("gpu_max_operating_temp", "gpu_temp_max_gpu_threshold"))
    slowdown = _number(gpu.find("gpu_slowdown_temp", "gpu_temp_slow_threshold"))
    if temperature is None or temperature.number is None:
        return None
    is_at_limit = limit and temperature.number >= limit - LIMIT_MARGIN_CELSIUS
    return temperature.line if is_at_limit or (slowdown and temperature.number >= slowdown) else None


def _link_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    width = gpu.find("link_width/current", "current_link_width")
    lanes, max_lanes = _number(width), _number(gpu.find("link_width/max", "max_link_width"))
    # Training GPUs need slots with all lanes; other GPUs also run well with half of them.
    model = gpu.find("product_name")
    divisor = 2 if model is not None and TRAINING_BOARD.search(model.text) else 4
    if width and lanes and max_lanes and lanes <= max_lanes / divisor:
        yield "smi-pcie-width", width.line
    link = gpu.find("pcie_generation/current", "current_link_gen", "pcie_gen/current_link_gen")
    best = _number(gpu.find("pcie_generation/device_max", "max_device_link_gen", "pcie_generation/max", "max_link_gen"))
    host_best = _number(gpu.find("pcie_generation/host_max", "max_host_link_gen"))
    state, generation = gpu.find("performance_state", "perf_state"), _number(link)
    # Without load the driver lowers the generation of the link: only P0 counts.
    is_loaded = state is not None and state.text == "P0"
    if is_loaded and link and generation and best and generation < min(best, host_best or best):
        yield "smi-pcie-generation", link.line


def _mode_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    current, pending = gpu.find("mig_mode/current", "current_mig"), gpu.find("mig_mode/pending", "pending_mig")
    if current and pending and {current.text, pending.text} == {"Enabled", "Disabled"}:
        yield "smi-mig-pending", pending.line
    state, status = gpu.find("fabric/state"), gpu.find("fabric/status")
    if state and (state.text in ("In Progress", "Not Started") or (status and status.text not in ("Success", "N/A"))):
        yield "smi-fabric", state.line
    recovery_action = gpu.find("gpu_recovery_action")
    if recovery_action and recovery_action.text not in ("None", "N/A"):
        yield "smi-recovery-action", recovery_action.line
    table = [value for key, value in gpu.values.items() if key.startswith("table/")]
    if any("ERR!" in value.text for value in table) or any(
        "Unknown Error" in value.text or "GPU is lost" in value.text for value in gpu.values.values()
    ):
        fan, celsius, power = (gpu.values.get(f"table/{name}") for name in ("fan", "celsius", "power"))
        only_fan = fan is not None and fan.text == "ERR!" and sum("ERR!" in value.text for value in table) == 1
        if only_fan and celsius is not None:
            yield "smi-fan-error", gpu.line
        elif celsius is None or power is None or not (celsius.text[:1].isdigit() and power.text[:1].isdigit()):
            # A GPU that still reports temperature and power has not fallen off the bus.
            yield "smi-unreadable", gpu.line


def _add_nvlink_signs(listing: Listing) -> None:
    links = list(nvidia_smi.read_nvlinks(listing.lines))
    active = {gpu for _, gpu, _, state in links if "GB/s" in state}
    for line, gpu, link, state in links:
        counter = re.match(r"(?:.*Error.*): (\d+)$", state)
        if "inactive" in state and active:
            listing.add_sign("nvlink-inactive", line, gpu=gpu, link=link)
        elif counter is not None and int(counter[1]) > 0:
            listing.add_sign("nvlink-counters", line, gpu=gpu, link=link)


def _add_page_signs(listing: Listing) -> None:
    """Add signs for flags and counters of an exporter page that indicate a fault on their own."""
    for line, match in listing.numbered_matches(SERIES):
        name, value = match["name"], float(match["value"])
        sign = _series_sign(name, value)
        if sign is None:
            continue
        labels = dict(LABEL.findall(match["labels"] or ""))
        uuid, node = labels.get("UUID", labels.get("uuid", "")), labels.get("Hostname", labels.get("hostname", ""))
        fields = {"gpu": labels.get("gpu", ""), "uuid": uuid, "node": node, "pod": labels.get("pod", "")}
        if labels.get("pci_bus_id"):
            fields["pci"] = fleet.normalise_pci(labels["pci_bus_id"])
        if sign == "page-xid":
            fields["code"] = labels.get("xid", str(int(value))) if name.startswith("DCGM_EXP") else str(int(value))
        listing.add_sign(sign, line, **fields)


def _series_sign(name: str, value: float) -> str | None:
    # DCGM writes numbers near 2^63 and 2^47 for "not supported".
    if value <= 0 or value >= 1.4e14:
        return None
    if name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR", "DCGM_EXP_XID_ERRORS_COUNT"):
        return "page-xid"
    if name in ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"):
        return "smi-remap-failure"
    if name in ("DCGM_FI_DEV_ROW_REMAP_PENDING", "DCGM_FI_DEV_RETIRED_PENDING"):
        return "smi-remap-pending"
    if name.startswith("DCGM_FI_DEV_ECC_DBE_VOL") or (
        name.startswith("nvidia_smi_ecc_errors_uncorrected_volatile") and name.endswith("total")
    ):
        return "smi-ecc-volatile"
    if name in ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"):
        # The bit hw_slowdown is set together with the bit for the specific reason.
        reasons = {row.name for row in tables.clock_reasons() if int(value) & row.bit and row.cause}
        is_thermal = reasons & {"hw_thermal_slowdown", "sw_thermal_slowdown"}
        return "smi-power-brake" if "hw_power_brake" in reasons else "smi-thermal" if is_thermal else None
    if name.endswith(("reasons_hw_thermal_slowdown", "reasons_sw_thermal_slowdown")):
        return "smi-thermal"
    return "smi-power-brake" if name.endswith("reasons_hw_power_brake_slowdown") else None


def _add_dmon_signs(listing: Listing) -> None:
    names: list[str] = []
    for number, line in enumerate(listing.lines, 1):
        if (header := DMON_HEADER.match(line)) is not None:
            names = header[1].split()
        elif "XIDER" in names and (row := DMON_ROW.match(line)) is not None:
            cell = dict(zip(names, row[2].split(), strict=False)).get("XIDER", "")
            if cell.isdigit() and int(cell) > 0:
                listing.add_sign("page-xid", number, gpu=row[1], code=cell)


def _add_sample_signs(listing: Listing) -> None:
    """Add signs for rows of --query-gpu: flags in any row, and a GPU that is idle with used memory in all rows."""
    samples_by_gpu: dict[str, list[tuple[int, float, float]]] = {}
    for line, row in nvidia_smi.read_csv(listing.lines):
        gpu = row.get("index", row.get("uuid", row.get("pci_bus_id", "")))
        for name, value in row.items():
            if (sign := _column_sign(name, value)) is not None:
                listing.add_sign(sign, line, gpu=gpu)
        busy, used = (nvidia_smi.Value(row.get(name, ""), line).number for name in ("utilization_gpu", "memory_used"))
        if busy is not None and used is not None:
            samples_by_gpu.setdefault(gpu, []).append((line, busy, used))
    for gpu, samples in samples_by_gpu.items():
        if len(samples) >= IDLE_SAMPLES and all(busy == 0 and used > 1000 for _, busy, used in samples):
            listing.add_sign("gpu-idle-samples", samples[0][0], gpu=gpu)


def _column_sign(name: str, value: str) -> str | None:
    if value == "Active" and "thermal_slowdown" in name:
        return "smi-thermal"
    if value == "Active" and "power_brake" in name:
        return "smi-power-brake"
    if name == "gpu_recovery_action" and value not in ("None", "N/A", ""):
        return "smi-recovery-action"
    is_volatile_error = "ecc_errors_uncorrected_volatile" in name and value.isdigit() and int(value) > 0
    return "smi-ecc-volatile" if is_volatile_error else None
