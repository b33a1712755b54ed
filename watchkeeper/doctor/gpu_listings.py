"""nvidia-smi in all its forms, and exporter pages: values of GPUs that speak for a fault."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from watchkeeper.catalogue import tables
from watchkeeper.doctor.facts import DoctorFacts
from watchkeeper.doctor.listing import Listing, add
from watchkeeper.model import fleet
from watchkeeper.readers import nvidia_smi
from watchkeeper.readers.nvidia_smi import GpuReading

# Corrected errors are repaired and no reason to act; this many since the last reset are worth a look.
CORRECTED_STORM = 10_000
# One degree below the limit is at the limit: the sensor reads whole degrees.
LIMIT_MARGIN_CELSIUS = 1
# A limit lowered by less than this is a rounding of the vendor's tool.
POWER_SHARE = 0.9
IDLE_SAMPLES = 10
SEVERAL_GPUS = 3
SMI_MARKS = (
    "NVSMI LOG",
    "Attached GPUs",
    "NVIDIA-SMI",
    "Volatile",
    "Slowdown",
    "Remapp",
    "GPU Current Temp",
    "ECC Errors",
    "Clocks ",
    "Power Limit",
)
TRAINING_BOARD = re.compile(r"\b(?:V100|A100|A800|H100|H800|H20|H200|GH200|B100|B200|B300|GB200|GB300)\b")
# DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-…",…} 79
SERIES = re.compile(
    r"^(?P<name>(?:DCGM_FI|DCGM_EXP|nvidia_smi)_\w+)(?:\{(?P<labels>.*)\})?\s+(?P<value>[-+\d.eE]+)\s*$", re.M
)
LABEL = re.compile(r'(\w+)="([^"]*)"')
# #Entity    XIDER        then      GPU 1      120          (dcgmi dmon -e 230)
DMON_HEADER = re.compile(r"^#\s?Entity\s+(.*)$")
DMON_ROW = re.compile(r"^GPU (\d+)\s+(.*)$")
# Boards that no NVSwitch connects; the table shortens their names: `NVIDIA GeForce ...`, `NVIDIA A100-PCI...`.
FABRIC_MANAGER = re.compile(r"(?i)fabric[ -]?manager")
WITHOUT_NVSWITCH = re.compile(r"GeForce|GTX|RTX|TITAN|Quadro|PCI|\b(?:T4|P4|P40|M60|L4|L40S?|A2|A10G?|A16|A30|A40)\b")


def read(listing: Listing, facts: DoctorFacts) -> None:
    gpus = _gpus(listing)
    hot = [gpu for gpu in gpus if _judge(gpu, listing, facts)]
    if len(hot) >= SEVERAL_GPUS:
        add(facts, listing, "smi-several-hot", line=hot[0].line, fields={"gpus": str(len(hot))})
    if "Link " in listing.text and "(UUID:" in listing.text:
        _read_nvlinks(listing, facts)
    if "_FI_DEV_" in listing.text or "nvidia_smi_" in listing.text:
        _read_page(listing, facts)
    if listing.kind == "nvidia_smi_csv" or "utilization.gpu" in listing.text or "--query-gpu" in listing.text:
        _read_samples(listing, facts)
    if "XIDER" in listing.text:
        _read_dmon(listing, facts)
    models = [model.text for gpu in gpus if (model := gpu.get("product_name")) is not None]
    if models and all(map(WITHOUT_NVSWITCH.search, models)) and FABRIC_MANAGER.search(listing.text):
        add(facts, listing, "gpu-without-nvswitch", line=gpus[0].line, fields={})


def _gpus(listing: Listing) -> Sequence[GpuReading]:
    if listing.kind == "nvidia_smi_xml" or "<nvidia_smi_log" in listing.text[:2000]:
        try:
            return nvidia_smi.read_xml(listing.text)
        except nvidia_smi.NotNvidiaSmi:
            return []
    if listing.kind != "nvidia_smi_q" and not any(mark in listing.text for mark in SMI_MARKS):
        return []
    readings = nvidia_smi.read_query(listing.lines) + nvidia_smi.read_table(listing.lines)
    if listing.kind.startswith("nvidia_smi") and not any(
        "/" in key for gpu in readings for key in gpu.values if not key.startswith("table/")
    ):
        loose = nvidia_smi.read_query_excerpt(listing.lines)
        readings += [loose] if loose is not None else []
    return readings


def _judge(gpu: GpuReading, listing: Listing, facts: DoctorFacts) -> bool:
    """Add every sign of one GPU; true if it is at its temperature limit."""
    place = {"gpu": gpu.index or ""}
    if gpu.name:
        place["pci"] = fleet.normalise_pci(gpu.name)
    for sign, line in (*_memory_signs(gpu), *_clock_signs(gpu), *_link_signs(gpu), *_mode_signs(gpu)):
        add(facts, listing, sign, line=line, fields=dict(place))
    limit_line = _at_limit(gpu)
    if limit_line is not None:
        add(facts, listing, "smi-at-limit", line=limit_line, fields=dict(place))
    return limit_line is not None


def _memory_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    for key, value in gpu.values.items():
        number = value.number or 0
        if ("volatile" in key and "uncorrectable" in key) or key.endswith(("volatile/double_bit/total",)):
            if number > 0:
                yield "smi-ecc-volatile", value.line
        elif "volatile" in key and "correctable" in key and number >= CORRECTED_STORM:
            yield "smi-ecc-corrected", value.line
        elif value.text == "Yes" and key.endswith(
            (
                "remapped_rows/pending",
                "remapped_row_pending",
                "retired_pages/pending_page_blacklist",
                "pending_retirement",
                "channel_repair_pending",
            )
        ):
            yield "smi-remap-pending", value.line
        elif value.text == "Yes" and key.endswith(
            ("remapping_failure_occurred", "remapped_row_failure", "unrepairable_memory", "sram_threshold_exceeded")
        ):
            yield "smi-remap-failure", value.line


def _clock_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    # Counters of the same names stand in another section, with times instead of states.
    active = {key: value for key, value in gpu.values.items() if value.text == "Active" and "reason" in key}
    for key, value in active.items():
        if key.endswith(("hw_thermal_slowdown", "sw_thermal_slowdown")):
            yield "smi-thermal", value.line
        elif key.endswith(("hw_power_brake_slowdown", "hw_power_brake")):
            yield "smi-power-brake", value.line
        elif key.endswith("hw_slowdown") and not any(
            other.endswith(("thermal_slowdown", "brake_slowdown", "power_brake")) for other in active
        ):
            yield "smi-hw-slowdown", value.line
    default = gpu.get("default_power_limit")
    enforced = gpu.get("enforced_power_limit", "current_power_limit", "/power_limit")
    capped = any(key.endswith("sw_power_cap") for key in active)
    if (
        default
        and enforced
        and default.number
        and enforced.number
        and capped
        and enforced.number < POWER_SHARE * default.number
    ):
        yield "smi-power-limit-low", enforced.line


def _at_limit(gpu: GpuReading) -> int | None:
    """The line of a temperature at the limit that the GPU itself reports; no other limit is guessed."""
    now, limit = (
        gpu.get("gpu_current_temp", "temperature/gpu_temp"),
        gpu.get("gpu_max_operating_temp", "gpu_temp_max_gpu_threshold"),
    )
    if now and limit and now.number is not None and limit.number and now.number >= limit.number - LIMIT_MARGIN_CELSIUS:
        return now.line
    slowdown = gpu.get("gpu_slowdown_temp", "gpu_temp_slow_threshold")
    if now and slowdown and now.number is not None and slowdown.number and now.number >= slowdown.number:
        return now.line
    return None


def _link_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    width, most = gpu.get("link_width/current", "current_link_width"), gpu.get("link_width/max", "max_link_width")
    if width and most and width.number and most.number and width.number <= most.number / _width_divisor(gpu):
        yield "smi-pcie-width", width.line
    generation = gpu.get("pcie_generation/current", "current_link_gen", "pcie_gen/current_link_gen")
    best = gpu.get("pcie_generation/device_max", "max_device_link_gen", "pcie_generation/max", "max_link_gen")
    host = gpu.get("pcie_generation/host_max", "max_host_link_gen")
    busy = gpu.get("performance_state", "perf_state")
    if generation and best and generation.number and best.number and busy is not None and busy.text == "P0":
        reachable = min(best.number, host.number) if host is not None and host.number else best.number
        if generation.number < reachable:
            yield "smi-pcie-generation", generation.line


def _width_divisor(gpu: GpuReading) -> int:
    """Training boards sit in slots with all lanes; other cards run well in slots with half of them."""
    model = gpu.get("product_name")
    return 2 if model is not None and TRAINING_BOARD.search(model.text) else 4


def _mode_signs(gpu: GpuReading) -> Iterable[tuple[str, int]]:
    current, pending = gpu.get("mig_mode/current", "current_mig"), gpu.get("mig_mode/pending", "pending_mig")
    if current and pending and {current.text, pending.text} == {"Enabled", "Disabled"}:
        yield "smi-mig-pending", pending.line
    state, status = gpu.get("fabric/state"), gpu.get("fabric/status")
    if state and (state.text in ("In Progress", "Not Started") or (status and status.text not in ("Success", "N/A"))):
        yield "smi-fabric", state.line
    recovery_action = gpu.get("gpu_recovery_action")
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
            # A GPU that still tells its temperature and its power has not left the bus, whatever else it does not tell.
            yield "smi-unreadable", gpu.line


def _read_nvlinks(listing: Listing, facts: DoctorFacts) -> None:
    links = list(nvidia_smi.read_nvlinks(listing.lines))
    active = {gpu for _, gpu, _, state in links if "GB/s" in state}
    for line, gpu, link, state in links:
        counter = re.match(r"(?:.*Error.*): (\d+)$", state)
        if "inactive" in state and active:
            add(facts, listing, "nvlink-inactive", line=line, fields={"gpu": gpu, "link": link})
        elif counter is not None and int(counter[1]) > 0:
            add(facts, listing, "nvlink-counters", line=line, fields={"gpu": gpu, "link": link})


def _read_page(listing: Listing, facts: DoctorFacts) -> None:
    """An exporter's page: flags and counters that are a fault by themselves."""
    for match in SERIES.finditer(listing.text):
        name, value = match["name"], float(match["value"])
        sign = _sign_of_series(name, value)
        if sign is None:
            continue
        labels = dict(LABEL.findall(match["labels"] or ""))
        fields = {
            "gpu": labels.get("gpu", ""),
            "uuid": labels.get("UUID", labels.get("uuid", "")),
            "node": labels.get("Hostname", labels.get("hostname", "")),
            "pod": labels.get("pod", ""),
        }
        if labels.get("pci_bus_id"):
            fields["pci"] = fleet.normalise_pci(labels["pci_bus_id"])
        if sign == "page-xid":
            fields["code"] = labels.get("xid", str(int(value))) if name.startswith("DCGM_EXP") else str(int(value))
        add(facts, listing, sign, line=listing.text.count("\n", 0, match.start()) + 1, fields=fields)


