"""Bytes of any log into the few lines worth reading, in bounded memory and at the speed of `bytes.find`.

Almost every line of a log says nothing, and says it again with other numbers. `interesting_lines` takes
blocks of a megabyte, strips the digits, forgets every shape of line that it has seen to be dull, and looks for
short anchors in the rest. The doctor matches its signatures against the lines that remain.
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
# Dull shapes kept from block to block; forgetting them costs time, not lines.
MAX_DULL_BYTES = 32 << 20
# Parts of one line of megabytes that are looked at, for each anchor.
MAX_WINDOWS_OF_A_LINE = 50
DIGITS = b"0123456789"

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
    if text.isprintable():
        return text
    return CONTROL.sub(" ", ANSI.sub("", text).rstrip("\r\n"))


def interesting_lines(stream: ByteStream, anchors: Sequence[bytes]) -> Iterator[LogLine]:
    """Every line with an anchor, in order; anchors are lower case without digits, and found in any case."""
    finder = _Finder(anchors)
    counted, carry, more = 1, b"", True
    while more:
        piece = stream.read(BLOCK_BYTES)
        more = bool(piece)
        block = carry + piece
        lines = block.split(b"\n")
        if more:
            # The last lines wait for the next block, so that every line has those that follow it.
            kept = min(len(lines), FOLLOWING_LINES + 1) if len(lines) > 1 or len(block) < MAX_LINE_BYTES else 0
            carry = b"\n".join(lines[len(lines) - kept :]) if kept else b""
        else:
            kept = 0
        ready = len(lines) - kept
        for at, found in finder.find(lines[:ready]):
            following = clean(b"\n".join(lines[at + 1 : at + 1 + FOLLOWING_LINES])[:FOLLOWING_BYTES])
            for part, anchors_of_part in found:
                yield LogLine(counted + at, clean(part), following, anchors_of_part)
        counted += ready


class _Finder:
    """Remembers which shapes of line have no anchor."""

    def __init__(self, anchors: Sequence[bytes]) -> None:
        self.anchors = anchors
        self.dull: set[bytes] = set()
        self.dull_bytes = 0

    def find(self, lines: Sequence[bytes]) -> Iterator[tuple[int, list[tuple[bytes, frozenset[int]]]]]:
        shapes = b"\n".join(lines).translate(None, DIGITS).split(b"\n") if lines else []
        telling = self._telling(set(shapes) - self.dull)
        if not telling:
            return
        for at, shape in enumerate(shapes):
            if shape in telling:
                found = telling[shape]
                yield at, [(lines[at], found)] if len(lines[at]) <= WINDOW_BYTES else list(self._windows(lines[at]))

    def _telling(self, shapes: set[bytes]) -> dict[bytes, frozenset[int]]:
        """Those shapes that have an anchor, and which; the others are dull from here on."""
        ordered = list(shapes)
        text = b"\n".join(ordered).lower()
        hits: dict[int, set[int]] = {}
        for index, anchor in enumerate(self.anchors):
            at = text.find(anchor)
            while at >= 0:
                end = text.find(b"\n", at)
                hits.setdefault(text.rfind(b"\n", 0, at) + 1, set()).add(index)
                at = text.find(anchor, end) if end >= 0 else -1
        telling: dict[bytes, frozenset[int]] = {}
        start = 0
        for shape in ordered:
            if start in hits:
                telling[shape] = frozenset(hits[start])
            start += len(shape) + 1
        self._forget_when_full(len(text))
        self.dull.update(shape for shape in ordered if shape not in telling)
        return telling

    def _forget_when_full(self, added_bytes: int) -> None:
        self.dull_bytes += added_bytes
        if self.dull_bytes > MAX_DULL_BYTES:
            self.dull.clear()
            self.dull_bytes = added_bytes

    def _windows(self, line: bytes) -> Iterator[tuple[bytes, frozenset[int]]]:
        """Of a very long line, the parts around its anchors; one part may stand for several."""
        lowered = line.lower()
        end = 0
        places = sorted(
            (at, index) for index, anchor in enumerate(self.anchors) for at in _places(lowered, anchor)
        )
        for at, _ in places:
            if at >= end:
                start, end = max(0, at - WINDOW_BYTES // 8), at + WINDOW_BYTES
                yield line[start:end], frozenset(index for place, index in places if start <= place < end)


def _places(text: bytes, anchor: bytes) -> Iterator[int]:
    """Where an anchor stands, once per window at most and not without end."""
    at = text.find(anchor)
    for _ in range(MAX_WINDOWS_OF_A_LINE):
        if at < 0:
            return
        yield at
        at = text.find(anchor, at + WINDOW_BYTES // 2)
