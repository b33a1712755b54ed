"""The verdict of `migrate` about one line, rule or query, in order of the work it needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from watchkeeper.kit import wire


class Compatibility(StrEnum):
    """Whether it works here; `needs` works if another exporter is scraped as well."""

    WORKS = "works"
    NEEDS = "needs"
    CHANGES = "changes"
    CANNOT = "cannot"


ORDER = tuple(Compatibility)


@dataclass(frozen=True, slots=True)
class MigrationVerdict:
    """`where` is the line, rule or panel inside `file`; `why` has one sentence for each reason."""

    file: str
    where: str
    subject: str
    compatibility: Compatibility = wire.json_key("standing")
    why: tuple[str, ...] = ()


def worst(verdicts: list[Compatibility]) -> Compatibility:
    return max(verdicts, key=ORDER.index, default=Compatibility.WORKS)
