"""What a fault brings along, from packs/effects.csv: families of causes that are its consequence at the same place.

`incidents.correlate` asks, so that people are told of the cause and not of its effects.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from watchkeeper.catalogue import causes, pack

FILE = "effects.csv"


def of(cause: str) -> frozenset[str]:
    """The families that this cause explains inside its place."""
    return _by_cause().get(cause, frozenset())


@cache
def _by_cause() -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for cause, family in pack.load(FILE, _row):
        found[cause] = found.get(cause, frozenset()) | {family}
    return found


def _row(cells: Mapping[str, str]) -> tuple[str, str]:
    pack.filled(cells["why"])
    families = frozenset(row.family for row in causes.all())
    known = frozenset(row.cause for row in causes.all())
    return pack.one_of(cells["cause"], known), pack.one_of(cells["effect"], families)
