"""GPUs that are gone: with a word from the kernel, or without one."""

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
    """The driver said that the GPU is off the bus (Xid 79)."""
    lines = facts.events_with_cause(CAUSE)
    if not lines and facts.incident.family == FAMILY:
        # The kernel may have named the GPU that the rest of the node's signals only miss.
        lines = facts.events_with_cause(CAUSE, place=facts.node)
    told = facts.members_with_cause(CAUSE)
    if not lines and not told:
        return None
    place = lines[0].place if lines else told[0].place
    uuid = place.gpu or ""
    return make_finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.97 if lines else 0.85,
        evidence=without_none(
            *(event_evidence(event) for event in lines),
            *(member_evidence(member) for member in told if not lines),
            _silence(facts, uuid),
            reading_evidence(facts, LAST_XID, uuid),
            reading_evidence(facts, PCIE_REPLAYS, uuid),
        ),
        steps=(
            DiagnosisStep("See whether the card is still on the bus", "lspci -d 10de: -nn"),
            DiagnosisStep("After the reboot, see whether every GPU is back", "nvidia-smi -L"),
        ),
        ruled_out=exclusions.against(
            exclusions.application(facts, place), exclusions.heat(facts, uuid), exclusions.memory(facts, uuid)
        ),
    )


def gpu_missing(facts: IncidentFacts) -> Finding | None:
    """Fewer GPUs report than the node should have, and the kernel said nothing."""
    if facts.incident.family != FAMILY or facts.events_with_cause(CAUSE, place=facts.node):
        return None
    gone = (
        sorted(set(facts.readings_by_gpu(TEMPERATURE)) - (facts.reporting or set()))
        if facts.reporting is not None
        else []
    )
    told = facts.members_with_cause("gpu_missing")
    if not gone and not told:
        return None
    place = facts.gpu(gone[0]) if len(gone) == 1 else facts.node
    return make_finding(
        facts,
        "gpu_missing",
        place=place,
        confidence=0.9 if gone else 0.75,
        evidence=without_none(
            _count(facts), *(_silence(facts, uuid) for uuid in gone), *(member_evidence(member) for member in told)
        ),
        steps=(
            DiagnosisStep("See which GPUs the driver knows", "nvidia-smi -L"),
            DiagnosisStep("See which cards are on the bus", "lspci -d 10de: -nn"),
            DiagnosisStep(
                "Read what the kernel said about them", "journalctl -k --since '1 hour ago' | grep -iE 'nvrm|pcie|aer'"
            ),
            DiagnosisStep("Take the node out until every GPU reports", risk=Risk.NODE),
        ),
        ruled_out=exclusions.against(_no_xid(facts), exclusions.heat(facts, place.gpu or "")),
    )


def _silence(facts: IncidentFacts, uuid: str) -> Evidence | None:
    """The GPU reported within the hour and does not now."""
    last = facts.reading(TEMPERATURE, uuid)
    if facts.reporting is None or uuid in facts.reporting or last is None:
        return None
    text = f"{facts.names(facts.gpu(uuid))} no longer reports; its last reading was {last:g} °C"
    return Evidence(TEMPERATURE.metric, text, at=facts.at, place=facts.gpu(uuid))


def _count(facts: IncidentFacts) -> Evidence | None:
    if facts.reporting is None or facts.expected_gpus is None:
        return None
    text = f"{len(facts.reporting)} GPUs of {facts.node_name} report, {facts.expected_gpus} are expected"
    return Evidence(EXPECTED_GPUS, text, at=facts.at, place=facts.node)


def _no_xid(facts: IncidentFacts) -> RuledOut:
    return RuledOut(CAUSE, f"no Xid 79 of {facts.node_name} reached us within 10 minutes")