def _sign_of_series(name: str, value: float) -> str | None:
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
        return _sign_of_reasons(int(value))
    if name.endswith(("reasons_hw_thermal_slowdown", "reasons_sw_thermal_slowdown")):
        return "smi-thermal"
    return "smi-power-brake" if name.endswith("reasons_hw_power_brake_slowdown") else None


def _sign_of_reasons(bits: int) -> str | None:
    # The bit for either reason (hw_slowdown) is set beside the one that says which.
    named = {row.name for row in tables.clock_reasons() if bits & row.bit and row.cause}
    if "hw_power_brake" in named:
        return "smi-power-brake"
    return "smi-thermal" if named & {"hw_thermal_slowdown", "sw_thermal_slowdown"} else None


def _read_dmon(listing: Listing, facts: DoctorFacts) -> None:
    """Rows of `dcgmi dmon` with the column of the last Xid."""
    names: list[str] = []
    for number, line in enumerate(listing.lines, 1):
        if (header := DMON_HEADER.match(line)) is not None:
            names = header[1].split()
        elif "XIDER" in names and (row := DMON_ROW.match(line)) is not None:
            cell = dict(zip(names, row[2].split(), strict=False)).get("XIDER", "")
            if cell.isdigit() and int(cell) > 0:
                add(facts, listing, "page-xid", line=number, fields={"gpu": row[1], "code": cell})


