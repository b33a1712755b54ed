"""The kernel's lines: which Xid came first, and which only follow from another.

An Xid is a report, not a cause. 45 tears down channels after any other fault, 43 and 13 follow a GPU
that is gone, 154 says what the driver wants now. So each GPU's codes are judged together, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from watchkeeper.catalogue import recovery_actions, tables, xid
from watchkeeper.doctor.facts import DoctorFacts, Sighting, values
from watchkeeper.doctor.opinion import MAX_EVIDENCE, Opinion, opinion
from watchkeeper.model import diagnosis

# Codes that are always the consequence of something else, or the driver's wish after it.
FOLLOWS = frozenset({45, 154})
LOST, REMAP_FAILED, REMAP_RECORDED = 79, 64, 63
HALTED = frozenset({61, 62, 169})
# What an Xid of a cause is worth when it is the only one; the rest of the catalogue is worth less.
CERTAIN = {
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
# Before this no job runs on the node yet that a port could take down.
BOOT_SECONDS = 180.0
MANY_CORRECTED = 3
# Whose PCIe errors may slow or stop a GPU job: ports, GPUs with the functions beside them, network adapters.
CARRIERS = frozenset(
    {
        "pcieport",
        "pci",
        "nvidia",
        "nvidia-nvswitch",
        "vfio-pci",
        "snd_hda_intel",
        "mlx5_core",
        "mlx4_core",
        "bnxt_en",
        "ice",
    }
)
PORTS = frozenset({"pcieport", "pci"})
# Tasks that wait in the kernel, as its watchdog and its listings in old and new shape have them.
WAITS = ("task-blocked", "task-waits", "task-waits-traced")
# … 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000002 0x00000000 …)
NVLINK_REGISTERS = re.compile(r"\d, (?:pid=.*?, )?(?P<unit>[A-Z]+_[A-Z_]+) .*\(0x[0-9a-f]+ (?P<status>0x[0-9a-f]+)")


def xids(facts: DoctorFacts) -> Iterable[Opinion]:
    """One verdict for each GPU that has Xids."""
    by_gpu: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.of("kernel-xid"):
        by_gpu.setdefault((sighting.fields.get("node", ""), sighting.fields.get("pci", "")), []).append(sighting)
    for sightings in by_gpu.values():
        yield from _judge_gpu(sightings, (*_uuids(facts, sightings), *_ranks(facts, sightings)))


def _uuids(facts: DoctorFacts, sightings: Sequence[Sighting]) -> tuple[tuple[str, str], ...]:
    pci = sightings[0].fields.get("pci")
    named = [sighting.fields["uuid"] for sighting in facts.of("gpu-identity") if sighting.fields["pci"] == pci]
    return (("uuid", named[0]),) if named else ()


def _ranks(facts: DoctorFacts, sightings: Sequence[Sighting]) -> tuple[tuple[str, str], ...]:
    """The rank that ran on this GPU of this node, where NCCL's lines were handed in as well."""
    node, pci = sightings[0].fields.get("node"), sightings[0].fields.get("pci")
    return tuple(
        ("rank", sighting.fields["rank"])
        for sighting in facts.of("nccl-rank")
        if node and sighting.fields.get("node") == node and _pci_of(sighting.fields.get("busid", "")) == pci
    )


def _pci_of(bus_id: str) -> str | None:
    """NCCL prints a PCI address as one hexadecimal number: domain, bus, device and function."""
    try:
        number = int(bus_id, 16)
    except ValueError:
        return None
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"


def _judge_gpu(sightings: Sequence[Sighting], uuid: tuple[tuple[str, str], ...]) -> Iterable[Opinion]:
    codes = [int(sighting.fields["code"]) for sighting in sightings]
    roots = [sighting for sighting, code in zip(sightings, codes, strict=True) if code not in FOLLOWS]
    recovery = _recovery_advice(sightings)
    if not roots:
        before = _named_before(sightings)
        if before is not None and _cause_of(before) in CERTAIN:
            why = f"The driver names Xid {before} ({xid.lookup(before).name}) as the one before these."
            yield opinion(_cause_of(before), 0.8, why, on=sightings[:MAX_EVIDENCE], where=uuid)
        else:
            yield _only_consequences(sightings, recovery)
        return
    by_cause: dict[str, list[Sighting]] = {}
    for sighting in roots:
        by_cause.setdefault(_cause_of(int(sighting.fields["code"])), []).append(sighting)
    first = _cause_of(int(roots[0].fields["code"]))
    for cause, mine in by_cause.items():
        code = int(mine[0].fields["code"])
        orders = {line.order for line in mine}
        yield opinion(
            cause,
            _confidence(cause, mine, first=first, others=frozenset(by_cause)),
            _why(code, mine, sightings, recovery=recovery),
            on=[*mine[:MAX_EVIDENCE], *[line for line in sightings if line.order not in orders][:3]],
            ruled_out=_ruled_out(cause, codes),
            where=uuid,
        )


