"""Read tables that users provide, CSV or `sacct --parsable` output, row by row, with problems by line.

An invalid row is dropped and reported, never guessed; the list of reported lines has a limit, the counts are complete.
Demand, jobs to replay and usage are read with this module.
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

# Problem lines that are listed; further lines are only counted by kind.
MAX_NAMED_LINES = 20
# A month of jobs of a large cluster is about 10^6 lines of a few hundred bytes.
MAX_CHARACTERS = 1 << 30
# The years 6 to 5138 in seconds since 1970. A larger number is in milliseconds, as in Prometheus and JavaScript, in
# microseconds or in nanoseconds.
EARLIEST_SECONDS, LARGEST_SECONDS, LARGEST_NANOSECONDS = -6.2e10, 1e11, 1e20
# No job runs for ten years: a time further from the other times is a mistake, such as 0 for "not yet".
MAX_DISTANCE_SECONDS = 10 * 365.25 * 86_400
EMPTY = frozenset({"", "null", "none", "nan", "n/a", "unknown", "none assigned"})
NUL = "\0"
MONTH = re.compile(r"\d{4}-\d{2}")
# Spreadsheets treat a cell that starts so as a formula (OWASP, CSV injection); some also the full-width characters.
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class PlainProblems(TypedDict):
    """The number of dropped rows by kind, and the first problem lines."""

    counts: dict[str, int]
    lines: list[str]


@dataclass(slots=True)
class Problems:
    """The problems of a table: the first lines with their numbers, and the count of each kind."""

    where: str
    named_lines: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, line: int, detail: str = "") -> None:
        self.counts[kind] += 1
        if len(self.named_lines) < MAX_NAMED_LINES:
            self.named_lines.append(f"{self.where}:{line}: {kind}{f': {detail}' if detail else ''}")

    def lines(self) -> list[str]:
        """The listed lines, and a last line with the number of further problems."""
        unnamed_count = self.counts.total() - len(self.named_lines)
        return [*self.named_lines, *([f"{self.where}: and {unnamed_count} more problems"] if unnamed_count > 0 else [])]

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
    columns, rows = open_table(text, where=where, problems=problems)
    return CsvTable(columns, list(rows))


def open_table(text: str, *, where: str, problems: Problems) -> tuple[tuple[str, ...], Iterator[TableRow]]:
    """The columns and an iterator of the rows of CSV text with a header, separated by `,`, `;`, tab or `|`."""
    # CollectError if the text is not a table; for some texts it is raised only at a later row.
    if len(text) > MAX_CHARACTERS:
        raise CollectError(f"the table has {len(text):,} characters, the limit is {MAX_CHARACTERS:,}", where=where)
    text = text.removeprefix("\ufeff")
    header_line, _, _ = text.partition("\n")
    separator = csv_text.detect_separator(header_line)
    if NUL in header_line:
        raise CollectError("not a text file: it has zero bytes", where=f"{where}:1", remedy="Save it as UTF-8")
    # A header of one column has no separator, so only an empty line is an error.
    if not header_line.strip():
        raise CollectError("not a table: the first line must name the columns", where=where)
    lines = _lines(io.StringIO(text, newline=""), separator, where)
    columns = tuple(name.strip() for name in next(lines)[2])
    if all(_is_value(name) for name in columns if name):
        problem = "the first line has values, but must name the columns"
        raise CollectError(problem, where=f"{where}:1", remedy="Add a header line such as `time,gpus`")
    return columns, _rows(lines, columns, problems, has_nul=NUL in text)


def _lines(text: io.StringIO, separator: str, where: str) -> Iterator[tuple[int, int, list[str]]]:
    """The first and last line of each row, and its cells; a row with quoted line breaks spans several lines."""
    # sacct does not quote: a quotation mark is part of a job's name, and must not join the following lines.
    quotechar = None if separator == "|" else '"'
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, quotechar=quotechar)
    first_line = 1
    try:
        for cells in reader:
            yield first_line, reader.line_num, cells
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise CollectError(f"not a table: {error}", where=f"{where}:{reader.line_num}") from error


def _rows(
    lines: Iterator[tuple[int, int, list[str]]], columns: tuple[str, ...], problems: Problems, *, has_nul: bool
) -> Iterator[TableRow]:
    for first, last, raw_cells in lines:
        cells = [cell.strip() for cell in raw_cells]
        if not any(cells):
            continue
        if len(cells) != len(columns):
            hint = f", up to line {last}: check for a missing quotation mark" if last > first else ""
            problems.add("wrong number of cells", first, f"{len(cells)} of {len(columns)}{hint}")
        elif has_nul and any(NUL in cell for cell in cells):
            problems.add("zero byte", first)
        else:
            yield TableRow(first, dict(zip(columns, cells, strict=True)))


def _is_value(text: str) -> bool:
    try:
        return csv_text.NUMBER.fullmatch(text) is not None or parse_time(text) is not None
    except ValueError:
        return False


def parse_number(text: str) -> float | None:
    """A finite number, or None for an empty cell; ValueError for anything else."""
    if text.lower() in EMPTY:
        return None
    if csv_text.NUMBER.fullmatch(text) is None or not math.isfinite(number := float(text)):
        raise ValueError(f"{quote(text)} is not a number such as 1234.5")
    return number


def parse_time(text: str, *, unit_seconds: float | None = None, zone: tzinfo = UTC) -> float | None:
    """A time in seconds since 1970, or None for an empty cell; a time without a zone is in `zone`."""
    if text.lower() in EMPTY:
        return None
    is_count = csv_text.NUMBER.fullmatch(text) is not None
    try:
        at = _scale_to_seconds(float(text), unit_seconds) if is_count else _parse_date(text, zone)
        if not EARLIEST_SECONDS <= at <= LARGEST_SECONDS:
            raise ValueError("outside the supported years")
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{quote(text)} is not a time such as 2026-01-31 09:00:00 or 1769850000") from error
    return at


def _scale_to_seconds(count: float, unit_seconds: float | None) -> float:
    if unit_seconds is not None:
        return count * unit_seconds
    while LARGEST_SECONDS < abs(count) <= LARGEST_NANOSECONDS:
        count /= 1000
    return count


def _parse_date(text: str, zone: tzinfo) -> float:
    at = datetime.fromisoformat(f"{text}-01" if MONTH.fullmatch(text) else text.replace("/", "-"))
    return (at if at.tzinfo is not None else at.replace(tzinfo=zone)).timestamp()


def median_time(times: Sequence[float]) -> float | None:
    """The median of the times; of two middle times the later."""
    return sorted(times)[len(times) // 2] if times else None


def check_near(at: float | None, median: float | None) -> float | None:
    """The time itself; ValueError if it is more than ten years from the median of the other times."""
    if at is not None and median is not None and abs(at - median) > MAX_DISTANCE_SECONDS:
        years = abs(at - median) / (MAX_DISTANCE_SECONDS / 10)
        raise ValueError(f"{datetime.fromtimestamp(at, UTC).isoformat()} is {years:,.0f} years from the other times")
    return at


def escape_cell(text: str) -> str:
    """Escape untrusted text for a CSV cell: no spreadsheet formula, no control characters."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    is_number = csv_text.NUMBER.fullmatch(text) is not None
    return f"'{plain}" if text.startswith(FORMULA_STARTS) and not is_number else plain


def require_column(columns: Sequence[str], column: str, *, where: str) -> None:
    if columns.count(column) > 1:
        raise CollectError(f"{columns.count(column)} columns have the name {quote(column)}, expected 1", where=where)
    if column not in columns:
        has = ", ".join(escape_cell(name)[:40] for name in columns[:20])
        raise CollectError(f"there is no column {quote(column)}", where=where, remedy=f"The table has: {has}")
