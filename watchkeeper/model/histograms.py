"""A native histogram: one sample with the number of observations in each bucket.

With an exponential schema bucket n ends at 2^(n·2^-schema), so bucket 0 ends at 1; negative observations have mirrored
buckets. With custom bounds bucket n ends at bound n, and the last bucket has no end; the specification is
prometheus.io/docs/specs/native_histograms.
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

# The schema with custom bounds.
CUSTOM = -53
LOWEST_SCHEMA, HIGHEST_SCHEMA = -4, 8
# A bound of 2^1024 is not a float; Prometheus uses the largest float instead.
LAST_EXPONENT = 1024

# Numbers of buckets in ascending order, each with its population.
Buckets: TypeAlias = tuple[tuple[int, float], ...]


class ResetHint(IntEnum):
    """Whether a counter was reset since the previous sample; numbers as in the remote-write protocol."""

    UNKNOWN = 0
    RESET = 1
    NOT_RESET = 2
    GAUGE = 3


class Bucket(NamedTuple):
    lower: float
    upper: float
    population: float


class IncompatibleHistograms(ValueError):
    """Exponential buckets and custom bounds cannot be added."""


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
        """Whether both hold the same observations; NaN equals NaN, and hints do not count."""
        return self.layout == other.layout and _bits(self.numbers) == _bits(other.numbers)

    @property
    def layout(self) -> tuple[object, ...]:
        """Everything but the numbers: histograms of the same layout have the same number of them."""
        indices = (tuple(index for index, _ in side) for side in self._sides)
        return self.schema, self.zero_threshold, self.bounds, *indices

    @property
    def numbers(self) -> tuple[float, ...]:
        return self.count, self.sum, self.zero_count, *(count for side in self._sides for _, count in side)

    def edges(self, index: int) -> tuple[float, float]:
        """The bounds of a positive bucket."""
        if not self.is_custom:
            return _power(index - 1, self.schema), _power(index, self.schema)
        lower = self.bounds[index - 1] if index > 0 else -math.inf
        return lower, self.bounds[index] if index < len(self.bounds) else math.inf

    def buckets(self) -> list[Bucket]:
        """All buckets in ascending order; neighbours of a populated zero bucket begin where it ends."""
        edge = self.zero_threshold
        below = [(index, count, *self.edges(index)) for index, count in reversed(self.negative)]
        buckets = [Bucket(-upper, min(-lower, -edge), count) for _, count, lower, upper in below]
        if self.zero_count > 0:
            buckets.append(Bucket(-edge, edge, self.zero_count))
        for index, count in self.positive:
            lower, upper = self.edges(index)
            buckets.append(Bucket(max(lower, edge) if lower > 0 else lower, upper, count))
        return buckets

    def bound_inclusion(self, bucket: Bucket) -> tuple[bool, bool]:
        """Whether each bound is inside: the one closer to 0 never is; the zero bucket includes both."""
        if self.is_custom:
            return bucket.lower == -math.inf, True
        is_zero = bucket.lower == -bucket.upper
        return is_zero or bucket.lower < 0, is_zero or bucket.upper > 0

    def scaled(self, factor: float) -> Histogram:
        """A negative factor makes a gauge: a counter is never negative."""
        return self._each(lambda number: number * factor, is_gauge=factor < 0)

    def divided(self, divisor: float) -> Histogram:
        """Division by 0 removes all buckets and makes the rest infinite."""
        if divisor == 0:
            return replace(self._each(lambda number: _by_zero(number, divisor)), positive=(), negative=())
        return self._each(lambda number: number / divisor, is_gauge=divisor < 0)

    def _each(self, convert: Callable[[float], float], *, is_gauge: bool = False) -> Histogram:
        return replace(
            self,
            count=convert(self.count),
            sum=convert(self.sum),
            zero_count=convert(self.zero_count),
            positive=tuple((index, convert(count)) for index, count in self.positive),
            negative=tuple((index, convert(count)) for index, count in self.negative),
            hint=ResetHint.GAUGE if is_gauge else self.hint,
        )

    def compacted(self) -> Histogram:
        """Without empty buckets."""
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
        """With a zero bucket at least this wide: wider if the threshold lies inside a populated bucket."""
        if threshold <= self.zero_threshold:
            return self
        count = math.nan
        while True:
            absorbed = [self._absorbed_by_zero(side, threshold) for side in self._sides]
            widest = max([threshold, *(end for _, end in absorbed)])
            if widest == threshold:
                count = self.zero_count + sum(inside for inside, _ in absorbed)
                break
            threshold = widest
        sides = [tuple(bucket for bucket in side if self.edges(bucket[0])[0] >= threshold) for side in self._sides]
        return replace(self, zero_threshold=threshold, zero_count=count, positive=sides[0], negative=sides[1])

    def _absorbed_by_zero(self, side: Buckets, threshold: float) -> tuple[float, float]:
        """The population of one side that falls into a zero bucket, and the end of the last populated bucket."""
        count, end = 0.0, 0.0
        for index, population in side:
            lower, upper = self.edges(index)
            if lower >= threshold:
                break
            count += population
            end = upper if population != 0 else end
        return count, end

    @property
    def _sides(self) -> tuple[Buckets, Buckets]:
        return self.positive, self.negative

    def is_reset_after(self, previous: Histogram) -> bool:
        """Whether a counter was reset between the previous sample and this one: some bucket counts less than before.

        A finer schema, a narrower zero bucket or another bucket kind appear only after a reset.
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
    """A histogram of one series at one time; the counterpart of `samples.Sample`."""

    labels: Labels
    at_ms: int
    value: Histogram


