"""The values of expressions during evaluation, columns of series × steps, and the call of a function with such values.

Absent is `present=False`; ignore the value of an absent cell. A vector's label sets are shared and immutable, and cache
the label sets derived from them (`SeriesSet.derive`), so that a repeated query does not compute them again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import MAX_LABEL_CHARACTERS, Floats, Mask, Millis
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.promql import ast
from watchkeeper.store.columns import Ints
from watchkeeper.store.histograms import Cells
from watchkeeper.store.series import Pairs, SeriesSet

# A function that drops the metric name renames its label to this one, which sorts at the same position; the engine
# removes it from the result. So `label_replace(rate(…), "…", "$1", "__name__", "(.+)")` works and
# `sum(rate({job="x"}[5m]))` may combine metrics, as in Prometheus with promql-delayed-name-removal.
DROPPED_NAME = f"{METRIC_NAME}\0"
NAMES = (METRIC_NAME, DROPPED_NAME)
# A text and a tuple of two texts, besides the characters.
LABEL_BYTES = 120
# A cell of a vector while it is computed: a value, whether it is present, and as much for intermediate results.
CELL_BYTES = 18


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """An instant vector: `values[s, t]` of series s at step t, if `present[s, t]`.

    `histograms` is None if all samples are numbers, as nearly always. Else a cell has a histogram, or None if the
    sample is a number; ignore the value of a cell with a histogram.
    """

    series: SeriesSet
    values: Floats
    present: Mask
    histograms: Cells | None = None

    def select_rows(self, rows: Ints) -> Vector:
        histograms = None if self.histograms is None else self.histograms[rows]
        return Vector(self.series.subset(rows), self.values[rows], self.present[rows], histograms)

    @property
    def cells(self) -> Cells:
        return np.full(self.values.shape, None, dtype=object) if self.histograms is None else self.histograms

    @property
    def floats(self) -> Vector:
        if self.histograms is None:
            return self
        return Vector(self.series, self.values, self.present & is_none(self.histograms))


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    values: Floats


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """A range vector: for each step and group a window of slots, `lows[g, t] <= slot < highs[g, t]`.

    `usable` is False for slots without a sample; None means that every slot of a window has a sample.
    `ends_ms` are the right edges, which are included; the left edges are `range_ms` earlier and excluded.
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
    # As in `Vector`, for each slot.
    histograms: Cells | None = None

    @property
    def floats(self) -> Windows:
        if self.histograms is None:
            return self
        numbers = is_none(self.histograms)
        return replace(self, usable=numbers if self.usable is None else self.usable & numbers, histograms=None)


Value = Vector | Scalar | Text | Windows


@dataclass(frozen=True, slots=True, eq=False)
class Invocation:
    """A function call; the parser has checked the number and types of arguments, so accessors only assert them."""

    call: ast.FunctionCall
    args: tuple[Value, ...]
    times_ms: Millis
    notes: Notes

    def vector(self, at: int) -> Vector:
        value = self.args[at]
        assert isinstance(value, Vector)
        return value

    def windows(self, at: int) -> Windows:
        value = self.args[at]
        assert isinstance(value, Windows)
        return value

    def scalar(self, at: int) -> Scalar:
        value = self.args[at]
        assert isinstance(value, Scalar)
        return value

    def text(self, at: int) -> str:
        value = self.args[at]
        assert isinstance(value, Text)
        return value.value

    def single_series(self, values: Scalar) -> Vector:
        return Vector(SeriesSet([()]), values.values[None, :], np.ones((1, len(self.times_ms)), dtype=bool))


def size_of(value: Value) -> int:
    """The bytes of the columns of a value; a histogram counts as a pointer."""
    if isinstance(value, Vector):
        return value.values.nbytes + value.present.nbytes + (0 if value.histograms is None else value.values.nbytes)
    if isinstance(value, Text):
        return len(value.value)
    if isinstance(value, Scalar):
        return value.values.nbytes
    optional = (0 if value.usable is None else value.usable.nbytes) + (
        0 if value.histograms is None else value.histograms.nbytes
    )
    return value.values.nbytes + value.lows.nbytes + value.highs.nbytes + optional


PromFunction = Callable[[Invocation], Value]


def is_none(cells: Cells) -> Mask:
    none: Mask = cells == np.array(None, dtype=object)
    return none


def native_mask(vector: Vector) -> Mask:
    """The cells of a vector that are histograms."""
    assert vector.histograms is not None
    return vector.present & ~is_none(vector.histograms)


def empty_vector(steps: int) -> Vector:
    return Vector(SeriesSet([]), np.empty((0, steps)), np.empty((0, steps), dtype=bool))


