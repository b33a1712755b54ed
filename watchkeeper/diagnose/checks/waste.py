"""Find GPUs that are allocated and idle."""

from __future__ import annotations

from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import findings
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model.diagnosis import DiagnosisStep, Finding, RuledOut

CAUSE = "gpu_idle_waste"
# As in packs/rules/usage.yaml: below 1 % SM activity no kernel of a real workload runs.
IDLE_SM_SHARE = 0.01
EVIDENCE_FIELDS = (evidence.SM_ACTIVE, evidence.UTILISATION, evidence.MEMORY_USED, evidence.POWER)
# A job may hold hundreds of GPUs; each is a signal of the incident.
MAX_LISTED = 8


def gpu_idle_waste(facts: IncidentFacts) -> Finding | None:
    """A GPU is allocated to a workload and no kernel runs on it."""
    members = facts.members_with_cause(CAUSE)
    if not members:
        return None
    busy, utilisation = facts.reading(evidence.SM_ACTIVE), facts.reading(evidence.UTILISATION)
    wait_text = f"utilisation is {utilisation or 0:g} %; a rank that waits in NCCL has 100 %"
    is_idle = busy is not None and busy < IDLE_SM_SHARE
    holders = ", ".join(facts.incident.workloads[:MAX_LISTED]) or "the owner"
    subject = "the GPU" if len(members) == 1 else f"the {len(members)} GPUs"
    return make_finding(
        facts,
        CAUSE,
        confidence=0.9 if is_idle else 0.7 if busy is None else 0.4,
        evidence=(
            *(
                facts.reading_evidence(field)
                for field in (evidence.SM_ACTIVE, evidence.UTILISATION, evidence.MEMORY_USED, evidence.POWER)
            ),
            *(member_evidence(member) for member in members[:MAX_LISTED]),
        ),
        steps=(DiagnosisStep(f"Ask {holders} whether they still need {subject}"),),
        ruled_out=(
            # A rank that waits in NCCL spins in a kernel: the driver counts that as 100 % utilisation.
            RuledOut("nccl_timeout_straggler", wait_text) if utilisation is not None and utilisation < 1 else None,
            findings.rule_out_hardware(facts, facts.place),
        ),
    )
