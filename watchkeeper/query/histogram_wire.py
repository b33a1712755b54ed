"""A native histogram as remote write has it: the message Histogram of Prometheus' prompb/types.proto, both ways.

It is read by `readers.histogram_message` and written here, with counts as floats. `remote_write` reads and writes
the rest of a request.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from watchkeeper.kit.protobuf import varint
from watchkeeper.model.histograms import CUSTOM, Buckets, Hint, Histogram
from watchkeeper.readers import histogram_message
from watchkeeper.readers.histogram_message import Broken

__all__ = ["Broken", "read", "write"]

# Tags: the number of the field, times 8, and how it is written.
COUNT, SUM, SCHEMA, ZERO_THRESHOLD, ZERO_COUNT = 0x11, 0x19, 0x20, 0x29, 0x39
HINT, TIME, BOUNDS = 0x70, 0x78, 0x82
SPANS = {"negative": 0x42, "positive": 0x5A}
COUNTS = {"negative": 0x52, "positive": 0x6A}


class _Span(NamedTuple):
    offset: int
    length: int


def read(message: bytes, start: int, end: int) -> tuple[int, Histogram]:
    """The time and the histogram between two bytes; Broken says why it is none."""
    return histogram_message.read(message, start, end, numbering=histogram_message.REMOTE_WRITE)


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
