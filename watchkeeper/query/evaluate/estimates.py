"""What a native histogram lets one estimate: quantiles, fractions, variance, and what is left on one side of a value.

Inside an exponential bucket observations are spread evenly on a logarithmic scale; inside the zero bucket and between
custom bounds, evenly. A zero bucket beside buckets of one sign only reaches to 0. Source: Prometheus'
native histogram specification, and promql/quantile.go where that is silent. `histograms` calls these for
each sample.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum

from watchkeeper.model.histograms import Bucket, Buckets, Histogram


class Doubt(Enum):
    """What NaN among the observations does to an estimate: they are counted, and in no bucket."""

    RESULT = "input to histogram_quantile has NaN observations, result is NaN"
    SKEW = "input to histogram_quantile has NaN observations, result is skewed higher"
    LEFT_OUT = "input to histogram_fraction has NaN observations, which are excluded from all fractions"


def quantile(wanted: float, histogram: Histogram) -> tuple[float, Doubt | None]:
    if wanted < 0 or wanted > 1:
        return math.copysign(math.inf, wanted), None
    if histogram.count == 0 or math.isnan(wanted):
        return math.nan, None
    has_nan = math.isnan(histogram.sum)
    # From the nearer end, where fewer counts are added up; with NaN only the lower end is certain.
    is_upwards = has_nan or wanted < 0.5
    rank = (wanted if is_upwards else 1 - wanted) * histogram.count
    bucket, seen = _reached(histogram, rank, is_upwards=is_upwards)
    if histogram.is_custom and math.isinf(bucket.lower) and bucket.upper <= 0:
        return bucket.upper, None
    if histogram.is_custom and math.isinf(bucket.upper) and not math.isinf(bucket.lower):
        return bucket.lower, None
    bucket = _narrowed(bucket, histogram)
    seen = min(seen, histogram.count)
    if seen < rank:
        return (math.nan, Doubt.RESULT) if has_nan else (bucket.upper, None)
    rank = rank - (seen - bucket.population) if is_upwards else seen - rank
    share = rank / bucket.population if bucket.population else math.nan
    return _inside(bucket, share, is_linear=_is_linear(bucket, histogram)), Doubt.SKEW if has_nan else None


def fraction(lower: float, upper: float, histogram: Histogram) -> tuple[float, Doubt | None]:
    """The share of observations between two values."""
    if histogram.count == 0 or math.isnan(lower) or math.isnan(upper):
        return math.nan, None
    doubt = Doubt.LEFT_OUT if math.isnan(histogram.sum) else None
    if lower >= upper:
        return 0.0, doubt
    most = histogram.count if doubt is None else sum(bucket.population for bucket in histogram.buckets())
    low, high = (min(_rank_of(value, histogram, most), most) for value in (lower, upper))
    return (high - low) / histogram.count, doubt


def variance(histogram: Histogram) -> float:
    """The mean square of the distance to the mean, as if all of a bucket lay in its middle."""
    if histogram.count == 0:
        return math.nan
    mean = histogram.sum / histogram.count
    parts = []
    for bucket in histogram.buckets():
        if bucket.population:
            away = _middle(bucket, histogram) - mean
            parts.append(bucket.population * away * away)
    return _total(parts) / histogram.count


def trimmed(histogram: Histogram, limit: float, *, keeps_below: bool) -> Histogram:
    """Only the observations on one side of a value; the sum is estimated anew where any went."""
    sides: list[Buckets] = []
    moments: list[tuple[float, float]] = []
    for side, sign in ((histogram.positive, 1.0), (histogram.negative, -1.0)):
        kept: list[tuple[int, float]] = []
        for index, count in side:
            begin, end = histogram.edges(index)
            bucket = Bucket(begin, end, count) if sign > 0 else Bucket(-end, -begin, count)
            left, middle = _cut(bucket, limit, keeps_below=keeps_below, is_linear=histogram.is_custom)
            kept.append((index, left))
            moments.append((left, middle))
        sides.append(tuple(kept))
    zero = histogram.zero_count
    if zero > 0:
        bucket = _narrowed(Bucket(-histogram.zero_threshold, histogram.zero_threshold, zero), histogram)
        zero, middle = _cut(bucket, limit, keeps_below=keeps_below, is_linear=True)
        moments.append((zero, middle))
    if (histogram.positive, histogram.negative, histogram.zero_count) == (*sides, zero):
        return histogram
    count, total = _total([left for left, _ in moments]), _total([left * middle for left, middle in moments])
    return replace(histogram, count=count, sum=total, zero_count=zero, positive=sides[0], negative=sides[1]).compacted()


def _reached(histogram: Histogram, rank: float, *, is_upwards: bool) -> tuple[Bucket, float]:
    """The first bucket, from one end, with which the count reaches a rank, and the count by then."""
    bucket, seen = Bucket(0.0, 0.0, 0.0), 0.0
    buckets = histogram.buckets()
    for bucket in buckets if is_upwards else reversed(buckets):
        seen += bucket.population
        if bucket.population != 0 and seen >= rank:
            break
    return bucket, seen


def _narrowed(bucket: Bucket, histogram: Histogram) -> Bucket:
    """A bucket across 0 of which one side is surely empty, without that side."""
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


def _inside(bucket: Bucket, share: float, *, is_linear: bool) -> float:
    """The value below which a share of the bucket lies."""
    if is_linear:
        return bucket.lower + (bucket.upper - bucket.lower) * share
    lower, upper = math.log2(abs(bucket.lower)), math.log2(abs(bucket.upper))
    if bucket.lower > 0:
        return math.exp2(lower + (upper - lower) * share)
    return -math.exp2(upper + (lower - upper) * (1 - share))


def _share_below(bucket: Bucket, value: float, *, is_linear: bool) -> float:
    """The share of a bucket that lies below a value inside; all or nothing where it has no bound on one side."""
    if bucket.lower == -math.inf:
        return 1.0
    if bucket.upper == math.inf:
        return 0.0
    if is_linear:
        return (value - bucket.lower) / (bucket.upper - bucket.lower)
    lower, upper, place = (math.log2(abs(edge)) for edge in (bucket.lower, bucket.upper, value))
    return (place - lower) / (upper - lower) if value > 0 else 1 - (place - upper) / (lower - upper)


def _rank_of(value: float, histogram: Histogram, most: float) -> float:
    """How many observations lie below a value."""
    rank = 0.0
    for found in histogram.buckets():
        bucket = _narrowed(found, histogram)
        if bucket.lower >= value:
            return rank
        if bucket.upper > value:
            return rank + bucket.population * _share_below(bucket, value, is_linear=_is_linear(bucket, histogram))
        rank += bucket.population
    return most


def _middle(bucket: Bucket, histogram: Histogram) -> float:
    if histogram.is_custom:
        return (bucket.upper + bucket.lower) / 2
    if bucket.lower <= 0 <= bucket.upper:
        return 0.0
    return math.copysign(math.sqrt(bucket.upper * bucket.lower), bucket.upper)


def _cut(bucket: Bucket, limit: float, *, keeps_below: bool, is_linear: bool) -> tuple[float, float]:
    """What a bucket keeps of its count on one side of a limit, and where the middle of that lies."""
    lower, upper, count = bucket
    is_whole, is_gone = (upper <= limit, lower >= limit) if keeps_below else (lower >= limit, upper <= limit)
    if is_whole or is_gone or not count:
        return (count, _midpoint(lower, upper, is_linear=is_linear)) if is_whole and count else (0.0, 0.0)
    if math.isinf(lower) or math.isinf(upper):
        return _cut_endless(bucket, limit, keeps_below=keeps_below)
    below = count * _share_below(bucket, limit, is_linear=is_linear)
    if keeps_below:
        return below, _midpoint(lower, limit, is_linear=is_linear)
    return count - below, _midpoint(limit, upper, is_linear=is_linear)


def _cut_endless(bucket: Bucket, limit: float, *, keeps_below: bool) -> tuple[float, float]:
    """A bucket without a bound on one side: nobody knows where in it observations lie.

    Below a positive bound they are taken to be above 0; else those towards the missing bound are taken to be there.
    """
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


def _total(numbers: list[float]) -> float:
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)
