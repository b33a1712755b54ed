"""Where the samples of a selection are: its groups of series, and in each slab the rows of values and of times.

`head` needs it for every query. It is cached with the selection until a series is added to, removed from or moved in
one of its groups, because rules and panels query the same series repeatedly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from watchkeeper.store.columns import Ints, distinct, sorted_distinct
from watchkeeper.store.groups import NO_GROUP, GroupTable
from watchkeeper.store.index import Selection


@dataclass(frozen=True, slots=True, eq=False)
class SlabPart:
    """The part of a selection in one slab; `groups` and `series` are positions among its groups and series."""

    slab: int
    groups: Ints
    series: Ints
    rows: Ints
    time_rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class SampleLocations:
    """The groups of a selection, the position of each series among them, and their parts in each slab."""

    groups: Ints
    group_index: Ints
    parts: tuple[SlabPart, ...]
    # The versions of the groups; None while a series has no group, because it may get one at any time.
    versions: Ints | None


@dataclass(slots=True)
class _LocationCache:
    locations: SampleLocations | None = None


def locate(selection: Selection, table: GroupTable) -> SampleLocations:
    cache = selection.series.cached("sample locations", _LocationCache)
    cached = cache.locations
    if cached is None or cached.versions is None or (table.versions[cached.groups] != cached.versions).any():
        cached = cache.locations = _find_locations(selection, table)
    return cached


def _find_locations(selection: Selection, table: GroupTable) -> SampleLocations:
    # Plus one, so that NO_GROUP comes first and is not negative.
    groups, group_index = distinct(table.group_of[selection.numbers] + 1, len(table.versions) + 1)
    groups -= 1
    slabs = np.full(len(groups), NO_GROUP, dtype=np.int64)
    slabs[groups != NO_GROUP] = table.slab_of[groups[groups != NO_GROUP]]
    parts = []
    for slab in sorted_distinct(slabs[slabs != NO_GROUP]).tolist():
        slab_groups = np.flatnonzero(slabs == slab)
        series = np.flatnonzero((slabs == slab)[group_index])
        parts.append(
            SlabPart(
                slab, slab_groups, series, table.row_of[selection.numbers[series]], table.time_row[groups[slab_groups]]
            )
        )
    versions = None if NO_GROUP in groups[:1] else table.versions[groups]
    return SampleLocations(groups, group_index, tuple(parts), versions)
