"""A native histogram in the JSON of Prometheus' HTTP API: count, sum, and the bounds and population of each bucket.

The web API writes it, and the remote engine reads it from a server. The form names no schema, so reading looks for the
one whose bounds these are; bounds of no exponential schema are custom ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from watchkeeper.model.histograms import CUSTOM, HIGHEST_SCHEMA, LOWEST_SCHEMA, Bucket, Buckets, Histogram

# Which bounds belong to a bucket: the upper, the lower, none, both.
UPPER, LOWER, NONE, BOTH = range(4)
RULES = {(False, True): UPPER, (True, False): LOWER, (False, False): NONE, (True, True): BOTH}
# Bounds come as decimal text of floats.
TOLERANCE = 1e-9

Ruled: TypeAlias = tuple[int, Bucket]


def write(histogram: Histogram, spell: Callable[[float], str]) -> dict[str, Any]:
    """The object for one histogram; `spell` writes a number as Prometheus does."""
    written = [
        [RULES[histogram.bound_inclusion(bucket)], *map(spell, bucket)]
        for bucket in histogram.buckets()
        if bucket.population
    ]
    plain: dict[str, Any] = {"count": spell(histogram.count), "sum": spell(histogram.sum)}
    return {**plain, "buckets": written} if written else plain


def read(plain: Mapping[str, Any]) -> Histogram:
    """The histogram that a server meant, as far as the form tells."""
    buckets = [(int(rule), Bucket(float(low), float(high), float(count))) for rule, low, high, count in _rows(plain)]
    zero = next((bucket for rule, bucket in buckets if rule == BOTH and bucket.lower == -bucket.upper), None)
    others = [(rule, bucket) for rule, bucket in buckets if bucket is not zero]
    count, total = float(plain["count"]), float(plain["sum"])
    schema = _schema(others, zero.upper if zero else 0.0)
    if schema is None:
        return _custom(others, count, total)
    sides: dict[bool, Buckets] = {
        is_negative: tuple(sorted((_index(bucket, schema), bucket.population) for _, bucket in chosen))
        for is_negative, chosen in (
            (sign, [one for one in others if (one[1].upper <= 0) is sign]) for sign in (True, False)
        )
    }
    return Histogram(
        schema=schema,
        count=count,
        sum=total,
        zero_threshold=zero.upper if zero else 0.0,
        zero_count=zero.population if zero else 0.0,
        positive=sides[False],
        negative=sides[True],
    )


def _rows(plain: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    return plain.get("buckets") or ()


def _far(bucket: Bucket) -> float:
    """The bound further from 0, without its sign."""
    return max(abs(bucket.lower), abs(bucket.upper))


def _near(bucket: Bucket) -> float:
    return min(abs(bucket.lower), abs(bucket.upper))


def _index(bucket: Bucket, schema: int) -> int:
    return round(math.log2(_far(bucket)) * 2.0**schema)


def _schema(buckets: Sequence[Ruled], zero_threshold: float) -> int | None:
    """The exponential schema that has all these buckets; None if there is none."""
    if any(rule not in (UPPER, LOWER) or not _is_beside_zero(bucket) for rule, bucket in buckets):
        return None
    fitting = (
        schema
        for schema in range(LOWEST_SCHEMA, HIGHEST_SCHEMA + 1)
        if all(_fits(bucket, schema, zero_threshold) for _, bucket in buckets)
    )
    return next(fitting, None) if buckets else 0


def _is_beside_zero(bucket: Bucket) -> bool:
    """Whether a bucket has two finite bounds of one sign."""
    return math.isfinite(_far(bucket)) and bucket.lower * bucket.upper > 0


def _fits(bucket: Bucket, schema: int, zero_threshold: float) -> bool:
    """Whether a bucket of the schema is this one; beside a zero bucket it begins where that ends."""
    near, far = (math.log2(bound) * 2.0**schema for bound in (_near(bucket), _far(bucket)))
    is_whole = math.isclose(far - near, 1.0, rel_tol=TOLERANCE)
    is_cut = _near(bucket) == zero_threshold and far - near < 1
    return (is_whole or is_cut) and math.isclose(far, round(far), rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _custom(buckets: Sequence[Ruled], count: float, total: float) -> Histogram:
    edges = {edge for _, bucket in buckets for edge in (bucket.lower, bucket.upper) if math.isfinite(edge)}
    bounds = tuple(sorted(edges))
    places = {bound: at for at, bound in enumerate(bounds)} | {math.inf: len(bounds)}
    positive = tuple(sorted((places[bucket.upper], bucket.population) for _, bucket in buckets))
    return Histogram(schema=CUSTOM, count=count, sum=total, positive=positive, bounds=bounds)
