"""Findings: the conclusion of a check, its evidence and the next steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from watchkeeper.kit import wire
from watchkeeper.model.fleet import Place

UNKNOWN_CAUSE = "unknown"


class Risk(StrEnum):
    """What a step may interrupt: nothing, one workload, or the whole node."""

    NONE = "none"
    WORKLOAD = "workload"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observed fact: a kernel line, a reading, an API response. `source` is where it was read."""

    source: str
    text: str
    at: datetime | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class DiagnosisStep:
    do: str
    command: str | None = None
    risk: Risk = Risk.NONE


@dataclass(frozen=True, slots=True)
class RuledOut:
    cause: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause for an incident. `cause` is an id of packs/causes.csv; confidence is between 0 and 1."""

    cause: str
    confidence: float
    place: Place
    title: str
    why: str
    evidence: tuple[Evidence, ...]
    actions: tuple[DiagnosisStep, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:
            raise ValueError(f"confidence {self.confidence} is not between 0 and 1")


@dataclass(frozen=True, slots=True)
class SimilarIncident:
    """An earlier incident with the same symptoms, and the cause that a person confirmed for it."""

    incident: str
    cause: str
    actor: str
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranked findings about one incident, best first, and which sources were checked."""

    incident: str
    at: datetime
    findings: tuple[Finding, ...]
    checked_sources: tuple[str, ...] = field(metadata={"json_key": "looked_at"})
    # How to rule out the next likely cause: "To rule out X, run: …".
    distinguishing_check: str = wire.json_key("tell_apart", default="")
    similar: tuple[SimilarIncident, ...] = wire.json_key("alike", default=())

    @property
    def best(self) -> Finding | None:
        return self.findings[0] if self.findings else None


def rank_findings(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Best first; equal findings are ordered by cause and place, so the same facts give the same order."""
    return tuple(sorted(findings, key=lambda finding: (-finding.confidence, finding.cause, str(finding.place))))
