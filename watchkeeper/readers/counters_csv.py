"""dcgm-exporter's counters file: one `name, type, help` a line, `#` for comments.

People who come from dcgm-exporter bring theirs. A line that cannot be used is named with its number and
left out, so that one unknown field never costs the others; `readers.nvml.choice` says which fields it knows.
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
class Counter:
    """One wish of the file."""

    name: str
    prom_type: str
    help: str
    line: int


@dataclass(frozen=True, slots=True)
class CountersFile:
    counters: tuple[Counter, ...]
    problems: tuple[str, ...]


def read(lines: Iterable[str]) -> CountersFile:
    """Every usable line, and a sentence about each other one."""
    counters: dict[str, Counter] = {}
    problems = []
    for number, line in enumerate(lines, 1):
        if number > MAX_LINES:
            problems.append(f"line {number}: the file goes on, the limit is {MAX_LINES} lines; the rest is left out")
            break
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        found = _read_line(text, number)
        if isinstance(found, str):
            problems.append(f"line {number}: {found}; it is left out")
        elif found.name in counters:
            problems.append(f"line {number}: {found.name} stands already on line {counters[found.name].line}")
        else:
            counters[found.name] = found
    return CountersFile(tuple(counters.values()), tuple(problems))


def _read_line(text: str, number: int) -> Counter | str:
    try:
        cells = next(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error as error:
        return f"{quote(text)} is not CSV: {error}"
    if len(cells) != 3:
        return f"has {len(cells)} cells, three are needed: name, type, help"
    name, prom_type, help = (cell.strip() for cell in cells)
    if prom_type not in PROM_TYPES:
        return f"type {quote(prom_type)} of {name} is none of counter, gauge, label"
    return Counter(name, prom_type, " ".join(help.split()), number)
