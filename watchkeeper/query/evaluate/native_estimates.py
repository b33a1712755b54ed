"""The histogram_… functions over native histograms: one number for each, said together with what is doubtful about it.

`histograms` computes classic ones, and has the native ones beside them put in here. Both kinds of one metric at one
time are a mistake of whoever writes them: then neither has a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats
from watchkeeper.query.evaluate import estimates
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.native_aggregate import native
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Vector, drop_name, empty, label_of
from watchkeeper.query.promql import ast
from watchkeeper.store.series import SeriesSet

Estimate = Callable[[int, Histogram], tuple[float, estimates.Doubt | None]]


def with_quantiles(classic: Vector, vector: Vector, quantiles: Floats, *, about: ast.Expr, notes: Notes) -> Vector:
    wanted = quantiles.tolist()
    return _beside(classic, vector, lambda step, one: estimates.quantile(wanted[step], one), about=about, notes=notes)


def with_fractions(
    classic: Vector, vector: Vector, lower: Floats, upper: Floats, *, about: ast.Expr, notes: Notes
) -> Vector:
    lows, highs = lower.tolist(), upper.tolist()
    return _beside(
        classic, vector, lambda step, one: estimates.fraction(lows[step], highs[step], one), about=about, notes=notes
    )


def _beside(classic: Vector, vector: Vector, estimate: Estimate, *, about: ast.Expr, notes: Notes) -> Vector:
    """Results of classic histograms with those of native ones below them."""
    assert vector.histograms is not None
    rows_of = {pairs: row for row, pairs in enumerate(classic.series.pairs)}
    is_native = native(vector)
    rows = np.flatnonzero(is_native.any(axis=1))
    values, present = np.zeros((len(rows), is_native.shape[1])), is_native[rows]
    kept = np.array(classic.present)
    for at, row in enumerate(rows.tolist()):
        pairs = vector.series.pairs[row]
        name, twin = label_of(pairs, METRIC_NAME), rows_of.get(pairs)
        for step in np.flatnonzero(present[at]).tolist():
            if twin is not None and classic.present[twin, step]:
                notes.doubt_mixed_buckets(name, about)
                kept[twin, step] = present[at, step] = False
                continue
            values[at, step], doubt = estimate(step, vector.histograms[row, step])
            if doubt is not None:
                notes.doubt_native(doubt.value, name, about)
    series = SeriesSet([*classic.series.pairs, *(vector.series.pairs[row] for row in rows.tolist())])
    return Vector(series, np.concatenate([classic.values, values]), np.concatenate([kept, present]))


def _each(compute: Callable[[Histogram], float]) -> PromFunction:
    """A function of native histograms; it finds nothing where all samples are numbers."""

    def call(invocation: Invocation) -> Vector:
        vector = invocation.vector(0)
        if vector.histograms is None:
            return empty(len(invocation.times_ms))
        present, values = native(vector), np.zeros(vector.values.shape)
        for row, step in np.argwhere(present).tolist():
            values[row, step] = compute(vector.histograms[row, step])
        return drop_name(Vector(vector.series, values, present))

    return call


def _average(histogram: Histogram) -> float:
    with np.errstate(all="ignore"):
        return float(np.float64(histogram.sum) / histogram.count)


def _deviation(histogram: Histogram) -> float:
    variance = estimates.variance(histogram)
    return math.sqrt(variance) if variance >= 0 else math.nan


FUNCTIONS: dict[str, PromFunction] = {
    "histogram_avg": _each(_average),
    "histogram_count": _each(lambda histogram: histogram.count),
    "histogram_stddev": _each(_deviation),
    "histogram_stdvar": _each(estimates.variance),
    "histogram_sum": _each(lambda histogram: histogram.sum),
}
