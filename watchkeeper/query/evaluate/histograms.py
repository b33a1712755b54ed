"""Quantiles and fractions of classic histograms: counters per bucket, with the upper bound in the label `le`.

Histograms with the same bounds are computed together, for all steps at once. Buckets that are absent
at a step are left out there, so steps are split by which buckets they have. Native histograms among the samples go to
`native_estimates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import native_estimates
from watchkeeper.query.evaluate.aggregate import format_value
from watchkeeper.query.evaluate.invocation import Invocation, PromFunction
from watchkeeper.query.evaluate.notes import Notes
from watchkeeper.query.evaluate.values import Vector, drop_name, label_of, merge_duplicates, with_label
from watchkeeper.query.promql import ast
from watchkeeper.store.columns import Ints
from watchkeeper.store.series import Pairs, SeriesSet

BOUND_LABEL = "le"
# Differences below this share of the counts are rounding, not observations (Prometheus, promql/quantile.go).
ROUNDING = 1e-12

# From bounds [bucket], cumulative counts [bucket, cell] and the step of each cell, one number per cell.
Compute: TypeAlias = Callable[[Floats, Floats, Ints], Floats]


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Histograms with the same bounds: `rows[h, b]` is the row of bucket b of histogram h."""

    bounds: Floats
    rows: Ints
    series: list[Pairs]
    names: list[str]


@dataclass(frozen=True, slots=True, eq=False)
class _Doubts:
    """Where to say what is wrong with the buckets; `fixed_at` are the steps at which a repair is worth a word."""

    notes: Notes
    about: ast.Expr
    fixed_at: Mask


def _histogram_quantile(invocation: Invocation) -> Vector:
    return _quantiles_of(invocation, 0, buckets_at=1)


def _quantiles_of(invocation: Invocation, quantiles_at: int, *, buckets_at: int) -> Vector:
    quantiles, args = invocation.scalar(quantiles_at).values, invocation.call.args
    invocation.notes.doubt_quantiles(quantiles, args[quantiles_at])
    doubts = _Doubts(invocation.notes, args[buckets_at], (quantiles >= 0) & (quantiles <= 1))
    vector = invocation.vector(buckets_at)
    classic = _per_histogram(
        vector.floats, lambda bounds, counts, steps: _quantile(bounds, counts, quantiles[steps]), doubts=doubts
    )
    classic = _with_impossible(classic, quantiles)
    if vector.histograms is None:
        return drop_name(classic)
    return drop_name(
        native_estimates.with_quantiles(classic, vector, quantiles, about=doubts.about, notes=doubts.notes)
    )


def _histogram_quantiles(invocation: Invocation) -> Vector:
    """Several quantiles at once; each result carries its quantile in the label given."""
    label = invocation.text(1)
    parts = []
    for at in range(2, len(invocation.args)):
        wanted = invocation.scalar(at).values
        part = _quantiles_of(invocation, at, buckets_at=0)
        name = _spelled(float(wanted[0]))
        series = [with_label(pairs, label, name) for pairs in part.series.pairs]
        parts.append(Vector(SeriesSet(series), part.values, part.present))
    pairs = [each for part in parts for each in part.series.pairs]
    values, present = (np.concatenate(arrays) for arrays in zip(*((p.values, p.present) for p in parts), strict=True))
    return merge_duplicates(Vector(SeriesSet(pairs), values, present))


def _spelled(value: float) -> str:
    """A number as OpenMetrics writes it in a label: 1.0, 0.25, +Inf."""
    text = format_value(value)
    return text if not math.isfinite(value) or "." in text else f"{text}.0"


