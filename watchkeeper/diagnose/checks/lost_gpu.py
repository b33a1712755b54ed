"""Find GPUs that stopped reporting, with or without an Xid in the kernel log."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import (
    EXPECTED_GPUS,
    LAST_XID,
    PCIE_REPLAYS,
    TEMPERATURE,
    IncidentFacts,
    event_evidence,
    member_evidence,
    reading_evidence,
    without_none,
)
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, Risk, RuledOut

FAMILY = "gpu_lost"
CAUSE = "gpu_fell_off_bus"


def fell_off_bus(facts: IncidentFacts) -> Finding | None:
    """The driver reports that the GPU fell off the bus (Xid 79)."""
    log_events = facts.events_with_cause(CAUSE)
    if not log_events and facts.incident.family == FAMILY:
        # The Xid may be of a GPU that the other signals of the node only count as missing.
        log_events = facts.events_with_cause(CAUSE, place=facts.node)
    members = facts.members_with_cause(CAUSE)
    if not log_events and not members:
        return None
    place = log_events[0].place if log_events else members[0].place
    uuid = place.gpu or ""
    return make_finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.97 if log_events else 0.85,
        evidence=without_none(
            *(event_evidence(event) for event in log_events),
            *(member_evidence(member) for member in members if not log_events),
            _silent_gpu_evidence(facts, uuid),
            reading_evidence(facts, LAST_XID, uuid),
            reading_evidence(facts, PCIE_REPLAYS, uuid),
        ),
        steps=(
            DiagnosisStep("Check whether the GPU is still on the bus", "lspci -d 10de: -nn"),
            DiagnosisStep("After the reboot, check that all GPUs are back", "nvidia-smi -L"),
        ),
        ruled_out=without_none(
            exclusions.rule_out_application(facts, place),
            exclusions.rule_out_heat(facts, uuid),
            exclusions.rule_out_memory(facts, uuid),
        ),
    )


def gpu_missing(facts: IncidentFacts) -> Finding | None:
    """Fewer GPUs report than expected, without an Xid in the kernel log."""
    if facts.incident.family != FAMILY or facts.events_with_cause(CAUSE, place=facts.node):
        return None
    missing = (
        sorted(set(facts.readings_by_gpu(TEMPERATURE)) - (facts.reporting or set()))
        if facts.reporting is not None
        else []
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
        evidence=without_none(
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
        ruled_out=without_none(_rule_out_xid(facts), exclusions.rule_out_heat(facts, place.gpu or "")),
    )


def _silent_gpu_evidence(facts: IncidentFacts, uuid: str) -> Evidence | None:
    """Evidence that the GPU reported within the last hour and does not report now."""
    last = facts.reading(TEMPERATURE, uuid)
    if facts.reporting is None or uuid in facts.reporting or last is None:
        return None
    text = f"{facts.names(facts.gpu(uuid))} stopped reporting, last temperature {last:g} °C"
    return Evidence(TEMPERATURE.metric, text, at=facts.at, place=facts.gpu(uuid))


def _count_evidence(facts: IncidentFacts) -> Evidence | None:
    if facts.reporting is None or facts.expected_gpus is None:
        return None
    text = f"{len(facts.reporting)} GPUs of {facts.node_name} report, {facts.expected_gpus} are expected"
    return Evidence(EXPECTED_GPUS, text, at=facts.at, place=facts.node)


def _rule_out_xid(facts: IncidentFacts) -> RuledOut:
    return RuledOut(CAUSE, f"no Xid 79 of {facts.node_name} within 10 minutes")
