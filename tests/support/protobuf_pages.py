"""Exporters' pages as protobuf, written by hand: the other half of `readers.exposition_protobuf`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from watchkeeper.kit.protobuf import encode_varint

COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM, GAUGE_HISTOGRAM = range(6)
# The field of a metric that each type's numbers stand in.
HELD_IN = (3, 2, 4, 5, 7, 7)


def whole(number: int, value: int) -> bytes:
    return encode_varint(number << 3) + encode_varint(value)


def signed(number: int, value: int) -> bytes:
    return whole(number, value << 1 if value >= 0 else (-value << 1) - 1)


def double(number: int, value: float) -> bytes:
    return encode_varint(number << 3 | 1) + struct.pack("<d", value)


def inner(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return encode_varint(number << 3 | 2) + encode_varint(len(raw)) + raw


def label(name: str, value: str) -> bytes:
    return inner(1, inner(1, name) + inner(2, value))


def exemplar(value: float, at_seconds: int, **labels: str) -> bytes:
    pairs = b"".join(label(*pair) for pair in labels.items())
    return pairs + double(2, value) + inner(3, whole(1, at_seconds) + whole(2, 500_000_000))


def metric(kind: int, content: bytes, *, at_ms: int | None = None, **labels: str) -> bytes:
    pairs = b"".join(label(*pair) for pair in labels.items())
    return inner(4, pairs + inner(HELD_IN[kind], content) + (b"" if at_ms is None else whole(6, at_ms)))


def family(name: str, kind: int, *metrics: bytes, help: str = "") -> bytes:
    body = inner(1, name) + (inner(2, help) if help else b"") + whole(3, kind) + b"".join(metrics)
    return encode_varint(len(body)) + body


def bucket(bound: float, count: int, more: bytes = b"") -> bytes:
    return inner(3, whole(1, count) + double(2, bound) + more)


def native(count: int, total: float, deltas: Sequence[int], *, schema: int = 0, offset: int = 0) -> bytes:
    """Whole numbers in one positive span."""
    span = inner(12, signed(1, offset) + whole(2, len(deltas)))
    head = whole(1, count) + double(2, total) + signed(5, schema) + double(6, 0.001)
    return head + span + b"".join(signed(13, delta) for delta in deltas)
