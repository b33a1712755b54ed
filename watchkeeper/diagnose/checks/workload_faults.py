"""Find which memory a program ran out of, from how it exited, and GPUs that are allocated and idle."""

from __future__ import annotations

from watchkeeper.diagnose import evidence
from watchkeeper.diagnose.checks import findings
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.events import EventKind

FAMILY = "out_of_memory"
BUS_ERROR, KILLED = 135, 137
IDLE_WASTE = "gpu_idle_waste"
# As in packs/rules/usage.yaml: below 1 % SM activity no kernel of a real workload runs.
IDLE_SM_SHARE = 0.01
EVIDENCE_FIELDS = (evidence.SM_ACTIVE, evidence.UTILISATION, evidence.MEMORY_USED, evidence.POWER)
# A job may hold hundreds of GPUs; each is a signal of the incident.
MAX_LISTED = 8


def out_of_memory(facts: IncidentFacts) -> Finding | None:
    if facts.incident.family != FAMILY:
        return None
    code = facts.context.max_value("kube_pod_container_status_last_terminated_exitcode")
    is_oom = facts.context.max_value("kube_pod_container_status_last_terminated_reason", reason="OOMKilled") == 1
    killed = [event for event in facts.events if event.kind is EventKind.OOM_KILL]
    ooms = facts.context.max_value("training_cuda_ooms_total")
    if code == BUS_ERROR:
        text = f"the container exited with code {BUS_ERROR} (bus error)"
        return _memory_finding(facts, "shm_too_small", text, ooms=ooms)
    if is_oom or code == KILLED or killed:
        text = killed[0].text if killed else "Kubernetes reports OOMKilled for the last exit"
        return _memory_finding(facts, "host_oom", text, ooms=ooms)
    if ooms:
        return _memory_finding(facts, "cuda_oom", f"CUDA refused memory to this job {ooms:g} times", ooms=ooms)
    return None


def _memory_finding(facts: IncidentFacts, cause: str, text: str, *, ooms: float | None) -> Finding:
    reasons = {
        "cuda_oom": "no CUDA out-of-memory error was counted" if ooms == 0 else None,
        "host_oom": "neither the kernel nor Kubernetes reports a killed process" if cause != "host_oom" else None,
        "shm_too_small": f"no container exited with a bus error ({BUS_ERROR})" if cause != "shm_too_small" else None,
    }
    return make_finding(
        facts,
        cause,
        confidence=0.92,
        evidence=(
            Evidence("exit", text, at=facts.at, place=facts.place),
            *(member_evidence(member) for member in facts.incident.members[:3]),
        ),
        ruled_out=tuple(RuledOut(other, why) for other, why in reasons.items() if why is not None and other != cause),
    )


def gpu_idle_waste(facts: IncidentFacts) -> Finding | None:
    """A GPU is allocated to a workload and no kernel runs on it."""
    members = facts.members_with_cause(IDLE_WASTE)
    if not members:
        return None
    busy, utilisation = facts.reading(evidence.SM_ACTIVE), facts.reading(evidence.UTILISATION)
    wait_text = f"utilisation is {utilisation or 0:g} %; a rank that waits in NCCL has 100 %"
    is_idle = busy is not None and busy < IDLE_SM_SHARE
    holders = ", ".join(facts.incident.workloads[:MAX_LISTED]) or "the owner"
    subject = "the GPU" if len(members) == 1 else f"the {len(members)} GPUs"
    return make_finding(
        facts,
        IDLE_WASTE,
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
