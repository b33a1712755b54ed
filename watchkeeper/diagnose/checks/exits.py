"""Find which memory a program ran out of, GPU memory, node memory or /dev/shm, from how it exited."""

from __future__ import annotations

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model.diagnosis import Evidence, Finding, RuledOut
from watchkeeper.model.events import EventKind

FAMILY = "out_of_memory"
BUS_ERROR, KILLED = 135, 137


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
