"""Judge kernel lines: which Xid was first, and which only follow from another.

An Xid is a report, not a cause: 45 tears down channels after any other fault, 43 and 13 follow a lost GPU, 154 names
the recovery action. So the Xids of each GPU are judged together, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from watchkeeper.catalogue import tables, xid
from watchkeeper.doctor.facts import MAX_EVIDENCE, DoctorFacts, Opinion, Sighting, field_values, opinion
from watchkeeper.model import diagnosis

# Xids that are always a consequence of another fault.
CONSEQUENT_XIDS = frozenset({45, 154})
LOST, REMAP_FAILED, REMAP_RECORDED = 79, 64, 63
HALTED_XIDS = frozenset({61, 62, 169})
# The confidence of a cause from a single Xid; all other causes have less.
CONFIDENCE = {
    "gpu_fell_off_bus": 0.95,
    "ecc_uncorrectable": 0.93,
    "row_remap_failure": 0.92,
    "nvlink_error": 0.9,
    "gsp_timeout": 0.88,
    "row_remap_pending": 0.85,
    "app_illegal_access": 0.85,
    "ecc_correctable_storm": 0.75,
    "pcie_degraded": 0.7,
}
HARDWARE = frozenset({"gpu_fell_off_bus", "ecc_uncorrectable", "row_remap_failure", "nvlink_error", "gsp_timeout"})
# Before this time since boot, no job runs on the node.
BOOT_SECONDS = 180.0
MANY_CORRECTED = 3
# Drivers of devices whose PCIe errors can affect a GPU job: ports, GPUs and their other functions, network adapters.
RELEVANT_DRIVERS = frozenset({
    "pcieport", "pci", "nvidia", "nvidia-nvswitch", "vfio-pci", "snd_hda_intel", "mlx5_core", "mlx4_core", "bnxt_en",
    "ice",
})  # fmt: skip
PORT_DRIVERS = frozenset({"pcieport", "pci"})
# Signs of tasks that wait in the kernel, from its watchdog and its old and new task listings.
BLOCKED_TASK_SIGNS = ("task-blocked", "task-waits", "task-waits-traced")
# … 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000002 0x00000000 …)
NVLINK_REGISTERS = re.compile(r"\d, (?:pid=.*?, )?(?P<unit>[A-Z]+_[A-Z_]+) .*\(0x[0-9a-f]+ (?P<status>0x[0-9a-f]+)")


def xids(facts: DoctorFacts) -> Iterable[Opinion]:
    by_gpu: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.find("kernel-xid"):
        by_gpu.setdefault((sighting.fields.get("node", ""), sighting.fields.get("pci", "")), []).append(sighting)
    for gpu, sightings in by_gpu.items():
        yield from _judge_gpu(sightings, _gpu_names(facts, *gpu))


def _gpu_names(facts: DoctorFacts, node: str, pci: str) -> tuple[tuple[str, str], ...]:
    """The UUID of the GPU, and the rank on it if the inputs include NCCL's lines."""
    uuids = [("uuid", line.fields["uuid"]) for line in facts.find("gpu-identity") if line.fields["pci"] == pci]
    ranks = (
        ("rank", line.fields["rank"])
        for line in facts.find("nccl-rank")
        if node and line.fields.get("node") == node and _pci_of(line.fields.get("busid", "")) == pci
    )
    return (*uuids[:1], *ranks)


def _pci_of(bus_id: str) -> str | None:
    """Convert a bus id of NCCL, one hexadecimal number of domain, bus, device and function, into a PCI address."""
    try:
        number = int(bus_id, 16)
    except ValueError:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"