def _confidence(cause: str, mine: Sequence[Sighting], *, first: str, others: frozenset[str]) -> float:
    if int(mine[0].fields["code"]) in HALTED:
        return 0.4 if first == "app_illegal_access" else 0.62
    if cause == "nvlink_error" and all("Nonfatal" in sighting.text for sighting in mine):
        return 0.6
    if cause == "row_remap_pending" and "ecc_uncorrectable" in others:
        return 0.6
    confidence = CERTAIN.get(cause, 0.4 if cause == diagnosis.UNKNOWN_CAUSE else 0.65)
    # A program that touches foreign memory does not break a board; a broken board does make programs fail.
    if cause == "app_illegal_access" and others & (HARDWARE - {"gsp_timeout"}):
        return confidence * 0.5
    return confidence


def _named_before(sightings: Sequence[Sighting]) -> int | None:
    """The Xid that the driver names as the one before a torn-down channel, if that is not a consequence itself."""
    codes = [int(code) for code in values(sightings, "caused_by_xid")]
    return next((code for code in codes if code not in FOLLOWS), None)


def _cause_of(code: int) -> str:
    if code in HALTED:
        return "gsp_timeout"
    return xid.lookup(code).cause


def _recovery_advice(sightings: Sequence[Sighting]) -> str | None:
    actions = values(sightings, "recovery_action")
    row = recovery_actions.from_text(actions[-1]) if actions else None
    return row.meaning if row is not None else None


def _only_consequences(sightings: Sequence[Sighting], recovery: str | None) -> Opinion:
    codes = sorted({int(sighting.fields["code"]) for sighting in sightings})
    named = ", ".join(f"Xid {code}" for code in codes)
    why = f"{named} follows from something else, and what came before is not in these lines"
    return opinion(
        diagnosis.UNKNOWN_CAUSE,
        0.38,
        f"{why}. {recovery or ''}".strip(),
        on=sightings[:MAX_EVIDENCE],
        advice=("Hand in the kernel log from some minutes earlier: dmesg -T or journalctl -k",),
    )


def _why(code: int, own_lines: Sequence[Sighting], all_lines: Sequence[Sighting], *, recovery: str | None) -> str:
    row = xid.lookup(code)
    parts = [f"Xid {code} ({row.name})" if row.is_known else row.name]
    first = all_lines[0].fields["code"]
    later = [number for number in dict.fromkeys(line.fields["code"] for line in all_lines) if int(number) != code]
    if str(code) == first and later:
        parts.append(f"came first; {', '.join(f'Xid {number}' for number in later)} followed")
    elif later:
        parts.append(f"was seen with {', '.join(f'Xid {number}' for number in later)}")
    if len(own_lines) > 1:
        parts.append(f"{len(own_lines)} times")
    if (detail := _nvlink_detail(code, own_lines)) is not None:
        parts.append(detail)
    processes = values(own_lines, "process")
    if len(processes) > 1:
        parts.append(f"by {len(processes)} different programs, so the GPU itself deserves a test")
    sentence = " ".join(parts) + "."
    return " ".join(part for part in (sentence, row.likely_cause and f"{row.likely_cause}.", recovery) if part)


def _nvlink_detail(code: int, lines: Sequence[Sighting]) -> str | None:
    """What the registers of an NVLink 5 Xid say, from its decode table."""
    registers = NVLINK_REGISTERS.search(lines[0].text)
    row = None if registers is None else tables.find_nvlink_fault(code, registers["unit"], int(registers["status"], 16))
    return None if row is None else f"({row.severity.lower()}; NVIDIA: {row.resolution}; {row.local_effect})"