class CombinedHistogram(NamedTuple):
    """`is_conflicting`: hints disagree about a counter reset. `is_reconciled`: custom bounds differed."""

    histogram: Histogram
    is_conflicting: bool
    is_reconciled: bool


def sum_histograms(parts: Sequence[Histogram]) -> CombinedHistogram:
    """The sum in the finest common layout; IncompatibleHistograms if there is none."""
    first = parts[0]
    if any(part.is_custom != first.is_custom for part in parts):
        raise IncompatibleHistograms("cannot add exponential buckets and custom bounds")
    bounds, is_reconciled = first.bounds, False
    for part in parts[1:]:
        if part.bounds != bounds:
            bounds, is_reconciled = shared_bounds(bounds, part.bounds), True
    aligned = [part.with_bounds(bounds) for part in parts] if first.is_custom else _aligned(parts)
    hint, is_conflicting = _joined_hint([part.hint for part in parts])
    total = Histogram(
        schema=aligned[0].schema,
        count=_sum([part.count for part in aligned]),
        sum=_sum([part.sum for part in aligned]),
        zero_threshold=aligned[0].zero_threshold,
        zero_count=_sum([part.zero_count for part in aligned]),
        positive=_merged(bucket for part in aligned for bucket in part.positive),
        negative=_merged(bucket for part in aligned for bucket in part.negative),
        bounds=bounds,
        hint=hint,
    )
    return CombinedHistogram(total, is_conflicting, is_reconciled)


def subtract_histograms(left: Histogram, right: Histogram) -> CombinedHistogram:
    return sum_histograms([left, replace(right.scaled(-1.0), hint=right.hint)])


def average_histograms(parts: Sequence[Histogram]) -> CombinedHistogram:
    """The mean of histograms; each is divided first if the sum would overflow."""
    total = sum_histograms(parts)
    if any(map(math.isinf, total.histogram.numbers)):
        return sum_histograms([part.divided(len(parts)) for part in parts])
    return total._replace(histogram=total.histogram.divided(len(parts)))


def shared_bounds(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[float, ...]:
    return left if left == right else tuple(sorted(set(left) & set(right)))


def _aligned(parts: Sequence[Histogram]) -> list[Histogram]:
    """Exponential histograms with one schema and one zero bucket."""
    threshold = max(part.zero_threshold for part in parts)
    while True:
        aligned = [part.with_zero_bucket(threshold) for part in parts]
        widest = max(part.zero_threshold for part in aligned)
        if widest == threshold:
            break
        threshold = widest
    schema = min(part.schema for part in parts)
    return [part.coarsened(schema) for part in aligned]


def _joined_hint(hints: Sequence[ResetHint]) -> tuple[ResetHint, bool]:
    """One gauge makes the result a gauge; differing hints make it unknown."""
    kinds = set(hints)
    is_conflicting = {ResetHint.RESET, ResetHint.NOT_RESET} <= kinds
    if ResetHint.GAUGE in kinds:
        return ResetHint.GAUGE, is_conflicting
    return (hints[0] if len(kinds) == 1 else ResetHint.UNKNOWN), is_conflicting


def _merged(buckets: Iterable[tuple[int, float]]) -> Buckets:
    populations: dict[int, list[float]] = {}
    for index, count in buckets:
        populations.setdefault(index, []).append(count)
    return tuple((index, _sum(populations[index])) for index in sorted(populations))


def _sum(numbers: list[float]) -> float:
    """Exact, rounded once; infinities and overflow add up as floats do."""
    if len(numbers) == 1:
        return numbers[0]
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):
        return sum(numbers)


def _bits(numbers: tuple[float, ...]) -> bytes:
    return struct.pack(f"{len(numbers)}d", *numbers)


def _has_less(now: Buckets, before: Buckets) -> bool:
    current = dict(now)
    return any(current[index] < count if index in current else count != 0 for index, count in before)


def _by_zero(number: float, zero: float) -> float:
    """Float division by zero, which Python refuses."""
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
