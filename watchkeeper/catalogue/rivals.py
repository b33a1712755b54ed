"""Causes that look alike, and what tells them apart: packs/rivals.csv.

`diagnose.explain` asks for the rivals of an incident's cause, so that a check that looked closer may answer
for a neighbouring family, and for the sentence that distinguishes the best two answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import causes, pack

FILE = "rivals.csv"


@dataclass(frozen=True, slots=True)
class Rival:
    """`tell_apart` is what to look at, `command` one way to do so."""

    cause: str
    rival: str
    tell_apart: str
    command: str


def rivals_of(cause: str) -> tuple[Rival, ...]:
    """The causes that it is mistaken for, the most usual first."""
    return _by_cause().get(cause, ())


def rival_between(one: str, other: str) -> Rival | None:
    """What tells two causes apart, whichever of them the table has first."""
    found = [row for row in (*rivals_of(one), *rivals_of(other)) if {row.cause, row.rival} == {one, other}]
    return found[0] if found else None


@cache
def _by_cause() -> Mapping[str, tuple[Rival, ...]]:
    found: dict[str, tuple[Rival, ...]] = {}
    for row in pack.load(FILE, _row):
        found[row.cause] = (*found.get(row.cause, ()), row)
    return found


def _row(cells: Mapping[str, str]) -> Rival:
    for name in ("cause", "rival"):
        if causes.lookup(cells[name]).cause != cells[name]:
            raise ValueError(f"{cells[name]} is no cause of {causes.FILE}")
    return Rival(cells["cause"], cells["rival"], pack.required(cells["tell_apart"]), pack.required(cells["command"]))
