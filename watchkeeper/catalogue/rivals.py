"""Causes with similar symptoms, and the check that distinguishes them, from packs/rivals.csv.

`diagnose.explain` looks up the rivals of an incident's cause: a check may find a rival instead, and the diagnosis names
the command that rules out the second-best cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import causes, pack

FILE = "rivals.csv"


@dataclass(frozen=True, slots=True)
class Rival:
    """`tell_apart` is what to check, `command` one way to check it."""

    cause: str
    rival: str
    tell_apart: str
    command: str


def rivals_of(cause: str) -> tuple[Rival, ...]:
    """The causes that it is mistaken for, the most frequent first."""
    return _by_cause().get(cause, ())


def rival_between(cause: str, other: str) -> Rival | None:
    """The row for two causes, in either order."""
    matches = [row for row in (*rivals_of(cause), *rivals_of(other)) if {row.cause, row.rival} == {cause, other}]
    return matches[0] if matches else None


@cache
def _by_cause() -> Mapping[str, tuple[Rival, ...]]:
    by_cause: dict[str, tuple[Rival, ...]] = {}
    for row in pack.load(FILE, _row):
        by_cause[row.cause] = (*by_cause.get(row.cause, ()), row)
    return by_cause


def _row(cells: Mapping[str, str]) -> Rival:
    for name in ("cause", "rival"):
        if causes.lookup(cells[name]).cause != cells[name]:
            raise ValueError(f"{cells[name]} is not a cause of {causes.FILE}")
    return Rival(cells["cause"], cells["rival"], pack.required(cells["tell_apart"]), pack.required(cells["command"]))
