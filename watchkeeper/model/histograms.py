"""A native histogram: one sample that says how many observations fell into which bucket.

Buckets are numbered. With an exponential schema bucket n ends at 2^(n·2^-schema), so that bucket 0 ends at 1, and
negative observations have buckets of their own, mirrored; with custom bounds bucket n ends at bound n, and one
more has no end. Values never change; the sums and differences that PromQL needs make new ones. The store keeps
them, `query.evaluate` computes with them, and what they mean is Prometheus' native histogram specification
(prometheus.io/docs/specs/native_histograms).
"""

from __future__ import annotations

import bisect
import math
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from watchkeeper.model.labels import Labels

# The schema that says: the bounds are listed.
CUSTOM = -53
LOWEST_SCHEMA, HIGHEST_SCHEMA = -4, 8
# A bound of 2^1024 is no float; Prometheus takes the largest one instead.
LAST_EXPONENT = 1024

# Numbers of buckets in ascending order, each with its population.
Buckets: TypeAlias = tuple[tuple[int, float], ...]


class ResetHint(IntEnum):
    """What is known about a counter reset since the sample before; numbers as in the remote-write protocol."""

    UNKNOWN = 0
    RESET = 1
    NOT_RESET = 2
    GAUGE = 3


class Bucket(NamedTuple):
    lower: float
    upper: float
    population: float


