"""What an expression is while it is being evaluated: columns of series × steps.

Absent is `present=False`; a number under it means nothing. A vector's label sets are shared, immutable
and remember the label work done on them (`SeriesSet.derive`), so that a repeated query repeats none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.store.columns import Ints
from watchkeeper.store.index import Pairs, SeriesSet

# A function that takes the metric name away moves it to this label, which stands where the name stood in the order
# of labels; the engine drops it from the answer. So `label_replace(rate(…), "…", "$1", "__name__", "(.+)")` works and
# `sum(rate({job="x"}[5m]))` may join metrics, as in Prometheus with promql-delayed-name-removal.
DROPPED_NAME = f"{METRIC_NAME}\0"
NAMES = (METRIC_NAME, DROPPED_NAME)


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
    """The vector with its metric names set aside: the answer has none, and label functions can still read them."""
    series = vector.series.mapped("drop_name", _set_aside)
    if not vector.series.has_one_name:
        return relabelled(vector, series)
    # Series of one metric differ in other labels.
    series.has_one_name = True
    return Vector(series, vector.values, vector.present)


def without_dropped(vector: Vector) -> Vector:
    """The vector as an answer shows it; QueryError if two series become one at the same step."""
    if not vector.series.derive("has_dropped", _has_dropped):
        return vector
    return relabelled(vector, vector.series.mapped("without_dropped", _without_dropped))


def label_of(pairs: Pairs, name: str) -> str:
    """The value of a label, empty where it is absent; a metric name that was set aside is still the metric name."""
    wanted = NAMES if name == METRIC_NAME else (name,)
    return next((value for own, value in pairs if own in wanted), "")


def with_label(pairs: Pairs, name: str, value: str) -> Pairs:
    """The label set with one label set, or removed by an empty value; a new metric name takes the place of the old."""
    replaced = NAMES if name == METRIC_NAME else (name,)
    kept = [pair for pair in pairs if pair[0] not in replaced]
    return tuple(sorted([*kept, (name, value)] if value else kept))


def _set_aside(pairs: Pairs) -> Pairs:
    return tuple([_dropped(pair[1]) if pair[0] == METRIC_NAME else pair for pair in pairs])


@lru_cache(maxsize=1024)
def _dropped(name: str) -> tuple[str, str]:
    """One pair for all series of a metric."""
    return DROPPED_NAME, name


def _has_dropped(series: Sequence[Pairs]) -> bool:
    return any(name == DROPPED_NAME for pairs in series for name, _ in pairs)


def _without_dropped(pairs: Pairs) -> Pairs:
    return tuple([pair for pair in pairs if pair[0] != DROPPED_NAME])


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
