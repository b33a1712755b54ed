"""Estimates from one native histogram: quantiles, fractions, variance, and trimming at a value.

Interpolation is logarithmic in exponential buckets, and linear in the zero bucket and in buckets with custom bounds.
Source: Prometheus' native histogram specification, and promql/quantile.go for what it does not specify.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum

from watchkeeper.model.histograms import Bucket, Buckets, Histogram


class NanEffect(Enum):
    """The effect of NaN observations on an estimate: they are counted, but are in no bucket."""

    NAN_RESULT = "input to histogram_quantile has NaN observations, result is NaN"
    SKEWED = "input to histogram_quantile has NaN observations, result is skewed higher"
    EXCLUDED = "input to histogram_fraction has NaN observations, which are excluded from all fractions"


def quantile(phi: float, histogram: Histogram) -> tuple[float, NanEffect | None]:
    if phi < 0 or phi > 1:
        return math.copysign(math.inf, phi), None
    if histogram.count == 0 or math.isnan(phi):
        return math.nan, None
    has_nan = math.isnan(histogram.sum)
    # Start at the nearer end, where fewer counts are added; with NaN observations only the lower end is correct.
    is_upwards = has_nan or phi < 0.5
    rank = (phi if is_upwards else 1 - phi) * histogram.count
    # The first bucket, from one end, whose cumulative count reaches the rank, and that count.
    bucket, count, buckets = Bucket(0.0, 0.0, 0.0), 0.0, histogram.buckets()
    for bucket in buckets if is_upwards else reversed(buckets):
        count += bucket.population
        if bucket.population != 0 and count >= rank:
            break
    if histogram.is_custom and math.isinf(bucket.lower) and bucket.upper <= 0:
        return bucket.upper, None
    if histogram.is_custom and math.isinf(bucket.upper) and not math.isinf(bucket.lower):
        return bucket.lower, None
    bucket = _narrow_bucket(bucket, histogram)
    count = min(count, histogram.count)
    if count < rank:
        return (math.nan, NanEffect.NAN_RESULT) if has_nan else (bucket.upper, None)
    rank = rank - (count - bucket.population) if is_upwards else count - rank
    share = rank / bucket.population if bucket.population else math.nan
    return _interpolate(bucket, share, is_linear=_is_linear(bucket, histogram)), NanEffect.SKEWED if has_nan else None


def fraction(lower: float, upper: float, histogram: Histogram) -> tuple[float, NanEffect | None]:
    if histogram.count == 0 or math.isnan(lower) or math.isnan(upper):
        return math.nan, None
    nan_effect = NanEffect.EXCLUDED if math.isnan(histogram.sum) else None
    if lower >= upper:
        return 0.0, nan_effect
    total = histogram.count if nan_effect is None else sum(bucket.population for bucket in histogram.buckets())
    low, high = (min(_rank_of(value, histogram, total), total) for value in (lower, upper))
    return (high - low) / histogram.count, nan_effect


def variance(histogram: Histogram) -> float:
    """The mean squared distance to the mean, with all observations of a bucket at its middle."""
    if histogram.count == 0:
        return math.nan
    mean = histogram.sum / histogram.count
    parts = []
    for bucket in histogram.buckets():
        if bucket.population:
            distance = _middle(bucket, histogram) - mean
            parts.append(bucket.population * distance * distance)
    return _sum_exactly(parts) / histogram.count


def trim(histogram: Histogram, limit: float, *, keeps_below: bool) -> Histogram:
    """Keep the observations on one side of a value; the sum is estimated if any are removed."""
    sides: list[Buckets] = []
    moments: list[tuple[float, float]] = []
    for side, sign in ((histogram.positive, 1.0), (histogram.negative, -1.0)):
        kept_buckets: list[tuple[int, float]] = []
        for index, count in side:
            begin, end = histogram.edges(index)
            bucket = Bucket(begin, end, count) if sign > 0 else Bucket(-end, -begin, count)
            kept_count, middle = _split_bucket(bucket, limit, keeps_below=keeps_below, is_linear=histogram.is_custom)
            kept_buckets.append((index, kept_count))
            moments.append((kept_count, middle))
        sides.append(tuple(kept_buckets))
    zero = histogram.zero_count
    if zero > 0:
        bucket = _narrow_bucket(Bucket(-histogram.zero_threshold, histogram.zero_threshold, zero), histogram)
        zero, middle = _split_bucket(bucket, limit, keeps_below=keeps_below, is_linear=True)
        moments.append((zero, middle))
    if (histogram.positive, histogram.negative, histogram.zero_count) == (*sides, zero):
        return histogram
    count = _sum_exactly([kept_count for kept_count, _ in moments])
    total = _sum_exactly([left * middle for left, middle in moments])
    return replace(histogram, count=count, sum=total, zero_count=zero, positive=sides[0], negative=sides[1]).compacted()


def _narrow_bucket(bucket: Bucket, histogram: Histogram) -> Bucket:
    """Cut a bucket that contains 0 at 0, if one side of it must be empty."""
    if histogram.is_custom:
        return bucket._replace(lower=0.0) if bucket.lower == -math.inf and bucket.upper > 0 else bucket
    if bucket.lower < 0 < bucket.upper:
        if histogram.positive and not histogram.negative:
            return bucket._replace(lower=0.0)
        if histogram.negative and not histogram.positive:
            return bucket._replace(upper=0.0)
    return bucket


def _is_linear(bucket: Bucket, histogram: Histogram) -> bool:
    return histogram.is_custom or bucket.lower <= 0 <= bucket.upper


def _interpolate(bucket: Bucket, share: float, *, is_linear: bool) -> float:
    """The value below which a share of the bucket's observations lies."""
    if is_linear:
        return bucket.lower + (bucket.upper - bucket.lower) * share
    lower, upper = math.log2(abs(bucket.lower)), math.log2(abs(bucket.upper))
    if bucket.lower > 0:
        return math.exp2(lower + (upper - lower) * share)
    return -math.exp2(upper + (lower - upper) * (1 - share))


