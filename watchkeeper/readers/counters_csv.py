"""Read dcgm-exporter's counters file: one `name, type, help` per line, `#` for comments.

An invalid line is dropped and reported with its number; the other lines stay in use. `readers.nvml.choice` decides
which fields are supported.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from watchkeeper.errors import quote

PROM_TYPES = frozenset({"gauge", "counter", "label"})
# The exporter's own full list has fewer than 1,000 fields.
MAX_LINES = 5_000


@dataclass(frozen=True, slots=True)
class CounterField:
    """One line of the file: a DCGM field to export."""

    name: str
    prom_type: str
    help: str
    line: int


@dataclass(frozen=True, slots=True)
class CountersFile:
    counters: tuple[CounterField, ...]
    problems: tuple[str, ...]


def read(lines: Iterable[str]) -> CountersFile:
    """Read every valid line, and a problem for each invalid line."""
    counters: dict[str, CounterField] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            problems.append(f"line {number}: the limit is {MAX_LINES} lines; this line and the rest were dropped")
            break
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        counter = _read_line(text, number)
        if isinstance(counter, str):
            problems.append(f"line {number}: {counter}; the line was dropped")
        elif counter.name in counters:
            problems.append(f"line {number}: {counter.name} is a duplicate of line {counters[counter.name].line}")
        else:
            counters[counter.name] = counter
    return CountersFile(tuple(counters.values()), tuple(problems))


def _read_line(text: str, number: int) -> CounterField | str:
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error as error:
        return f"{quote(text)} is not CSV: {error}"
    if len(cells) != 3:
        return f"has {len(cells)} columns, expected 3: name, type, help"
    name, prom_type, help = (cell.strip() for cell in cells)
    if prom_type not in PROM_TYPES:
        return f"type {quote(prom_type)} of {name} is not counter, gauge or label"
    return CounterField(name, prom_type, " ".join(help.split()), number)
