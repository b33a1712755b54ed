"""An input without what is around its lines: its encoding, a shipper's JSON or CSV, the answer of a log store.

`examine` calls `unpack` once for each input, and scans what comes back.
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
    """`wrapping` and `inside` open lines only where they are looked at."""

    kind: str
    source: log_text.ByteStream
    wrapping: log_text.Wrapping | None = None
    inside: Callable[[bytes], bytes] | None = None


def unpack(stream: bundles.Stream, start: bytes, kind: str, *, whole: Set[str]) -> Unpacked:
    """What an input is inside; the kinds in `whole` are documents that have a reader of their own."""
    wide = encodings.utf16_name(start)
    mark = next((mark for mark in (codecs.BOM_UTF8, *encodings.MARKS) if start.startswith(mark)), b"")
    if mark:
        stream.read(len(mark))
    start = start.removeprefix(mark)
    source: log_text.ByteStream = stream if wide is None else encodings.Utf8Stream(stream, wide)
    if kind in whole:
        return Unpacked(kind, source)
    opening = shipped_text.find_unwrapper(start)
    if opening is shipped_text.from_json:
        return Unpacked("text", source, shipped_text.JsonLines(), shipped_text.UnwrappedStream(source, opening).feed)
    if opening is not None:
        return Unpacked("text", shipped_text.UnwrappedStream(source, opening))
    if wide is None and shipped_documents.looks_like(start):
        raw = stream.peek(shipped_documents.MAX_BYTES + 1)
        lines = shipped_documents.lines_of(raw) if len(raw) <= shipped_documents.MAX_BYTES else None
        if lines is not None:
            return Unpacked("text", io.BytesIO(lines))
    return Unpacked(kind, source)
