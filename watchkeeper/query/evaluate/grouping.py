"""Group series by labels, for aggregations and vector matching.

Groups depend only on label sets, so they are cached with the series set. `reduce_groups` then reduces the rows of each
group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.evaluate.values import DROPPED_NAME, NAMES
from watchkeeper.store.columns import Ints, distinct
from watchkeeper.store.series import Pairs, SeriesSet

T = TypeVar("T", bound=np.generic)

# Groups of at least this many rows on average are reduced with one NumPy call each.
MIN_ROWS_PER_CALL = 32


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """`group_of_row[s]` is the group of row s; `order` sorts rows by group, and group g starts at `starts[g]`."""

    group_of_row: Ints
    series: SeriesSet
    order: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.series)

    def sort_by_group(self, table: npt.NDArray[T]) -> npt.NDArray[T]:
        """Sort the rows of a table by group; returns the table itself if they are sorted already."""
        return table if len(self) <= 1 or (np.diff(self.order) == 1).all() else table[self.order]


def signature(pairs: Pairs, names: frozenset[str], *, is_on: bool) -> Pairs:
    """The labels that are compared: only these labels, or all others except the metric name."""
    if not is_on:
        return tuple([pair for pair in pairs if pair[0] not in names and pair[0] not in NAMES])
    if METRIC_NAME not in names:
        return tuple([pair for pair in pairs if pair[0] in names])
    renamed_pairs = ((METRIC_NAME if name == DROPPED_NAME else name, value) for name, value in pairs)
    return tuple(pair for pair in renamed_pairs if pair[0] in names)


def group(series: SeriesSet, names: Sequence[str], *, is_on: bool) -> Groups:
    """Group series by these labels (`by`, `on`), or by all others (`without`, `ignoring`)."""
    label_names = frozenset(names)
    key = ("group", label_names, is_on)

    def build() -> Groups:
        compared, numbers = series.register.mapped(key, lambda pairs: signature(pairs, label_names, is_on=is_on))
        ids, group_of_row = distinct(numbers[series.ids], len(compared))
        group_series = compared.select(ids)
        if is_on and METRIC_NAME in label_names:
            group_series = _mark_dropped_names(series, group_of_row, group_series)
        order = np.argsort(group_of_row, kind="stable")
        starts = np.searchsorted(group_of_row[order], np.arange(len(group_series)))
        return Groups(group_of_row, group_series, order, starts)

    return series.cached(key, build)


def _mark_dropped_names(series: SeriesSet, group_of_row: Ints, groups: SeriesSet) -> SeriesSet:
    """Mark a group's metric name as dropped if that of any of its series is."""
    keys = list(groups.pairs)
    for pairs, number in zip(series.pairs, group_of_row.tolist(), strict=True):
        if any(name == DROPPED_NAME for name, _ in pairs):
            keys[number] = tuple((DROPPED_NAME if name == METRIC_NAME else name, value) for name, value in keys[number])
    return SeriesSet(keys)


def group_sizes(starts: Ints, rows: int) -> Ints:
    return np.diff(np.append(starts, rows))


def reduce_groups(reduce: np.ufunc, table: npt.NDArray[T], starts: Ints) -> npt.NDArray[T]:
    """Reduce the rows of each group; rows are sorted by group, and groups begin at `starts`."""
    # `reduceat` processes one column after the other; with many columns, whole rows at a time are ten times as fast.
    rows, steps = table.shape
    sizes = group_sizes(starts, rows)
    if steps > 1 and len(starts) and (sizes == sizes[0]).all():
        return np.asarray(reduce.reduce(table.reshape(len(starts), int(sizes[0]), steps), axis=1))
    if steps > 1 and len(starts) * MIN_ROWS_PER_CALL <= rows:
        lows = starts.tolist()
        return np.stack([reduce.reduce(table[low : low + size], axis=0) for low, size in zip(lows, sizes, strict=True)])
    return np.asarray(reduce.reduceat(table, starts, axis=0))
