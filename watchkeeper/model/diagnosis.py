"""Findings: what a check concluded, with everything a person needs to believe it and to act."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from watchkeeper.model.fleet import Place

UNKNOWN_CAUSE = "unknown"


class Risk(StrEnum):
    """What a step may cost: nothing, one workload, or everything on the node."""

    NONE = "none"
    WORKLOAD = "workload"
    NODE = "node"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observed fact: a kernel line, a series with its value, an API answer. `source` says where it was read."""

    source: str
    text: str
    at: datetime | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class DiagnosisStep:
    """What a person should do next; `command` is exact where there is one."""

    do: str
    command: str | None = None
    risk: Risk = Risk.NONE


@dataclass(frozen=True, slots=True)
class RuledOut:
    """A cause that was considered and dropped, and why."""

    cause: str
    why: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer. `cause` is an id of packs/causes.csv; confidence is between 0 and 1."""

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
    """An incident that had looked the same, and what it was in the word of the person who corrected it."""

    incident: str
    cause: str
    actor: str
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Ranked findings about one incident, best first, and what was looked at to reach them."""

    incident: str
    at: datetime
    findings: tuple[Finding, ...]
    looked_at: tuple[str, ...]
    # What would tell the best answer from the next one, where something would.
    tell_apart: str = ""
    alike: tuple[SimilarIncident, ...] = ()

    @property
    def best(self) -> Finding | None:
        return self.findings[0] if self.findings else None


def rank_findings(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Best first; equals keep a stable order by cause and place, so the same facts give the same answer."""
    return tuple(sorted(findings, key=lambda finding: (-finding.confidence, finding.cause, str(finding.place))))