def _histogram_fraction(invocation: Invocation) -> Vector:
    lower, upper = invocation.scalar(0).values, invocation.scalar(1).values
    vector, about = invocation.vector(2), invocation.call.args[2]
    classic = _per_histogram(
        vector.floats,
        lambda bounds, counts, steps: _fraction(bounds, counts, lower[steps], upper[steps]),
        doubts=_Doubts(invocation.notes, about, np.zeros(len(lower), dtype=bool)),
    )
    if vector.histograms is None:
        return drop_name(classic)
    return drop_name(
        native_estimates.with_fractions(classic, vector, lower, upper, about=about, notes=invocation.notes)
    )


def _per_histogram(vector: Vector, compute: Compute, *, doubts: _Doubts) -> Vector:
    steps = vector.values.shape[1]
    for row, name, bound in vector.series.derive("malformed_buckets", _malformed):
        if vector.present[row].any():
            doubts.notes.doubt_bucket(name, bound, doubts.about)
    series: list[Pairs] = []
    values: list[Floats] = [np.empty((0, steps))]
    present: list[Mask] = [np.empty((0, steps), dtype=bool)]
    layouts = vector.series.derive("histograms", _layouts)
    for layout in layouts:
        shape = (len(layout.rows), steps)
        counts = vector.values[layout.rows].swapaxes(0, 1).reshape(len(layout.bounds), -1)
        there = vector.present[layout.rows].swapaxes(0, 1).reshape(len(layout.bounds), -1)
        found, was_fixed = _by_pattern(layout.bounds, counts, there, compute=compute, steps=steps)
        for row in np.flatnonzero((was_fixed.reshape(shape) & doubts.fixed_at).any(axis=1)).tolist():
            doubts.notes.doubt_monotonicity(layout.names[row], doubts.about)
        values.append(found.reshape(shape))
        present.append(np.any(there, axis=0).reshape(shape))
        series.extend(layout.series)
    shared = vector.series.derive("histogram_series", lambda _: SeriesSet(series))
    return Vector(shared, np.concatenate(values), np.concatenate(present))


def _bound(pairs: Pairs) -> float | None:
    try:
        return float(dict(pairs)[BOUND_LABEL])
    except (KeyError, ValueError):
        return None


def _malformed(series: Sequence[Pairs]) -> list[tuple[int, str, str]]:
    """Rows that are no buckets, with their name and what stands where the bound should be."""
    wrong = ((row, pairs) for row, pairs in enumerate(series) if _bound(pairs) is None)
    return [(row, label_of(pairs, METRIC_NAME), label_of(pairs, BOUND_LABEL)) for row, pairs in wrong]


def _layouts(series: Sequence[Pairs]) -> list[_Layout]:
    """Bring buckets into histograms, and histograms into groups with the same bounds."""
    histograms: dict[Pairs, list[tuple[float, int]]] = {}
    for row, pairs in enumerate(series):
        bound = _bound(pairs)
        if bound is None:
            continue
        # The name tells two histograms apart, although the result has none.
        whose = tuple(pair for pair in pairs if pair[0] != BOUND_LABEL)
        histograms.setdefault(whose, []).append((bound, row))
    by_bounds: dict[tuple[float, ...], list[tuple[Pairs, list[int]]]] = {}
    for pairs, buckets in histograms.items():
        buckets.sort()
        by_bounds.setdefault(tuple(bound for bound, _ in buckets), []).append((pairs, [row for _, row in buckets]))
    return [_layout(bounds, found) for bounds, found in by_bounds.items()]


def _layout(bounds: tuple[float, ...], found: list[tuple[Pairs, list[int]]]) -> _Layout:
    return _Layout(
        bounds=np.array(bounds),
        rows=np.array([rows for _, rows in found]),
        series=[pairs for pairs, _ in found],
        names=[label_of(pairs, METRIC_NAME) for pairs, _ in found],
    )


