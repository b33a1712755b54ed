"""An opinion: a cause that some sightings support, before all opinions are ranked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchkeeper.doctor.facts import Sighting

MAX_EVIDENCE = 12


@dataclass(frozen=True, slots=True)
class Opinion:
    """`ruled_out` are sentences about other causes; `extra_where` are place fields that no single line has."""

    cause: str
    confidence: float
    why: str
    sightings: tuple[Sighting, ...]
    ruled_out: tuple[str, ...] = ()
    extra_where: tuple[tuple[str, str], ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def order(self) -> int:
        return min((sighting.order for sighting in self.sightings), default=0)


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
    return Opinion(cause, confidence, why, tuple(on), tuple(ruled_out), tuple(where), tuple(advice))
