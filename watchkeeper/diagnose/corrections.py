"""Causes that people corrected: shown for similar incidents and counted by cause; and whether a diagnosis is new.

The pipeline keeps `Corrections`, filled from the journal at the start and with each new correction. A correction is the
first finding of its incident; incidents that were diagnosed with the same cause show it next to their findings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.errors import WireError
from watchkeeper.model import diagnosis, incidents
from watchkeeper.model.fleet import Place

KIND = "cause"
# Corrections of similar incidents that a diagnosis shows.
MAX_SHOWN = 3
SIMILAR_TEXT = re.compile(r"people: (\S+) looked like this and was (\S+) \(([^:]*): (.*)\)", re.DOTALL)
# The newest corrections are kept.
MAX_CORRECTIONS = 10_000


@dataclass(frozen=True, slots=True)
class Correction:
    """A person's correction: `was` is the diagnosed cause, `cause` the actual one; equal causes confirm it."""

    incident: str
    at: datetime
    actor: str
    was: str
    cause: str
    why: str
    place: str

    @property
    def is_confirmation(self) -> bool:
        return self.was == self.cause

    def as_body(self) -> dict[str, str]:
        return {"text": self.summary(), "was": self.was, "cause": self.cause, "why": self.why, "place": self.place}

    def summary(self) -> str:
        reason = f": {self.why}" if self.why else ""
        return f"{self.cause} is correct{reason}" if self.is_confirmation else f"{self.cause}, not {self.was}{reason}"


def read_correction(incident: str, at: datetime, actor: str, *, body: Mapping[str, Any]) -> Correction:
    """Read a correction from a journal entry; raises WireError if a key is missing."""
    try:
        parts = [str(body[name]) for name in ("was", "cause", "why", "place")]
    except KeyError as error:
        raise WireError((f"a correction of {incident} has no {error}",)) from error
    return Correction(incident, at, actor, *parts)


class Corrections:
    """The newest correction of each incident, oldest first."""

    def __init__(self, corrections: Iterable[Correction] = ()) -> None:
        self._by_incident: dict[str, Correction] = {}
        for correction in corrections:
            self.add(correction)

    def add(self, correction: Correction) -> None:
        self._by_incident.pop(correction.incident, None)
        self._by_incident[correction.incident] = correction
        while len(self._by_incident) > MAX_CORRECTIONS:
            del self._by_incident[next(iter(self._by_incident))]

    def all(self) -> list[Correction]:
        return list(self._by_incident.values())

    def for_incident(self, incident: str) -> Correction | None:
        return self._by_incident.get(incident)

    def original_cause(
        self, id: str, incident_diagnosis: diagnosis.Diagnosis | None, incident: incidents.Incident | None
    ) -> str:
        """The diagnosed cause of an incident before any correction."""
        if (correction := self.for_incident(id)) is not None:
            return correction.was
        best = incident_diagnosis.best if incident_diagnosis is not None else None
        cause = best.cause if best is not None else incident and incident.cause
        return cause or diagnosis.UNKNOWN_CAUSE

    def similar_to(self, incident_diagnosis: diagnosis.Diagnosis, incident: incidents.Incident) -> list[Correction]:
        """Corrections of other incidents that were diagnosed with the same cause; those of the same node first."""
        cause = incident_diagnosis.best.cause if incident_diagnosis.best is not None else incident.cause
        others = [correction for correction in self._by_incident.values() if correction.incident != incident.id]
        similar = [other for other in others if other.was == cause and not other.is_confirmation]
        node = incident.place.node
        return sorted(similar, key=lambda other: (_node_name(other.place) == node, other.at), reverse=True)[:MAX_SHOWN]


