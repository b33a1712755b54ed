"""Read and write the message Histogram of remote write (Prometheus' prompb/types.proto).

`readers.histogram_message` reads it; this module writes it, with counts as floats. `remote_write` reads and writes the
rest of a request; `web.prometheus.federation` writes the same fields with the field numbers of the exposition format.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence

from watchkeeper.kit.protobuf import encode_varint
from watchkeeper.model.histograms import CUSTOM, Buckets, Histogram, ResetHint
from watchkeeper.readers import histogram_message
from watchkeeper.readers.histogram_message import REMOTE_WRITE, HistogramFieldNumbers, InvalidHistogram

__all__ = ["InvalidHistogram", "encode_buckets", "read", "write"]

# Wire types of protobuf: a tag is the field number times 8, plus the wire type.
VARINT, DOUBLE, BYTES = range(3)


def read(message: bytes, start: int, end: int) -> tuple[int, Histogram]:
    """The time and the histogram between two bytes; InvalidHistogram if the bytes are not a histogram."""
    return histogram_message.read(message, start, end, numbering=histogram_message.REMOTE_WRITE)


def write(at_ms: int, histogram: Histogram) -> bytes:
    """Encode a histogram sample as field 4 of a series."""
    inner = encode_buckets(histogram, REMOTE_WRITE)
    if histogram.hint is not ResetHint.UNKNOWN:
        inner += _tag(REMOTE_WRITE.hint, VARINT) + encode_varint(histogram.hint)
    inner += _tag(REMOTE_WRITE.time, VARINT) + encode_varint(at_ms & (1 << 64) - 1)
    if histogram.schema == CUSTOM and histogram.bounds:
        inner += _field(REMOTE_WRITE.bounds, _doubles(histogram.bounds))
    return _field(4, inner)


def encode_buckets(histogram: Histogram, numbering: HistogramFieldNumbers) -> bytes:
    """Encode counts, sum, schema and buckets; counts are floats, because PromQL results have fractions."""
    numbers = [
        (numbering.count, histogram.count),
        (numbering.sum, histogram.sum),
        (numbering.zero_threshold, histogram.zero_threshold),
        (numbering.zero_count, histogram.zero_count),
    ]
    inner = b"".join(_tag(number, DOUBLE) + struct.pack("<d", value) for number, value in numbers)
    inner += _tag(numbering.schema, VARINT) + encode_varint(_zigzag(histogram.schema))
    for side, buckets in ((numbering.negative, histogram.negative), (numbering.positive, histogram.positive)):
        inner += b"".join(_field(side.spans, _span_bytes(*span)) for span in _spans(buckets))
        if buckets:
            inner += _field(side.counts, _doubles([count for _, count in buckets]))
    return inner


def _spans(buckets: Buckets) -> Iterator[tuple[int, int]]:
    """The offset and length of each run of buckets without a gap; offsets count from the end of the previous run."""
    end = 0
    for _, run in itertools.groupby(enumerate(buckets), key=lambda item: item[1][0] - item[0]):
        indices = [index for _, (index, _) in run]
        yield indices[0] - end, len(indices)
        end = indices[-1] + 1


def _span_bytes(offset: int, length: int) -> bytes:
    return encode_varint(0x08) + encode_varint(_zigzag(offset)) + encode_varint(0x10) + encode_varint(length)


def _zigzag(number: int) -> int:
    return number << 1 if number >= 0 else (-number << 1) - 1


def _doubles(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _tag(number: int, kind: int) -> bytes:
    return encode_varint(number << 3 | kind)


def _field(number: int, content: bytes) -> bytes:
    return _tag(number, BYTES) + encode_varint(len(content)) + content
