"""What people know better: causes that they corrected, shown at incidents that look the same, and counted by cause.

The pipeline keeps a `Lessons`, filled from the journal at the start and with every word of an operator after it.
A correction of an incident is its first answer from then on; at others of the same guess it is said beside the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.errors import WireError
from watchkeeper.model import diagnosis, incidents
from watchkeeper.model.fleet import Place

KIND = "cause"
# What is said about others beside a diagnosis; more would be noise.
MOST_SHOWN = 3
# Of a long-lived fleet the newest words count.
MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Correction:
    """A person's word about an incident: `was` is what we had said, `cause` what it is; the same twice confirms."""

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
        return f"{self.cause} is right{reason}" if self.is_confirmation else f"{self.cause}, not {self.was}{reason}"


def read_correction(incident: str, at: datetime, actor: str, *, body: Mapping[str, Any]) -> Correction:
    """A journal entry of this kind; WireError for one that is not ours."""
    try:
        parts = [str(body[name]) for name in ("was", "cause", "why", "place")]
    except KeyError as error:
        raise WireError((f"a correction of {incident} has no {error}",)) from error
    return Correction(incident, at, actor, *parts)


class Corrections:
    """The newest word about each incident, oldest first."""

    def __init__(self, corrections: Iterable[Correction] = ()) -> None:
        self._by_incident: dict[str, Correction] = {}
        for one in corrections:
            self.add(one)

    def add(self, correction: Correction) -> None:
        self._by_incident.pop(correction.incident, None)
        self._by_incident[correction.incident] = correction
        while len(self._by_incident) > MOST_KEPT:
            del self._by_incident[next(iter(self._by_incident))]

    def all(self) -> list[Correction]:
        return list(self._by_incident.values())

    def for_incident(self, incident: str) -> Correction | None:
        return self._by_incident.get(incident)

    def original_cause(self, id: str, found: diagnosis.Diagnosis | None, incident: incidents.Incident | None) -> str:
        """The cause that we gave an incident before anybody corrected it."""
        if (before := self.for_incident(id)) is not None:
            return before.was
        guess = found.best.cause if found is not None and found.best is not None else incident and incident.cause
        return guess or diagnosis.UNKNOWN_CAUSE

    def similar_to(self, found: diagnosis.Diagnosis, incident: incidents.Incident) -> list[Correction]:
        """Others that we had given the same cause and that turned out to be something else; the same node first."""
        guess = found.best.cause if found.best is not None else incident.cause
        fitting = [
            one
            for one in self._by_incident.values()
            if one.incident != incident.id and not one.is_confirmation and one.was == guess
        ]
        node = incident.place.node
        return sorted(fitting, key=lambda one: (_node(one.place) == node, one.at), reverse=True)[:MOST_SHOWN]


def apply_corrections(
    found: diagnosis.Diagnosis, incident: incidents.Incident, lessons: Corrections
) -> diagnosis.Diagnosis:
    """The diagnosis with what people said: about this incident as its first answer, about others beside it."""
    alike = tuple(
        diagnosis.SimilarIncident(one.incident, one.cause, one.actor, one.why)
        for one in lessons.similar_to(found, incident)
    )
    words = (f"people: {one.incident} looked like this and was {one.cause} ({one.actor}: {one.why})" for one in alike)
    own = lessons.for_incident(incident.id)
    findings = found.findings
    if own is not None:
        kept = [finding for finding in findings if finding.cause != own.cause]
        first = next((finding for finding in findings if finding.cause == own.cause), None)
        findings = (_by_a_person(own, incident, first), *kept)
    return diagnosis.Diagnosis(
        found.incident,
        found.at,
        findings,
        (*found.checked_sources, *words),
        found.distinguishing_check if own is None else "",
        alike,
    )


def _by_a_person(said: Correction, incident: incidents.Incident, ours: diagnosis.Finding | None) -> diagnosis.Finding:
    row = causes.lookup(said.cause)
    heard = diagnosis.Evidence(said.actor, said.summary(), at=said.at, place=incident.place)
    name = incident.place.node or str(incident.place)
    return diagnosis.Finding(
        cause=said.cause,
        confidence=1.0,
        place=incident.place if ours is None else ours.place,
        title=row.headline(name) if ours is None else ours.title,
        why=row.why if ours is None else ours.why,
        evidence=(heard, *(() if ours is None else ours.evidence)),
        actions=(diagnosis.DiagnosisStep(row.advice(name)),) if ours is None else ours.actions,
        ruled_out=() if ours is None else ours.ruled_out,
    )


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often a cause that we named was right, where a person said; `right_share` is None where nobody did."""

    cause: str
    diagnosed: int
    judged: int
    right: int
    right_share: float | None
    instead: tuple[str, ...]


def measure_accuracy(diagnosed: Mapping[str, int], corrections: Sequence[Correction]) -> list[Accuracy]:
    """`diagnosed` counts incidents by the cause that we named; the most judged cause first."""
    lines = []
    for cause in sorted({*diagnosed, *(one.was for one in corrections)}):
        about = [one for one in corrections if one.was == cause]
        right = sum(one.is_confirmation for one in about)
        others = Counter(one.cause for one in about if not one.is_confirmation)
        lines.append(
            Accuracy(
                cause,
                diagnosed.get(cause, 0),
                len(about),
                right,
                right / len(about) if about else None,
                tuple(name for name, _ in others.most_common(3)),
            )
        )
    return sorted(lines, key=lambda line: (-line.judged, -line.diagnosed, line.cause))


def _node(place: str) -> str | None:
    try:
        return Place.parse(place).node
    except ValueError:
        return None
