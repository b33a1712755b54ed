"""Tables that people bring: CSV or what `sacct --parsable` prints, read row by row, with every bad line named.

A row that cannot be used is left out and said, never guessed; the list of what is said is bounded, the counts are
not. Demand, jobs to replay and usage are read through here; the command line prints `Problems` beside the answer, and
every answer says how much of the table it rests on.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import TypedDict

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import csv_text

# Lines that are named; the rest is counted by kind.
MOST_NAMED = 20
# A month of a large cluster's jobs is some 10^6 lines of a few hundred bytes.
LONGEST_BYTES = 1 << 30
# The years 6 to 5138 in seconds since 1970. A larger count is of milliseconds, as Prometheus' and JavaScript's clocks
# count, of microseconds or of nanoseconds.
EARLIEST_SECONDS, LARGEST_SECONDS, LARGEST_NANOSECONDS = -6.2e10, 1e11, 1e20
# Nobody holds a GPU for ten years: a time of jobs further from the others is a mistake, such as 0 for "not yet".
FAR_SECONDS = 10 * 365.25 * 86_400
EMPTY = frozenset({"", "null", "none", "nan", "n/a", "unknown", "none assigned"})
NUL = "\0"
MONTH = re.compile(r"\d{4}-\d{2}")
# A spreadsheet takes a cell that begins so for a formula (OWASP, CSV injection); some the wide signs as well.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class PlainProblems(TypedDict):
    """What was left out, by kind, and the first lines of it."""

    counts: dict[str, int]
    lines: list[str]


@dataclass(slots=True)
class Problems:
    """What could not be used of a table: the first lines by number, and how many of each kind."""

    where: str
    named: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, line: int, detail: str = "") -> None:
        self.counts[kind] += 1
        if len(self.named) < MOST_NAMED:
            self.named.append(f"{self.where}:{line}: {kind}{f': {detail}' if detail else ''}")

    def lines(self) -> list[str]:
        """For people: each named line, and one for those that are not."""
        unnamed = self.counts.total() - len(self.named)
        return [*self.named, *([f"{self.where}: and {unnamed} more lines like these"] if unnamed > 0 else [])]

    def plain(self) -> PlainProblems:
        return {"counts": dict(sorted(self.counts.items())), "lines": self.lines()}


@dataclass(frozen=True, slots=True)
class TableRow:
    line: int
    cells: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CsvTable:
    columns: tuple[str, ...]
    rows: list[TableRow]


def read_table(text: str, *, where: str, problems: Problems) -> CsvTable:
    """The whole table, as `opened` gives it."""
    columns, rows = open_table(text, where=where, problems=problems)
    return CsvTable(columns, list(rows))


def open_table(text: str, *, where: str, problems: Problems) -> tuple[tuple[str, ...], Iterator[TableRow]]:
    """Columns and, one by one, rows of CSV text with a header, separated by `,`, `;`, tab or `|`.

    CollectError where there is no table, which for some texts shows only at a later row.
    """
    if len(text) > LONGEST_BYTES:
        raise CollectError(f"{len(text):,} characters; the most is {LONGEST_BYTES:,}", where=where)
    text = text.removeprefix("\ufeff")
    header_line, _, _ = text.partition("\n")
    separator = csv_text.detect_separator(header_line)
    if NUL in header_line:
        raise CollectError("this is no text: it has bytes that are zero", where=f"{where}:1", remedy="Save it as UTF-8")
    # A file of one column has none of them.
    if not header_line.strip():
        raise CollectError("this is no table: the first line must name the columns", where=where)
    lines = _lines(io.StringIO(text, newline=""), separator, where)
    columns = tuple(name.strip() for name in next(lines).cells)
    if all(_is_value(name) for name in columns if name):
        said = "the first line has values and must name the columns"
        raise CollectError(said, where=f"{where}:1", remedy="Put a line such as `time,gpus` above it")
    return columns, _rows(lines, columns, problems, is_torn=NUL in text)


@dataclass(frozen=True, slots=True)
class _CsvLine:
    """Cells of a row; one with line breaks between quotation marks goes on to a later line."""

    first: int
    last: int
    cells: list[str]


def _lines(text: io.StringIO, separator: str, where: str) -> Iterator[_CsvLine]:
    # sacct quotes nothing: a quotation mark is a letter of a job's name there, and must not swallow the lines after it.
    quotechar = None if separator == "|" else '"'
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, quotechar=quotechar)
    first = 1
    try:
        for cells in reader:
            yield _CsvLine(first, reader.line_num, cells)
            first = reader.line_num + 1
    except csv.Error as error:
        raise CollectError(f"this is no table: {error}", where=f"{where}:{reader.line_num}") from error


def _rows(
    lines: Iterator[_CsvLine], columns: tuple[str, ...], problems: Problems, *, is_torn: bool
) -> Iterator[TableRow]:
    for line in lines:
        cells = [cell.strip() for cell in line.cells]
        if not any(cells):
            continue
        if len(cells) != len(columns):
            more = f", down to line {line.last}: is a quotation mark missing?" if line.last > line.first else ""
            problems.add("wrong number of cells", line.first, f"{len(cells)} of {len(columns)}{more}")
        elif is_torn and any(NUL in cell for cell in cells):
            problems.add("a byte that is zero", line.first)
        else:
            yield TableRow(line.first, dict(zip(columns, cells, strict=True)))


def _is_value(text: str) -> bool:
    try:
        return csv_text.NUMBER.fullmatch(text) is not None or parse_time(text) is not None
    except ValueError:
        return False


def parse_number(text: str) -> float | None:
    """A finite number, or None for a cell that has none; ValueError for anything else."""
    if text.lower() in EMPTY:
        return None
    if csv_text.NUMBER.fullmatch(text) is None or not math.isfinite(found := float(text)):
        raise ValueError(f"{quote(text)} is not a number such as 1234.5")
    return found


def parse_time(text: str, *, unit_seconds: float | None = None, zone: tzinfo = UTC) -> float | None:
    """Seconds since 1970 of a time as tools write it, or None for an empty cell; one without a zone is in `zone`."""
    if text.lower() in EMPTY:
        return None
    try:
        at = _counted(float(text), unit_seconds) if csv_text.NUMBER.fullmatch(text) else _written(text, zone)
        if not EARLIEST_SECONDS <= at <= LARGEST_SECONDS:
            raise ValueError("outside of what calendars have")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{quote(text)} is not a time such as 2026-01-31 09:00:00 or 1769850000") from error
    return at


def _counted(count: float, unit_seconds: float | None) -> float:
    if unit_seconds is not None:
        return count * unit_seconds
    while LARGEST_SECONDS < abs(count) <= LARGEST_NANOSECONDS:
        count /= 1000
    return count


def _written(text: str, zone: tzinfo) -> float:
    at = datetime.fromisoformat(f"{text}-01" if MONTH.fullmatch(text) else text.replace("/", "-"))
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp()


def median_time(times: Sequence[float]) -> float | None:
    """One of the times, in the middle of all; of two the later."""
    return sorted(times)[len(times) // 2] if times else None


def check_near(at: float | None, others: float | None) -> float | None:
    """A time of a job; ValueError for one that is years away from the middle of the others."""
    if at is not None and others is not None and abs(at - others) > FAR_SECONDS:
        years = abs(at - others) / (FAR_SECONDS / 10)
        raise ValueError(f"{datetime.fromtimestamp(at, UTC).isoformat()} is {years:,.0f} years from the other times")
    return at


def escape_cell(text: str) -> str:
    """A name from outside as a cell of our own output: no formula for a spreadsheet, no control characters."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    is_number = csv_text.NUMBER.fullmatch(text) is not None
    return f"'{plain}" if text.startswith(FORMULA_STARTS) and not is_number else plain


def require_column(columns: Sequence[str], column: str, *, where: str) -> None:
    if columns.count(column) > 1:
        raise CollectError(f"{columns.count(column)} columns are named {quote(column)}", where=where)
    if column not in columns:
        has = ", ".join(escape_cell(name)[:40] for name in columns[:20])
        raise CollectError(f"there is no column {quote(column)}", where=where, remedy=f"It has: {has}")
