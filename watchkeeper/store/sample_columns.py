"""What a query reads: columns of samples, from memory and from blocks, put together into one.

`interfaces.SampleStore.select` answers with `Columns`. `join` makes one answer of parts that follow each other in time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.series import Pairs, SeriesSet

REMEMBERED_UNIONS = 128


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Samples of some series: `values[s, k]` was taken at `times[groups[s], k]`.

    Times of a row ascend; unused slots at its end are NEVER_MS, and their values mean nothing. A value may be
    ABSENT, where a series had no sample in a scrape, or the stale marker. `histograms` has the histograms among them,
    where somebody has asked what marks stand for (`interfaces.SampleStore.reveal`).
    """

    series: SeriesSet
    groups: Ints
    times: Ints
    values: Floats
    histograms: Cells | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SeriesUnion:
    """The series of several sets, each once, and for each set the places of its series in it."""

    series: SeriesSet
    places: tuple[Ints, ...]


class UnionCache:
    """Remembers unions, so that a repeated query repeats no label work."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[SeriesSet, ...], SeriesUnion] = OrderedDict()

    def get(self, sets: Sequence[SeriesSet]) -> SeriesUnion:
        key = tuple(sets)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _unite(sets)
            while len(self._known) > REMEMBERED_UNIONS:
                _let_go(*self._known.popitem(last=False))
        return known

    def release(self) -> None:
        """Nobody will ask for these unions any more."""
        for sets, union in list(self._known.items()):
            _let_go(sets, union)


def _let_go(sets: tuple[SeriesSet, ...], union: SeriesUnion) -> None:
    """Let go of what was worked out about a union, unless it is the newest of its sets, which goes on."""
    if union.series is not sets[-1]:
        union.series.release()


def _unite(sets: Sequence[SeriesSet]) -> SeriesUnion:
    # The last set is the newest: where every other is part of it, it is the union, with all it remembers.
    order = [len(sets) - 1, *range(len(sets) - 1)]
    numbers: dict[Pairs, int] = {}
    places: dict[int, Ints] = {}
    for at in order:
        places[at] = np.array([numbers.setdefault(pairs, len(numbers)) for pairs in sets[at].pairs], dtype=np.int64)
    newest, kept = sets[-1], list(numbers)
    series = newest if len(numbers) == len(newest) else SeriesSet(kept)
    for at, older in enumerate(sets[:-1]):
        # A block reads label sets of its own; from here on it has those of the newest set, which are equal.
        older.pairs = [kept[place] for place in places[at].tolist()]
    return SeriesUnion(series, tuple(places[at] for at in range(len(sets))))


def join(parts: Sequence[Columns], unions: UnionCache) -> Columns:
    """One answer of parts whose times follow each other; a series may be missing from any of them."""
    union = unions.get([part.series for part in parts])
    count = len(union.series)
    # Series whose rows of times agree in every part share a row of times in the answer.
    own = np.full((count, len(parts)), -1, dtype=np.int64)
    for at, (part, places) in enumerate(zip(parts, union.places, strict=True)):
        own[places, at] = part.groups
    kinds, groups = np.unique(own, axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    filled = [np.append(np.count_nonzero(part.times != NEVER_MS, axis=1), 0) for part in parts]
    lengths = np.stack([counts[kinds[:, at]] for at, counts in enumerate(filled)], axis=1)
    starts = np.cumsum(lengths, axis=1) - lengths
    width = int(lengths.sum(axis=1).max()) if len(kinds) else 0
    times = np.full((len(kinds), width), NEVER_MS, dtype=np.int64)
    values = np.full((count, width), ABSENT)
    for at, (part, places) in enumerate(zip(parts, union.places, strict=True)):
        chosen = np.flatnonzero(kinds[:, at] >= 0)
        _lay(times, chosen, part.times[kinds[chosen, at]], starts=starts[chosen, at], lengths=lengths[chosen, at])
        mine = groups[places]
        _lay(values, places, part.values, starts=starts[mine, at], lengths=lengths[mine, at])
    return Columns(union.series, groups, times, values)


def _lay(table: Ints | Floats, rows: Ints, cells: Ints | Floats, *, starts: Ints, lengths: Ints) -> None:
    """Write the first `lengths` cells of each row into the table, from `starts` on."""
    for start, length in np.unique(np.stack([starts, lengths], axis=1), axis=0).tolist():
        if length:
            alike = np.flatnonzero((starts == start) & (lengths == length))
            table[rows[alike], start : start + length] = cells[alike, :length]


def check_sample_limit(samples: int, limit: int | None) -> None:
    if limit is not None and samples > limit:
        raise errors.QueryLimit(
            f"the query would read {samples} samples, the limit is {limit}",
            remedy="Select fewer series or a shorter time",
        )
