"""GPU memory that ECC could not repair."""

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
    """An uncorrectable error in the log (Xid 48, 94, 95, 140 …) or in the counter since the last reset."""
    lines, told = facts.events_with_cause(CAUSE), facts.members_with_cause(CAUSE)
    if not lines and not told:
        return None
    place = lines[0].place if lines else told[0].place
    uuid = place.gpu or ""
    counted = facts.reading(DOUBLE_BIT, uuid)
    return make_finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.97 if lines and counted else 0.93 if lines else 0.85,
        evidence=without_none(
            *(event_evidence(event) for event in lines),
            *(
                event_evidence(event)
                for event in facts.events_with_cause("row_remap_pending", "row_remap_failure", place=place)
            ),
            *(member_evidence(member) for member in told if not lines),
            reading_evidence(facts, DOUBLE_BIT, uuid),
            reading_evidence(facts, REMAP_PENDING, uuid),
            reading_evidence(facts, REMAP_FAILURE, uuid),
        ),
        steps=(
            DiagnosisStep("Reset the GPU, once nothing runs on it", f"nvidia-smi --gpu-reset -i {uuid}", Risk.WORKLOAD),
            DiagnosisStep(
                "See whether the row was remapped and no failure is flagged", f"nvidia-smi -q -d ROW_REMAPPER -i {uuid}"
            ),
            DiagnosisStep("Test the memory before giving the node back", "dcgmi diag -r 2", Risk.WORKLOAD),
        ),
        ruled_out=exclusions.against(
            exclusions.application(facts, place), exclusions.heat(facts, uuid), exclusions.remap_failure(facts, uuid)
        ),
    )