def _judge_gpu(sightings: Sequence[Sighting], places: tuple[tuple[str, str], ...]) -> Iterable[Opinion]:
    codes = [int(sighting.fields["code"]) for sighting in sightings]
    roots = [sighting for sighting, code in zip(sightings, codes, strict=True) if code not in CONSEQUENT_XIDS]
    actions = field_values(sightings, "recovery_action")
    row = tables.find_recovery_action(actions[-1]) if actions else None
    recovery = row.meaning if row is not None else None
    if not roots:
        # The driver names it as the cause of a torn-down channel.
        named_codes = [int(code) for code in field_values(sightings, "caused_by_xid")]
        previous_xid = next((code for code in named_codes if code not in CONSEQUENT_XIDS), None)
        if previous_xid is not None and _cause_of(previous_xid) in CONFIDENCE:
            why = f"The driver names Xid {previous_xid} ({xid.lookup(previous_xid).name}) as the previous one."
            yield opinion(_cause_of(previous_xid), 0.8, why, on=sightings[:MAX_EVIDENCE], where=places)
        else:
            names = ", ".join(f"Xid {code}" for code in sorted(set(codes)))
            why = f"{names} follows from another fault, which is not in these lines. {recovery or ''}".strip()
            advice = ["Add the kernel log of the minutes before: dmesg -T or journalctl -k"]
            yield opinion(diagnosis.UNKNOWN_CAUSE, 0.38, why, on=sightings[:MAX_EVIDENCE], advice=advice)
        return
    by_cause: dict[str, list[Sighting]] = {}
    for sighting in roots:
        by_cause.setdefault(_cause_of(int(sighting.fields["code"])), []).append(sighting)
    first = _cause_of(int(roots[0].fields["code"]))
    for cause, own_lines in by_cause.items():
        code = int(own_lines[0].fields["code"])
        orders = {line.order for line in own_lines}
        on = [*own_lines[:MAX_EVIDENCE], *[line for line in sightings if line.order not in orders][:3]]
        confidence = _confidence(cause, own_lines, first=first, others=frozenset(by_cause))
        why = _xid_text(code, own_lines, sightings, recovery=recovery)
        yield opinion(cause, confidence, why, on=on, ruled_out=_ruled_out(cause, codes), where=places)


def _confidence(cause: str, own_lines: Sequence[Sighting], *, first: str, others: frozenset[str]) -> float:
    if int(own_lines[0].fields["code"]) in HALTED_XIDS:
        return 0.4 if first == "app_illegal_access" else 0.62
    if cause == "nvlink_error" and all("Nonfatal" in sighting.text for sighting in own_lines):
        return 0.6
    if cause == "row_remap_pending" and "ecc_uncorrectable" in others:
        return 0.6
    confidence = CONFIDENCE.get(cause, 0.4 if cause == diagnosis.UNKNOWN_CAUSE else 0.65)
    # An illegal access does not break hardware, but broken hardware makes programs fail.
    if cause == "app_illegal_access" and others & (HARDWARE - {"gsp_timeout"}):
        return confidence * 0.5
    return confidence


def _cause_of(code: int) -> str:
    return "gsp_timeout" if code in HALTED_XIDS else xid.lookup(code).cause


def _xid_text(code: int, own_lines: Sequence[Sighting], all_lines: Sequence[Sighting], *, recovery: str | None) -> str:
    row = xid.lookup(code)
    parts = [f"Xid {code} ({row.name})" if row.is_known else row.name]
    first = all_lines[0].fields["code"]
    later = [number for number in dict.fromkeys(line.fields["code"] for line in all_lines) if int(number) != code]
    if str(code) == first and later:
        parts.append(f"was first; {', '.join(f'Xid {number}' for number in later)} followed")
    elif later:
        parts.append(f"occurred with {', '.join(f'Xid {number}' for number in later)}")
    if len(own_lines) > 1:
        parts.append(f"{len(own_lines)} times")
    if (detail := _nvlink_detail(code, own_lines)) is not None:
        parts.append(detail)
    processes = field_values(own_lines, "process")
    if len(processes) > 1:
        parts.append(f"by {len(processes)} different programs, so test the GPU")
    sentence = " ".join(parts) + "."
    return " ".join(part for part in (sentence, row.likely_cause and f"{row.likely_cause}.", recovery) if part)


def _nvlink_detail(code: int, lines: Sequence[Sighting]) -> str | None:
    """The meaning of the registers of an NVLink 5 Xid, from its decode table."""
    registers = NVLINK_REGISTERS.search(lines[0].text)
    row = None if registers is None else tables.find_nvlink_fault(code, registers["unit"], int(registers["status"], 16))
    return None if row is None else f"({row.severity.lower()}; NVIDIA: {row.resolution}; {row.local_effect})"


