"""Read points of demand from a table; report each dropped row by its line, and each assumption.

A row without a value, with a negative value or with a time far from all others is dropped and reported. Duplicate
times, rows out of order, times without a time zone and future times are used, with a note.
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
# A larger value is a mistake: with a cell of 1e308 the errors would overflow.
MAX_VALUE = 1e15
# A time in 1970 or in the next century would stretch the series. A time is far if its distance from the median exceeds
# 20 times the span of the middle 80 % of the rows.
FAR_SPANS = 20.0
# The rows from which the unit of the times is guessed.
SAMPLED_ROWS = 1000
# Line numbers in one note.
MAX_LINES_NAMED = 3
# Earlier times are counts from another start than 1970.
YEAR_2000 = 946_684_800
ZONE = re.compile(r".*:.*(?:[zZ]|[+-]\d{2}(?::?\d{2})?)")


@dataclass(frozen=True, slots=True)
class DemandColumns:
    time: str
    value: str
    where: Mapping[str, str]
    unit: str = ""
    combine: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class DemandTable:
    """`points` are rows of time and value; `counts` are all rows, used rows and dropped rows."""

    points: Floats
    counts: Mapping[str, int]
    problems: table.Problems
    notes: tuple[str, ...]


@dataclass(slots=True)
class _DemandReader:
    """Read rows into arrays of numbers; lists would take 1 GB for ten years of minutes."""

    columns: DemandColumns
    unit: float | None
    problems: table.Problems
    times: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))
    lines: array[int] = field(default_factory=lambda: array("q"))
    with_zone: int = 0

    def add_row(self, row: table.TableRow) -> None:
        time_text, value_text = row.cells[self.columns.time], row.cells[self.columns.value]
        try:
            at, value = table.parse_time(time_text, unit_seconds=self.unit), table.parse_number(value_text)
        except ValueError as error:
            self.problems.add("unreadable cell", row.line, str(error))
            return
        if at is None:
            self.problems.add("no time", row.line)
        elif value is None:
            self.problems.add("no value", row.line, quote(value_text) if value_text else "")
        elif value < 0:
            self.problems.add("negative demand", row.line, f"{value:g}")
        elif value > MAX_VALUE:
            self.problems.add("value too large", row.line, f"{value:g}; the limit is {MAX_VALUE:g}")
        else:
            self.times.append(at)
            self.values.append(value)
            self.lines.append(row.line)
            self.with_zone += ZONE.fullmatch(time_text) is not None


def read_points(text: str, columns: DemandColumns, *, where: str, now: float) -> DemandTable:
    problems = table.Problems(where)
    names, rows = table.open_table(text, where=where, problems=problems)
    for column in (columns.time, columns.value, *columns.where):
        table.require_column(names, column, where=where)
    selected_rows = (row for row in rows if all(row.cells[name] == value for name, value in columns.where.items()))
    first = list(itertools.islice(selected_rows, SAMPLED_ROWS))
    given_unit = UNIT_SECONDS.get(columns.unit)
    unit = given_unit or _guess_unit(columns.time, [row.cells[columns.time] for row in first])
    reader = _DemandReader(columns, unit, problems)
    for row in itertools.chain(first, selected_rows):
        reader.add_row(row)
    times, values, lines = (np.array(column) for column in (reader.times, reader.values, reader.lines))
    early, middle, late = np.quantile(times, [0.1, 0.5, 0.9]) if len(times) else (0.0, 0.0, 0.0)
    is_far = np.asarray((np.abs(times - middle) > FAR_SPANS * (late - early)) & (late > early))
    for at, line in zip(times[is_far].tolist(), lines[is_far].tolist(), strict=True):
        problems.add("time far from all others", line, datetime.fromtimestamp(at, UTC).isoformat())
    times, values, lines = times[~is_far], values[~is_far], lines[~is_far]
    repeated = _find_repeated_rows(times, values, is_plain=len(names) == 2 and not columns.combine)
    for line in lines[repeated].tolist():
        problems.add("duplicate row", line)
    times, values, lines = (np.delete(column, repeated) for column in (times, values, lines))
    if len(times) < 2:
        reasons = "; ".join(problems.lines()[:3]) or None
        usable = f"{len(times)} {'row' if len(times) == 1 else 'rows'} can be used"
        raise CollectError(f"{usable}; a forecast needs at least 2", where=where, now=reasons)
    notes = []
    is_count = csv_text.NUMBER.fullmatch(first[0].cells[columns.time]) is not None
    if unit is not None and given_unit is None:
        step = durations.format_seconds(unit)
        notes.append(f"`{columns.time}` is read as a count of {step}; change this with --time-unit")
    elif given_unit is None and is_count and times.max() < YEAR_2000:
        end = f"ends on {datetime.fromtimestamp(times.max(), UTC):%Y-%m-%d}"
        notes.append(f"`{columns.time}` is read as time since 1970, and {end}; change this with --time-unit")
    if 0 < reader.with_zone < len(times):
        without_zone = len(times) - reader.with_zone
        notes.append(f"times without a zone: {without_zone}; they are read as UTC, the others in their time zone")
    notes += _time_notes(times, lines, combine=columns.combine, now=now)
    dropped = problems.counts.total()
    counts = {"rows": len(times) + dropped, "used": len(times), "left_out": dropped}
    return DemandTable(np.column_stack([times, values]), counts, problems, tuple(notes))


def _guess_unit(name: str, cells: Sequence[str]) -> float | None:
    """Return the seconds of an hour or a day if the times are counts 0, 1, 2, …; None if they are times."""
    counts = [float(cell) for cell in cells if csv_text.NUMBER.fullmatch(cell)]
    if len(counts) < 2 or len(counts) < len(cells) or max(map(abs, counts)) > 1e6:
        return None
    gaps = np.diff(np.unique(counts))
    if not len(gaps) or float(np.median(gaps)) != 1.0:
        return None
    return UNIT_SECONDS["d"] if "day" in name.lower() else UNIT_SECONDS["h"]


def _find_repeated_rows(times: Floats, values: Floats, *, is_plain: bool) -> npt.NDArray[np.int64]:
    """Return duplicate rows of a table that was written twice: its rows are not groups to sum."""
    # It has only time and value, and at least half of its rows repeat.
    order = np.lexsort((values, times))
    is_same = (np.diff(times[order]) == 0) & (np.diff(values[order]) == 0)
    return np.sort(order[1:][is_same & (is_plain and 2 * int(is_same.sum()) >= len(times))])


def _time_notes(times: Floats, lines: npt.NDArray[np.int64], *, combine: str, now: float) -> list[str]:
    notes = []
    earlier = np.flatnonzero(np.diff(times) < 0) + 1
    if len(earlier):
        notes.append(f"rows earlier than the row before them: {_format_lines(lines[earlier])}; they are sorted")
    _, first, counts = np.unique(times, return_index=True, return_counts=True)
    if counts.max() > 1 and float(np.median(counts)) == 1 and not combine:
        repeated = np.setdiff1d(np.arange(len(times)), first)
        notes.append(f"rows with a duplicate time: {_format_lines(lines[repeated])}; the mean of such rows is used")
    future = np.flatnonzero(times > now)
    if len(future):
        notes.append(f"rows with a future time: {_format_lines(lines[future])}; they are used")
    return notes


def _format_lines(lines: npt.NDArray[np.int64]) -> str:
    numbers = ", ".join(str(line) for line in lines[:MAX_LINES_NAMED])
    return f"{len(lines):,}, first on {'line' if len(lines) == 1 else 'lines'} {numbers}"
