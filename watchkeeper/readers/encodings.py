"""Text that is not UTF-8: what Windows tools write, told by its mark or by the empty byte beside each letter."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from watchkeeper.readers.logs.log_text import ByteStream

MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# Latin text in UTF-16 has a zero as nearly every second byte; binary files have theirs anywhere.
LOOKED_AT_BYTES = 1024
LEAST_BYTES = 16
EMPTY_SHARE, OTHER_SHARE = 0.9, 0.05


def utf16_name(start: bytes) -> str | None:
    """The name of a text's UTF-16, if it is in one."""
    marked = MARKS.get(start[:2])
    sample = start[:LOOKED_AT_BYTES]
    if marked is not None or len(sample) < LEAST_BYTES:
        return marked
    for name, empty, other in (("utf-16-le", sample[1::2], sample[::2]), ("utf-16-be", sample[::2], sample[1::2])):
        if empty.count(0) >= EMPTY_SHARE * len(empty) and other.count(0) <= OTHER_SHARE * len(other):
            return name
    return None


@dataclass(slots=True)
class Utf8Stream:
    """A stream of UTF-16, in UTF-8."""

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
