"""What `migrate` says about one line, rule or query, in the order of how much work it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Compatibility(StrEnum):
    """How something of theirs fares here; `needs` is fine as long as somebody else's exporter is scraped as well."""

    WORKS = "works"
    NEEDS = "needs"
    CHANGES = "changes"
    CANNOT = "cannot"


ORDER = tuple(Compatibility)


@dataclass(frozen=True, slots=True)
class MigrationVerdict:
    """`where` is the line, rule or panel inside `file`; `why` has a sentence for each thing to know."""

    file: str
    where: str
    subject: str
    standing: Compatibility
    why: tuple[str, ...] = ()


def worst(standings: list[Compatibility]) -> Compatibility:
    return max(standings, key=ORDER.index, default=Compatibility.WORKS)
