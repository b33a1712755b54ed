"""GPUs that someone holds and nobody uses."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import (
    MEMORY_USED,
    POWER,
    SM_ACTIVE,
    UTILISATION,
    IncidentFacts,
    member_evidence,
    reading_evidence,
    without_none,
)
from watchkeeper.model.diagnosis import DiagnosisStep, Finding, RuledOut

CAUSE = "gpu_idle_waste"
# As in packs/rules/usage.yaml: below one part in a hundred no kernel of a real workload runs.
IDLE_SM_SHARE = 0.01
# A job may hold hundreds; each is a signal of the incident.
MOST_TOLD = 8


def gpu_idle_waste(facts: IncidentFacts) -> Finding | None:
    """Memory is held, and no kernel runs."""
    told = facts.members_with_cause(CAUSE)
    if not told:
        return None
    busy = facts.reading(SM_ACTIVE)
    is_idle = busy is not None and busy < IDLE_SM_SHARE
    holders = ", ".join(facts.incident.workloads[:MOST_TOLD]) or "the owner"
    what = "the GPU is" if len(told) == 1 else f"the {len(told)} GPUs are"
    return make_finding(
        facts,
        CAUSE,
        place=facts.place,
        confidence=0.9 if is_idle else 0.7 if busy is None else 0.4,
        evidence=without_none(
            reading_evidence(facts, SM_ACTIVE),
            reading_evidence(facts, UTILISATION),
            reading_evidence(facts, MEMORY_USED),
            reading_evidence(facts, POWER),
            *(member_evidence(member) for member in told[:MOST_TOLD]),
        ),
        steps=(DiagnosisStep(f"Ask {holders} whether {what} still needed"),),
        ruled_out=exclusions.against(_stuck_in_a_collective(facts), exclusions.hardware(facts, facts.place)),
    )


def _stuck_in_a_collective(facts: IncidentFacts) -> RuledOut | None:
    # A rank that waits in NCCL spins in a kernel: the driver counts that as 100 % utilisation.
    utilisation = facts.reading(UTILISATION)
    if utilisation is None or utilisation >= 1:
        return None
    return RuledOut(
        "nccl_timeout_straggler", f"utilisation reads {utilisation:g} %; a rank that waits in NCCL shows 100 %"
    )
