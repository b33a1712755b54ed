"""Where the samples of a selection lie: its groups of series, and in each slab the rows of values and of times.

`head` asks for it with every query. Worked out once and kept with the selection while no series joins, leaves or
moves: rules and panels ask for the same series again and again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from watchkeeper.store.columns import Ints
from watchkeeper.store.groups import NOBODY, Ledger
from watchkeeper.store.index import Selection


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What lies in one slab: `groups` are places among the groups, `series` among the series of a selection."""

    slab: int
    groups: Ints
    series: Ints
    rows: Ints
    time_rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Whereabouts:
    """The groups of some series, each series' place among them, and what lies where; series without samples nowhere."""

    groups: Ints
    group_index: Ints
    parts: tuple[Part, ...]


@dataclass(slots=True)
class _Remembered:
    version: tuple[int, int] = (-1, -1)
    found: Whereabouts | None = field(default=None)


def of(chosen: Selection, ledger: Ledger) -> Whereabouts:
    known = chosen.series.derive("whereabouts", lambda _: _Remembered())
    version = (ledger.version, ledger.moves)
    if known.found is None or known.version != version:
        known.found, known.version = _look_up(chosen, ledger), version
    return known.found


def _look_up(chosen: Selection, ledger: Ledger) -> Whereabouts:
    groups, group_index = np.unique(ledger.group_of[chosen.numbers], return_inverse=True)
    slabs = np.full(len(groups), NOBODY, dtype=np.int64)
    slabs[groups != NOBODY] = ledger.slab_of[groups[groups != NOBODY]]
    parts = []
    for slab in np.unique(slabs[slabs != NOBODY]).tolist():
        inside = np.flatnonzero(slabs == slab)
        series = np.flatnonzero((slabs == slab)[group_index])
        parts.append(Part(slab, inside, series, ledger.row_of[chosen.numbers[series]], ledger.time_row[groups[inside]]))
    return Whereabouts(groups, group_index, tuple(parts))
