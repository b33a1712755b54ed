"""Create findings: title, explanation and first step come from packs/causes.csv."""

from __future__ import annotations

from watchkeeper.catalogue import causes
from watchkeeper.diagnose.evidence import IncidentFacts
from watchkeeper.model.diagnosis import DiagnosisStep, Evidence, Finding, RuledOut
from watchkeeper.model.fleet import Place


def make_finding(
    facts: IncidentFacts,
    cause: str,
    *,
    confidence: float,
    evidence: tuple[Evidence, ...],
    place: Place | None = None,
    steps: tuple[DiagnosisStep, ...] = (),
    ruled_out: tuple[RuledOut, ...] = (),
    why: str | None = None,
) -> Finding:
    """A finding for a cause of the catalogue, by default at the incident's place.

    The catalogue's advice is the first step, before the steps of the check.
    """
    row, place = causes.lookup(cause), place or facts.place
    name = facts.names(place)
    # The cause of a job's incident may be at a node: then the title names that node.
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