def _read_samples(listing: Listing, facts: DoctorFacts) -> None:
    """Rows of --query-gpu: thermal flags in any row, and a GPU that held memory without work in all of them."""
    held: dict[str, list[tuple[int, float, float]]] = {}
    for line, row in nvidia_smi.read_csv(listing.lines):
        gpu = row.get("index", row.get("uuid", row.get("pci_bus_id", "")))
        for name, value in row.items():
            if value == "Active" and "thermal_slowdown" in name:
                add(facts, listing, "smi-thermal", line=line, fields={"gpu": gpu})
            elif value == "Active" and "power_brake" in name:
                add(facts, listing, "smi-power-brake", line=line, fields={"gpu": gpu})
            elif name == "gpu_recovery_action" and value not in ("None", "N/A", ""):
                add(facts, listing, "smi-recovery-action", line=line, fields={"gpu": gpu})
            elif "ecc_errors_uncorrected_volatile" in name and value.isdigit() and int(value) > 0:
                add(facts, listing, "smi-ecc-volatile", line=line, fields={"gpu": gpu})
        busy, used = (
            nvidia_smi.Value(row.get("utilization_gpu", ""), line),
            nvidia_smi.Value(row.get("memory_used", ""), line),
        )
        if busy.number is not None and used.number is not None:
            held.setdefault(gpu, []).append((line, busy.number, used.number))
    for gpu, samples in held.items():
        if len(samples) >= IDLE_SAMPLES and all(busy == 0 and used > 1000 for _, busy, used in samples):
            add(facts, listing, "gpu-idle-samples", line=samples[0][0], fields={"gpu": gpu})
