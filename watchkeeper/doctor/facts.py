"""The facts of all inputs: sightings of signs with input and line, in bounded memory; and opinions about causes.

`scan` and `documents` add sightings, `judgements` read them, and `ranking` turns opinions about them into findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any

from watchkeeper.doctor.signatures import Sign
from watchkeeper.readers import flight_recorder
from watchkeeper.readers.logs import line_prefix

# A job with thousands of ranks may print the same line once per rank; more sightings of a sign add nothing.
MAX_SIGHTINGS_PER_SIGN = 4096
MAX_EVENTS = 100_000
EVIDENCE_CHARACTERS = 400
MAX_EVIDENCE = 12


@dataclass(frozen=True, slots=True)
class Sighting:
    """A sign on one line. `fields` are the values in the line: node, gpu, pci, rank, pod and so on.

    `clock` is the clock of the line, or of the last line before it with one; `timeline` derives `at` from it.
    """

    sign: str
    input: str
    line: int
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    order: int = 0
    clock: line_prefix.LineClock | None = None
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """An input, its recognised kind, and why it could not be read completely."""

    name: str
    kind: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TextRecord:
    """Lines of an input that belong together, and the fields in their heading."""

    input: str
    first: int
    last: int
    fields: Mapping[str, str]


@dataclass(slots=True)
class DoctorFacts:
    inputs: list[Input] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    dropped_events: int = 0
    # Shown next to the findings: unknown order of inputs, settings worth a change.
    notes: list[str] = field(default_factory=list)
    dumps: list[tuple[flight_recorder.RankDump, Sighting]] = field(default_factory=list)
    # By input, a list for each kind of record, in line order.
    records: dict[str, list[list[TextRecord]]] = field(default_factory=dict)
    _sightings: dict[str, list[Sighting]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)
    _order: int = 0

    def add(
        self,
        sign: str,
        *,
        input: str,
        line: int,
        text: str,
        fields: Mapping[str, str],
        clock: line_prefix.LineClock | None = None,
    ) -> None:
        self._order += 1
        self._counts[sign] = self._counts.get(sign, 0) + 1
        sightings = self._sightings.setdefault(sign, [])
        if len(sightings) < MAX_SIGHTINGS_PER_SIGN:
            # Python refuses to read numbers of thousands of digits.
            truncated = {name: value[:EVIDENCE_CHARACTERS] for name, value in fields.items()}
            excerpt = text.strip()[:EVIDENCE_CHARACTERS]
            sightings.append(Sighting(sign, input, line, excerpt, truncated, self._order, clock))

    def add_dump(self, dump: flight_recorder.RankDump, *, input: str, text: str, fields: Mapping[str, str]) -> None:
        self._order += 1
        self.dumps.append((dump, Sighting("flight-recorder", input, 1, text, fields, self._order)))

    def add_event(self, event: dict[str, Any]) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped_events += 1

    def find(self, *signs: str) -> list[Sighting]:
        """Sightings of these signs, in order."""
        matches = [sighting for sign in signs for sighting in self._sightings.get(sign, ())]
        return sorted(matches, key=lambda sighting: sighting.order) if len(signs) > 1 else matches

    def all_sightings(self) -> list[Sighting]:
        """All kept sightings, in order."""
        return sorted(chain.from_iterable(self._sightings.values()), key=lambda sighting: sighting.order)

    def replace_all(self, sightings: Iterable[Sighting]) -> None:
        """Replace all kept sightings; their order becomes the order of these."""
        self._sightings = {}
        for order, sighting in enumerate(sightings, 1):
            renumbered = sighting if sighting.order == order else replace(sighting, order=order)
            self._sightings.setdefault(sighting.sign, []).append(renumbered)
        self._order = sum(map(len, self._sightings.values()))

    def count(self, sign: str) -> int:
        return self._counts.get(sign, 0)

    def has(self, *signs: str) -> bool:
        return any(sign in self._sightings for sign in signs)

    def signs(self) -> Iterator[str]:
        return iter(self._sightings)

    def kinds(self) -> set[str]:
        return {entry.kind for entry in self.inputs}


def field_values(sightings: Iterable[Sighting], name: str) -> list[str]:
    """The distinct values of a field, in order."""
    return list(dict.fromkeys(s.fields[name] for s in sightings if s.fields.get(name)))


@dataclass(frozen=True, slots=True)
class Opinion:
    """A cause that some sightings support; `ranking` merges the opinions about one cause.

    `ruled_out` are sentences about other causes; `extra_where` are place fields that no single line has.
    """

    cause: str
    confidence: float
    why: str
    sightings: tuple[Sighting, ...]
    ruled_out: tuple[str, ...] = ()
    extra_where: tuple[tuple[str, str], ...] = ()
    advice: tuple[str, ...] = ()
    # That of its first sighting.
    order: int = 0


def opinion(
    cause: str,
    confidence: float,
    why: str,
    *,
    on: Iterable[Sighting],
    ruled_out: Iterable[str] = (),
    where: Iterable[tuple[str, str]] = (),
    advice: Iterable[str] = (),
) -> Opinion:
    sightings = tuple(on)
    order = min((sighting.order for sighting in sightings), default=0)
    return Opinion(cause, confidence, why, sightings, tuple(ruled_out), tuple(where), tuple(advice), order)


def sign_opinions(sign: Sign, sightings: Sequence[Sighting]) -> Iterator[Opinion]:
    for cause, confidence in sign.causes.items():
        yield opinion(cause, confidence, sign.why, on=sightings[:MAX_EVIDENCE])
