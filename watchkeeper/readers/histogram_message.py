"""Read native histograms from protobuf messages of exporters and of remote write, which number the fields differently.

Counts are floats, or delta-encoded integers; buckets are spans with gaps between them. `exposition_protobuf` uses this
for exporters' pages, `query.histogram_wire` for remote write.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from watchkeeper.kit.protobuf import decode_zigzag, read_fields, read_varint, to_signed
from watchkeeper.model.histograms import CUSTOM, HIGHEST_SCHEMA, LOWEST_SCHEMA, Buckets, Histogram, ResetHint

# The highest valid schema; Prometheus 3 reduces schemas above 8.
FINEST_SCHEMA = 52
MAX_BUCKETS = 10_000
# Spans count in 32 bits.
MAX_INDEX = (1 << 31) - 1
NO_FIELD = 0


class InvalidHistogram(ValueError):
    """The message is not a valid histogram."""


class SideFields(NamedTuple):
    """The field numbers of the positive or the negative buckets."""

    spans: int
    deltas: int
    counts: int


@dataclass(frozen=True, slots=True)
class HistogramFieldNumbers:
    """The number of each field; NO_FIELD for a field that the message does not have."""

    count_int: int
    count: int
    sum: int
    schema: int
    zero_threshold: int
    zero_count_int: int
    zero_count: int
    negative: SideFields
    positive: SideFields
    hint: int = NO_FIELD
    time: int = NO_FIELD
    bounds: int = NO_FIELD

    @property
    def doubles(self) -> frozenset[int]:
        return frozenset({self.negative.counts, self.positive.counts, self.bounds} - {NO_FIELD})


# prompb/types.proto and prompb/io/prometheus/client/metrics.proto of Prometheus.
REMOTE_WRITE = HistogramFieldNumbers(
    1, 2, 3, 4, 5, 6, 7, SideFields(8, 9, 10), SideFields(11, 12, 13), hint=14, time=15, bounds=16
)
EXPOSITION = HistogramFieldNumbers(1, 4, 2, 5, 6, 7, 8, SideFields(9, 10, 11), SideFields(12, 13, 14))


class _HistogramFields:
    """The field values of one message, by field number."""

    def __init__(self, message: bytes, start: int, end: int, *, numbering: HistogramFieldNumbers) -> None:
        self.floats: dict[int, float] = {}
        self.integers: dict[int, int] = {}
        # The offset and length of each span of buckets.
        self.spans: dict[int, list[tuple[int, int]]] = {}
        self.lists: dict[int, list[float]] = {}
        spans = (numbering.negative.spans, numbering.positive.spans)
        deltas, doubles = (numbering.negative.deltas, numbering.positive.deltas), numbering.doubles
        for tag, at, stop in read_fields(message, start, end):
            number, kind = tag >> 3, tag & 7
            if number in spans and kind == 2:
                numbers = {field: value for field, value, _ in read_fields(message, at, stop)}
                span = (decode_zigzag(numbers.get(0x08, 0)), numbers.get(0x10, 0))
                self.spans.setdefault(number, []).append(span)
            elif number in deltas and kind in (0, 2):
                deltas_read = [decode_zigzag(at)] if kind == 0 else _read_deltas(message, at, stop)
                self.lists.setdefault(number, []).extend(deltas_read)
            elif number in doubles and kind in (1, 2):
                self.lists.setdefault(number, []).extend(struct.unpack_from(f"<{(stop - at) // 8}d", message, at))
            elif kind == 1:
                (self.floats[number],) = struct.unpack_from("<d", message, at)
            elif kind == 0:
                self.integers[number] = at

    def number(self, as_float: int, as_integer: int) -> float:
        return self.floats.get(as_float) or float(self.integers.get(as_integer, 0))

    def read_side(self, side: SideFields, name: str) -> Buckets:
        running_counts = itertools.accumulate(self.lists.get(side.deltas, []))
        counts = self.lists.get(side.counts) or [float(count) for count in running_counts]
        indexes: list[int] = []
        index = 0
        for number, (offset, length) in enumerate(self.spans.get(side.spans, [])):
            if number and offset < 0:
                raise InvalidHistogram(f"{name} spans overlap")
            index += offset
            if len(indexes) + length > min(len(counts), MAX_BUCKETS):
                limit = f"the limit of {MAX_BUCKETS}"
                raise InvalidHistogram(f"{name} spans have more buckets than counts, or more than {limit}")
            indexes.extend(range(index, index + length))
            index += length
        if len(indexes) != len(counts):
            raise InvalidHistogram(f"{name} spans have {len(indexes)} buckets for {len(counts)} counts")
        return tuple(zip(indexes, counts, strict=True))


def read(message: bytes, start: int, end: int, *, numbering: HistogramFieldNumbers) -> tuple[int, Histogram]:
    """Read the timestamp and histogram in a byte range; InvalidHistogram if it is not valid."""
    fields = _HistogramFields(message, start, end, numbering=numbering)
    hint = fields.integers.get(numbering.hint, 0)
    histogram = Histogram(
        schema=decode_zigzag(fields.integers.get(numbering.schema, 0)),
        count=fields.number(numbering.count, numbering.count_int),
        sum=fields.floats.get(numbering.sum, 0.0),
        zero_threshold=fields.floats.get(numbering.zero_threshold, 0.0),
        zero_count=fields.number(numbering.zero_count, numbering.zero_count_int),
        positive=fields.read_side(numbering.positive, "positive"),
        negative=fields.read_side(numbering.negative, "negative"),
        bounds=tuple(fields.lists.get(numbering.bounds, ())),
        hint=ResetHint(hint) if hint in set(ResetHint) else ResetHint.UNKNOWN,
    )
    return to_signed(fields.integers.get(numbering.time, 0)), _validate(histogram)


def is_native(message: bytes, start: int, end: int) -> bool:
    """Whether a histogram of an exporter's page has native buckets; an empty span marks it as native too."""
    span_fields = (EXPOSITION.negative.spans, EXPOSITION.positive.spans)
    for tag, at, _ in read_fields(message, start, end):
        number, kind = tag >> 3, tag & 7
        if number in span_fields or (number == EXPOSITION.zero_count_int and kind == 0 and at > 0):
            return True
        is_size = number in (EXPOSITION.zero_threshold, EXPOSITION.zero_count) and kind == 1
        if is_size and struct.unpack_from("<d", message, at)[0] > 0:
            return True
    return False