def _ruled_out(cause: str, codes: Sequence[int]) -> Iterable[str]:
    if cause == "app_illegal_access" and not {LOST, 48, 94, 95, 74, 119} & set(codes):
        yield "ecc_uncorrectable: no memory Xid (48, 94, 95) of this GPU in the log"
        yield "gpu_fell_off_bus: no Xid 79 of this GPU in the log"
    if cause in HARDWARE and {13, 31, 43, 45} & set(codes):
        yield "app_illegal_access: the application Xids came with or after the hardware Xids"
    if cause == "ecc_uncorrectable" and REMAP_FAILED not in codes:
        yield "row_remap_failure: no Xid 64; a reset should repair the row"
    if cause == "row_remap_pending" and 48 not in codes:
        yield "row_remap_failure: Xid 63 means that the remap was recorded; a failure is Xid 64"


def reported_xids(facts: DoctorFacts) -> Iterable[Opinion]:
    """Xids that another program reports: a device plugin, an exporter, the reason of a drained node."""
    for sighting in facts.find("xid-by-plugin", "xid-by-condition", "page-xid"):
        code = int(sighting.fields.get("code", "0"))
        if code == 0 or "NVRM" in sighting.text:
            continue
        row = xid.lookup(code)
        cause = _cause_of(code) if code not in CONSEQUENT_XIDS else diagnosis.UNKNOWN_CAUSE
        confidence = min(0.75 if sighting.sign == "page-xid" else 0.88, CONFIDENCE.get(cause, 0.4))
        why = f"Xid {code} ({row.name}) is reported. {row.likely_cause}".strip()
        yield opinion(cause, confidence, why, on=[sighting])


def switch_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """SXids: errors of an NVSwitch, which affect all GPUs connected to it."""
    for sighting in facts.find("kernel-sxid"):
        row = tables.find_sxid(int(sighting.fields["code"]))
        severity = sighting.fields.get("severity", "").lower()
        is_fatal = severity == "fatal" if severity else bool(row and row.is_fatal)
        is_thermal = row is not None and "thermal" in row.name.lower()
        why = f"SXid {sighting.fields['code']} ({row.name if row else 'not in the catalogue'}) of NVSwitch "
        why += sighting.fields.get("switch", "")
        if row is not None and row.severity == "info" and severity != "fatal":
            # Corrected, ended or without effect: no action, and not the cause of other faults.
            cause, confidence, why = diagnosis.UNKNOWN_CAUSE, 0.3, f"{why} is not a fault: {row.note}."
        else:
            cause = "cooling_failure" if is_thermal else "nvlink_error"
            confidence = 0.6 if is_thermal else 0.85 if is_fatal else 0.7
            why = f"{why}, {'fatal' if is_fatal else 'not fatal'}. {row.note if row else ''}".strip()
        yield opinion(cause, confidence, why, on=[_rename_pci("switch_pci", sighting)])


def bus_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """PCIe errors that the root ports report (AER)."""
    all_errors = facts.find("kernel-pcie_error")
    errors = [error for error in all_errors if error.fields.get("driver") in RELEVANT_DRIVERS]
    # The kernel names the driver that did not recover from an uncorrected error: if it is irrelevant, so is its port.
    unrecovered = facts.find("aer-not-recovered")
    if unrecovered and not any(error.fields["driver"] in RELEVANT_DRIVERS for error in unrecovered):
        errors = [
            error for error in errors if error.fields.get("driver") not in PORT_DRIVERS or not _is_uncorrected(error)
        ]
    if (all_errors or unrecovered) and not errors:
        drivers = ", ".join(field_values(unrecovered or all_errors, "driver"))
        why = f"The PCIe errors are of a device of {drivers}, which is no GPU, network adapter or port."
        # Without the address, which the report would show as the address of a GPU.
        other_devices = (unrecovered or all_errors)[:MAX_EVIDENCE]
        on = (replace(error, fields=dict(error.fields) | {"pci": ""}) for error in other_devices)
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.3, why, on=on)
    errors = [
        _rename_pci("port_pci", error) if error.fields.get("driver") in PORT_DRIVERS else error for error in errors
    ]
    uncorrected = [error for error in errors if _is_uncorrected(error)]
    if uncorrected:
        yield opinion("pcie_degraded", 0.75, "A PCIe port reports uncorrected errors.", on=uncorrected[:MAX_EVIDENCE])
    elif errors:
        count = facts.count("kernel-pcie_error") - len(all_errors) + len(errors)
        why = f"PCIe ports corrected {count} errors: the link is unreliable, but no data was lost."
        # Corrected errors of a port alone are common and mostly harmless; those of a GPU are errors of its link.
        is_of_gpu = any(error.fields.get("driver") == "nvidia" for error in errors)
        confidence = 0.62 if is_of_gpu and count >= MANY_CORRECTED else 0.48 if count > 1 else 0.4
        yield opinion("pcie_degraded", confidence, why, on=errors[:MAX_EVIDENCE])


