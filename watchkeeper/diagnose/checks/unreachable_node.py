"""Find why a node does not report its GPUs: the node is down, or its agent, exporter or driver failed."""

from __future__ import annotations

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model.diagnosis import Evidence, Finding, RuledOut

FAMILIES = ("driver", "monitoring", "node_down")
DRIVER_CAUSES = ("driver_library_mismatch", "driver_not_loaded", "driver_call_hung")


def unreachable_node(facts: IncidentFacts) -> Finding | None:
    """The driver fault that the agent reports, otherwise which targets of the node are down."""
    if facts.incident.family not in FAMILIES or facts.place.node is None:
        return None
    faults = {labels.get("cause", ""): labels for labels, value in facts.context.rows("watchkeeper_gpu_fault") if value}
    driver_cause = next((cause for cause in DRIVER_CAUSES if cause in faults), None)
    if driver_cause is not None:
        text = f"the agent of {facts.node_name} reports {driver_cause.replace('_', ' ')}"
        others = [cause for cause in DRIVER_CAUSES if cause not in faults]
        return _node_finding(facts, driver_cause, text, confidence=0.95, others=others)
    up = {labels.get("job", ""): value for labels, value in facts.context.rows("up")}
    if not up:
        return None
    answering, down = [job for job, value in up.items() if value], [job for job, value in up.items() if not value]
    if not answering:
        text = f"all {len(down)} targets of {facts.node_name} are down ({', '.join(sorted(down))})"
        return _node_finding(facts, "node_down", text, confidence=0.9, others=["agent_down"])
    if down:
        text = f"targets of {facts.node_name}: {', '.join(sorted(answering))} up, {', '.join(sorted(down))} down"
        return _node_finding(facts, "agent_down", text, confidence=0.9, others=["node_down", *DRIVER_CAUSES])
    return None


def _node_finding(facts: IncidentFacts, cause: str, text: str, *, confidence: float, others: list[str]) -> Finding:
    reasons = {"agent_down": "no other target of the node is up", "node_down": "the node answers"}
    return make_finding(
        facts,
        cause,
        place=facts.node,
        confidence=confidence,
        evidence=(
            Evidence("watchkeeper_gpu_fault" if cause in DRIVER_CAUSES else "up", text, at=facts.at, place=facts.node),
            *(member_evidence(member) for member in facts.incident.members[:3]),
        ),
        ruled_out=tuple(RuledOut(other, reasons.get(other, "the agent does not report it")) for other in others),
    )
