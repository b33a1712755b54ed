"""The *_over_time functions, and the two that fit a line or smooth: one number from all samples of a window."""

from __future__ import annotations

import numpy as np

from watchkeeper import errors
from watchkeeper.query.engine import Floats, Mask
from watchkeeper.query.evaluate import exact
from watchkeeper.query.evaluate.values import Scalar, Vector, Windows
from watchkeeper.query.evaluate.windows import Piece, edges, reduce, times_at, values_at
from watchkeeper.store.columns import Ints


def sum_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: exact.total(piece.filled(0.0)))


def avg_over_time(windows: Windows) -> Vector:
    return reduce(windows, _mean)


def min_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: np.fmin.reduce(piece.filled(np.nan), axis=-1))


def max_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: np.fmax.reduce(piece.filled(np.nan), axis=-1))


def stdvar_over_time(windows: Windows) -> Vector:
    return reduce(windows, _variance)


def stddev_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: np.sqrt(_variance(piece)))


def mad_over_time(windows: Windows) -> Vector:
    """The median distance from the median; one NaN makes it NaN."""

    def compute(piece: Piece) -> Floats:
        middle = sorted_quantile(piece.values, piece.mask, np.array([0.5]))
        spread = sorted_quantile(np.abs(piece.values - middle[..., None]), piece.mask, np.array([0.5]))
        return np.where((np.isnan(piece.values) & piece.mask).any(axis=-1), np.nan, spread)

    return reduce(windows, compute)


def quantile_over_time(windows: Windows, quantiles: Scalar) -> Vector:
    return reduce(windows, lambda piece: sorted_quantile(piece.values, piece.mask, quantiles.values[piece.steps]))


def count_over_time(windows: Windows) -> Vector:
    count = edges(windows).count
    return Vector(windows.series, count.astype(np.float64), count > 0)


def present_over_time(windows: Windows) -> Vector:
    count = edges(windows).count
    return Vector(windows.series, np.ones(count.shape), count > 0)


def last_over_time(windows: Windows) -> Vector:
    edge = edges(windows)
    return Vector(windows.series, values_at(windows, edge.last), edge.count > 0)


def first_over_time(windows: Windows) -> Vector:
    edge = edges(windows)
    return Vector(windows.series, values_at(windows, edge.first), edge.count > 0)


def ts_of_last_over_time(windows: Windows) -> Vector:
    edge = edges(windows)
    return Vector(windows.series, times_at(windows, edge.last) / 1000, edge.count > 0)


def ts_of_first_over_time(windows: Windows) -> Vector:
    edge = edges(windows)
    return Vector(windows.series, times_at(windows, edge.first) / 1000, edge.count > 0)


def ts_of_max_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: _time_of(piece, np.fmax.reduce(piece.filled(np.nan), axis=-1)))


def ts_of_min_over_time(windows: Windows) -> Vector:
    return reduce(windows, lambda piece: _time_of(piece, np.fmin.reduce(piece.filled(np.nan), axis=-1)))


def deriv(windows: Windows) -> Vector:
    """The slope per second of the line through the samples; time counts from the first one, to keep numbers small."""

    def compute(piece: Piece) -> Floats:
        if piece.inside is None:
            return _line(piece, piece.group_times[..., :1])[0]
        first = np.argmax(piece.inside, axis=-1)
        return _line(piece, np.take_along_axis(piece.times, first[..., None], axis=-1))[0]

    return reduce(windows, compute, at_least=2)


def predict_linear(windows: Windows, ahead_seconds: Scalar, *, at_ms: Ints) -> Vector:
    """Where the line through the samples will be, some seconds after the step."""

    def compute(piece: Piece) -> Floats:
        slope, level = _line(piece, at_ms[piece.steps][None, :, None])
        return level + slope * ahead_seconds.values[piece.steps]

    return reduce(windows, compute, at_least=2)


def double_exponential_smoothing(windows: Windows, smoothing: Scalar, trend: Scalar) -> Vector:
    """Holt's smoothing of level and trend; a wrong factor is an error only where there is something to smooth."""
    is_asked = (edges(windows).count > 0).any(axis=0)
    for name, factor in (("smoothing", smoothing), ("trend", trend)):
        wrong = is_asked & ~((factor.values > 0) & (factor.values < 1))
        if wrong.any():
            raise errors.QueryError(
                f"invalid {name} factor {factor.values[wrong][0]:g} of double_exponential_smoothing",
                remedy="It must lie between 0 and 1, both excluded",
            )
    return reduce(
        windows,
        lambda piece: _smoothed(piece, smoothing.values[piece.steps], trend.values[piece.steps]),
        at_least=2,
    )