def drop_name(vector: Vector) -> Vector:
    """Mark metric names as dropped: the result has none, but label functions can still read them."""
    if not vector.series.has_one_name:
        return with_series(vector, vector.series.mapped("drop_name", _mark_name_dropped))
    # Series of the same metric differ in other labels.
    series = vector.series.mapped("drop_one_name", _mark_name_dropped, is_one_to_one=True)
    series.has_one_name = True
    return Vector(series, vector.values, vector.present, vector.histograms)


def without_dropped(vector: Vector) -> Vector:
    """Remove dropped metric names; QueryError if two series become the same at the same step."""
    series = vector.series
    if not series.cached(
        "has_dropped", lambda: bool(series.register.column("has_dropped", _has_dropped)[series.ids].any())
    ):
        return vector
    return with_series(vector, series.mapped("without_dropped", _without_dropped))


def label_of(pairs: Pairs, name: str) -> str:
    """The value of a label, empty if it is absent; finds a dropped metric name too."""
    names = NAMES if name == METRIC_NAME else (name,)
    return next((value for label, value in pairs if label in names), "")


def with_label(pairs: Pairs, name: str, value: str) -> Pairs:
    """Set one label, or remove it if the value is empty; a new metric name replaces a dropped one too."""
    check_label_length(name, len(value))
    allowance.use_labels(LABEL_BYTES + len(value))
    replaced = NAMES if name == METRIC_NAME else (name,)
    kept = [pair for pair in pairs if pair[0] not in replaced]
    return tuple(sorted([*kept, (name, value)] if value else kept))


def check_label_length(name: str, characters: int) -> None:
    if characters > MAX_LABEL_CHARACTERS:
        raise errors.QueryLimit(
            f"the query would set the label {errors.quote(name)} to {characters:,} characters,"
            f" the limit is {MAX_LABEL_CHARACTERS:,}",
            remedy="Join or repeat fewer labels",
        )


def _mark_name_dropped(pairs: Pairs) -> Pairs:
    return tuple([_dropped_name_pair(pair[1]) if pair[0] == METRIC_NAME else pair for pair in pairs])


@lru_cache(maxsize=1024)
def _dropped_name_pair(name: str) -> tuple[str, str]:
    """The cached label pair of a dropped metric name, shared by all series of the metric."""
    return DROPPED_NAME, name


def _has_dropped(pairs: Pairs) -> bool:
    return any(name == DROPPED_NAME for name, _ in pairs)


def _without_dropped(pairs: Pairs) -> Pairs:
    return tuple([pair for pair in pairs if pair[0] != DROPPED_NAME])


def with_series(vector: Vector, series: SeriesSet) -> Vector:
    return merge_duplicates(Vector(series, vector.values, vector.present, vector.histograms))


def merge_duplicates(vector: Vector) -> Vector:
    """Merge rows with equal label sets; QueryError if two of them have a value at the same step."""
    duplicates = vector.series.cached("merging", lambda: _find_duplicates(vector.series))
    if duplicates.rows is None:
        return vector
    order, starts = duplicates.order, duplicates.starts
    present = vector.present[order]
    allowance.require(CELL_BYTES * present.size)
    counts = np.add.reduceat(present.astype(np.int64), starts, axis=0) if len(order) else present.astype(np.int64)
    if (counts > 1).any():
        row = int(order[starts[int(np.argwhere(counts > 1)[0][0])]])
        [labels] = vector.series.labels_of([row])
        raise errors.QueryError(
            f"vector cannot contain metrics with the same labelset: {errors.quote(str(labels))} appears twice",
            remedy="Keep a label that distinguishes the series, or aggregate them",
        )
    # At most one row of each group is present at a step.
    values = np.zeros(counts.shape)
    rows, steps = np.nonzero(vector.present)
    values[duplicates.rows[rows], steps] = vector.values[rows, steps]
    histograms = None
    if vector.histograms is not None:
        histograms = np.full(counts.shape, None, dtype=object)
        histograms[duplicates.rows[rows], steps] = vector.histograms[rows, steps]
    return Vector(duplicates.series, values, counts == 1, histograms)


@dataclass(frozen=True, slots=True, eq=False)
class _DuplicateRows:
    """The rows that share a label set; `rows` is None if there are none."""

    rows: Ints | None
    series: SeriesSet
    order: Ints
    starts: Ints


def _find_duplicates(series: SeriesSet) -> _DuplicateRows:
    ids, firsts, rows = np.unique(series.ids, return_index=True, return_inverse=True)
    no_rows = np.empty(0, dtype=np.int64)
    if len(ids) == len(series):
        return _DuplicateRows(None, SeriesSet([]), no_rows, no_rows)
    # In the order of first rows.
    by_first = np.argsort(firsts)
    rows = np.argsort(by_first)[rows]
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(len(ids)))
    return _DuplicateRows(rows, series.register.select(ids[by_first]), order, starts)
