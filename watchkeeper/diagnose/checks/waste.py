"""Find GPUs that are allocated and idle."""

from __future__ import annotations

from watchkeeper.diagnose.checks import findings
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
# As in packs/rules/usage.yaml: below 1 % SM activity no kernel of a real workload runs.
IDLE_SM_SHARE = 0.01
# A job may hold hundreds of GPUs; each is a signal of the incident.
MAX_LISTED = 8


def gpu_idle_waste(facts: IncidentFacts) -> Finding | None:
    """A GPU is allocated to a workload and no kernel runs on it."""
    members = facts.members_with_cause(CAUSE)
    if not members:
        return None
    busy = facts.reading(SM_ACTIVE)
    is_idle = busy is not None and busy < IDLE_SM_SHARE
    holders = ", ".join(facts.incident.workloads[:MAX_LISTED]) or "the owner"
    subject = "the GPU" if len(members) == 1 else f"the {len(members)} GPUs"
    return make_finding(
        facts,
        CAUSE,
        confidence=0.9 if is_idle else 0.7 if busy is None else 0.4,
        evidence=without_none(
            reading_evidence(facts, SM_ACTIVE),
            reading_evidence(facts, UTILISATION),
            reading_evidence(facts, MEMORY_USED),
            reading_evidence(facts, POWER),
            *(member_evidence(member) for member in members[:MAX_LISTED]),
        ),
        steps=(DiagnosisStep(f"Ask {holders} whether they still need {subject}"),),
        ruled_out=without_none(_rule_out_nccl_wait(facts), findings.rule_out_hardware(facts, facts.place)),
    )


def _rule_out_nccl_wait(facts: IncidentFacts) -> RuledOut | None:
    # A rank that waits in NCCL spins in a kernel: the driver counts that as 100 % utilisation.
    utilisation = facts.reading(UTILISATION)
    if utilisation is None or utilisation >= 1:
        return None
    return RuledOut("nccl_timeout_straggler", f"utilisation is {utilisation:g} %; a rank that waits in NCCL has 100 %")
