"""What `migrate` says about one line, rule or query, in the order of how much work it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Standing(StrEnum):
    """How something of theirs fares here; `needs` is fine as long as somebody else's exporter is scraped as well."""

    WORKS = "works"
    NEEDS = "needs"
    CHANGES = "changes"
    CANNOT = "cannot"


ORDER = tuple(Standing)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`where` is the line, rule or panel inside `file`; `why` has a sentence for each thing to know."""

    file: str
    where: str
    subject: str
    standing: Standing
    why: tuple[str, ...] = ()


def worst(standings: list[Standing]) -> Standing:
    return max(standings, key=ORDER.index, default=Standing.WORKS)
