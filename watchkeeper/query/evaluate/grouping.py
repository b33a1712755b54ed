"""Which series belong together: the label work of aggregations and of vector matching.

The result depends on label sets only, so it is kept with the series set and costs nothing the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.store.columns import Ints
from watchkeeper.store.index import Pairs, SeriesSet


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """`of[s]` is the group of row s; rows in `order` lie group by group, each group beginning at its `starts`."""

    of: Ints
    series: SeriesSet
    order: Ints
    starts: Ints

    def __len__(self) -> int:
        return len(self.series)


def signature(pairs: Pairs, names: frozenset[str], *, is_on: bool) -> Pairs:
    """The part of a label set that is compared: only these labels, or all others but the metric name."""
    if is_on:
        return tuple(pair for pair in pairs if pair[0] in names)
    return tuple(pair for pair in pairs if pair[0] not in names and pair[0] != METRIC_NAME)


def group(series: SeriesSet, names: Sequence[str], *, is_on: bool) -> Groups:
    """Group series by the labels named (`by`, `on`), or by all others (`without`, `ignoring`)."""
    wanted = frozenset(names)

    def build(rows: Sequence[Pairs]) -> Groups:
        numbers: dict[Pairs, int] = {}
        of = np.array(
            [numbers.setdefault(signature(pairs, wanted, is_on=is_on), len(numbers)) for pairs in rows], dtype=np.int64
        )
        order = np.argsort(of, kind="stable")
        starts = np.searchsorted(of[order], np.arange(len(numbers)))
        return Groups(of, SeriesSet(list(numbers)), order, starts)

    return series.derive(("group", wanted, is_on), build)
