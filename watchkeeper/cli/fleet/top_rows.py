"""What `watchkeeper top` shows, as values: rows of GPUs, programs, incidents, and how they are chosen and ordered.

`top_sources` fills a `Page` for a `View`; `top_screen` draws it and `top` prints it. Nothing here asks anybody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

DIGITS = re.compile(r"(\d+)")
NOTHING = "–"
MIB_PER_GIB = 1024.0


class SortColumn(StrEnum):
    """Columns that rows can be ordered by; all but the names with the largest first."""

    NAME = "name"
    UTIL = "util"
    MEMORY = "memory"
    TEMP = "temp"
    POWER = "power"
    HOLDER = "holder"


@dataclass(frozen=True, slots=True)
class TopView:
    """What a person wants to see: `text` is looked for in node, model and holder; `offset` and `limit` make a page."""

    sort: SortColumn = SortColumn.NAME
    is_reversed: bool = False
    text: str = ""
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class TopRow:
    """One GPU; a number that nobody gave is None. `holder` is empty where nobody holds it or nobody can say."""

    uuid: str
    node: str
    index: int | None
    model: str
    holder: str = ""
    util: float | None = None
    memory_used_mib: float | None = None
    memory_mib: float | None = None
    celsius: float | None = None
    watts: float | None = None
    # The gravest open incident at this GPU or its node.
    trouble: str = ""

    @property
    def name(self) -> str:
        return f"{self.node}/{'?' if self.index is None else self.index}"


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A program on a GPU of this node; `workload` is its pod or job, empty where neither started it."""

    gpu: int
    pid: int
    user: str
    command: str
    workload: str
    busy_percent: int | None = None


@dataclass(frozen=True, slots=True)
class IncidentLine:
    id: str
    severity: str
    title: str
    next_step: str


@dataclass(frozen=True, slots=True)
class TopPage:
    """What is so now. `total` counts every GPU that fits the view; `notes` say what could not be seen.

    `is_troubled`: something is wrong, with a GPU that is shown or with another one.
    """

    title: str
    rows: tuple[TopRow, ...] = ()
    total: int = 0
    programs: tuple[ProgramLine, ...] = ()
    incidents: tuple[IncidentLine, ...] = ()
    notes: tuple[str, ...] = ()
    is_troubled: bool = False


@lru_cache(maxsize=65_536)
def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A sort key that counts as people do: r2 before r10."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in DIGITS.split(text))


NUMBERS: dict[SortColumn, Callable[[TopRow], float | None]] = {
    SortColumn.UTIL: lambda row: row.util,
    SortColumn.MEMORY: lambda row: row.memory_used_mib,
    SortColumn.TEMP: lambda row: row.celsius,
    SortColumn.POWER: lambda row: row.watts,
}


def matches_filter(row: TopRow, text: str) -> bool:
    """Whether all words of a filter are somewhere in the row's names; upper and lower case are alike."""
    said = f"{row.name} {row.model} {row.holder} {row.trouble}".lower()
    return all(word in said for word in text.lower().split())


def sort_rows(rows: Iterable[TopRow], view: TopView) -> list[TopRow]:
    """Rows as the view wants them; what has no number or no holder comes last, whatever the direction."""
    by_name = sorted(rows, key=lambda row: (natural(row.node), -1 if row.index is None else row.index, row.uuid))
    if view.sort is SortColumn.NAME:
        return by_name[::-1] if view.is_reversed else by_name
    if view.sort is SortColumn.HOLDER:
        held = sorted((row for row in by_name if row.holder), key=lambda row: row.holder, reverse=view.is_reversed)
        return [*held, *(row for row in by_name if not row.holder)]
    number = NUMBERS[view.sort]
    known = [(value, row) for row in by_name if (value := number(row)) is not None]
    # Largest first; `sorted` keeps rows with the same number in the order of names.
    known.sort(key=lambda pair: pair[0] if view.is_reversed else -pair[0])
    return [*(row for _, row in known), *(row for row in by_name if number(row) is None)]


def page_rows(rows: Sequence[TopRow], view: TopView) -> tuple[TopRow, ...]:
    return tuple(rows[view.offset : view.offset + view.limit])


HEADER = ("GPU", "UTIL", "MEMORY GiB", "TEMP", "POWER", "HOLDER")


def cells(row: TopRow) -> tuple[str, ...]:
    """A row as texts, under HEADER; what the GPU did not say is a dash, never a zero."""
    holder = f"! {row.trouble}" if row.trouble and not row.holder else row.holder
    if row.trouble and row.holder:
        holder = f"{row.holder}  ! {row.trouble}"
    return (
        row.name,
        _number(row.util, "%"),
        memory(row),
        _number(row.celsius, "°C"),
        _number(row.watts, "W"),
        holder or NOTHING,
    )


def memory(row: TopRow) -> str:
    if row.memory_used_mib is None:
        return NOTHING
    used = f"{row.memory_used_mib / MIB_PER_GIB:.1f}"
    return used if row.memory_mib is None else f"{used}/{row.memory_mib / MIB_PER_GIB:.0f}"


def _number(value: float | None, unit: str) -> str:
    return NOTHING if value is None else f"{value:.0f}{unit}"
