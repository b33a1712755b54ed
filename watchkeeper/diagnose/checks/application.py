"""Find programs that accessed memory illegally."""

from __future__ import annotations

from watchkeeper.diagnose.checks import exclusions
from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, event_evidence, is_hardware_fault, without_none
from watchkeeper.model.diagnosis import DiagnosisStep, Finding, Risk

CAUSE = "app_illegal_access"


def app_illegal_access(facts: IncidentFacts) -> Finding | None:
    """An application Xid (13, 31, 43, 45 …) without a hardware fault of the same GPU."""
    log_events = facts.events_with_cause(CAUSE)
    if not log_events:
        return None
    place = log_events[0].place
    if any(is_hardware_fault(event) and place.encloses(event.place) for event in facts.events):
        return None
    programs = sorted({event.process.name for event in log_events if event.process and event.process.name})
    # NVIDIA's catalogue: if different programs fail on the same GPU, test its hardware.
    is_suspect = len(programs) > 1
    why = None
    if is_suspect:
        why = f"{len(programs)} different programs ({', '.join(programs[:4])}) failed on this GPU: test the GPU too."
    return make_finding(
        facts,
        CAUSE,
        place=place,
        confidence=0.6 if is_suspect else 0.92,
        evidence=tuple(event_evidence(event) for event in log_events[:10]),
        why=why,
        steps=(
            DiagnosisStep(
                "Find the faulting kernel in the program", "compute-sanitizer --tool memcheck PROGRAM", Risk.WORKLOAD
            ),
            *((DiagnosisStep("Test the GPU when it is free", "dcgmi diag -r 3", Risk.WORKLOAD),) if is_suspect else ()),
        ),
        ruled_out=without_none(
            exclusions.rule_out_hardware(facts, place),
            exclusions.rule_out_memory(facts, place.gpu or ""),
            exclusions.rule_out_heat(facts, place.gpu or ""),
        ),
    )
