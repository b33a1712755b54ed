"""A table of usage seen from one side: lines by team, job, node or anything else, and the total that they sum to.

`of` keeps only what a person drills into (`team=vision`); what nobody held is then left out, because it is nobody's.
The command line and the API show these lines; `cost` puts money on the same table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.accounting import usage
from watchkeeper.errors import CollectError

# Lines that an answer has at most; the rest is one line, so that the sum stays whole.
MOST_LINES = 10_000
REST = "(all others)"


@dataclass(frozen=True, slots=True, eq=False)
class UsageLine:
    names: tuple[str, ...]
    amounts: usage.Amounts

    def plain(self, by: Sequence[str]) -> dict[str, object]:
        return {**dict(zip(by, self.names, strict=True)), **plain_amounts(self.amounts)}


def plain_amounts(amounts: usage.Amounts) -> dict[str, float]:
    parts = {name: float(amounts[at]) for at, name in enumerate(usage.PARTS)}
    return {"total": usage.total(amounts), **parts, "spare": usage.spare(amounts)}


def usage_lines(table: usage.UsageTable, by: Sequence[str], *, most: int = MOST_LINES) -> list[UsageLine]:
    """One line for each value of the dimensions, the largest first, nobody's last."""
    wanted = [dimension_index(name) for name in by]
    sums: dict[tuple[str, ...], usage.Amounts] = {}
    for key, row in zip(table.keys, table.amounts, strict=True):
        names = tuple(key[at] for at in wanted)
        found = sums.get(names)
        if found is None:
            found = sums[names] = np.zeros(len(usage.PARTS))
        found += row
    shown: dict[tuple[str, ...], usage.Amounts] = {}
    for names, row in sums.items():
        said = tuple(usage.shown(name) for name in names)
        shown[said] = shown[said] + row if said in shown else row
    made = [UsageLine(names, row) for names, row in shown.items()]
    made.sort(key=lambda line: (usage.NOBODY in line.names, -float(line.amounts[usage.ALLOCATED]), line.names))
    if len(made) > most:
        rest = np.sum([line.amounts for line in made[most - 1 :]], axis=0)
        made = [*made[: most - 1], UsageLine((REST,) * len(by), rest)]
    return made


def total(table: usage.UsageTable) -> usage.Amounts:
    summed: usage.Amounts = table.amounts.sum(axis=0)
    return summed


def matching_rows(table: usage.UsageTable, wanted: Mapping[str, str]) -> list[int]:
    """The rows that have all these values; `unmapped` finds what nobody has said."""
    if not wanted:
        return list(range(len(table.keys)))
    places = {dimension_index(name): value for name, value in wanted.items()}
    return [
        at
        for at, key in enumerate(table.keys)
        if all(usage.shown(key[place]) == value for place, value in places.items())
    ]


def filter_table(table: usage.UsageTable, wanted: Mapping[str, str]) -> usage.UsageTable:
    kept = matching_rows(table, wanted)
    return usage.UsageTable(
        table.since, table.until, tuple(table.keys[at] for at in kept), table.amounts[kept], table.notes, table.first
    )


def no_match_note(wanted: Mapping[str, str]) -> str:
    """The note of an answer that has nothing: a name may be mistyped."""
    return f"nothing is of {', '.join(f'{name} {value}' for name, value in wanted.items())} in this time"


def dimension_index(name: str) -> int:
    try:
        return usage.DIMENSIONS.index(name)
    except ValueError as error:
        known = ", ".join(usage.DIMENSIONS)
        raise CollectError(f"usage cannot be seen by `{name[:40]}`", remedy=f"It can by {known}") from error


def usage_report(
    table: usage.UsageTable, by: Sequence[str], *, of: Mapping[str, str] | None = None
) -> dict[str, object]:
    """What `watchkeeper usage --json` and GET /api/usage answer."""
    chosen = filter_table(table, of) if of else table
    empty = [no_match_note(of)] if of and len(table.keys) and not len(chosen.keys) else []
    return {
        "since": table.since,
        "until": table.until,
        "by": list(by),
        "of": dict(of or {}),
        "lines": [line.plain(by) for line in usage_lines(chosen, by)],
        "total": plain_amounts(total(chosen)),
        "notes": [*chosen.notes, *empty, *_said(total(chosen))],
        "words": dict(usage.WORDS),
    }


def _said(amounts: usage.Amounts) -> Iterable[str]:
    if amounts[usage.USED_BY_UTIL] > 0:
        share = amounts[usage.USED_BY_UTIL] / amounts[usage.USED] if amounts[usage.USED] else 1.0
        yield f"{share:.0%} of used is by GPU_UTIL, which counts any kernel: there is no profiling field on those GPUs"
    if amounts[usage.UNMEASURED] > 0:
        yield f"{amounts[usage.UNMEASURED]:,.1f} allocated GPU-hours are unmeasured: neither used nor wasted"