class IncompatibleHistograms(ValueError):
    """One histogram has exponential buckets, the other custom bounds: they have no sum."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """`bounds` are those of a custom schema; an exponential one has none."""

    schema: int = 0
    count: float = 0.0
    sum: float = 0.0
    zero_threshold: float = 0.0
    zero_count: float = 0.0
    positive: Buckets = ()
    negative: Buckets = ()
    bounds: tuple[float, ...] = ()
    hint: ResetHint = ResetHint.UNKNOWN

    @property
    def is_custom(self) -> bool:
        return self.schema == CUSTOM

    def is_same(self, other: Histogram) -> bool:
        """Whether both say the same about observations; NaN is the same as NaN, and hints do not count."""
        return self.layout == other.layout and _bits(self.numbers) == _bits(other.numbers)

    @property
    def layout(self) -> tuple[object, ...]:
        """Everything but the numbers: histograms with the same layout have as many."""
        indices = (tuple(index for index, _ in side) for side in self._sides)
        return self.schema, self.zero_threshold, self.bounds, *indices

    @property
    def numbers(self) -> tuple[float, ...]:
        populations = (count for side in self._sides for _, count in side)
        return self.count, self.sum, self.zero_count, *populations

    def edges(self, index: int) -> tuple[float, float]:
        """Where a positive bucket begins and ends."""
        if not self.is_custom:
            return _power(index - 1, self.schema), _power(index, self.schema)
        lower = self.bounds[index - 1] if index > 0 else -math.inf
        return lower, self.bounds[index] if index < len(self.bounds) else math.inf

    def buckets(self) -> list[Bucket]:
        """All buckets in ascending order; those beside a populated zero bucket begin where it ends."""
        edge = self.zero_threshold
        below = [(index, count, *self.edges(index)) for index, count in reversed(self.negative)]
        found = [Bucket(-upper, min(-lower, -edge), count) for _, count, lower, upper in below]
        if self.zero_count > 0:
            found.append(Bucket(-edge, edge, self.zero_count))
        for index, count in self.positive:
            lower, upper = self.edges(index)
            found.append(Bucket(max(lower, edge) if lower > 0 else lower, upper, count))
        return found

    def bound_inclusion(self, bucket: Bucket) -> tuple[bool, bool]:
        """Whether a bucket holds its own bounds: the one nearer to 0 is never inside, both of the zero bucket are."""
        if self.is_custom:
            return bucket.lower == -math.inf, True
        is_zero = bucket.lower == -bucket.upper
        return is_zero or bucket.lower < 0, is_zero or bucket.upper > 0

    def scaled(self, factor: float) -> Histogram:
        """A negative factor makes a gauge: no counter is negative."""
        return self._each(lambda number: number * factor, is_gauge=factor < 0)

    def divided(self, divisor: float) -> Histogram:
        """Divided by 0 no bucket is left, and the rest is infinite."""
        if divisor == 0:
            return replace(self._each(lambda number: _by_zero(number, divisor)), positive=(), negative=())
        return self._each(lambda number: number / divisor, is_gauge=divisor < 0)

    def _each(self, change: Callable[[float], float], *, is_gauge: bool = False) -> Histogram:
        return replace(
            self,
            count=change(self.count),
            sum=change(self.sum),
            zero_count=change(self.zero_count),
            positive=tuple((index, change(count)) for index, count in self.positive),
            negative=tuple((index, change(count)) for index, count in self.negative),
            hint=ResetHint.GAUGE if is_gauge else self.hint,
        )

    def compacted(self) -> Histogram:
        """Without buckets that nothing fell into."""
        kept = [tuple(bucket for bucket in side if bucket[1] != 0) for side in (self.positive, self.negative)]
        return replace(self, positive=kept[0], negative=kept[1])

    def coarsened(self, schema: int) -> Histogram:
        """The same observations in the wider buckets of a lower schema."""
        if schema == self.schema:
            return self
        shift = self.schema - schema
        sides = [_merged((((index - 1) >> shift) + 1, count) for index, count in side) for side in self._sides]
        return replace(self, schema=schema, positive=sides[0], negative=sides[1])

    def with_bounds(self, bounds: tuple[float, ...]) -> Histogram:
        """The same observations under some of the custom bounds."""
        if bounds == self.bounds:
            return self
        ends = ((self.edges(index)[1], count) for index, count in self.positive)
        return replace(
            self, bounds=bounds, positive=_merged((bisect.bisect_left(bounds, end), count) for end, count in ends)
        )

    def with_zero_bucket(self, threshold: float) -> Histogram:
        """With a zero bucket that reaches at least this far: further where that would be inside a populated bucket."""
        if threshold <= self.zero_threshold:
            return self
        count = math.nan
        while True:
            taken = [self._taken(side, threshold) for side in self._sides]
            reach = max([threshold, *(end for _, end in taken)])
            if reach == threshold:
                count = self.zero_count + sum(inside for inside, _ in taken)
                break
            threshold = reach
        left = [tuple(one for one in side if self.edges(one[0])[0] >= threshold) for side in self._sides]
        return replace(self, zero_threshold=threshold, zero_count=count, positive=left[0], negative=left[1])

    def _taken(self, side: Buckets, threshold: float) -> tuple[float, float]:
        """What of one side falls into a zero bucket, and how far its last populated bucket reaches."""
        count, reach = 0.0, 0.0
        for index, population in side:
            lower, upper = self.edges(index)
            if lower >= threshold:
                break
            count += population
            reach = upper if population != 0 else reach
        return count, reach

    @property
    def _sides(self) -> tuple[Buckets, Buckets]:
        return self.positive, self.negative

    def is_reset_after(self, previous: Histogram) -> bool:
        """Whether a counter began anew between the previous sample and this one: something counts less than before.

        A finer schema, a narrower zero bucket, or another kind of buckets come with a new beginning only.
        """
        if self.count < previous.count or self.is_custom != previous.is_custom:
            return True
        if self.is_custom:
            bounds = shared_bounds(self.bounds, previous.bounds)
            return _has_less(self.with_bounds(bounds).positive, previous.with_bounds(bounds).positive)
        if self.schema > previous.schema or self.zero_threshold < previous.zero_threshold:
            return True
        widened = previous.with_zero_bucket(self.zero_threshold)
        if widened.zero_threshold != self.zero_threshold or self.zero_count < widened.zero_count:
            return True
        before = widened.coarsened(self.schema)
        return any(_has_less(now, then) for now, then in zip(self._sides, before._sides, strict=True))


@dataclass(frozen=True, slots=True)
class HistogramSample:
    """A histogram of one series at a time; stands beside `samples.Sample`."""

    labels: Labels
    at_ms: int
    value: Histogram


class CombinedHistogram(NamedTuple):
    """`is_conflicting`: one knew of a counter reset, another of none. `is_reconciled`: custom bounds differed."""

    histogram: Histogram
    is_conflicting: bool
    is_reconciled: bool


def sum_histograms(parts: Sequence[Histogram]) -> CombinedHistogram:
    """The sum of some histograms in the finest layout that all of them have; Incompatible if there is none."""
    first = parts[0]
    if any(one.is_custom != first.is_custom for one in parts):
        raise IncompatibleHistograms("exponential buckets and custom bounds do not add up")
    bounds, is_reconciled = first.bounds, False
    for one in parts[1:]:
        if one.bounds != bounds:
            bounds, is_reconciled = shared_bounds(bounds, one.bounds), True
    laid = [one.with_bounds(bounds) for one in parts] if first.is_custom else _aligned(parts)
    hint, is_conflicting = _joined_hint([one.hint for one in parts])
    found = Histogram(
        schema=laid[0].schema,
        count=_sum([one.count for one in laid]),
        sum=_sum([one.sum for one in laid]),
        zero_threshold=laid[0].zero_threshold,
        zero_count=_sum([one.zero_count for one in laid]),
        positive=_merged(bucket for one in laid for bucket in one.positive),
        negative=_merged(bucket for one in laid for bucket in one.negative),
        bounds=bounds,
        hint=hint,
    )
    return CombinedHistogram(found, is_conflicting, is_reconciled)


def subtract_histograms(left: Histogram, right: Histogram) -> CombinedHistogram:
    return sum_histograms([left, replace(right.scaled(-1.0), hint=right.hint)])


def average_histograms(parts: Sequence[Histogram]) -> CombinedHistogram:
    """The mean of some histograms; each is divided first where their sum would be too large for a float."""
    found = sum_histograms(parts)
    if any(map(math.isinf, found.histogram.numbers)):
        return sum_histograms([one.divided(len(parts)) for one in parts])
    return found._replace(histogram=found.histogram.divided(len(parts)))


def shared_bounds(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return left if left == right else tuple(sorted(set(left) & set(right)))


def _aligned(parts: Sequence[Histogram]) -> list[Histogram]:
    """Exponential histograms with one schema and one zero bucket."""
    threshold = max(one.zero_threshold for one in parts)
    while True:
        laid = [one.with_zero_bucket(threshold) for one in parts]
        reach = max(one.zero_threshold for one in laid)
        if reach == threshold:
            break
        threshold = reach
    schema = min(one.schema for one in parts)
    return [one.coarsened(schema) for one in laid]


def _joined_hint(hints: Sequence[ResetHint]) -> tuple[ResetHint, bool]:
    """A gauge makes everything a gauge; what is unknown of one is unknown of all."""
    kinds = set(hints)
    is_conflicting = {ResetHint.RESET, ResetHint.NOT_RESET} <= kinds
    if ResetHint.GAUGE in kinds:
        return ResetHint.GAUGE, is_conflicting
    return (hints[0] if len(kinds) == 1 else ResetHint.UNKNOWN), is_conflicting


def _merged(buckets: Iterable[tuple[int, float]]) -> Buckets:
    """Populations with the same number are added."""
    found: dict[int, list[float]] = {}
    for index, count in buckets:
        found.setdefault(index, []).append(count)
    return tuple((index, _sum(found[index])) for index in sorted(found))


def _sum(numbers: list[float]) -> float:
    """Exact and rounded once; infinities and what is too large add up as floats do."""
    if len(numbers) == 1:
        return numbers[0]
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)


def _bits(numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"{len(numbers)}d", *numbers)


def _has_less(now: Buckets, before: Buckets) -> bool:
    there = dict(now)
    return any(there[index] < count if index in there else count != 0 for index, count in before)


def _by_zero(number: float, zero: float) -> float:
    """A quotient as floats have it, which Python refuses."""
    if number == 0 or math.isnan(number):
        return math.nan
    return math.copysign(math.inf, number) * math.copysign(1.0, zero)


def _power(index: int, schema: int) -> float:
    """2^(index·2^-schema), exact for whole powers of two."""
    if schema <= 0:
        exponent, rest = index << -schema, 1.0
    else:
        exponent, rest = index >> schema, 2.0 ** ((index & ((1 << schema) - 1)) / (1 << schema))
    if exponent >= LAST_EXPONENT:
        return sys.float_info.max if exponent == LAST_EXPONENT and rest == 1.0 else math.inf
    return math.ldexp(rest, exponent)