def sorted_quantile(values: Floats, mask: Mask, quantiles: Floats) -> Floats:
    """The quantile along the last axis, interpolated; NaN sorts below every number, as in Prometheus.

    `quantiles` has one entry per step, which is the axis before the last.
    """
    ordered = np.sort(values if mask.all() else np.where(mask, values, np.nan), axis=-1)
    count = np.count_nonzero(mask, axis=-1)
    # NaN is sorted to the end, and with it what the mask leaves out.
    numbers = np.count_nonzero(~np.isnan(ordered), axis=-1) if np.isnan(ordered[..., -1:]).any() else count
    nans = count - numbers
    with np.errstate(all="ignore"):
        rank = np.clip(np.nan_to_num(quantiles), 0.0, 1.0) * (count - 1)
        lower = np.maximum(np.floor(rank), 0).astype(np.int64)
        upper = np.clip(lower + 1, 0, np.maximum(count - 1, 0))
        weight = rank - np.floor(rank)

        def pick(place: Ints) -> Floats:
            found = np.take_along_axis(ordered, np.maximum(place - nans, 0)[..., None], axis=-1)[..., 0]
            return np.where(place < nans, np.nan, found)

        inside = pick(lower) * (1 - weight) + pick(upper) * weight
    inside = np.where(quantiles < 0, -np.inf, np.where(quantiles > 1, np.inf, inside))
    return np.where(np.isnan(quantiles) | (count == 0), np.nan, inside)


def mean(sums: Floats, count: Ints, scaled: Floats) -> Floats:
    """The quotient, or the sum of quotients where the sum itself is too large for a float."""
    with np.errstate(all="ignore"):
        plain = sums / np.maximum(count, 1)
    return np.where(np.isinf(sums) & np.isfinite(scaled), scaled, plain)


def _mean(piece: Piece) -> Floats:
    filled, count = piece.filled(0.0), piece.count
    sums = exact.total(filled)
    if np.isfinite(sums).all():
        return sums / np.maximum(count, 1)
    return mean(sums, count, exact.total(filled / np.maximum(count, 1)[..., None]))


def _variance(piece: Piece) -> Floats:
    """The mean square of the distance to the mean; counted from the first sample, so that equal ones give exactly 0."""
    count = np.maximum(piece.count, 1)
    away = piece.values - piece.first[..., None]
    if piece.inside is not None:
        away = np.where(piece.inside, away, 0.0)
    away -= (away.sum(axis=-1) / count)[..., None]
    if piece.inside is not None:
        away = np.where(piece.inside, away, 0.0)
    away *= away
    return np.asarray(away.sum(axis=-1) / count)


def _time_of(piece: Piece, extreme: Floats) -> Floats:
    """Seconds of the last sample with this value; of the last sample at all where all are NaN."""
    hit = piece.mask & (piece.values == extreme[..., None])
    hit = np.where(hit.any(axis=-1)[..., None], hit, piece.mask)
    slots = hit.shape[-1] - 1 - np.argmax(hit[..., ::-1], axis=-1)
    times = np.broadcast_to(piece.times, piece.values.shape)
    return np.take_along_axis(times, slots[..., None], axis=-1)[..., 0] / 1000


def _line(piece: Piece, origin_ms: Ints) -> tuple[Floats, Floats]:
    """Slope per second and level at the origin of the least-squares line; a constant series has slope 0 exactly."""
    n = np.maximum(piece.count, 1)
    if piece.inside is None:
        # All series of a group have the same times, so what depends on times alone is worked out once per group.
        shared = (piece.group_times - origin_ms) / 1000
        sum_x, sum_xx = exact.total(shared)[piece.of], exact.total(shared * shared)[piece.of]
        x = shared[piece.of]
    else:
        x = np.where(piece.inside, (piece.times - origin_ms) / 1000, 0.0)
        sum_x, sum_xx = exact.total(x), exact.total(x * x)
    y = piece.filled(0.0)
    sum_y = exact.total(y)
    covariance = exact.total(x * y) - sum_x * sum_y / n
    variance = sum_xx - sum_x * sum_x / n
    slope = covariance / variance
    level = sum_y / n - slope * sum_x / n
    first = piece.first
    constant = ((piece.values == first[..., None]) | ~piece.mask).all(axis=-1)
    flat = np.where(np.isinf(first), np.nan, 0.0)
    return np.where(constant, flat, slope), np.where(constant, first + flat, level)


def _smoothed(piece: Piece, smoothing: Floats, trend: Floats) -> Floats:
    seen = np.zeros(piece.mask.shape[:-1], dtype=np.int64)
    level, slope = np.zeros(seen.shape), np.zeros(seen.shape)
    previous = np.zeros(seen.shape)
    for slot in range(piece.mask.shape[-1]):
        value, here = piece.values[..., slot], piece.mask[..., slot]
        is_first, is_second = here & (seen == 0), here & (seen == 1)
        later = here & (seen >= 1)
        slope = np.where(is_second, value - level, slope)
        bent = np.where(here & (seen >= 2), trend * (level - previous) + (1 - trend) * slope, slope)
        smooth = smoothing * value + (1 - smoothing) * (level + bent)
        previous = np.where(later, level, previous)
        slope = np.where(later, bent, slope)
        level = np.where(is_first, value, np.where(later, smooth, level))
        seen += here
    return level
