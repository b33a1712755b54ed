"""Detect UTF-16 text of Windows tools, by its byte order mark or its zero bytes, and convert it to UTF-8."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from watchkeeper.readers.logs.log_text import ByteStream

BYTE_ORDER_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# In Latin text in UTF-16 nearly every second byte is zero; in binary files zero bytes are anywhere.
SAMPLE_BYTES = 1024
MIN_SAMPLE_BYTES = 16
MIN_ZERO_SHARE, MAX_OTHER_ZERO_SHARE = 0.9, 0.05


def detect_utf16(start: bytes) -> str | None:
    """The UTF-16 encoding of a text; None if it is not UTF-16."""
    encoding_of_mark = BYTE_ORDER_MARKS.get(start[:2])
    sample = start[:SAMPLE_BYTES]
    if encoding_of_mark is not None or len(sample) < MIN_SAMPLE_BYTES:
        return encoding_of_mark
    for name, high_bytes, low_bytes in (
        ("utf-16-le", sample[1::2], sample[::2]),
        ("utf-16-be", sample[::2], sample[1::2]),
    ):
        if high_bytes.count(0) >= MIN_ZERO_SHARE * len(high_bytes) and low_bytes.count(0) <= MAX_OTHER_ZERO_SHARE * len(
            low_bytes
        ):
            return name
    return None


@dataclass(slots=True)
class Utf8Stream:
    source: ByteStream
    encoding: str
    _decoder: codecs.IncrementalDecoder | None = None

    def read(self, size: int, /) -> bytes:
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder(self.encoding)(errors="replace")
        while piece := self.source.read(size):
            if text := self._decoder.decode(piece):
                return text.encode("utf-8", errors="replace")
        return b""
