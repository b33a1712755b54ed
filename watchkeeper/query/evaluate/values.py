"""What an expression is while it is being evaluated: columns of series × steps.

Absent is `present=False`; a number under it means nothing. A vector's label sets are shared, immutable
and remember the label work done on them (`SeriesSet.derive`), so that a repeated query repeats none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from watchkeeper import errors
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask, Millis
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.series import Pairs, SeriesSet

# A function that takes the metric name away moves it to this label, which stands where the name stood in the order
# of labels; the engine drops it from the answer. So `label_replace(rate(…), "…", "$1", "__name__", "(.+)")` works and
# `sum(rate({job="x"}[5m]))` may join metrics, as in Prometheus with promql-delayed-name-removal.
DROPPED_NAME = f"{METRIC_NAME}\0"
NAMES = (METRIC_NAME, DROPPED_NAME)


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """`values[s, t]` of series s at step t, where `present[s, t]`.

    `histograms` is None where all samples are numbers, as nearly always; else a cell of it is None where the sample is
    a number, and where it is not the number there means nothing.
    """

    series: SeriesSet
    values: Floats
    present: Mask
    histograms: Cells | None = None

    def only(self, rows: Ints) -> Vector:
        histograms = None if self.histograms is None else self.histograms[rows]
        return Vector(self.series.subset(rows), self.values[rows], self.present[rows], histograms)

    @property
    def floats(self) -> Vector:
        """The vector with its numbers only."""
        if self.histograms is None:
            return self
        return Vector(self.series, self.values, self.present & is_none(self.histograms))


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
    # As in a vector, for each slot.
    histograms: Cells | None = None

    @property
    def floats(self) -> Windows:
        """The windows with their numbers only."""
        if self.histograms is None:
            return self
        numbers = is_none(self.histograms)
        return replace(self, usable=numbers if self.usable is None else self.usable & numbers, histograms=None)


Value = Vector | Scalar | Text | Windows


def is_none(cells: Cells) -> Mask:
    none: Mask = cells == np.array(None, dtype=object)
    return none


def empty(steps: int) -> Vector:
    return Vector(SeriesSet([]), np.empty((0, steps)), np.empty((0, steps), dtype=bool))


def drop_name(vector: Vector) -> Vector:
    """The vector with its metric names set aside: the answer has none, and label functions can still read them."""
    if not vector.series.has_one_name:
        return relabelled(vector, vector.series.mapped("drop_name", _set_aside))
    # Series of one metric differ in other labels.
    series = vector.series.mapped("drop_one_name", _set_aside, is_one_to_one=True)
    series.has_one_name = True
    return Vector(series, vector.values, vector.present, vector.histograms)


def without_dropped(vector: Vector) -> Vector:
    """The vector as an answer shows it; QueryError if two series become one at the same step."""
    if not vector.series.cached("has_dropped", lambda: _any_dropped(vector.series)):
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


def _any_dropped(series: SeriesSet) -> bool:
    return bool(series.register.column("has_dropped", _has_dropped)[series.ids].any())


def _has_dropped(pairs: Pairs) -> bool:
    return any(name == DROPPED_NAME for name, _ in pairs)


def _without_dropped(pairs: Pairs) -> Pairs:
    return tuple([pair for pair in pairs if pair[0] != DROPPED_NAME])


def relabelled(vector: Vector, series: SeriesSet) -> Vector:
    """The vector under new label sets, row by row; rows that become the same series are merged."""
    return merge_duplicates(Vector(series, vector.values, vector.present, vector.histograms))


def merge_duplicates(vector: Vector) -> Vector:
    """Join rows with equal label sets; QueryError where two of them have a value at the same step."""
    merging = vector.series.cached("merging", lambda: _merging(vector.series))
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
    histograms = None
    if vector.histograms is not None:
        histograms = np.full(counts.shape, None, dtype=object)
        histograms[merging.rows[rows], steps] = vector.histograms[rows, steps]
    return Vector(merging.series, values, counts == 1, histograms)


@dataclass(frozen=True, slots=True, eq=False)
class _Merging:
    """Which rows share a label set; `rows` is None if none do."""

    rows: Ints | None
    series: SeriesSet
    order: Ints
    starts: Ints


def _merging(series: SeriesSet) -> _Merging:
    ids, firsts, rows = np.unique(series.ids, return_index=True, return_inverse=True)
    nothing = np.empty(0, dtype=np.int64)
    if len(ids) == len(series):
        return _Merging(None, SeriesSet([]), nothing, nothing)
    # Each is where its first row was.
    by_first = np.argsort(firsts)
    rows = np.argsort(by_first)[rows]
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(ids)))
    return _Merging(rows, series.register.select(ids[by_first]), order, starts)
