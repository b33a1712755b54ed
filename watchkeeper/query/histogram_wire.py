"""A native histogram as remote write has it: the message Histogram of Prometheus' prompb/types.proto, both ways.

It is read by `readers.histogram_message` and written here, with counts as floats. `remote_write` reads and writes
the rest of a request; `web.prometheus.federation` writes the same fields under the numbers that exporters' pages have.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from watchkeeper.kit.protobuf import encode_varint
from watchkeeper.model.histograms import CUSTOM, Buckets, Histogram, ResetHint
from watchkeeper.readers import histogram_message
from watchkeeper.readers.histogram_message import REMOTE_WRITE, Broken, Numbering

__all__ = ["Broken", "buckets", "read", "write"]

# How a field is written; its tag is its number, times 8, and this.
VARINT, DOUBLE, BYTES = range(3)


class _Span(NamedTuple):
    offset: int
    length: int


def read(message: bytes, start: int, end: int) -> tuple[int, Histogram]:
    """The time and the histogram between two bytes; Broken says why it is none."""
    return histogram_message.read(message, start, end, numbering=histogram_message.REMOTE_WRITE)


def write(at_ms: int, one: Histogram) -> bytes:
    """The histogram as field 4 of a series."""
    inner = buckets(one, REMOTE_WRITE)
    if one.hint is not ResetHint.UNKNOWN:
        inner += _tag(REMOTE_WRITE.hint, VARINT) + encode_varint(one.hint)
    inner += _tag(REMOTE_WRITE.time, VARINT) + encode_varint(at_ms & (1 << 64) - 1)
    if one.schema == CUSTOM and one.bounds:
        inner += _field(REMOTE_WRITE.bounds, _doubles(one.bounds))
    return _field(4, inner)


def buckets(one: Histogram, numbering: Numbering) -> bytes:
    """Counts, sum, schema and buckets as fields; counts are floats, because PromQL makes fractions."""
    numbers = [
        (numbering.count, one.count),
        (numbering.sum, one.sum),
        (numbering.zero_threshold, one.zero_threshold),
        (numbering.zero_count, one.zero_count),
    ]
    inner = b"".join(_tag(number, DOUBLE) + struct.pack("<d", value) for number, value in numbers)
    inner += _tag(numbering.schema, VARINT) + encode_varint(_zagzig(one.schema))
    for side, found in ((numbering.negative, one.negative), (numbering.positive, one.positive)):
        inner += b"".join(_field(side.spans, _span_bytes(span)) for span in _spans(found))
        if found:
            inner += _field(side.counts, _doubles([count for _, count in found]))
    return inner


def _spans(buckets: Buckets) -> Iterator[_Span]:
    """Stretches of buckets without a gap; the first counts from 0, the others from the end of the one before."""
    end = 0
    for _, run in itertools.groupby(enumerate(buckets), key=lambda item: item[1][0] - item[0]):
        indices = [index for _, (index, _) in run]
        yield _Span(indices[0] - end, len(indices))
        end = indices[-1] + 1


def _span_bytes(span: _Span) -> bytes:
    return encode_varint(0x08) + encode_varint(_zagzig(span.offset)) + encode_varint(0x10) + encode_varint(span.length)


def _zagzig(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _doubles(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _tag(number: int, kind: int) -> bytes:
    return encode_varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, BYTES) + encode_varint(len(content)) + content
