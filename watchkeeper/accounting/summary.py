"""Sum a usage table into lines by team, job, node or another dimension, and their total.

Filters such as `team=vision` select rows; unallocated hours then drop out, because they have no owner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from watchkeeper.accounting import usage
from watchkeeper.errors import CollectError

# The most lines of a response; the rest is combined into one line, so that the total stays the same.
MAX_LINES = 10_000
REST = "(all others)"


@dataclass(frozen=True, slots=True, eq=False)
class UsageRow:
    names: tuple[str, ...]
    amounts: usage.Amounts

    def plain(self, by: Sequence[str]) -> dict[str, object]:
        return {**dict(zip(by, self.names, strict=True)), **plain_amounts(self.amounts)}


def plain_amounts(amounts: usage.Amounts) -> dict[str, float]:
    parts = {name: float(amounts[at]) for at, name in enumerate(usage.PARTS)}
    return {"total": usage.total(amounts), **parts, "spare": usage.spare(amounts)}


def usage_lines(table: usage.UsageTable, by: Sequence[str], *, max_lines: int = MAX_LINES) -> list[UsageRow]:
    """Return one line for each combination of the dimensions, the largest first, unowned hours last."""
    dimension_indexes = [dimension_index(name) for name in by]
    by_values, by_names = (
        defaultdict[tuple[str, ...], usage.Amounts](lambda: np.zeros(len(usage.PARTS))) for _ in range(2)
    )
    for key, row in zip(table.keys, table.amounts, strict=True):
        by_values[tuple(key[index] for index in dimension_indexes)] += row
    for values, row in by_values.items():
        by_names[tuple(map(usage.display_value, values))] += row
    lines = [UsageRow(names, row) for names, row in by_names.items()]
    lines.sort(key=lambda line: (usage.UNOWNED in line.names, -float(line.amounts[usage.ALLOCATED]), line.names))
    if len(lines) > max_lines:
        rest = np.sum([line.amounts for line in lines[max_lines - 1 :]], axis=0)
        lines = [*lines[: max_lines - 1], UsageRow((REST,) * len(by), rest)]
    return lines


def total(table: usage.UsageTable) -> usage.Amounts:
    summed: usage.Amounts = table.amounts.sum(axis=0)
    return summed


def matching_rows(table: usage.UsageTable, filters: Mapping[str, str]) -> list[int]:
    """Return the indexes of rows that match all filters; the value `unmapped` matches an unknown value."""
    values = [(dimension_index(name), value) for name, value in filters.items()]
    return [
        row
        for row, key in enumerate(table.keys)
        if all(usage.display_value(key[index]) == value for index, value in values)
    ]


def filter_table(table: usage.UsageTable, filters: Mapping[str, str]) -> usage.UsageTable:
    indexes = matching_rows(table, filters)
    return replace(table, keys=tuple(table.keys[at] for at in indexes), amounts=table.amounts[indexes])


def no_match_note(filters: Mapping[str, str]) -> str:
    """The note of an empty response; the name in a filter may be wrong."""
    return f"no usage matches {', '.join(f'{name} {value}' for name, value in filters.items())} in this period"


def dimension_index(name: str) -> int:
    try:
        return usage.DIMENSIONS.index(name)
    except ValueError as error:
        allowed = ", ".join(usage.DIMENSIONS)
        raise CollectError(f"usage has no dimension `{name[:40]}`", remedy=f"Use one of {allowed}") from error


def usage_report(
    table: usage.UsageTable, by: Sequence[str], *, filters: Mapping[str, str] | None = None
) -> dict[str, object]:
    selected = filter_table(table, filters) if filters else table
    empty = [no_match_note(filters)] if filters and len(table.keys) and not len(selected.keys) else []
    return {
        "since": table.since,
        "until": table.until,
        "by": list(by),
        "of": dict(filters or {}),
        "lines": [line.plain(by) for line in usage_lines(selected, by)],
        "total": plain_amounts(total(selected)),
        "notes": [*selected.notes, *empty, *_measurement_notes(total(selected))],
        "words": dict(usage.DEFINITIONS),
    }


def _measurement_notes(amounts: usage.Amounts) -> Iterable[str]:
    if amounts[usage.USED_BY_UTIL] > 0:
        share = amounts[usage.USED_BY_UTIL] / amounts[usage.USED] if amounts[usage.USED] else 1.0
        based = f"{share:.0%} of the used hours is based on GPU_UTIL, which counts any kernel"
        yield f"{based}: those GPUs export no profiling metric"
    if amounts[usage.UNMEASURED] > 0:
        yield f"{amounts[usage.UNMEASURED]:,.1f} allocated GPU-hours are unmeasured: neither used nor wasted"
