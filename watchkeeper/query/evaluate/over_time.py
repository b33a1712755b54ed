"""The *_over_time functions, deriv, predict_linear and smoothing: one number from all samples of a window."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from watchkeeper import errors
from watchkeeper.kit import allowance
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import compensated_sums
from watchkeeper.query.evaluate.values import Scalar, Vector, Windows
from watchkeeper.query.evaluate.windows import Edges, Piece, edges, pick_or_zero, reduce, times_at
from watchkeeper.store.columns import Ints

WindowFunction: TypeAlias = Callable[[Windows], Vector]


def quantile_over_time(windows: Windows, quantiles: Scalar) -> Vector:
    return reduce(windows, lambda piece: sorted_quantile(piece.values, piece.mask, quantiles.values[piece.steps]))


def predict_linear(windows: Windows, ahead_seconds: Scalar, *, at_ms: Ints) -> Vector:
    def compute(piece: Piece) -> Floats:
        slope, level = _fit_line(piece, at_ms[piece.steps][None, :, None])
        return level + slope * ahead_seconds.values[piece.steps]

    return reduce(windows, compute, min_samples=2)


def double_exponential_smoothing(windows: Windows, smoothing: Scalar, trend: Scalar) -> Vector:
    """Holt's double exponential smoothing; an invalid factor is an error only at steps with samples."""
    has_samples = (edges(windows).count > 0).any(axis=0)
    for name, factor in (("smoothing", smoothing), ("trend", trend)):
        is_invalid = has_samples & ~((factor.values > 0) & (factor.values < 1))
        if is_invalid.any():
            raise errors.QueryError(
                f"invalid {name} factor {factor.values[is_invalid][0]:g} of double_exponential_smoothing",
                remedy="Use a factor between 0 and 1, both excluded",
            )
    return reduce(
        windows, lambda piece: _smooth(piece, smoothing.values[piece.steps], trend.values[piece.steps]), min_samples=2
    )


def sorted_quantile(values: Floats, mask: Mask, quantiles: Floats) -> Floats:
    """The quantile along the last axis, with one of `quantiles` per step; NaN sorts below every number."""
    ordered = np.sort(values if mask.all() else np.where(mask, values, np.nan), axis=-1)
    count = np.count_nonzero(mask, axis=-1)
    # NaN is sorted to the end, and masked values with it.
    numbers = np.count_nonzero(~np.isnan(ordered), axis=-1) if np.isnan(ordered[..., -1:]).any() else count
    nans = count - numbers
    with np.errstate(all="ignore"):
        rank = np.clip(np.nan_to_num(quantiles), 0.0, 1.0) * (count - 1)
        lower = np.maximum(np.floor(rank), 0).astype(np.int64)
        upper = np.clip(lower + 1, 0, np.maximum(count - 1, 0))
        weight = rank - np.floor(rank)

        def pick(rank_index: Ints) -> Floats:
            numbers_at_rank = np.take_along_axis(ordered, np.maximum(rank_index - nans, 0)[..., None], axis=-1)[..., 0]
            return np.where(rank_index < nans, np.nan, numbers_at_rank)

        inside = pick(lower) * (1 - weight) + pick(upper) * weight
    inside = np.where(quantiles < 0, -np.inf, np.where(quantiles > 1, np.inf, inside))
    return np.where(np.isnan(quantiles) | (count == 0), np.nan, inside)


def divide_sums(sums: Floats, count: Ints, scaled: Floats) -> Floats:
    """Divide sums by counts; `scaled`, a sum of quotients, is used if the sum overflows."""
    with np.errstate(all="ignore"):
        plain = sums / np.maximum(count, 1)
    return np.where(np.isinf(sums) & np.isfinite(scaled), scaled, plain)


def _mean(piece: Piece) -> Floats:
    filled, count = piece.filled(0.0), piece.count
    sums = compensated_sums.sum_last_axis(filled)
    if np.isfinite(sums).all():
        return sums / np.maximum(count, 1)
    return divide_sums(sums, count, compensated_sums.sum_last_axis(filled / np.maximum(count, 1)[..., None]))


def _variance(piece: Piece) -> Floats:
    """The mean squared deviation; values count from the first sample, so that equal samples give exactly 0."""
    count = np.maximum(piece.count, 1)
    deviation = piece.values - piece.first[..., None]
    if piece.inside is not None:
        deviation = np.where(piece.inside, deviation, 0.0)
    deviation -= (deviation.sum(axis=-1) / count)[..., None]
    if piece.inside is not None:
        deviation = np.where(piece.inside, deviation, 0.0)
    deviation *= deviation
    return np.asarray(deviation.sum(axis=-1) / count)


def _time_of(piece: Piece, extreme: Floats) -> Floats:
    """The time in seconds of the last sample with this value; of the last sample if all are NaN."""
    is_extreme = piece.mask & (piece.values == extreme[..., None])
    is_extreme = np.where(is_extreme.any(axis=-1)[..., None], is_extreme, piece.mask)
    slots = is_extreme.shape[-1] - 1 - np.argmax(is_extreme[..., ::-1], axis=-1)
    times = np.broadcast_to(piece.times, piece.values.shape)
    return np.take_along_axis(times, slots[..., None], axis=-1)[..., 0] / 1000


