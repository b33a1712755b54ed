"""How a finding is put into words: title, why and the closing step come from packs/causes.csv."""

from __future__ import annotations

from watchkeeper.catalogue import causes
from watchkeeper.diagnose.evidence import IncidentFacts
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place


def make_finding(
    facts: IncidentFacts,
    cause: str,
    *,
    place: Place,
    confidence: float,
    evidence: tuple[Evidence, ...],
    steps: tuple[DiagnosisStep, ...] = (),
    ruled_out: tuple[RuledOut, ...] = (),
    why: str | None = None,
) -> Finding:
    """A finding about a shipped cause; the catalogue's advice is its first step, the check's own steps follow."""
    row = causes.lookup(cause)
    name = facts.names(place)
    # A job's trouble may be a node's: then it is the node that is called by its name.
    node = facts.names(Place(place.cluster, node=place.node)) if place.node else facts.node_name
    return Finding(
        cause=row.cause,
        confidence=confidence,
        place=place,
        title=row.headline(name, node),
        why=why or row.why,
        evidence=evidence,
        actions=(DiagnosisStep(row.advice(name, node)), *steps),
        ruled_out=ruled_out,
    )
