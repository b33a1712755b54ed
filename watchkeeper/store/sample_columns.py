"""Columns of samples, which queries read from memory and from blocks.

`Head.select` and `Block.select` return `Columns`. `join` merges parts of consecutive times into one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.store.cache_memory import CACHE_MEMORY
from watchkeeper.store.columns import ABSENT, NEVER_MS, Floats, Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.series import Pairs, SeriesSet

MAX_UNIONS = 128
# The memory of a union for each series of its parts: a label set, and its position.
UNITED_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Samples of some series: `values[s, k]` was taken at `times[groups[s], k]`.

    Times of a row ascend; unused slots at its end are NEVER_MS, and their values have no meaning. A value is ABSENT if
    a series had no sample in a scrape; it may be the stale marker. `histograms` has the native histograms, if
    `Head.find_histograms` was called.
    """

    series: SeriesSet
    groups: Ints
    times: Ints
    values: Floats
    histograms: Cells | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SeriesUnion:
    """The distinct series of several sets, and for each set the positions of its series among them."""

    series: SeriesSet
    positions: tuple[Ints, ...]


class UnionCache:
    def __init__(self) -> None:
        self._unions: OrderedDict[tuple[SeriesSet, ...], SeriesUnion] = OrderedDict()
        CACHE_MEMORY.register(self)

    def get(self, sets: Sequence[SeriesSet]) -> SeriesUnion:
        key = tuple(sets)
        union = self._unions.get(key)
        if union is None:
            generation, union = CACHE_MEMORY.generation, _unite(sets)
            CACHE_MEMORY.charge(_union_bytes(sets))
            self._unions[key] = union
            while len(self._unions) > MAX_UNIONS:
                old_sets, old_union = self._unions.popitem(last=False)
                CACHE_MEMORY.credit(_union_bytes(old_sets), generation)
                _release_union(old_sets, old_union)
        return union

    def release(self) -> None:
        """Release all unions, because they are not used any more."""
        for sets, union in list(self._unions.items()):
            _release_union(sets, union)

    def drop_results(self) -> None:
        self.release()
        self._unions = OrderedDict()


def _union_bytes(sets: Sequence[SeriesSet]) -> int:
    return UNITED_BYTES * sum(map(len, sets))


def _release_union(sets: tuple[SeriesSet, ...], union: SeriesUnion) -> None:
    """Release the cached results of a union, unless it is the newest of its sets, which is still used."""
    if union.series is not sets[-1]:
        union.series.release()


def _unite(sets: Sequence[SeriesSet]) -> SeriesUnion:
    # The last set is the newest: if it contains all others, it is the union, with its cached results.
    order = [len(sets) - 1, *range(len(sets) - 1)]
    number_by_pairs: dict[Pairs, int] = {}
    positions: dict[int, Ints] = {}
    for set_index in order:
        positions[set_index] = np.array(
            [number_by_pairs.setdefault(pairs, len(number_by_pairs)) for pairs in sets[set_index].pairs], dtype=np.int64
        )
    newest, union_pairs = sets[-1], list(number_by_pairs)
    series = newest if len(number_by_pairs) == len(newest) else SeriesSet(union_pairs)
    for set_index, older_set in enumerate(sets[:-1]):
        # A block has its own copies of label sets; replace them by the equal objects of the newest set.
        older_set.pairs = [union_pairs[position] for position in positions[set_index].tolist()]
    return SeriesUnion(series, tuple(positions[set_index] for set_index in range(len(sets))))


def join(parts: Sequence[Columns], unions: UnionCache) -> Columns:
    """Merge parts of consecutive times; a series may be missing in any part."""
    union = unions.get([part.series for part in parts])
    # Series with the same row of times in every part share a row of times in the result.
    part_groups = np.full((len(union.series), len(parts)), -1, dtype=np.int64)
    for part_index, (part, positions) in enumerate(zip(parts, union.positions, strict=True)):
        part_groups[positions, part_index] = part.groups
    combinations, groups = np.unique(part_groups, axis=0, return_inverse=True)
    groups = groups.reshape(-1)
    slot_counts = [np.append(np.count_nonzero(part.times != NEVER_MS, axis=1), 0) for part in parts]
    lengths = np.stack([counts[combinations[:, part_index]] for part_index, counts in enumerate(slot_counts)], axis=1)
    starts = np.cumsum(lengths, axis=1) - lengths
    width = int(lengths.sum(axis=1).max()) if len(combinations) else 0
    times = np.full((len(combinations), width), NEVER_MS, dtype=np.int64)
    values = np.full((len(union.series), width), ABSENT)
    for part_index, (part, positions) in enumerate(zip(parts, union.positions, strict=True)):
        first, count = starts[:, part_index], lengths[:, part_index]
        rows, series_groups = np.flatnonzero(combinations[:, part_index] >= 0), groups[positions]
        part_times = part.times[combinations[rows, part_index]]
        _write_runs(times, rows, part_times, starts=first[rows], lengths=count[rows])
        _write_runs(values, positions, part.values, starts=first[series_groups], lengths=count[series_groups])
    return Columns(union.series, groups, times, values)


def _write_runs(table: Ints | Floats, rows: Ints, cell_values: Ints | Floats, *, starts: Ints, lengths: Ints) -> None:
    """Write the first `lengths` cells of each row into the table, starting at `starts`."""
    for start, length in np.unique(np.stack([starts, lengths], axis=1), axis=0).tolist():
        if length:
            same_run = np.flatnonzero((starts == start) & (lengths == length))
            table[rows[same_run], start : start + length] = cell_values[same_run, :length]


def check_sample_limit(samples: int, limit: int | None) -> None:
    if limit is not None and samples > limit:
        raise errors.QueryLimit(
            f"the query would read {samples} samples, the limit is {limit}",
            remedy="Select fewer series or a shorter time",
        )
