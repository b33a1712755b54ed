"""Where the samples of a selection lie: its groups of series, and in each slab the rows of values and of times.

`head` asks for it with every query. Worked out once and kept with the selection while no series joins, leaves or
moves in one of its groups: rules and panels ask for the same series again and again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watchkeeper.store.columns import Ints, distinct, sorted_distinct
from watchkeeper.store.groups import NO_GROUP, GroupTable
from watchkeeper.store.index import Selection


@dataclass(frozen=True, slots=True, eq=False)
class SlabPart:
    """What lies in one slab: `groups` are places among the groups, `series` among the series of a selection."""

    slab: int
    groups: Ints
    series: Ints
    rows: Ints
    time_rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SampleLocations:
    """The groups of some series, each series' place among them, and what lies where; series without samples nowhere."""

    groups: Ints
    group_index: Ints
    parts: tuple[SlabPart, ...]
    # The ledger's stamps of the groups; None while a series has no group yet, as nothing tells when it gets one.
    stamps: Ints | None


@dataclass(slots=True)
class _Remembered:
    found: SampleLocations | None = None


def locate(chosen: Selection, ledger: GroupTable) -> SampleLocations:
    known = chosen.series.cached("whereabouts", _Remembered)
    found = known.found
    if found is None or found.stamps is None or (ledger.stamps[found.groups] != found.stamps).any():
        found = known.found = _look_up(chosen, ledger)
    return found


def _look_up(chosen: Selection, ledger: GroupTable) -> SampleLocations:
    # One more, so that NOBODY comes first and is no negative number.
    groups, group_index = distinct(ledger.group_of[chosen.numbers] + 1, len(ledger.stamps) + 1)
    groups -= 1
    slabs = np.full(len(groups), NO_GROUP, dtype=np.int64)
    slabs[groups != NO_GROUP] = ledger.slab_of[groups[groups != NO_GROUP]]
    parts = []
    for slab in sorted_distinct(slabs[slabs != NO_GROUP]).tolist():
        inside = np.flatnonzero(slabs == slab)
        series = np.flatnonzero((slabs == slab)[group_index])
        parts.append(
            SlabPart(slab, inside, series, ledger.row_of[chosen.numbers[series]], ledger.time_row[groups[inside]])
        )
    stamps = None if NO_GROUP in groups[:1] else ledger.stamps[groups]
    return SampleLocations(groups, group_index, tuple(parts), stamps)
