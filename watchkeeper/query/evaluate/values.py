"""What an expression is while it is being evaluated: columns of series × steps.

Absent is `present=False`; a number under it means nothing. A vector's label sets are shared, immutable
and remember the label work done on them (`SeriesSet.derive`), so that a repeated query repeats none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.store.columns import Ints
from watchkeeper.store.index import Pairs, SeriesSet


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """`values[s, t]` of series s at step t, where `present[s, t]`."""

    series: SeriesSet
    values: Floats
    present: Mask

    def only(self, rows: Ints) -> Vector:
        pairs = self.series.pairs
        return Vector(SeriesSet([pairs[row] for row in rows.tolist()]), self.values[rows], self.present[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """One number per step."""

    values: Floats


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """A range vector: for each step and group a window of slots, `lows[g, t] <= slot < highs[g, t]`.

    `usable` is False for slots that hold no sample; None means that every slot of a window holds one.
    `ends_ms` are the right edges; the left ones are `range_ms` earlier and lie outside the window.
    """

    series: SeriesSet
    groups: Ints
    times: Millis
    values: Floats
    usable: Mask | None
    lows: Ints
    highs: Ints
    ends_ms: Millis
    range_ms: int


Value = Vector | Scalar | Text | Windows


def empty(steps: int) -> Vector:
    return Vector(SeriesSet([]), np.empty((0, steps)), np.empty((0, steps), dtype=bool))


def drop_name(vector: Vector) -> Vector:
    """The vector without metric names; QueryError if two series become one at the same step."""
    return relabelled(vector, vector.series.derive("drop_name", lambda pairs: without(pairs, frozenset({METRIC_NAME}))))


def without(series: Sequence[Pairs], names: frozenset[str]) -> SeriesSet:
    return SeriesSet([tuple(pair for pair in pairs if pair[0] not in names) for pairs in series])


def relabelled(vector: Vector, series: SeriesSet) -> Vector:
    """The vector under new label sets, row by row; rows that become the same series are merged."""
    return merge_duplicates(Vector(series, vector.values, vector.present))


def merge_duplicates(vector: Vector) -> Vector:
    """Join rows with equal label sets; QueryError where two of them have a value at the same step."""
    merging = vector.series.derive("merging", _merging)
    if merging.rows is None:
        return vector
    order, starts = merging.order, merging.starts
    present = vector.present[order]
    counts = np.add.reduceat(present.astype(np.int64), starts, axis=0) if len(order) else present.astype(np.int64)
    if (counts > 1).any():
        row = int(order[starts[int(np.argwhere(counts > 1)[0][0])]])
        [labels] = vector.series.labels_of([row])
        raise errors.QueryError(
            f"vector cannot contain metrics with the same labelset: {errors.quote(str(labels))} appears twice",
            remedy="Keep a label that tells the series apart, or aggregate them",
        )
    # At most one row of each group is present at a step, so the sum of what is present is that row's value.
    values = np.zeros(counts.shape)
    rows, steps = np.nonzero(vector.present)
    values[merging.rows[rows], steps] = vector.values[rows, steps]
    return Vector(merging.series, values, counts == 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Merging:
    """Which rows share a label set; `rows` is None if none do."""

    rows: Ints | None
    series: SeriesSet
    order: Ints
    starts: Ints


def _merging(series: Sequence[Pairs]) -> _Merging:
    numbers: dict[Pairs, int] = {}
    for pairs in series:
        numbers.setdefault(pairs, len(numbers))
    nothing = np.empty(0, dtype=np.int64)
    if len(numbers) == len(series):
        return _Merging(None, SeriesSet([]), nothing, nothing)
    rows = np.array([numbers[pairs] for pairs in series], dtype=np.int64)
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(numbers)))
    return _Merging(rows, SeriesSet(list(numbers)), order, starts)
