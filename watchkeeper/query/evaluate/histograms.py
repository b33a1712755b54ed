"""The histogram_… functions over classic histograms (counters per bucket, with the bound in `le`) and native ones.

Classic histograms with the same bounds are computed together, for all steps at once. A bucket that is absent at a step
is ignored there, so steps are grouped by their present buckets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from watchkeeper.kit import allowance
from watchkeeper.model.histograms import Histogram
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import estimates
from watchkeeper.query.evaluate.aggregate import format_value
from watchkeeper.query.evaluate.notes import for_metric
from watchkeeper.query.evaluate.values import (
    CELL_BYTES,
    Invocation,
    PromFunction,
    Vector,
    drop_name,
    empty_vector,
    label_of,
    merge_duplicates,
    native_mask,
    with_label,
)
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

BOUND_LABEL = "le"
# Differences below this share of the counts are rounding, not observations (Prometheus, promql/quantile.go).
ROUNDING = 1e-12
MONOTONICITY = (
    "input to histogram_quantile needed to be fixed for monotonicity "
    "(see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)

# Computes one number per cell from bounds [bucket], cumulative counts [bucket, cell] and the step of each cell.
Compute: TypeAlias = Callable[[Floats, Floats, Ints], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Histograms with the same bounds: `rows[h, b]` is the row of bucket b of histogram h."""

    bounds: Floats
    rows: Ints
    series: list[Pairs]
    names: list[str]


def _quantile_at(invocation: Invocation, quantiles_at: int, *, buckets_at: int) -> Vector:
    quantiles, args = invocation.scalar(quantiles_at).values, invocation.call.args
    invocation.notes.check_quantiles(quantiles, args[quantiles_at])
    classic = _compute_all(
        invocation,
        buckets_at,
        compute=lambda bounds, counts, steps: _quantile(bounds, counts, quantiles[steps]),
        notes_repairs=(quantiles >= 0) & (quantiles <= 1),
    )
    out_of_range = (quantiles < 0) | (quantiles > 1)
    if out_of_range.any():
        values = np.where(out_of_range, np.copysign(np.inf, quantiles), classic.values)
        classic = Vector(classic.series, values, classic.present)

    def estimate(step: int, histogram: Histogram) -> tuple[float, estimates.NanEffect | None]:
        return estimates.quantile(float(quantiles[step]), histogram)

    return _append_native(invocation, buckets_at, classic, estimate=estimate)


def _histogram_quantiles(invocation: Invocation) -> Vector:
    """Several quantiles at once; each result has its quantile in the given label."""
    label = invocation.text(1)
    parts = []
    for at in range(2, len(invocation.args)):
        quantiles = invocation.scalar(at).values
        part = _quantile_at(invocation, at, buckets_at=0)
        # Format a number as OpenMetrics does in a label: 1.0, 0.25, +Inf.
        allowance.check()
        allowance.use_labels(CELL_BYTES * part.values.size)
        value = float(quantiles[0])
        text = format_value(value)
        name = text if not math.isfinite(value) or "." in text else f"{text}.0"
        series = [with_label(pairs, label, name) for pairs in part.series.pairs]
        parts.append(Vector(SeriesSet(series), part.values, part.present))
    pairs = [series_pairs for part in parts for series_pairs in part.series.pairs]
    values, present = (np.concatenate(arrays) for arrays in zip(*((p.values, p.present) for p in parts), strict=True))
    return merge_duplicates(Vector(SeriesSet(pairs), values, present))


def _histogram_fraction(invocation: Invocation) -> Vector:
    lower, upper = invocation.scalar(0).values, invocation.scalar(1).values

    def compute(bounds: Floats, counts: Floats, steps: Ints) -> Floats:
        return _fraction(bounds, counts, lower[steps], upper[steps])

    def estimate(step: int, histogram: Histogram) -> tuple[float, estimates.NanEffect | None]:
        return estimates.fraction(float(lower[step]), float(upper[step]), histogram)

    classic = _compute_all(invocation, 2, compute=compute, notes_repairs=np.zeros(len(lower), dtype=bool))
    return _append_native(invocation, 2, classic, estimate=estimate)


