"""What the inputs say: sightings of signs with input and line, kept in bounded memory.

`scan` and `documents` add sightings, `judgements` asks for them, and `ranking` turns them into findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from watchkeeper.readers import flight_recorder
from watchkeeper.readers.logs import line_prefix

# A job of some thousand ranks may say the same thing once per rank; more of one sign adds nothing.
MAX_SIGHTINGS_OF_A_SIGN = 4096
MAX_EVENTS = 100_000
EVIDENCE_CHARACTERS = 400


@dataclass(frozen=True, slots=True)
class Sighting:
    """One sign, seen on one line. `fields` is what the line names: node, gpu, pci, rank, pod and so on.

    `clock` is what the line, or the last one before it with a clock, says; `at` is what `timeline` makes of it.
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
    """One thing that was handed in, what it was recognised as, and why it was not read to its end."""

    name: str
    kind: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TextRecord:
    """Lines of an input that belong together, and what the heading of them names."""

    input: str
    first: int
    last: int
    fields: Mapping[str, str]


@dataclass(slots=True)
class DoctorFacts:
    """Everything seen in all inputs, in the order of reading."""

    inputs: list[Input] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    dropped_events: int = 0
    # Said to people beside the findings: what is not known about the order of the inputs, settings worth a change.
    notes: list[str] = field(default_factory=list)
    dumps: list[tuple[flight_recorder.Dump, Sighting]] = field(default_factory=list)
    # Of each input a list for each kind of record, in the order of the lines.
    records: dict[str, list[list[TextRecord]]] = field(default_factory=dict)
    _by_sign: dict[str, list[Sighting]] = field(default_factory=dict)
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
        sightings = self._by_sign.setdefault(sign, [])
        if len(sightings) < MAX_SIGHTINGS_OF_A_SIGN:
            # Python refuses to read numbers of thousands of digits.
            short = {name: value[:EVIDENCE_CHARACTERS] for name, value in fields.items()}
            sightings.append(Sighting(sign, input, line, text.strip()[:EVIDENCE_CHARACTERS], short, self._order, clock))

    def add_dump(self, dump: flight_recorder.Dump, *, input: str, text: str, fields: Mapping[str, str]) -> None:
        self._order += 1
        self.dumps.append((dump, Sighting("flight-recorder", input, 1, text, fields, self._order)))

    def add_event(self, event: dict[str, Any]) -> None:
        if len(self.events) < MAX_EVENTS:
            self.events.append(event)
        else:
            self.dropped_events += 1

    def of(self, *signs: str) -> list[Sighting]:
        """Sightings of these signs, in the order in which they were read."""
        sightings = [sighting for sign in signs for sighting in self._by_sign.get(sign, ())]
        return sorted(sightings, key=lambda sighting: sighting.order) if len(signs) > 1 else sightings

    def all(self) -> list[Sighting]:
        """Every sighting that was kept, in order."""
        return sorted(
            (sighting for sightings in self._by_sign.values() for sighting in sightings),
            key=lambda sighting: sighting.order,
        )

    def replace_all(self, sightings: Iterable[Sighting]) -> None:
        """Put other sightings, in their order, in the place of those that were kept."""
        self._by_sign = {}
        for order, sighting in enumerate(sightings, 1):
            placed = sighting if sighting.order == order else replace(sighting, order=order)
            self._by_sign.setdefault(sighting.sign, []).append(placed)
        self._order = sum(map(len, self._by_sign.values()))

    def count(self, sign: str) -> int:
        return self._counts.get(sign, 0)

    def has(self, *signs: str) -> bool:
        return any(sign in self._by_sign for sign in signs)

    def signs(self) -> Iterator[str]:
        return iter(self._by_sign)

    def kinds(self) -> set[str]:
        return {given.kind for given in self.inputs}


def values(sightings: Iterable[Sighting], name: str) -> list[str]:
    """The different values of one field, in the order of reading."""
    return list(dict.fromkeys(s.fields[name] for s in sightings if s.fields.get(name)))
