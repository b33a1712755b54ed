"""Find faults of one GPU: it stopped reporting, its memory has uncorrectable errors, or a program misused it."""

from __future__ import annotations

from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import findings
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, event_evidence, is_hardware_fault, member_evidence
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, Risk, RuledOut

FAMILY = "gpu_lost"
MEMORY_FIELDS = (evidence.DOUBLE_BIT, evidence.REMAP_PENDING, evidence.REMAP_FAILURE)
LOST, UNCORRECTABLE, ILLEGAL_ACCESS = "gpu_fell_off_bus", "ecc_uncorrectable", "app_illegal_access"


def fell_off_bus(facts: IncidentFacts) -> Finding | None:
    """The driver reports that the GPU fell off the bus (Xid 79)."""
    log_events = facts.events_with_cause(LOST)
    if not log_events and facts.incident.family == FAMILY:
        # The Xid may be of a GPU that the other signals of the node only count as missing.
        log_events = facts.events_with_cause(LOST, place=facts.node)
    members = facts.members_with_cause(LOST)
    if not log_events and not members:
        return None
    place = log_events[0].place if log_events else members[0].place
    uuid = place.gpu or ""
    return make_finding(
        facts,
        LOST,
        place=place,
        confidence=0.97 if log_events else 0.85,
        evidence=(
            *(event_evidence(event) for event in log_events),
            *(member_evidence(member) for member in members if not log_events),
            _silent_gpu_evidence(facts, uuid),
            facts.reading_evidence(evidence.LAST_XID, uuid),
            facts.reading_evidence(evidence.PCIE_REPLAYS, uuid),
        ),
        steps=(
            DiagnosisStep("Check whether the GPU is still on the bus", "lspci -d 10de: -nn"),
            DiagnosisStep("After the reboot, check that all GPUs are back", "nvidia-smi -L"),
        ),
        ruled_out=(
            findings.rule_out_application(facts, place),
            findings.rule_out_heat(facts, uuid),
            findings.rule_out_memory(facts, uuid),
        ),
    )


def gpu_missing(facts: IncidentFacts) -> Finding | None:
    """Fewer GPUs report than expected, without an Xid in the kernel log."""
    if facts.incident.family != FAMILY or facts.events_with_cause(LOST, place=facts.node):
        return None
    missing = (
        [] if facts.reporting is None else sorted(facts.readings_by_gpu(evidence.TEMPERATURE).keys() - facts.reporting)
    )
    members = facts.members_with_cause("gpu_missing")
    if not missing and not members:
        return None
    place = facts.gpu(missing[0]) if len(missing) == 1 else facts.node
    return make_finding(
        facts,
        "gpu_missing",
        place=place,
        confidence=0.9 if missing else 0.75,
        evidence=(
            _count_evidence(facts),
            *(_silent_gpu_evidence(facts, uuid) for uuid in missing),
            *(member_evidence(member) for member in members),
        ),
        steps=(
            DiagnosisStep("List the GPUs that the driver finds", "nvidia-smi -L"),
            DiagnosisStep("List the GPUs on the bus", "lspci -d 10de: -nn"),
            DiagnosisStep(
                "Read the kernel log about them", "journalctl -k --since '1 hour ago' | grep -iE 'nvrm|pcie|aer'"
            ),
            DiagnosisStep("Cordon the node until all GPUs report", risk=Risk.NODE),
        ),
        ruled_out=(
            RuledOut(LOST, f"no Xid 79 of {facts.node_name} within 10 minutes"),
            findings.rule_out_heat(facts, place.gpu or ""),
        ),
    )


def _silent_gpu_evidence(facts: IncidentFacts, uuid: str) -> Evidence | None:
    """Evidence that the GPU reported within the last hour and does not report now."""
    last = facts.reading(evidence.TEMPERATURE, uuid)
    if facts.reporting is None or uuid in facts.reporting or last is None:
        return None
    text = f"{facts.names(facts.gpu(uuid))} stopped reporting, last temperature {last:g} °C"
    return Evidence(evidence.TEMPERATURE.metric, text, at=facts.at, place=facts.gpu(uuid))


def _count_evidence(facts: IncidentFacts) -> Evidence | None:
    if facts.reporting is None or facts.expected_gpus is None:
        return None
    text = f"{len(facts.reporting)} GPUs of {facts.node_name} report, {facts.expected_gpus} are expected"
    return Evidence(evidence.EXPECTED_GPUS, text, at=facts.at, place=facts.node)


def ecc_uncorrectable(facts: IncidentFacts) -> Finding | None:
    """An uncorrectable error in the kernel log (Xid 48, 94, 95, 140 …) or in the counter since the last reset."""
    log_events, members = facts.events_with_cause(UNCORRECTABLE), facts.members_with_cause(UNCORRECTABLE)
    if not log_events and not members:
        return None
    place = log_events[0].place if log_events else members[0].place
    uuid = place.gpu or ""
    counted = facts.reading(evidence.DOUBLE_BIT, uuid)
    return make_finding(
        facts,
        UNCORRECTABLE,
        place=place,
        confidence=0.97 if log_events and counted else 0.93 if log_events else 0.85,
        evidence=(
            *(event_evidence(event) for event in log_events),
            *map(event_evidence, facts.events_with_cause("row_remap_pending", "row_remap_failure", place=place)),
            *(member_evidence(member) for member in members if not log_events),
            *(facts.reading_evidence(field, uuid) for field in MEMORY_FIELDS),
        ),
        steps=(
            DiagnosisStep("Reset the GPU when no process uses it", f"nvidia-smi --gpu-reset -i {uuid}", Risk.WORKLOAD),
            DiagnosisStep(
                "Check that the row was remapped without a failure", f"nvidia-smi -q -d ROW_REMAPPER -i {uuid}"
            ),
            DiagnosisStep("Test the memory before you return the node to service", "dcgmi diag -r 2", Risk.WORKLOAD),
        ),
        ruled_out=(
            findings.rule_out_application(facts, place),
            findings.rule_out_heat(facts, uuid),
            findings.rule_out_remap_failure(facts, uuid),
        ),
    )


def app_illegal_access(facts: IncidentFacts) -> Finding | None:
    """An application Xid (13, 31, 43, 45 …) without a hardware fault of the same GPU."""
    log_events = facts.events_with_cause(ILLEGAL_ACCESS)
    place = log_events[0].place if log_events else facts.place
    has_fault = any(is_hardware_fault(event) and place.encloses(event.place) for event in facts.events)
    if not log_events or has_fault:
        return None
    programs = sorted({event.process.name for event in log_events if event.process and event.process.name})
    # NVIDIA's catalogue: if different programs fail on the same GPU, test its hardware.
    is_suspect = len(programs) > 1
    why = f"{len(programs)} different programs ({', '.join(programs[:4])}) failed on this GPU: test the GPU too."
    sanitizer = "compute-sanitizer --tool memcheck PROGRAM"
    steps = [DiagnosisStep("Find the faulting kernel in the program", sanitizer, Risk.WORKLOAD)]
    if is_suspect:
        steps.append(DiagnosisStep("Test the GPU when it is free", "dcgmi diag -r 3", Risk.WORKLOAD))
    return make_finding(
        facts,
        ILLEGAL_ACCESS,
        place=place,
        confidence=0.6 if is_suspect else 0.92,
        evidence=tuple(map(event_evidence, log_events[:10])),
        why=why if is_suspect else None,
        steps=tuple(steps),
        ruled_out=(
            findings.rule_out_hardware(facts, place),
            findings.rule_out_memory(facts, place.gpu or ""),
            findings.rule_out_heat(facts, place.gpu or ""),
        ),
    )
