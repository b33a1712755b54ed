"""The data that `watchkeeper top` shows: rows of GPUs, programs and incidents; filter and sort order.

`top_sources` makes a `TopPage` for a `TopView`; `top_screen` draws it and `top` prints it. No input or output here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from watchkeeper.model import fabric

if TYPE_CHECKING:
    from watchkeeper.client import answers

UNKNOWN = "–"
MIB_PER_GIB = 1024.0


class SortColumn(StrEnum):
    NAME = "name"
    UTIL = "util"
    MEMORY = "memory"
    TEMP = "temp"
    POWER = "power"
    HOLDER = "holder"


@dataclass(frozen=True, slots=True)
class TopView:
    """Sort order, filter (`text`, matched in node, model, holder and cause) and page (`offset`, `limit`)."""

    sort: SortColumn = SortColumn.NAME
    is_reversed: bool = False
    text: str = ""
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True)
class TopRow:
    """One GPU; an unknown number is None. `holder` is empty if the GPU is free or the holder is unknown."""

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
    # Cause of the most severe open incident of this GPU or its node.
    problem: str = ""
    # Why the node is out of service, such as `cordoned · repair INC-1`.
    service: str = ""

    @property
    def name(self) -> str:
        return f"{self.node}/{'?' if self.index is None else self.index}"


@dataclass(frozen=True, slots=True)
class ProgramLine:
    """A program on a GPU of this node; `workload` is its pod or job, empty if unknown."""

    gpu: int
    pid: int
    user: str
    command: str
    workload: str
    busy_percent: int | None = None


@dataclass(frozen=True, slots=True)
class TopPage:
    """One page. `total` counts all GPUs that match the filter; `notes` say what is missing.

    `has_problem` is about all GPUs, also those of other pages.
    """

    title: str
    rows: tuple[TopRow, ...] = ()
    total: int = 0
    programs: tuple[ProgramLine, ...] = ()
    incidents: tuple[answers.IncidentCard, ...] = ()
    # Of a hub: all GPUs by state.
    counts: str = ""
    notes: tuple[str, ...] = ()
    has_problem: bool = False


# Sorted at each refresh.
natural_key = lru_cache(maxsize=65_536)(fabric.natural_sort_key)
SORT_VALUES: dict[SortColumn, Callable[[TopRow], float | None]] = {
    SortColumn.UTIL: lambda row: row.util,
    SortColumn.MEMORY: lambda row: row.memory_used_mib,
    SortColumn.TEMP: lambda row: row.celsius,
    SortColumn.POWER: lambda row: row.watts,
}


def matches_filter(row: TopRow, text: str) -> bool:
    row_text = f"{row.name} {row.model} {row.holder} {row.problem} {row.service}".lower()
    return all(word in row_text for word in text.lower().split())


def sort_rows(rows: Iterable[TopRow], view: TopView) -> list[TopRow]:
    """Sort rows as the view says; rows without a value or holder come last in both directions."""
    by_name = sorted(rows, key=lambda row: (natural_key(row.node), -1 if row.index is None else row.index, row.uuid))
    if view.sort is SortColumn.NAME:
        return by_name[::-1] if view.is_reversed else by_name
    if view.sort is SortColumn.HOLDER:
        held = sorted((row for row in by_name if row.holder), key=lambda row: row.holder, reverse=view.is_reversed)
        return [*held, *(row for row in by_name if not row.holder)]
    number = SORT_VALUES[view.sort]
    measured = [(value, row) for row in by_name if (value := number(row)) is not None]
    # Largest first; the sort is stable, so rows with the same value stay ordered by name.
    measured.sort(key=lambda pair: pair[0] if view.is_reversed else -pair[0])
    return [*(row for _, row in measured), *(row for row in by_name if number(row) is None)]


def page_rows(rows: Sequence[TopRow], view: TopView) -> tuple[TopRow, ...]:
    return tuple(rows[view.offset : view.offset + view.limit])


HEADER = ("GPU", "UTIL", "MEMORY GiB", "TEMP", "POWER", "HOLDER")


def format_cells(row: TopRow) -> tuple[str, ...]:
    """A row as texts under HEADER; an unknown value is a dash, never zero."""
    notes = (row.holder, row.problem and f"! {row.problem}", row.service)
    holder = "  ".join(text for text in notes if text) or UNKNOWN
    memory = UNKNOWN if row.memory_used_mib is None else f"{row.memory_used_mib / MIB_PER_GIB:.1f}"
    if row.memory_used_mib is not None and row.memory_mib is not None:
        memory += f"/{row.memory_mib / MIB_PER_GIB:.0f}"
    celsius, watts = _format_number(row.celsius, "°C"), _format_number(row.watts, "W")
    return row.name, _format_number(row.util, "%"), memory, celsius, watts, holder


def _format_number(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{value:.0f}{unit}"