def _compute_all(invocation: Invocation, at: int, *, compute: Compute, notes_repairs: Mask) -> Vector:
    """Compute classic histograms; `notes_repairs` are the steps at which a monotonicity fix is reported."""
    vector, about, notes = invocation.vector(at).floats, invocation.call.args[at], invocation.notes
    steps = vector.values.shape[1]
    for row, name, bound in vector.series.derive("malformed_buckets", _malformed_rows):
        if vector.present[row].any():
            problem = f'bucket label "le" is missing or has a malformed value of "{bound}"'
            notes.warn(problem + for_metric(name), about)
    series: list[Pairs] = []
    values: list[Floats] = [np.empty((0, steps))]
    present: list[Mask] = [np.empty((0, steps), dtype=bool)]
    for layout in vector.series.derive("histograms", _build_layouts):
        shape = (len(layout.rows), steps)
        counts = vector.values[layout.rows].swapaxes(0, 1).reshape(len(layout.bounds), -1)
        bucket_present = vector.present[layout.rows].swapaxes(0, 1).reshape(len(layout.bounds), -1)
        results, was_repaired = _compute_by_pattern(layout.bounds, counts, bucket_present, compute=compute, steps=steps)
        for row in np.flatnonzero((was_repaired.reshape(shape) & notes_repairs).any(axis=1)).tolist():
            notes.note(MONOTONICITY + for_metric(layout.names[row]), about)
        values.append(results.reshape(shape))
        present.append(np.any(bucket_present, axis=0).reshape(shape))
        series.extend(layout.series)
    shared = vector.series.derive("histogram_series", lambda _: SeriesSet(series))
    return Vector(shared, np.concatenate(values), np.concatenate(present))


def _bound(pairs: Pairs) -> float | None:
    try:
        return float(dict(pairs)[BOUND_LABEL])
    except (KeyError, ValueError):
        return None


def _malformed_rows(series: Sequence[Pairs]) -> list[tuple[int, str, str]]:
    """Rows that are not buckets, with their metric name and their value of `le`."""
    malformed = ((row, pairs) for row, pairs in enumerate(series) if _bound(pairs) is None)
    return [(row, label_of(pairs, METRIC_NAME), label_of(pairs, BOUND_LABEL)) for row, pairs in malformed]


def _build_layouts(series: Sequence[Pairs]) -> list[_Layout]:
    """Group buckets by histogram, and histograms by their bounds."""
    histograms: dict[Pairs, list[tuple[float, int]]] = {}
    for row, pairs in enumerate(series):
        bound = _bound(pairs)
        if bound is None:
            continue
        # The metric name distinguishes histograms, although the result has none.
        signature = tuple(pair for pair in pairs if pair[0] != BOUND_LABEL)
        histograms.setdefault(signature, []).append((bound, row))
    by_bounds: dict[tuple[float, ...], list[tuple[Pairs, list[int]]]] = {}
    for pairs, buckets in histograms.items():
        buckets.sort()
        by_bounds.setdefault(tuple(bound for bound, _ in buckets), []).append((pairs, [row for _, row in buckets]))
    return [
        _Layout(
            bounds=np.array(bounds),
            rows=np.array([rows for _, rows in members]),
            series=[pairs for pairs, _ in members],
            names=[label_of(pairs, METRIC_NAME) for pairs, _ in members],
        )
        for bounds, members in by_bounds.items()
    ]


def _compute_by_pattern(
    bounds: Floats, counts: Floats, present: Mask, *, compute: Compute, steps: int
) -> tuple[Floats, Mask]:
    """Compute cells with the same present buckets together, and return which cells were made monotonic."""
    out, was_repaired = np.full(counts.shape[1], np.nan), np.zeros(counts.shape[1], dtype=bool)
    for has_bucket, cells in _iterate_patterns(present):
        if not len(cells) or not np.isposinf(bounds[has_bucket][-1]):
            continue
        # Buckets whose bounds are the same number, written in different ways, are summed.
        edges, starts = np.unique(bounds[has_bucket], return_index=True)
        cumulative = np.add.reduceat(counts[has_bucket][:, cells], starts, axis=0)
        with np.errstate(all="ignore"):
            rising, was_repaired[cells] = _make_monotonic(cumulative)
            out[cells] = compute(edges, rising, cells % steps)
    return out, was_repaired


