"""The histogram_… functions over native histograms: one number for each, with notes about NaN observations.

`histograms` computes classic histograms and calls this module for the native ones. A metric with both kinds at one step
is an error of its exporter: then neither has a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.evaluate import estimates
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.native_aggregate import native_mask
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Vector, drop_name, empty_vector, label_of
from watchkeeper.query.promql import ast
from watchkeeper.store.series import SeriesSet

Estimate = Callable[[int, Histogram], tuple[float, estimates.NanEffect | None]]


def append_native(classic: Vector, vector: Vector, estimate: Estimate, *, about: ast.Expr, notes: Notes) -> Vector:
    """Append results of native histograms to those of classic histograms."""
    assert vector.histograms is not None
    rows_of = {pairs: row for row, pairs in enumerate(classic.series.pairs)}
    is_native = native_mask(vector)
    rows = np.flatnonzero(is_native.any(axis=1))
    values, present = np.zeros((len(rows), is_native.shape[1])), is_native[rows]
    classic_present = np.array(classic.present)
    for index, row in enumerate(rows.tolist()):
        pairs = vector.series.pairs[row]
        name, classic_row = label_of(pairs, METRIC_NAME), rows_of.get(pairs)
        for step in np.flatnonzero(present[index]).tolist():
            if classic_row is not None and classic.present[classic_row, step]:
                notes.warn_mixed_buckets(name, about)
                classic_present[classic_row, step] = present[index, step] = False
                continue
            values[index, step], nan_effect = estimate(step, vector.histograms[row, step])
            if nan_effect is not None:
                notes.note_nan_effect(nan_effect.value, name, about)
    series = SeriesSet([*classic.series.pairs, *(vector.series.pairs[row] for row in rows.tolist())])
    return Vector(series, np.concatenate([classic.values, values]), np.concatenate([classic_present, present]))


def _per_histogram(compute: Callable[[Histogram], float]) -> PromFunction:
    """Wrap a function of one native histogram; the result is empty if all samples are numbers."""

    def call(invocation: Invocation) -> Vector:
        vector = invocation.vector(0)
        if vector.histograms is None:
            return empty_vector(len(invocation.times_ms))
        present, values = native_mask(vector), np.zeros(vector.values.shape)
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
    "histogram_avg": _per_histogram(_average),
    "histogram_count": _per_histogram(lambda histogram: histogram.count),
    "histogram_stddev": _per_histogram(_deviation),
    "histogram_stdvar": _per_histogram(estimates.variance),
    "histogram_sum": _per_histogram(lambda histogram: histogram.sum),
}
