"""Nodes that say nothing about their GPUs: the machine, its exporter, or its driver."""

from __future__ import annotations

from watchkeeper.diagnose.checks.findings import make_finding
from watchkeeper.diagnose.evidence import IncidentFacts, member_evidence
from watchkeeper.model.diagnosis import Evidence, Finding, RuledOut

FAMILIES = ("driver", "monitoring", "node_down")
DRIVER_CAUSES = ("driver_library_mismatch", "driver_not_loaded", "driver_call_hung")


def silent_node(facts: IncidentFacts) -> Finding | None:
    """The agent's own word about the driver first; else who of the node's exporters still answers."""
    if facts.incident.family not in FAMILIES or facts.place.node is None:
        return None
    faults = {labels.get("cause", ""): labels for labels, value in facts.context.rows("watchkeeper_gpu_fault") if value}
    named = next((cause for cause in DRIVER_CAUSES if cause in faults), None)
    if named is not None:
        text = f"the agent of {facts.node_name} reports {named.replace('_', ' ')}"
        return _said(facts, named, text, confidence=0.95, others=[one for one in DRIVER_CAUSES if one not in faults])
    up = {labels.get("job", ""): value for labels, value in facts.context.rows("up")}
    if not up:
        return None
    answering, silent = [job for job, value in up.items() if value], [job for job, value in up.items() if not value]
    if not answering:
        text = f"none of {len(silent)} targets of {facts.node_name} answers ({', '.join(sorted(silent))})"
        return _said(facts, "node_down", text, confidence=0.9, others=["agent_down"])
    if silent:
        text = f"{', '.join(sorted(answering))} of {facts.node_name} answers, {', '.join(sorted(silent))} does not"
        return _said(facts, "agent_down", text, confidence=0.9, others=["node_down", *DRIVER_CAUSES])
    return None


def _said(facts: IncidentFacts, cause: str, text: str, *, confidence: float, others: list[str]) -> Finding:
    against = {
        "agent_down": "nothing else of the node answers either",
        "node_down": "the machine answers",
    }
    return make_finding(
        facts,
        cause,
        place=facts.node,
        confidence=confidence,
        evidence=(
            Evidence("watchkeeper_gpu_fault" if cause in DRIVER_CAUSES else "up", text, at=facts.at, place=facts.node),
            *(member_evidence(member) for member in facts.incident.members[:3]),
        ),
        ruled_out=tuple(RuledOut(other, against.get(other, "the agent says nothing of it")) for other in others),
    )