def _rename_pci(name: str, sighting: Sighting) -> Sighting:
    """Move an address that is not of a GPU to another field, with its function number if the line has it."""
    pci = sighting.fields.get("pci", "")
    address = re.search(re.escape(pci) + r"\.[0-7]\b", sighting.text.lower()) if pci else None
    return replace(sighting, fields=dict(sighting.fields) | {"pci": "", name: pci if address is None else address[0]})


def _is_uncorrected(sighting: Sighting) -> bool:
    return "uncorrect" in sighting.fields.get("severity", "").lower()


def hung_calls(facts: DoctorFacts) -> Iterable[Opinion]:
    """Tasks that wait in the kernel, with functions of the driver or of a file system in their stacks."""
    blocked, stacks = facts.find(*BLOCKED_TASK_SIGNS), facts.find("stack-in-nvidia")
    storage_stacks = facts.find("stack-in-storage")
    if blocked and storage_stacks:
        name = storage_stacks[0].fields.get("module") or storage_stacks[0].fields["call"]
        why = f"Tasks wait for minutes in the kernel for storage: {name} is on their stacks."
        yield opinion("storage_unreachable", 0.72, why, on=[*blocked[:3], *storage_stacks[:3]])
    if blocked and stacks and not facts.has("driver-task-blocked"):
        why = "Tasks wait for minutes in the kernel with functions of the GPU driver on their stacks."
        yield opinion("driver_call_hung", 0.68, why, on=[*blocked[:3], *stacks[:3]])
    elif facts.has("task-blocked") and not facts.has("driver-task-blocked") and not storage_stacks:
        why = "Tasks wait for minutes in the kernel; the lines do not show why (storage, network or driver)."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.25, why, on=blocked[:3])


def stuck_processors(facts: DoctorFacts) -> Iterable[Opinion]:
    """CPUs that were stuck for many seconds; the stack shows whether the GPU driver was running."""
    stuck, stacks = facts.find("cpu-stuck"), facts.find("stack-in-nvidia")
    if stuck and stacks:
        why = "CPUs of the node were stuck for many seconds with functions of the GPU driver on their stacks."
        yield opinion("driver_call_hung", 0.62, why, on=[*stuck[:3], *stacks[:3]])
    elif stuck and not facts.has("soft-lockup-in-driver"):
        why = "CPUs of the node were stuck for many seconds; the lines do not show the GPU driver as the reason."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.35, why, on=stuck[:MAX_EVIDENCE])


def lost_links(facts: DoctorFacts) -> Iterable[Opinion]:
    """Network ports that lost their link; repeated losses have higher confidence, once may be an unplugged cable."""
    by_port: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.find("kernel-link_down"):
        since_boot = None if sighting.clock is None else sighting.clock.since_boot
        # During the boot, drivers log `Link down` for every port before its link is up.
        if since_boot is None or since_boot >= BOOT_SECONDS:
            port = (sighting.fields.get("node", ""), sighting.fields.get("interface", ""))
            by_port.setdefault(port, []).append(sighting)
    for (_, interface), sightings in by_port.items():
        times = len(sightings)
        why = f"{interface} lost its link {'once' if times == 1 else f'{times} times'}."
        yield opinion("ib_link_degraded", 0.45 if times == 1 else 0.65, why, on=sightings[:MAX_EVIDENCE])


def machine_checks(facts: DoctorFacts) -> Iterable[Opinion]:
    checks = facts.find("kernel-machine_check")
    if checks:
        why = "The CPU reports machine checks: node memory, the CPU or a bus fails; they are not about a GPU."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.35, why, on=checks[:MAX_EVIDENCE])