def apply_corrections(
    incident_diagnosis: diagnosis.Diagnosis, incident: incidents.Incident, corrections: Corrections
) -> diagnosis.Diagnosis:
    """Add corrections to a diagnosis: of this incident as first finding, of similar incidents as texts."""
    similar = tuple(
        diagnosis.SimilarIncident(correction.incident, correction.cause, correction.actor, correction.why)
        for correction in corrections.similar_to(incident_diagnosis, incident)
    )
    texts = (
        f"people: {each.incident} looked like this and was {each.cause} ({each.actor}: {each.why})" for each in similar
    )
    sources = (*incident_diagnosis.checked_sources, *texts)
    corrected = replace(incident_diagnosis, checked_sources=sources, similar=similar)
    own_correction = corrections.for_incident(incident.id)
    if own_correction is None:
        return corrected
    findings = corrected.findings
    others = [finding for finding in findings if finding.cause != own_correction.cause]
    previous = next((finding for finding in findings if finding.cause == own_correction.cause), None)
    first = _corrected_finding(own_correction, incident, previous)
    return replace(corrected, findings=(first, *others), distinguishing_check="")


def _corrected_finding(
    correction: Correction, incident: incidents.Incident, previous: diagnosis.Finding | None
) -> diagnosis.Finding:
    row = causes.lookup(correction.cause)
    evidence = diagnosis.Evidence(correction.actor, correction.summary(), at=correction.at, place=incident.place)
    name = incident.place.node or str(incident.place)
    base = previous or diagnosis.Finding(
        cause=correction.cause,
        confidence=1.0,
        place=incident.place,
        title=row.headline(name),
        why=row.why,
        evidence=(),
        actions=(diagnosis.DiagnosisStep(row.advice(name)),),
    )
    return replace(base, confidence=1.0, evidence=(evidence, *base.evidence))


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often a diagnosed cause was correct, as judged by people; `right_share` is None without a judgement."""

    cause: str
    diagnosed: int
    judged: int
    right: int
    right_share: float | None
    instead: tuple[str, ...]


def measure_accuracy(diagnosed: Mapping[str, int], corrections: Sequence[Correction]) -> list[Accuracy]:
    """Accuracy by cause, the most judged first; `diagnosed` is the number of incidents by diagnosed cause."""
    rows = []
    for cause in sorted({*diagnosed, *(correction.was for correction in corrections)}):
        judged = [correction for correction in corrections if correction.was == cause]
        confirmed = sum(correction.is_confirmation for correction in judged)
        actual_causes = Counter(correction.cause for correction in judged if not correction.is_confirmation)
        share = confirmed / len(judged) if judged else None
        instead = tuple(name for name, _ in actual_causes.most_common(3))
        rows.append(Accuracy(cause, diagnosed.get(cause, 0), len(judged), confirmed, share, instead))
    return sorted(rows, key=lambda row: (-row.judged, -row.diagnosed, row.cause))


def _node_name(place: str) -> str | None:
    try:
        return Place.parse(place).node
    except ValueError:
        return None


def has_changed(current: diagnosis.Diagnosis, previous: diagnosis.Diagnosis | None) -> bool:
    """Whether causes, places, confidence or corrections differ, or a GPU has its index instead of its UUID.

    The pipeline stores only diagnoses that differ, so that a timeline contains only changes.
    """
    if previous is None:
        return True
    return _comparable(current) != _comparable(previous) or (_has_uuid_title(previous) and not _has_uuid_title(current))


def similar_incidents(current: diagnosis.Diagnosis) -> tuple[diagnosis.SimilarIncident, ...]:
    """Compatibility: diagnoses without `Diagnosis.similar` have corrections as texts in `checked_sources`."""
    matches = (SIMILAR_TEXT.fullmatch(text) for text in current.checked_sources)
    parsed = tuple(diagnosis.SimilarIncident(*match.groups()) for match in matches if match is not None)
    return current.similar or parsed


def _comparable(current: diagnosis.Diagnosis) -> object:
    """The parts that must be equal for two diagnoses to count as the same."""
    return similar_incidents(current), [
        (finding.cause, finding.place, round(finding.confidence, 1), len(finding.evidence))
        for finding in current.findings
    ]


def _has_uuid_title(current: diagnosis.Diagnosis) -> bool:
    """Whether a title has the UUID of a GPU, because its index was not known yet."""
    return any(finding.place.is_named_in(finding.title) for finding in current.findings)
