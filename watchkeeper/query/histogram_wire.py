"""A native histogram as remote write has it: the message Histogram of Prometheus' prompb/types.proto, both ways.

Counts come as floats, or as whole numbers of which only the differences are sent; buckets come as spans with gaps
between them. `remote_write` reads and writes the rest of a request.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from watchkeeper.model.histograms import CUSTOM, HIGHEST_SCHEMA, LOWEST_SCHEMA, Buckets, Hint, Histogram
from watchkeeper.query.protobuf import fields, read_varint, varint

# Schemas up to this are legal, and Prometheus 3 reduces those above 8.
FINEST_SCHEMA = 52
# Tags: the number of the field, times 8, and how it is written.
COUNT, SUM, SCHEMA, ZERO_THRESHOLD, ZERO_COUNT = 0x11, 0x19, 0x20, 0x29, 0x39
COUNT_INT, ZERO_COUNT_INT, HINT, TIME = 0x08, 0x30, 0x70, 0x78
SPANS = {"negative": 0x42, "positive": 0x5A}
COUNTS = {"negative": 0x52, "positive": 0x6A}
DELTAS = {"negative": 0x4A, "positive": 0x62}
BOUNDS = 0x82
MAX_BUCKETS = 10_000
# Spans count in 32 bits.
MAX_INDEX = (1 << 31) - 1


class Broken(ValueError):
    """The message is no histogram that means anything."""


class _Span(NamedTuple):
    offset: int
    length: int


def read(message: bytes, start: int, end: int) -> tuple[int, Histogram]:
    """The time and the histogram between two bytes; Broken says why it is none."""
    numbers: dict[int, float] = {}
    whole: dict[int, int] = {}
    spans: dict[int, list[_Span]] = {}
    lists: dict[int, list[float]] = {}
    for tag, at, stop in fields(message, start, end):
        kind = tag & 7
        if tag in (COUNT, SUM, ZERO_THRESHOLD, ZERO_COUNT):
            (numbers[tag],) = struct.unpack_from("<d", message, at)
        elif tag in SPANS.values():
            spans.setdefault(tag, []).append(_read_span(message, at, stop))
        elif kind == 2:
            lists.setdefault(tag, []).extend(_read_list(message, tag, at, stop))
        elif kind == 1:
            lists.setdefault(tag & ~7 | 2, []).extend(struct.unpack_from("<d", message, at))
        elif kind == 0 and tag | 2 in DELTAS.values():
            lists.setdefault(tag | 2, []).append(_zigzag(at))
        else:
            whole[tag] = at
    sides = {side: _read_side(side, spans, lists) for side in SPANS}
    hint = whole.get(HINT, 0)
    found = Histogram(
        schema=_zigzag(whole.get(SCHEMA, 0)),
        count=numbers.get(COUNT, float(whole.get(COUNT_INT, 0))),
        sum=numbers.get(SUM, 0.0),
        zero_threshold=numbers.get(ZERO_THRESHOLD, 0.0),
        zero_count=numbers.get(ZERO_COUNT, float(whole.get(ZERO_COUNT_INT, 0))),
        positive=sides["positive"],
        negative=sides["negative"],
        bounds=tuple(lists.get(BOUNDS, ())),
        hint=Hint(hint) if hint in set(Hint) else Hint.UNKNOWN,
    )
    at_ms = whole.get(TIME, 0)
    return at_ms - (1 << 64) if at_ms >> 63 else at_ms, _checked(found)


def _read_span(message: bytes, start: int, end: int) -> _Span:
    found = {tag: at for tag, at, _ in fields(message, start, end)}
    return _Span(_zigzag(found.get(0x08, 0)), found.get(0x10, 0))


def _read_list(message: bytes, tag: int, start: int, end: int) -> Iterable[float]:
    if tag not in DELTAS.values():
        return struct.unpack_from(f"<{(end - start) // 8}d", message, start)
    return list(_read_deltas(message, start, end))


def _read_deltas(message: bytes, place: int, end: int) -> Iterator[int]:
    while place < end:
        number, place = read_varint(message, place)
        yield _zigzag(number)


def _zigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)


def _read_side(side: str, spans: dict[int, list[_Span]], lists: dict[int, list[float]]) -> Buckets:
    counts = lists.get(COUNTS[side]) or [float(count) for count in itertools.accumulate(lists.get(DELTAS[side], []))]
    found: list[int] = []
    index = 0
    for number, span in enumerate(spans.get(SPANS[side], [])):
        if number and span.offset < 0:
            raise Broken(f"{side} spans overlap")
        index += span.offset
        if len(found) + span.length > min(len(counts), MAX_BUCKETS):
            raise Broken(f"{side} spans have more buckets than there are counts, or than {MAX_BUCKETS}")
        found.extend(range(index, index + span.length))
        index += span.length
    if len(found) != len(counts):
        raise Broken(f"{side} spans have {len(found)} buckets for {len(counts)} counts")
    return tuple(zip(found, counts, strict=True))


def _checked(one: Histogram) -> Histogram:
    counts = (one.count, one.zero_count, *(count for _, count in one.positive + one.negative))
    if any(count < 0 for count in counts):
        raise Broken("something was counted less than 0 times")
    if any(abs(index) > MAX_INDEX for index, _ in one.positive + one.negative):
        raise Broken("a bucket lies beyond every number")
    if one.is_custom:
        is_odd = one.negative or one.zero_count or one.zero_threshold or list(one.bounds) != sorted(set(one.bounds))
        if is_odd or not all(map(math.isfinite, one.bounds)) or any(at > len(one.bounds) for at, _ in one.positive):
            raise Broken("custom bounds do not ascend, or do not fit the buckets")
        return one
    if one.bounds or not LOWEST_SCHEMA <= one.schema <= FINEST_SCHEMA or not one.zero_threshold >= 0:
        raise Broken(f"{one.schema} is no schema, or has bounds that it cannot have")
    return one.coarsened(HIGHEST_SCHEMA) if one.schema > HIGHEST_SCHEMA else one


def write(at_ms: int, one: Histogram) -> bytes:
    """The histogram as field 4 of a series; counts are floats, because PromQL makes fractions."""
    numbers = [(COUNT, one.count), (SUM, one.sum), (ZERO_THRESHOLD, one.zero_threshold), (ZERO_COUNT, one.zero_count)]
    inner = b"".join(varint(tag) + struct.pack("<d", number) for tag, number in numbers)
    inner += varint(SCHEMA) + varint(_zagzig(one.schema))
    for side, buckets in (("negative", one.negative), ("positive", one.positive)):
        inner += b"".join(_field(SPANS[side], _span_bytes(span)) for span in _spans(buckets))
        if buckets:
            inner += _field(COUNTS[side], _doubles([count for _, count in buckets]))
    if one.hint is not Hint.UNKNOWN:
        inner += varint(HINT) + varint(one.hint)
    inner += varint(TIME) + varint(at_ms & (1 << 64) - 1)
    if one.schema == CUSTOM and one.bounds:
        inner += _field(BOUNDS, _doubles(one.bounds))
    return _field(0x22, inner)


def _spans(buckets: Buckets) -> Iterator[_Span]:
    """Stretches of buckets without a gap; the first counts from 0, the others from the end of the one before."""
    end = 0
    for _, run in itertools.groupby(enumerate(buckets), key=lambda item: item[1][0] - item[0]):
        indices = [index for _, (index, _) in run]
        yield _Span(indices[0] - end, len(indices))
        end = indices[-1] + 1


def _span_bytes(span: _Span) -> bytes:
    return varint(0x08) + varint(_zagzig(span.offset)) + varint(0x10) + varint(span.length)


def _zagzig(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _doubles(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _field(tag: int, content: bytes) -> bytes:
    return varint(tag) + varint(len(content)) + content
