"""A native histogram as a protobuf message; remote write and exporters' pages number the same fields differently.

Counts come as floats, or as whole numbers of which only the differences are sent; buckets come as spans with gaps
between them. `exposition_protobuf` reads those of pages, `query.histogram_wire` those of remote write.
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

# Schemas up to this are legal, and Prometheus 3 reduces those above 8.
FINEST_SCHEMA = 52
MAX_BUCKETS = 10_000
# Spans count in 32 bits.
MAX_INDEX = (1 << 31) - 1
ABSENT = 0


class Broken(ValueError):
    """The message is no histogram that means anything."""


class Side(NamedTuple):
    """The fields of the positive or the negative buckets."""

    spans: int
    deltas: int
    counts: int


@dataclass(frozen=True, slots=True)
class Numbering:
    """The number of each field; ABSENT where the message has none."""

    count_int: int
    count: int
    sum: int
    schema: int
    zero_threshold: int
    zero_count_int: int
    zero_count: int
    negative: Side
    positive: Side
    hint: int = ABSENT
    time: int = ABSENT
    bounds: int = ABSENT

    @property
    def doubles(self) -> frozenset[int]:
        return frozenset({self.negative.counts, self.positive.counts, self.bounds} - {ABSENT})


# prompb/types.proto and prompb/io/prometheus/client/metrics.proto of Prometheus.
REMOTE_WRITE = Numbering(1, 2, 3, 4, 5, 6, 7, Side(8, 9, 10), Side(11, 12, 13), hint=14, time=15, bounds=16)
EXPOSITION = Numbering(1, 4, 2, 5, 6, 7, 8, Side(9, 10, 11), Side(12, 13, 14))


class _BucketSpan(NamedTuple):
    offset: int
    length: int


class _HistogramFields:
    """The fields of one message by their numbers."""

    def __init__(self, message: bytes, start: int, end: int, *, numbering: Numbering) -> None:
        self.floats: dict[int, float] = {}
        self.whole: dict[int, int] = {}
        self.spans: dict[int, list[_BucketSpan]] = {}
        self.lists: dict[int, list[float]] = {}
        spans = (numbering.negative.spans, numbering.positive.spans)
        deltas, doubles = (numbering.negative.deltas, numbering.positive.deltas), numbering.doubles
        for tag, at, stop in read_fields(message, start, end):
            number, kind = tag >> 3, tag & 7
            if number in spans and kind == 2:
                self.spans.setdefault(number, []).append(_read_span(message, at, stop))
            elif number in deltas and kind in (0, 2):
                found = [decode_zigzag(at)] if kind == 0 else _read_deltas(message, at, stop)
                self.lists.setdefault(number, []).extend(found)
            elif number in doubles and kind in (1, 2):
                self.lists.setdefault(number, []).extend(struct.unpack_from(f"<{(stop - at) // 8}d", message, at))
            elif kind == 1:
                (self.floats[number],) = struct.unpack_from("<d", message, at)
            elif kind == 0:
                self.whole[number] = at

    def number(self, as_float: int, as_whole: int) -> float:
        return self.floats.get(as_float) or float(self.whole.get(as_whole, 0))

    def side(self, side: Side, name: str) -> Buckets:
        whole = itertools.accumulate(self.lists.get(side.deltas, []))
        counts = self.lists.get(side.counts) or [float(count) for count in whole]
        found: list[int] = []
        index = 0
        for number, span in enumerate(self.spans.get(side.spans, [])):
            if number and span.offset < 0:
                raise Broken(f"{name} spans overlap")
            index += span.offset
            if len(found) + span.length > min(len(counts), MAX_BUCKETS):
                raise Broken(f"{name} spans have more buckets than there are counts, or than {MAX_BUCKETS}")
            found.extend(range(index, index + span.length))
            index += span.length
        if len(found) != len(counts):
            raise Broken(f"{name} spans have {len(found)} buckets for {len(counts)} counts")
        return tuple(zip(found, counts, strict=True))


def read(message: bytes, start: int, end: int, *, numbering: Numbering) -> tuple[int, Histogram]:
    """The time and the histogram between two bytes; Broken says why it is none."""
    found = _HistogramFields(message, start, end, numbering=numbering)
    hint = found.whole.get(numbering.hint, 0)
    histogram = Histogram(
        schema=decode_zigzag(found.whole.get(numbering.schema, 0)),
        count=found.number(numbering.count, numbering.count_int),
        sum=found.floats.get(numbering.sum, 0.0),
        zero_threshold=found.floats.get(numbering.zero_threshold, 0.0),
        zero_count=found.number(numbering.zero_count, numbering.zero_count_int),
        positive=found.side(numbering.positive, "positive"),
        negative=found.side(numbering.negative, "negative"),
        bounds=tuple(found.lists.get(numbering.bounds, ())),
        hint=ResetHint(hint) if hint in set(ResetHint) else ResetHint.UNKNOWN,
    )
    return to_signed(found.whole.get(numbering.time, 0)), _checked(histogram)


def is_native(message: bytes, start: int, end: int) -> bool:
    """Whether a histogram of an exporter's page has native buckets, be it an empty span that only says so."""
    marks = (EXPOSITION.negative.spans, EXPOSITION.positive.spans)
    for tag, at, _ in read_fields(message, start, end):
        number, kind = tag >> 3, tag & 7
        if number in marks or (number == EXPOSITION.zero_count_int and kind == 0 and at > 0):
            return True
        is_size = number in (EXPOSITION.zero_threshold, EXPOSITION.zero_count) and kind == 1
        if is_size and struct.unpack_from("<d", message, at)[0] > 0:
            return True
    return False


def _read_span(message: bytes, start: int, end: int) -> _BucketSpan:
    found = {tag: at for tag, at, _ in read_fields(message, start, end)}
    return _BucketSpan(decode_zigzag(found.get(0x08, 0)), found.get(0x10, 0))


def _read_deltas(message: bytes, place: int, end: int) -> Iterator[int]:
    while place < end:
        number, place = read_varint(message, place)
        yield decode_zigzag(number)


def _checked(one: Histogram) -> Histogram:
    counts = (one.count, one.zero_count, *(count for _, count in one.positive + one.negative))
    if any(count < 0 for count in counts):
        raise Broken("something was counted less than 0 times")
    if any(abs(index) > MAX_INDEX for index, _ in one.positive + one.negative):
        raise Broken("a bucket lies beyond every number")
    if one.schema == CUSTOM:
        is_odd = one.negative or one.zero_count or one.zero_threshold or list(one.bounds) != sorted(set(one.bounds))
        if is_odd or not all(map(math.isfinite, one.bounds)) or any(at > len(one.bounds) for at, _ in one.positive):
            raise Broken("custom bounds do not ascend, or do not fit the buckets")
        return one
    if one.bounds or not LOWEST_SCHEMA <= one.schema <= FINEST_SCHEMA or not one.zero_threshold >= 0:
        raise Broken(f"{one.schema} is no schema, or has bounds that it cannot have")
    return one.coarsened(HIGHEST_SCHEMA) if one.schema > HIGHEST_SCHEMA else one
