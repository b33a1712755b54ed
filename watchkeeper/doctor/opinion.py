"""An opinion: a cause that some sightings support. `ranking` merges the opinions about one cause into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from watchkeeper.doctor.facts import Sighting
from watchkeeper.doctor.signatures import Sign

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
