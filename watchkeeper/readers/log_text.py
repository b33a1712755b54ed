"""Bytes of any log into the few lines worth reading, in bounded memory and at the speed of `bytes.find`.

Almost every line of a log says nothing. `interesting_lines` looks for short anchors in blocks of a
megabyte and cuts out only the lines around them, with a few lines that follow (terminals and tables wrap
long messages). The doctor matches its signatures against those lines and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

BLOCK_BYTES = 1 << 20
# Messages are short; of a line of megabytes only the part around the anchor is kept.
WINDOW_BYTES = 8192
# A wrapped message, or the second line of a two-line error, is within this many lines.
FOLLOWING_LINES = 3
FOLLOWING_BYTES = 4096
# A line without end is cut here, so that one line of gigabytes costs no more than this.
MAX_LINE_BYTES = 4 << 20

# ESC [ 31 m   and the titles that terminals set with ESC ] … BEL
ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# | Error         | GPU 3 has uncorrectable memory errors and row  |
TABLE_BORDER = re.compile(r"\s*\|\s*")


class ByteStream(Protocol):
    """Anything that hands out bytes: a file, a member of an archive, standard input."""

    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line with one of the anchors in it; `anchors` are positions in the list that was asked for."""

    number: int
    text: str
    following: str
    anchors: frozenset[int]

    @property
    def unwrapped(self) -> str:
        """The line and those after it as one text, with the borders of a table taken away."""
        joined = f"{self.text}\n{self.following}"
        return re.sub(r"\s+", " ", TABLE_BORDER.sub(" ", joined) if "|" in joined else joined)


def clean(raw: bytes) -> str:
    """Text without colours and control characters; bytes of an unknown encoding become marks."""
    text = raw.decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    return CONTROL.sub(" ", text.replace("\r\n", "\n").rstrip("\r\n")) if not text.isprintable() else text


def interesting_lines(stream: ByteStream, anchors: Sequence[bytes]) -> Iterator[LogLine]:
    """Every line with an anchor, in order; anchors are lower case and found in any case."""
    counted, carry, more = 1, b"", True
    while more:
        piece = stream.read(BLOCK_BYTES)
        more = bool(piece)
        block = carry + piece
        cut = _cut(block) if more else len(block)
        yield from _find(block, cut, counted, anchors=anchors)
        counted += block.count(b"\n", 0, cut)
        carry = block[cut:]


def _cut(block: bytes) -> int:
    """Where to stop reading this block, so that the last line read still has those that follow it."""
    cut = len(block)
    for _ in range(FOLLOWING_LINES + 1):
        cut = block.rfind(b"\n", 0, cut)
        if cut < 0:
            return len(block) if len(block) >= MAX_LINE_BYTES else 0
    return cut + 1


def _find(block: bytes, cut: int, counted: int, *, anchors: Sequence[bytes]) -> Iterator[LogLine]:
    lowered = block.lower()
    spans: dict[int, tuple[int, set[int]]] = {}
    for index, anchor in enumerate(anchors):
        at = lowered.find(anchor, 0, cut)
        while at >= 0:
            newline = block.rfind(b"\n", max(0, at - WINDOW_BYTES), at)
            start = newline + 1 if newline >= 0 else max(0, at - WINDOW_BYTES)
            end = block.find(b"\n", at, at + WINDOW_BYTES)
            end = end if end >= 0 else min(len(block), at + WINDOW_BYTES)
            known = spans.setdefault(start, (end, set()))
            known[1].add(index)
            at = lowered.find(anchor, max(end, at + 1), cut)
    at, number = 0, counted
    for start in sorted(spans):
        end, found = spans[start]
        number += block.count(b"\n", at, start)
        at = start
        following = block[end + 1 : _end_of_following(block, end)]
        yield LogLine(number, clean(block[start:end]), clean(following), frozenset(found))


def _end_of_following(block: bytes, end: int) -> int:
    at, limit = end, min(len(block), end + FOLLOWING_BYTES)
    for _ in range(FOLLOWING_LINES):
        found = block.find(b"\n", at + 1, limit)
        if found < 0:
            return limit
        at = found
    return at
