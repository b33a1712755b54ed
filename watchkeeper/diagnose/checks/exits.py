"""Programs that ran out of some memory: the GPU's, the host's, or /dev/shm. How they ended tells which."""

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
        return _said(facts, "shm_too_small", f"the container ended with exit code {BUS_ERROR}, a bus error", ooms=ooms)
    if is_oom or code == KILLED or killed:
        text = killed[0].text if killed else "Kubernetes shows OOMKilled as the reason of the last exit"
        return _said(facts, "host_oom", text, ooms=ooms)
    if ooms:
        return _said(facts, "cuda_oom", f"CUDA refused memory {ooms:g} times to this job", ooms=ooms)
    return None


def _said(facts: IncidentFacts, cause: str, text: str, *, ooms: float | None) -> Finding:
    against = {
        "cuda_oom": "no CUDA out-of-memory was counted" if ooms == 0 else None,
        "host_oom": "neither the kernel nor Kubernetes speaks of a killed process" if cause != "host_oom" else None,
        "shm_too_small": f"no container ended with a bus error ({BUS_ERROR})" if cause != "shm_too_small" else None,
    }
    return make_finding(
        facts,
        cause,
        place=facts.place,
        confidence=0.92,
        evidence=(
            Evidence("exit", text, at=facts.at, place=facts.place),
            *(member_evidence(member) for member in facts.incident.members[:3]),
        ),
        ruled_out=tuple(RuledOut(other, why) for other, why in against.items() if why is not None and other != cause),
    )