def _by_pattern(bounds: Floats, counts: Floats, there: Mask, *, compute: Compute, steps: int) -> tuple[Floats, Mask]:
    """Compute each cell from the buckets it has, and say which had to be repaired.

    Cells that have the same buckets are computed together.
    """
    out, was_fixed = np.full(counts.shape[1], np.nan), np.zeros(counts.shape[1], dtype=bool)
    for has, cells in _patterns(there):
        if not len(cells) or not np.isposinf(bounds[has][-1]):
            continue
        edges, cumulative = _coalesced(bounds[has], counts[has][:, cells])
        with np.errstate(all="ignore"):
            rising, was_fixed[cells] = _monotonic(cumulative)
            out[cells] = compute(edges, rising, cells % steps)
    return out, was_fixed


def _patterns(there: Mask) -> Iterator[tuple[Mask, Ints]]:
    """Each choice of buckets that any cell has, with its cells."""
    whole = there.all(axis=0)
    yield np.ones(len(there), dtype=bool), np.flatnonzero(whole)
    # Nearly all cells have all buckets or none, and telling patterns apart takes long.
    partial = np.flatnonzero(there.any(axis=0) & ~whole)
    patterns, which = np.unique(there[:, partial], axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        yield patterns[:, number], partial[which.ravel() == number]


def _coalesced(bounds: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Add up buckets whose bounds are the same number in different spellings."""
    edges, starts = np.unique(bounds, return_index=True)
    return edges, np.add.reduceat(counts, starts, axis=0)


def _monotonic(counts: Floats) -> tuple[Floats, Mask]:
    """Counts that never fall from bucket to bucket, and where they did; tiny steps are rounding and are flattened."""
    out, fell = counts.copy(), np.zeros(counts.shape[1], dtype=bool)
    for bucket in range(1, len(out)):
        before, here = out[bucket - 1], out[bucket]
        close = np.abs(here - before) < ROUNDING * (np.abs(here) + np.abs(before))
        fell |= (here < before) & ~close
        out[bucket] = np.where((here < before) | close, before, here)
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


def _with_impossible(vector: Vector, quantiles: Floats) -> Vector:
    """A quantile below 0 or above 1 lies beyond everything, whichever buckets there are."""
    beyond = (quantiles < 0) | (quantiles > 1)
    if not beyond.any():
        return vector
    return Vector(vector.series, np.where(beyond, np.copysign(np.inf, quantiles), vector.values), vector.present)


def _fraction(bounds: Floats, counts: Floats, lower: Floats, upper: Floats) -> Floats:
    observations = counts[-1]
    share = (_rank_of(bounds, counts, upper) - _rank_of(bounds, counts, lower)) / observations
    share = np.where(lower >= upper, 0.0, share)
    return np.where((observations == 0) | np.isnan(lower) | np.isnan(upper), np.nan, share)


def _rank_of(bounds: Floats, counts: Floats, value: Floats) -> Floats:
    """How many observations lie below a value, interpolated within its bucket."""
    cells = np.arange(counts.shape[1])
    begins = np.concatenate([[-np.inf if bounds[0] <= 0 else 0.0], bounds[:-1]])
    # The bucket whose begin is below the value and whose bound is above it, else all buckets that end before it.
    bucket = np.searchsorted(bounds, value, side="right")
    inside = bucket < len(bounds)
    place = np.minimum(bucket, len(bounds) - 1)
    below = np.where(place > 0, counts[np.maximum(place - 1, 0), cells], 0.0)
    part = (value - begins[place]) / (bounds[place] - begins[place])
    # A bucket without a lower bound cannot be interpolated: a value inside lies above all of it. In one without
    # an upper bound the part is 0, so a value inside lies below all of it.
    part = np.where(np.isneginf(begins[place]), 1.0, part)
    rank = np.where(begins[place] >= value, below, below + (counts[place, cells] - below) * part)
    return np.asarray(np.where(inside, np.minimum(rank, counts[-1]), counts[-1]))


FUNCTIONS: dict[str, PromFunction] = {
    **native_estimates.FUNCTIONS,
    "histogram_quantile": _histogram_quantile,
    "histogram_quantiles": _histogram_quantiles,
    "histogram_fraction": _histogram_fraction,
}
