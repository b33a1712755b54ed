"""Find uncorrectable ECC errors of GPU memory."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import (
    DOUBLE_BIT,
    REMAP_FAILURE,
    REMAP_PENDING,
    IncidentFacts,
    event_evidence,
    member_evidence,
    reading_evidence,
    without_none,
)
from watchkeeper.model.diagnosis import DiagnosisStep, Finding, Risk

CAUSE = "ecc_uncorrectable"


def ecc_uncorrectable(facts: IncidentFacts) -> Finding | None:
    """An uncorrectable error in the kernel log (Xid 48, 94, 95, 140 …) or in the counter since the last reset."""
    log_events, members = facts.events_with_cause(CAUSE), facts.members_with_cause(CAUSE)
    if not log_events and not members:
        return None
    place = log_events[0].place if log_events else members[0].place
    uuid = place.gpu or ""
    counted = facts.reading(DOUBLE_BIT, uuid)
    return make_finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.97 if log_events and counted else 0.93 if log_events else 0.85,
        evidence=without_none(
            *(event_evidence(event) for event in log_events),
            *(
                event_evidence(event)
                for event in facts.events_with_cause("row_remap_pending", "row_remap_failure", place=place)
            ),
            *(member_evidence(member) for member in members if not log_events),
            reading_evidence(facts, DOUBLE_BIT, uuid),
            reading_evidence(facts, REMAP_PENDING, uuid),
            reading_evidence(facts, REMAP_FAILURE, uuid),
        ),
        steps=(
            DiagnosisStep("Reset the GPU when no process uses it", f"nvidia-smi --gpu-reset -i {uuid}", Risk.WORKLOAD),
            DiagnosisStep(
                "Check that the row was remapped without a failure", f"nvidia-smi -q -d ROW_REMAPPER -i {uuid}"
            ),
            DiagnosisStep("Test the memory before you return the node to service", "dcgmi diag -r 2", Risk.WORKLOAD),
        ),
        ruled_out=without_none(
            exclusions.rule_out_application(facts, place),
            exclusions.rule_out_heat(facts, uuid),
            exclusions.rule_out_remap_failure(facts, uuid),
        ),
    )
