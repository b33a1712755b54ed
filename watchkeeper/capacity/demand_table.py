"""Demand out of a table: points in time, each row that cannot be used named by its line, and what was assumed noted.

A row without a value, with a negative one or with a time far from all others is left out and said; a time that stands
twice, rows out of order, times without a zone among others and times to come are used and said. `cli/capacity` calls
it, and `demand.regular` makes a series of the points.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from watchkeeper.capacity.demand import Floats
from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import csv_text, durations
from watchkeeper.readers import table

UNIT_SECONDS = {"s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0, "d": 86_400.0}
# More is no count of anything: a cell of 1e308 would leave no number of the error finite.
MOST_VALUE = 1e15
# One time of 1970 or of next century would be most of the series. Eight in ten rows span a time; what is further than
# twenty of these from the middle is far.
FAR_SPANS = 20.0
# Enough rows to see what times count.
GUESSED_FROM = 1000
# Lines that a note names.
MOST_NAMED = 3
# Nobody watched GPUs before: such times count from something else.
YEAR_2000 = 946_684_800
ZONE = re.compile(r".*:.*(?:[zZ]|[+-]\d{2}(?::?\d{2})?)")


@dataclass(frozen=True, slots=True)
class DemandColumns:
    """Which columns of a table hold what, and which of its rows count."""

    time: str
    value: str
    where: Mapping[str, str]
    unit: str = ""
    combine: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DemandTable:
    """`points` are rows of time and value; `counts` says how many rows there were, are used, and are left out."""

    points: Floats
    counts: Mapping[str, int]
    problems: table.Problems
    notes: tuple[str, ...]


@dataclass(slots=True)
class _DemandReader:
    """Columns of numbers, because a list of ten years of minutes would take a gigabyte."""

    columns: DemandColumns
    unit: float | None
    problems: table.Problems
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    with_zone: int = 0

    def take(self, row: table.TableRow) -> None:
        when, said = row.cells[self.columns.time], row.cells[self.columns.value]
        try:
            at, value = table.parse_time(when, unit_seconds=self.unit), table.parse_number(said)
        except ValueError as error:
            self.problems.add("unreadable cell", row.line, str(error))
            return
        if at is None:
            self.problems.add("no time", row.line)
        elif value is None:
            self.problems.add("no value", row.line, quote(said) if said else "")
        elif value < 0:
            self.problems.add("negative demand", row.line, f"{value:g}")
        elif value > MOST_VALUE:
            self.problems.add("value too large", row.line, f"{value:g}; {MOST_VALUE:g} is the most")
        else:
            self.times.append(at)
            self.values.append(value)
            self.lines.append(row.line)
            self.with_zone += ZONE.fullmatch(when) is not None


def read_points(text: str, columns: DemandColumns, *, where: str, now: float) -> DemandTable:
    """Points of a table; CollectError where there is none or too little of it."""
    problems = table.Problems(where)
    names, rows = table.open_table(text, where=where, problems=problems)
    for column in (columns.time, columns.value, *columns.where):
        table.require_column(names, column, where=where)
    asked = (row for row in rows if all(row.cells[name] == value for name, value in columns.where.items()))
    first = list(itertools.islice(asked, GUESSED_FROM))
    told = UNIT_SECONDS.get(columns.unit)
    unit = told or _guessed_unit(columns.time, [row.cells[columns.time] for row in first])
    reading = _DemandReader(columns, unit, problems)
    for row in itertools.chain(first, asked):
        reading.take(row)
    times, values, lines = (np.array(column) for column in (reading.times, reading.values, reading.lines))
    far = _far(times)
    for at, line in zip(times[far].tolist(), lines[far].tolist(), strict=True):
        problems.add("time far from all others", line, datetime.fromtimestamp(at, UTC).isoformat())
    times, values, lines = times[~far], values[~far], lines[~far]
    again = _repeated(times, values, is_plain=len(names) == 2 and not columns.combine)
    for line in lines[again].tolist():
        problems.add("the same row again", line)
    times, values, lines = (np.delete(column, again) for column in (times, values, lines))
    if len(times) < 2:
        said = "; ".join(problems.lines()[:3]) or None
        usable = f"{len(times)} {'row' if len(times) == 1 else 'rows'} can be used"
        raise CollectError(f"{usable}; a forecast needs at least 2", where=where, now=said)
    notes = _unit_notes(columns.time, told, unit, last=times.max(), is_count=_is_count(first[0].cells[columns.time]))
    if 0 < reading.with_zone < len(times):
        notes.append(
            f"times without a zone: {len(times) - reading.with_zone}; they are read as UTC, others as they say"
        )
    notes += _notes(times, lines, combine=columns.combine, now=now)
    left_out = problems.counts.total()
    counts = {"rows": len(times) + left_out, "used": len(times), "left_out": left_out}
    return DemandTable(np.column_stack([times, values]), counts, problems, tuple(notes))


def _guessed_unit(name: str, cells: Sequence[str]) -> float | None:
    """Hours or days, where the times are plain counts 0, 1, 2, …; None where they are times."""
    counts = [float(cell) for cell in cells if _is_count(cell)]
    if len(counts) < 2 or len(counts) < len(cells) or max(map(abs, counts)) > 1e6:
        return None
    gaps = np.diff(np.unique(counts))
    if not len(gaps) or float(np.median(gaps)) != 1.0:
        return None
    return UNIT_SECONDS["d"] if "day" in name.lower() else UNIT_SECONDS["h"]


def _is_count(cell: str) -> bool:
    return csv_text.NUMBER.fullmatch(cell) is not None


def _unit_notes(name: str, told: float | None, unit: float | None, *, last: float, is_count: bool) -> list[str]:
    if told is None and unit is not None:
        return [f"`{name}` counts steps of {durations.format_seconds(unit)}; --time-unit says otherwise"]
    if told is None and is_count and last < YEAR_2000:
        day = f"{datetime.fromtimestamp(last, UTC):%Y-%m-%d}"
        return [f"`{name}` is read as a count since 1970, and ends on {day}; --time-unit says otherwise"]
    return []


def _repeated(times: Floats, values: Floats, *, is_plain: bool) -> npt.NDArray[np.int64]:
    """Places of rows that are there again, where that is most of a table in which nothing else tells rows apart.

    Such a table was written twice; its rows are no groups to be added up.
    """
    order = np.lexsort((values, times))
    is_same = (np.diff(times[order]) == 0) & (np.diff(values[order]) == 0)
    return np.sort(order[1:][is_same & (is_plain and 2 * int(is_same.sum()) >= len(times))])


def _far(times: Floats) -> npt.NDArray[np.bool_]:
    if not len(times):
        return np.zeros(0, dtype=np.bool_)
    early, middle, late = np.quantile(times, [0.1, 0.5, 0.9])
    return np.asarray((np.abs(times - middle) > FAR_SPANS * (late - early)) & (late > early))


def _notes(times: Floats, lines: npt.NDArray[np.int64], *, combine: str, now: float) -> list[str]:
    notes = []
    back = np.flatnonzero(np.diff(times) < 0) + 1
    if len(back):
        notes.append(f"rows earlier than the row before them: {_first(lines[back])}; they are put in order")
    _, first, counts = np.unique(times, return_index=True, return_counts=True)
    if counts.max() > 1 and float(np.median(counts)) == 1 and not combine:
        again = np.setdiff1d(np.arange(len(times)), first)
        notes.append(f"rows that repeat a time: {_first(lines[again])}; the mean of such rows is used")
    coming = np.flatnonzero(times > now)
    if len(coming):
        notes.append(f"rows of a time that is still to come: {_first(lines[coming])}; they are taken as they read")
    return notes


def _first(lines: npt.NDArray[np.int64]) -> str:
    named = ", ".join(str(line) for line in lines[:MOST_NAMED])
    return f"{len(lines):,}, first on {'line' if len(lines) == 1 else 'lines'} {named}"