def _share_below(bucket: Bucket, value: float, *, is_linear: bool) -> float:
    """The share of a bucket below a value inside; 1 or 0 if the bucket is unbounded on one side."""
    if bucket.lower == -math.inf:
        return 1.0
    if bucket.upper == math.inf:
        return 0.0
    if is_linear:
        return (value - bucket.lower) / (bucket.upper - bucket.lower)
    lower, upper, position = (math.log2(abs(edge)) for edge in (bucket.lower, bucket.upper, value))
    return (position - lower) / (upper - lower) if value > 0 else 1 - (position - upper) / (lower - upper)


def _rank_of(value: float, histogram: Histogram, total: float) -> float:
    rank = 0.0
    for raw_bucket in histogram.buckets():
        bucket = _narrow_bucket(raw_bucket, histogram)
        if bucket.lower >= value:
            return rank
        if bucket.upper > value:
            return rank + bucket.population * _share_below(bucket, value, is_linear=_is_linear(bucket, histogram))
        rank += bucket.population
    return total


def _middle(bucket: Bucket, histogram: Histogram) -> float:
    if histogram.is_custom:
        return (bucket.upper + bucket.lower) / 2
    if bucket.lower <= 0 <= bucket.upper:
        return 0.0
    return math.copysign(math.sqrt(bucket.upper * bucket.lower), bucket.upper)


def _split_bucket(bucket: Bucket, limit: float, *, keeps_below: bool, is_linear: bool) -> tuple[float, float]:
    """The count of a bucket on one side of a limit, and the middle of that part."""
    lower, upper, count = bucket
    is_whole, is_dropped = (upper <= limit, lower >= limit) if keeps_below else (lower >= limit, upper <= limit)
    if is_whole or is_dropped or not count:
        return (count, _midpoint(lower, upper, is_linear=is_linear)) if is_whole and count else (0.0, 0.0)
    if math.isinf(lower) or math.isinf(upper):
        return _split_unbounded(bucket, limit, keeps_below=keeps_below)
    below = count * _share_below(bucket, limit, is_linear=is_linear)
    if keeps_below:
        return below, _midpoint(lower, limit, is_linear=is_linear)
    return count - below, _midpoint(limit, upper, is_linear=is_linear)


def _split_unbounded(bucket: Bucket, limit: float, *, keeps_below: bool) -> tuple[float, float]:
    """Below a positive bound observations are assumed to be positive, else to be on the unbounded side."""
    lower, upper, count = bucket
    if lower == -math.inf and 0 < upper < math.inf:
        if keeps_below:
            return (count * limit / upper, limit / 2) if limit > 0 else (0.0, 0.0)
        return (count * (1 - limit / upper), (limit + upper) / 2) if limit >= 0 else (0.0, 0.0)
    if lower == -math.inf and upper <= 0 and keeps_below:
        return count, limit
    if lower != -math.inf and not keeps_below:
        return count, limit
    return 0.0, 0.0


def _midpoint(lower: float, upper: float, *, is_linear: bool) -> float:
    if math.isinf(lower):
        return 0.0 if math.isinf(upper) else upper / 2 if upper > 0 else upper
    if math.isinf(upper):
        return lower
    if is_linear:
        return (lower + upper) / 2
    return math.copysign(math.sqrt(abs(lower * upper)), lower + upper)


def _sum_exactly(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)