def _fit_line(piece: Piece, origin_ms: Ints) -> tuple[Floats, Floats]:
    """Fit a least-squares line: slope per second, and level at the origin; a constant series has exactly slope 0."""
    n = np.maximum(piece.count, 1)
    if piece.inside is None:
        # All series of a group have the same times, so sums of times are computed once per group.
        shared = (piece.group_times - origin_ms) / 1000
        sum_x = compensated_sums.sum_last_axis(shared)[piece.group_of_row]
        sum_xx = compensated_sums.sum_last_axis(shared * shared)[piece.group_of_row]
        x = shared[piece.group_of_row]
    else:
        x = np.where(piece.inside, (piece.times - origin_ms) / 1000, 0.0)
        sum_x, sum_xx = compensated_sums.sum_last_axis(x), compensated_sums.sum_last_axis(x * x)
    y = piece.filled(0.0)
    sum_y = compensated_sums.sum_last_axis(y)
    covariance = compensated_sums.sum_last_axis(x * y) - sum_x * sum_y / n
    variance = sum_xx - sum_x * sum_x / n
    slope = covariance / variance
    level = sum_y / n - slope * sum_x / n
    first = piece.first
    constant = ((piece.values == first[..., None]) | ~piece.mask).all(axis=-1)
    flat = np.where(np.isinf(first), np.nan, 0.0)
    return np.where(constant, flat, slope), np.where(constant, first + flat, level)


def _smooth(piece: Piece, smoothing: Floats, trend: Floats) -> Floats:
    count = np.zeros(piece.mask.shape[:-1], dtype=np.int64)
    level, slope = np.zeros(count.shape), np.zeros(count.shape)
    previous = np.zeros(count.shape)
    for slot in range(piece.mask.shape[-1]):
        allowance.check()
        value, is_sample = piece.values[..., slot], piece.mask[..., slot]
        is_first, is_second = is_sample & (count == 0), is_sample & (count == 1)
        later = is_sample & (count >= 1)
        slope = np.where(is_second, value - level, slope)
        new_slope = np.where(is_sample & (count >= 2), trend * (level - previous) + (1 - trend) * slope, slope)
        smooth = smoothing * value + (1 - smoothing) * (level + new_slope)
        previous = np.where(later, level, previous)
        slope = np.where(later, new_slope, slope)
        level = np.where(is_first, value, np.where(later, smooth, level))
        count += is_sample
    return level


def _median_deviation(piece: Piece) -> Floats:
    """The median absolute deviation; NaN if any sample is NaN."""
    middle = sorted_quantile(piece.values, piece.mask, np.array([0.5]))
    spread = sorted_quantile(np.abs(piece.values - middle[..., None]), piece.mask, np.array([0.5]))
    return np.where((np.isnan(piece.values) & piece.mask).any(axis=-1), np.nan, spread)


def _slope(piece: Piece) -> Floats:
    """The slope per second of a line through the samples; times count from the first sample, to keep numbers small."""
    if piece.inside is None:
        return _fit_line(piece, piece.group_times[..., :1])[0]
    first = np.argmax(piece.inside, axis=-1)
    return _fit_line(piece, np.take_along_axis(piece.times, first[..., None], axis=-1))[0]


def _smallest(piece: Piece) -> Floats:
    return np.asarray(np.fmin.reduce(piece.filled(np.nan), axis=-1))


def _largest(piece: Piece) -> Floats:
    return np.asarray(np.fmax.reduce(piece.filled(np.nan), axis=-1))


def _of_samples(compute: Callable[[Piece], Floats], *, min_samples: int = 1) -> WindowFunction:
    return lambda windows: reduce(windows, compute, min_samples=min_samples)


def _of_edges(compute: Callable[[Windows, Edges], Floats]) -> WindowFunction:
    """A function of the first and last sample of a window, or of their number."""

    def call(windows: Windows) -> Vector:
        edge = edges(windows)
        return Vector(windows.series, compute(windows, edge), edge.count > 0)

    return call


FUNCTIONS: dict[str, WindowFunction] = {
    "avg_over_time": _of_samples(_mean),
    "count_over_time": _of_edges(lambda _, edge: edge.count.astype(np.float64)),
    "deriv": _of_samples(_slope, min_samples=2),
    "first_over_time": _of_edges(lambda windows, edge: pick_or_zero(windows.values, edge.first)),
    "last_over_time": _of_edges(lambda windows, edge: pick_or_zero(windows.values, edge.last)),
    "mad_over_time": _of_samples(_median_deviation),
    "max_over_time": _of_samples(_largest),
    "min_over_time": _of_samples(_smallest),
    "present_over_time": _of_edges(lambda _, edge: np.ones(edge.count.shape)),
    "stddev_over_time": _of_samples(lambda piece: np.sqrt(_variance(piece))),
    "stdvar_over_time": _of_samples(_variance),
    "sum_over_time": _of_samples(lambda piece: compensated_sums.sum_last_axis(piece.filled(0.0))),
    "ts_of_first_over_time": _of_edges(lambda windows, edge: times_at(windows, edge.first) / 1000),
    "ts_of_last_over_time": _of_edges(lambda windows, edge: times_at(windows, edge.last) / 1000),
    "ts_of_max_over_time": _of_samples(lambda piece: _time_of(piece, _largest(piece))),
    "ts_of_min_over_time": _of_samples(lambda piece: _time_of(piece, _smallest(piece))),
}