def _iterate_patterns(present: Mask) -> Iterator[tuple[Mask, Ints]]:
    """Each combination of present buckets, with its cells."""
    is_complete = present.all(axis=0)
    yield np.ones(len(present), dtype=bool), np.flatnonzero(is_complete)
    # Nearly all cells have all buckets or none, and comparing patterns is slow.
    partial = np.flatnonzero(present.any(axis=0) & ~is_complete)
    patterns, pattern_of_cell = np.unique(present[:, partial], axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        yield patterns[:, number], partial[pattern_of_cell.ravel() == number]


def _make_monotonic(counts: Floats) -> tuple[Floats, Mask]:
    """Make counts monotonic, and return which cells were not; tiny differences are rounding errors and are removed."""
    out, fell = counts.copy(), np.zeros(counts.shape[1], dtype=bool)
    for bucket in range(1, len(out)):
        lower, upper = out[bucket - 1], out[bucket]
        is_close = np.abs(upper - lower) < ROUNDING * (np.abs(upper) + np.abs(lower))
        fell |= (upper < lower) & ~is_close
        out[bucket] = np.where((upper < lower) | is_close, lower, upper)
    return out, fell


def _quantile(bounds: Floats, counts: Floats, quantiles: Floats) -> Floats:
    if len(bounds) < 2:
        return np.full(counts.shape[1], np.nan)
    observations = counts[-1]
    rank = quantiles * observations
    bucket = np.minimum((counts[:-1] < rank).sum(axis=0), len(bounds) - 1)
    cells = np.arange(counts.shape[1])
    begin = np.where(bucket > 0, bounds[np.maximum(bucket - 1, 0)], 0.0)
    below = np.where(bucket > 0, counts[np.maximum(bucket - 1, 0), cells], 0.0)
    inside = begin + (bounds[bucket] - begin) * ((rank - below) / (counts[bucket, cells] - below))
    inside = np.where((bucket == 0) & (bounds[0] <= 0), bounds[0], inside)
    inside = np.where(bucket == len(bounds) - 1, bounds[-2], inside)
    inside = np.where((observations == 0) | np.isnan(observations), np.nan, inside)
    return np.where(np.isnan(quantiles), np.nan, inside)


def _fraction(bounds: Floats, counts: Floats, lower: Floats, upper: Floats) -> Floats:
    observations = counts[-1]
    share = (_rank_of(bounds, counts, upper) - _rank_of(bounds, counts, lower)) / observations
    share = np.where(lower >= upper, 0.0, share)
    return np.where((observations == 0) | np.isnan(lower) | np.isnan(upper), np.nan, share)


def _rank_of(bounds: Floats, counts: Floats, value: Floats) -> Floats:
    """The number of observations below a value, interpolated within its bucket."""
    cells = np.arange(counts.shape[1])
    begins = np.concatenate([[-np.inf if bounds[0] <= 0 else 0.0], bounds[:-1]])
    # The bucket that contains the value, or the number of buckets if it is above all bounds.
    bucket = np.searchsorted(bounds, value, side="right")
    inside = bucket < len(bounds)
    index = np.minimum(bucket, len(bounds) - 1)
    below = np.where(index > 0, counts[np.maximum(index - 1, 0), cells], 0.0)
    part = (value - begins[index]) / (bounds[index] - begins[index])
    # A bucket without a lower bound cannot be interpolated: all its observations count as below the value. In a bucket
    # without an upper bound the part is 0, so none of its observations count.
    part = np.where(np.isneginf(begins[index]), 1.0, part)
    rank = np.where(begins[index] >= value, below, below + (counts[index, cells] - below) * part)
    return np.asarray(np.where(inside, np.minimum(rank, counts[-1]), counts[-1]))


Estimate = Callable[[int, Histogram], tuple[float, estimates.NanEffect | None]]


def _append_native(invocation: Invocation, at: int, classic: Vector, *, estimate: Estimate) -> Vector:
    """Append results of native histograms to those of classic histograms, and drop the metric name.

    A metric with both kinds at one step is an error of its exporter: then neither has a result.
    """
    vector, about, notes = invocation.vector(at), invocation.call.args[at], invocation.notes
    if vector.histograms is None:
        return drop_name(classic)
    rows_of = {pairs: row for row, pairs in enumerate(classic.series.pairs)}
    is_native = native_mask(vector)
    rows = np.flatnonzero(is_native.any(axis=1))
    values, present = np.zeros((len(rows), is_native.shape[1])), is_native[rows]
    classic_present = np.array(classic.present)
    for index, row in enumerate(rows.tolist()):
        pairs = vector.series.pairs[row]
        name, classic_row = label_of(pairs, METRIC_NAME), rows_of.get(pairs)
        for step in allowance.watch(np.flatnonzero(present[index]).tolist()):
            if classic_row is not None and classic.present[classic_row, step]:
                notes.warn("vector contains a mix of classic and native histograms" + for_metric(name), about)
                classic_present[classic_row, step] = present[index, step] = False
                continue
            values[index, step], nan_effect = estimate(step, vector.histograms[row, step])
            if nan_effect is not None:
                notes.note(nan_effect.value + for_metric(name), about)
    series = SeriesSet([*classic.series.pairs, *(vector.series.pairs[row] for row in rows.tolist())])
    all_values, all_present = np.concatenate([classic.values, values]), np.concatenate([classic_present, present])
    return drop_name(Vector(series, all_values, all_present))


def _per_histogram(compute: Callable[[Histogram], float]) -> PromFunction:
    """Wrap a function of one native histogram; the result is empty if all samples are numbers."""

    def call(invocation: Invocation) -> Vector:
        vector = invocation.vector(0)
        if vector.histograms is None:
            return empty_vector(len(invocation.times_ms))
        present, values = native_mask(vector), np.zeros(vector.values.shape)
        for row, step in allowance.watch(np.argwhere(present).tolist()):
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
    "histogram_quantile": lambda invocation: _quantile_at(invocation, 0, buckets_at=1),
    "histogram_quantiles": _histogram_quantiles,
    "histogram_fraction": _histogram_fraction,
}
