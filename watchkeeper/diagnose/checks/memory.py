"""GPU memory that ECC could not repair."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import finding
from watchkeeper.diagnose.evidence import (
    DOUBLE_BIT,
    REMAP_FAILURE,
    REMAP_PENDING,
    Facts,
    line,
    member_line,
    number,
    present,
)
from watchkeeper.model.diagnosis import Finding, Risk, Step

CAUSE = "ecc_uncorrectable"


def ecc_uncorrectable(facts: Facts) -> Finding | None:
    """An uncorrectable error in the log (Xid 48, 94, 95, 140 …) or in the counter since the last reset."""
    lines, told = facts.events_of(CAUSE), facts.members_of(CAUSE)
    if not lines and not told:
        return None
    place = lines[0].place if lines else told[0].place
    uuid = place.gpu or ""
    counted = facts.of(DOUBLE_BIT, uuid)
    return finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.97 if lines and counted else 0.93 if lines else 0.85,
        evidence=present(
            *(line(event) for event in lines),
            *(line(event) for event in facts.events_of("row_remap_pending", "row_remap_failure", place=place)),
            *(member_line(member) for member in told if not lines),
            number(facts, DOUBLE_BIT, uuid),
            number(facts, REMAP_PENDING, uuid),
            number(facts, REMAP_FAILURE, uuid),
        ),
        steps=(
            Step("Reset the GPU, once nothing runs on it", f"nvidia-smi --gpu-reset -i {uuid}", Risk.WORKLOAD),
            Step(
                "See whether the row was remapped and no failure is flagged", f"nvidia-smi -q -d ROW_REMAPPER -i {uuid}"
            ),
            Step("Test the memory before giving the node back", "dcgmi diag -r 2", Risk.WORKLOAD),
        ),
        ruled_out=exclusions.against(
            exclusions.application(facts, place), exclusions.heat(facts, uuid), exclusions.remap_failure(facts, uuid)
        ),
    )
