"""Read and write native histograms in the JSON of Prometheus' HTTP API.

The web API writes it, and the remote engine reads it. The JSON has the count, the sum, and the bounds and population of
each bucket, but no schema: reading finds the exponential schema with these bounds, else it uses custom bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from watchkeeper.model.histograms import CUSTOM, HIGHEST_SCHEMA, LOWEST_SCHEMA, Bucket, Histogram

# The bounds that a bucket includes: upper, lower, none, both.
UPPER, LOWER, NONE, BOTH = range(4)
BOUNDARY_RULES = {(False, True): UPPER, (True, False): LOWER, (False, False): NONE, (True, True): BOTH}
# Bounds are decimal text, rounded from floats.
TOLERANCE = 1e-9

RuledBucket: TypeAlias = tuple[int, Bucket]


def write(histogram: Histogram, format_number: Callable[[float], str]) -> dict[str, Any]:
    """The JSON object of a histogram; `format_number` formats a number as Prometheus does."""
    bucket_rows = [
        [BOUNDARY_RULES[histogram.bound_inclusion(bucket)], *map(format_number, bucket)]
        for bucket in histogram.buckets()
        if bucket.population
    ]
    plain: dict[str, Any] = {"count": format_number(histogram.count), "sum": format_number(histogram.sum)}
    return {**plain, "buckets": bucket_rows} if bucket_rows else plain


def read(plain: Mapping[str, Any]) -> Histogram:
    """The histogram of a JSON object; the counter reset hint is unknown."""
    buckets = [
        (int(rule), Bucket(float(low), float(high), float(count)))
        for rule, low, high, count in plain.get("buckets") or ()
    ]
    zero_buckets = (bucket for rule, bucket in buckets if rule == BOTH and bucket.lower == -bucket.upper)
    zero = next(zero_buckets, Bucket(0.0, 0.0, 0.0))
    others = [(rule, bucket) for rule, bucket in buckets if bucket is not zero]
    count, total = float(plain["count"]), float(plain["sum"])
    schema = _find_schema(others, zero.upper)
    if schema is None:
        finite_bounds = {edge for _, bucket in others for edge in (bucket.lower, bucket.upper) if math.isfinite(edge)}
        bounds = tuple(sorted(finite_bounds))
        index_by_bound = {bound: index for index, bound in enumerate(bounds)} | {math.inf: len(bounds)}
        positive = tuple(sorted((index_by_bound[bucket.upper], bucket.population) for _, bucket in others))
        return Histogram(schema=CUSTOM, count=count, sum=total, positive=positive, bounds=bounds)
    sides = ([bucket for _, bucket in others if (bucket.upper <= 0) is is_negative] for is_negative in (False, True))
    positive, negative = (
        tuple(sorted((_index(bucket, schema), bucket.population) for bucket in side)) for side in sides
    )
    return Histogram(
        schema=schema,
        count=count,
        sum=total,
        zero_threshold=zero.upper,
        zero_count=zero.population,
        positive=positive,
        negative=negative,
    )


def _outer_bound(bucket: Bucket) -> float:
    """The absolute value of the bound that is further from 0."""
    return max(abs(bucket.lower), abs(bucket.upper))


def _inner_bound(bucket: Bucket) -> float:
    return min(abs(bucket.lower), abs(bucket.upper))


def _index(bucket: Bucket, schema: int) -> int:
    return round(math.log2(_outer_bound(bucket)) * 2.0**schema)


def _find_schema(buckets: Sequence[RuledBucket], zero_threshold: float) -> int | None:
    """The exponential schema that contains all these buckets, or None."""
    if any(rule not in (UPPER, LOWER) or not _is_beside_zero(bucket) for rule, bucket in buckets):
        return None
    fitting = (
        schema
        for schema in range(LOWEST_SCHEMA, HIGHEST_SCHEMA + 1)
        if all(_fits(bucket, schema, zero_threshold) for _, bucket in buckets)
    )
    return next(fitting, None) if buckets else 0


def _is_beside_zero(bucket: Bucket) -> bool:
    """Whether a bucket has two finite bounds with the same sign."""
    return math.isfinite(_outer_bound(bucket)) and bucket.lower * bucket.upper > 0


def _fits(bucket: Bucket, schema: int, zero_threshold: float) -> bool:
    """Whether the schema has this bucket; the bucket next to the zero bucket may be cut at the zero threshold."""
    inner, outer = (math.log2(bound) * 2.0**schema for bound in (_inner_bound(bucket), _outer_bound(bucket)))
    is_whole = math.isclose(outer - inner, 1.0, rel_tol=TOLERANCE)
    is_cut = _inner_bound(bucket) == zero_threshold and outer - inner < 1
    return (is_whole or is_cut) and math.isclose(outer, round(outer), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