def _read_deltas(message: bytes, position: int, end: int) -> Iterator[int]:
    while position < end:
        number, position = read_varint(message, position)
        yield decode_zigzag(number)


def _validate(histogram: Histogram) -> Histogram:
    counts = (histogram.count, histogram.zero_count, *(count for _, count in histogram.positive + histogram.negative))
    if any(count < 0 for count in counts):
        raise InvalidHistogram("a count is negative")
    if any(abs(index) > MAX_INDEX for index, _ in histogram.positive + histogram.negative):
        raise InvalidHistogram(f"a bucket index exceeds {MAX_INDEX}")
    bounds = histogram.bounds
    if histogram.schema == CUSTOM:
        is_ascending = list(bounds) == sorted(set(bounds)) and all(map(math.isfinite, bounds))
        is_within = all(index <= len(bounds) for index, _ in histogram.positive)
        has_others = histogram.negative or histogram.zero_count or histogram.zero_threshold
        if has_others or not is_ascending or not is_within:
            raise InvalidHistogram("custom bounds are not ascending, or do not match the buckets")
        return histogram
    if histogram.bounds or not LOWEST_SCHEMA <= histogram.schema <= FINEST_SCHEMA or not histogram.zero_threshold >= 0:
        raise InvalidHistogram(f"schema {histogram.schema} is not valid, or has custom bounds or a bad zero threshold")
    return histogram.coarsened(HIGHEST_SCHEMA) if histogram.schema > HIGHEST_SCHEMA else histogram