def _ruled_out(cause: str, codes: Sequence[int]) -> Iterable[str]:
    if cause == "app_illegal_access" and not {LOST, 48, 94, 95, 74, 119} & set(codes):
        yield "ecc_uncorrectable: no memory Xid (48, 94, 95) of this GPU in the log"
        yield "gpu_fell_off_bus: no Xid 79 of this GPU in the log"
    if cause in HARDWARE and {13, 31, 43, 45} & set(codes):
        yield "app_illegal_access: the application's Xids came with or after the hardware's"
    if cause == "ecc_uncorrectable" and REMAP_FAILED not in codes:
        yield "row_remap_failure: no Xid 64; a reset should repair the row"
    if cause == "row_remap_pending" and 48 not in codes:
        yield "row_remap_failure: Xid 63 says that the remap was recorded; failure would be Xid 64"


def reported_xids(facts: DoctorFacts) -> Iterable[Opinion]:
    """Xids that another program reports: a device plugin, an exporter, an administrator's reason."""
    for sighting in facts.of("xid-by-plugin", "xid-by-condition", "page-xid"):
        code = int(sighting.fields.get("code", "0"))
        if code == 0 or "NVRM" in sighting.text:
            continue
        row = xid.lookup(code)
        trust = 0.75 if sighting.sign == "page-xid" else 0.88
        cause = _cause_of(code) if code not in FOLLOWS else diagnosis.UNKNOWN_CAUSE
        confidence = min(trust, CERTAIN.get(cause, 0.4))
        yield opinion(
            cause, confidence, f"Xid {code} ({row.name}) is reported. {row.likely_cause}".strip(), on=[sighting]
        )


def switch_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """SXids: errors of an NVSwitch, which every GPU behind it feels."""
    for sighting in facts.of("kernel-sxid"):
        row = tables.find_sxid(int(sighting.fields["code"]))
        severity = sighting.fields.get("severity", "").lower()
        fatal = severity == "fatal" if severity else bool(row and row.is_fatal)
        name = f" ({row.name})" if row else " (not in the catalogue)"
        if row is not None and row.severity == "info" and severity != "fatal":
            # Corrected, over, or without any effect: nothing to act on, and no reason for what else is wrong.
            switch = sighting.fields.get("switch", "")
            why = f"SXid {sighting.fields['code']}{name} of NVSwitch {switch} is no fault: {row.note}."
            yield opinion(diagnosis.UNKNOWN_CAUSE, 0.3, why, on=[_with_pci_as("switch_pci", sighting)])
            continue
        thermal = row is not None and "thermal" in row.name.lower()
        yield opinion(
            "cooling_failure" if thermal else "nvlink_error",
            0.6 if thermal else 0.85 if fatal else 0.7,
            f"SXid {sighting.fields['code']}{name} of NVSwitch {sighting.fields.get('switch', '')}, "
            f"{'fatal' if fatal else 'not fatal'}. {row.note if row else ''}".strip(),
            on=[_with_pci_as("switch_pci", sighting)],
        )


def bus_errors(facts: DoctorFacts) -> Iterable[Opinion]:
    """PCIe errors that the root ports report (AER)."""
    everything = facts.of("kernel-pcie_error")
    errors = [error for error in everything if error.fields.get("driver") in CARRIERS]
    # The kernel names whose driver could not recover from an uncorrected error: if that is no carrier, nor is its port.
    behind = facts.of("aer-not-recovered")
    if behind and not any(error.fields["driver"] in CARRIERS for error in behind):
        errors = [error for error in errors if error.fields.get("driver") not in PORTS or not _is_uncorrected(error)]
    if (everything or behind) and not errors:
        named = ", ".join(values(behind or everything, "driver"))
        why = f"The PCIe errors are those of a device of {named}: no GPU, no network adapter and no port above one."
        # An address would stand in the answer as that of a GPU.
        foreign = [
            replace(error, fields=dict(error.fields) | {"pci": ""}) for error in (behind or everything)[:MAX_EVIDENCE]
        ]
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.3, why, on=foreign)
    errors = [_with_pci_as("port_pci", error) if error.fields.get("driver") in PORTS else error for error in errors]
    worst = [error for error in errors if _is_uncorrected(error)]
    if worst:
        yield opinion("pcie_degraded", 0.75, "A PCIe port reports uncorrected errors.", on=worst[:MAX_EVIDENCE])
    elif errors:
        count = facts.count("kernel-pcie_error") - len(everything) + len(errors)
        why = f"PCIe ports corrected {count} errors: the link is unreliable, though no data was lost so far."
        # Corrected errors of a port alone are common and mostly harmless; those of the GPU itself are its link's.
        of_gpu = any(error.fields.get("driver") == "nvidia" for error in errors)
        confidence = 0.62 if of_gpu and count >= MANY_CORRECTED else 0.48 if count > 1 else 0.4
        yield opinion("pcie_degraded", confidence, why, on=errors[:MAX_EVIDENCE])


