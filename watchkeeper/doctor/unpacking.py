"""Unpack the lines of an input from their encoding, from JSON or CSV of a log shipper, or from a log store's response.

`examine` calls `unpack` once for each input and scans the result.
"""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Set
from dataclasses import dataclass

from watchkeeper.readers import bundles, encodings
from watchkeeper.readers.logs import log_text, shipped_documents, shipped_text


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The unpacked input; `wrapping` and `unwrap` unpack single lines only when they are read."""

    kind: str
    source: log_text.ByteStream
    wrapping: log_text.Wrapping | None = None
    unwrap: Callable[[bytes], bytes] | None = None


def unpack(stream: bundles.Stream, start: bytes, kind: str, *, whole: Set[str]) -> Unpacked:
    """Unpack an input; kinds in `whole` are documents with their own reader, which are not unpacked."""
    utf16 = encodings.detect_utf16(start)
    byte_order_mark = next(
        (mark for mark in (codecs.BOM_UTF8, *encodings.BYTE_ORDER_MARKS) if start.startswith(mark)), b""
    )
    if byte_order_mark:
        stream.read(len(byte_order_mark))
    start = start.removeprefix(byte_order_mark)
    source: log_text.ByteStream = stream if utf16 is None else encodings.Utf8Stream(stream, utf16)
    if kind in whole:
        return Unpacked(kind, source)
    unwrapper = shipped_text.find_unwrapper(start)
    if unwrapper is shipped_text.unwrap_json:
        return Unpacked("text", source, shipped_text.JsonLines(), shipped_text.UnwrappedStream(source, unwrapper).feed)
    if unwrapper is not None:
        return Unpacked("text", shipped_text.UnwrappedStream(source, unwrapper))
    if utf16 is None and shipped_documents.is_document(start):
        raw = stream.peek(shipped_documents.MAX_BYTES + 1)
        lines = shipped_documents.read_lines(raw) if len(raw) <= shipped_documents.MAX_BYTES else None
        if lines is not None:
            return Unpacked("text", io.BytesIO(lines))
    return Unpacked(kind, source)