def _with_pci_as(name: str, sighting: Sighting) -> Sighting:
    """An address that is not a GPU's under a name of its own, with the function where the line has it."""
    pci = sighting.fields.get("pci", "")
    whole = re.search(re.escape(pci) + r"\.[0-7]\b", sighting.text.lower()) if pci else None
    return replace(sighting, fields=dict(sighting.fields) | {"pci": "", name: pci if whole is None else whole[0]})


def _is_uncorrected(sighting: Sighting) -> bool:
    return "uncorrect" in sighting.fields.get("severity", "").lower()


def hung_calls(facts: DoctorFacts) -> Iterable[Opinion]:
    """Tasks that wait in the kernel, with the functions of the driver or of a file system in their stacks."""
    blocked, stacks = facts.of(*WAITS), facts.of("stack-in-nvidia")
    files = facts.of("stack-in-storage")
    if blocked and files:
        name = files[0].fields.get("module") or files[0].fields["call"]
        why = f"Tasks wait for minutes in the kernel for files: {name} is on their stacks."
        yield opinion("storage_unreachable", 0.72, why, on=[*blocked[:3], *files[:3]])
    if blocked and stacks and not facts.has("driver-task-blocked"):
        why = "Tasks wait for minutes in the kernel, and the driver's functions are on the stacks."
        yield opinion("driver_call_hung", 0.68, why, on=[*blocked[:3], *stacks[:3]])
    elif facts.has("task-blocked") and not facts.has("driver-task-blocked") and not files:
        why = "Tasks wait for minutes in the kernel; the lines do not say for what (storage, network or the driver)."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.25, why, on=blocked[:3])


def stuck_processors(facts: DoctorFacts) -> Iterable[Opinion]:
    """Processors that ran nothing else for many seconds; the stack says whether the driver held them."""
    stuck, stacks = facts.of("cpu-stuck"), facts.of("stack-in-nvidia")
    if stuck and stacks:
        why = "Processors of the node were stuck for many seconds, and the driver's functions are on the stacks."
        yield opinion("driver_call_hung", 0.62, why, on=[*stuck[:3], *stacks[:3]])
    elif stuck and not facts.has("soft-lockup-in-driver"):
        why = "Processors of the node were stuck for many seconds; the lines do not say that the GPU driver held them."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.35, why, on=stuck[:MAX_EVIDENCE])


def lost_links(facts: DoctorFacts) -> Iterable[Opinion]:
    """Network ports that lost their link: once may be a cable that somebody pulled, again and again is not."""
    by_port: dict[tuple[str, str], list[Sighting]] = {}
    for sighting in facts.of("kernel-link_down"):
        if _while_booting(sighting):
            continue
        by_port.setdefault((sighting.fields.get("node", ""), sighting.fields.get("interface", "")), []).append(sighting)
    for (_, interface), sightings in by_port.items():
        times = len(sightings)
        why = f"{interface} lost its link {'once' if times == 1 else f'{times} times'}."
        yield opinion("ib_link_degraded", 0.45 if times == 1 else 0.65, why, on=sightings[:MAX_EVIDENCE])


def _while_booting(sighting: Sighting) -> bool:
    """A driver says `Link down` for every port that it starts with, before the link is up for the first time."""
    return (
        sighting.clock is not None
        and sighting.clock.since_boot is not None
        and sighting.clock.since_boot < BOOT_SECONDS
    )


def machine_checks(facts: DoctorFacts) -> Iterable[Opinion]:
    checks = facts.of("kernel-machine_check")
    if checks:
        why = "The processor reports machine checks: host memory, the processor or a bus fails; this is no GPU's word."
        yield opinion(diagnosis.UNKNOWN_CAUSE, 0.35, why, on=checks[:MAX_EVIDENCE])
