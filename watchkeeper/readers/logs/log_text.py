"""Bytes of any log into the few lines worth reading, in bounded memory.

Almost every line of a log says nothing, and says it again with other numbers. `interesting_lines` takes
blocks of a megabyte, strips the digits, passes over every shape of line that it has seen to be dull, and looks
the words of the others up in a set; a shape with a word is shown once to a judge, who may find it dull all the same.
The doctor matches its signatures against the lines that remain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress
from typing import Generic, NamedTuple, Protocol, TypeVar

BLOCK_BYTES = 1 << 20
# Messages are short; of a line of megabytes only the part around the anchor is kept.
WINDOW_BYTES = 8192
# A wrapped message, or the second line of a two-line error, is within this many lines.
FOLLOWING_LINES = 3
FOLLOWING_BYTES = 4096
# A line without end is cut here, so that one line of gigabytes costs no more than this.
MAX_LINE_BYTES = 4 << 20
# Shapes kept from block to block; forgetting them costs time, not lines.
MAX_DULL_BYTES = 32 << 20
MAX_TELLING_BYTES = 8 << 20
# Parts of one line of megabytes that are looked at, for each anchor.
MAX_WINDOWS_OF_A_LINE = 50
DIGITS = b"0123456789"

# ESC [ 31 m   and the titles that terminals set with ESC ] … BEL
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
# Everything but letters becomes a space, and letters become small: what is left splits into words.
LETTERS = bytes(ord(chr(at).lower()) if chr(at).isalpha() and at < 128 else 32 for at in range(256))
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# | Error         | GPU 3 has uncorrectable memory errors and row  |
TABLE_BORDER = re.compile(r"\s*\|\s*")


class ByteStream(Protocol):
    """Anything that hands out bytes: a file, a member of an archive, standard input."""

    def read(self, size: int, /) -> bytes: ...


class Wrapping(Protocol):
    """What a shipper put around each line; lines of one shape, as `shapes` has them, differ inside in digits alone."""

    def open(self, line: bytes, /) -> bytes: ...

    def shapes(self, lines: Sequence[bytes], /) -> list[bytes]: ...


Worth = TypeVar("Worth")
# What a shape of line, in which no digits are, is worth to whoever reads it; None if it is dull.
Judge = Callable[[bytes, frozenset[bytes]], Worth | None]


class LogLine(NamedTuple, Generic[Worth]):
    """A line with some of the words in it; it, the one before it and a few that follow become text when asked for.

    A named tuple, because logs have millions of such lines and it is made three times as fast.
    """

    number: int
    raw: bytes
    worth: Worth
    before: bytes
    after: Sequence[bytes]
    # Around `before` and `after`, which are rarely asked for, it is still there.
    wrapping: Wrapping | None

    @property
    def text(self) -> str:
        return clean(self.raw)

    @property
    def preceding(self) -> str:
        before = self.before if self.wrapping is None else self.wrapping.open(self.before)
        return clean(before[:WINDOW_BYTES])

    @property
    def following(self) -> str:
        after = self.after if self.wrapping is None else map(self.wrapping.open, self.after)
        return clean(b"\n".join(after)[:FOLLOWING_BYTES])

    @property
    def unwrapped(self) -> str:
        """The line and those after it as one text, with the borders of a table taken away."""
        joined = f"{self.text}\n{self.following}"
        return re.sub(r"\s+", " ", TABLE_BORDER.sub(" ", joined) if "|" in joined else joined)


def clean(raw: bytes) -> str:
    """Text without colours and control characters; bytes of an unknown encoding become marks."""
    text = (ANSI.sub(b"", raw) if b"\x1b" in raw else raw).decode("utf-8", errors="replace")
    return text if text.isprintable() else CONTROL.sub(" ", text.rstrip("\r\n"))


def interesting_lines(
    stream: ByteStream, words: Set[bytes], judge: Judge[Worth], *, wrapping: Wrapping | None = None
) -> Iterator[LogLine[Worth]]:
    """Every line that has one of the words and is worth something to the judge, in order.

    Words are runs of small letters and found in any case. Wrapped lines are only opened where one of their shape is
    new or tells something.
    """
    finder = _Finder(frozenset(words), judge, wrapping)
    counted, carry, before, more = 1, b"", b"", True
    while more:
        piece = stream.read(BLOCK_BYTES)
        more = bool(piece)
        block = carry + piece
        text = ANSI.sub(b"", block) if b"\x1b" in block and wrapping is None else block
        lines = text.split(b"\n")
        shapes = text.translate(None, DIGITS).split(b"\n") if wrapping is None else wrapping.shapes(lines)
        # The last lines wait for the next block, so that every line has those that follow it.
        is_endless = len(lines) <= FOLLOWING_LINES + 1 and len(block) >= MAX_LINE_BYTES
        kept = min(len(lines), FOLLOWING_LINES + 1) if more and not is_endless else 0
        ready = len(lines) - kept
        carry = b"\n".join(lines[ready:])
        for at, (found, worth) in finder.find(shapes[:ready], lines):
            preceding, following = lines[at - 1] if at else before, lines[at + 1 : at + 1 + FOLLOWING_LINES]
            line = lines[at] if wrapping is None else wrapping.open(lines[at])
            for part in (line,) if len(line) <= WINDOW_BYTES else _parts(line, found):
                yield LogLine(counted + at, part, worth, preceding, following, wrapping)
        before = lines[ready - 1] if ready else before
        counted += ready - (1 if is_endless and more else 0)


@dataclass(slots=True)
class _Finder(Generic[Worth]):
    """Remembers which shapes of line are dull, and what the others are worth."""

    words: frozenset[bytes]
    judge: Judge[Worth]
    wrapping: Wrapping | None
    dull: set[bytes] = field(default_factory=set)
    dull_bytes: int = 0
    telling: dict[bytes, tuple[frozenset[bytes], Worth]] = field(default_factory=dict)
    telling_bytes: int = 0

    def find(
        self, shapes: Sequence[bytes], lines: Sequence[bytes]
    ) -> Iterator[tuple[int, tuple[frozenset[bytes], Worth]]]:
        """Which of these lines tell something, and what; `shapes` has them without their digits."""
        different = set(shapes)
        fresh = different - self.dull - self.telling.keys()
        self._learn(fresh, dict(zip(shapes, lines, strict=False)) if self.wrapping is not None and fresh else {})
        telling = self.telling
        if not telling.keys().isdisjoint(different):
            # Most lines are passed over here, so that this runs over all of them without a step of Python for each.
            for at in compress(range(len(shapes)), map(telling.__contains__, shapes)):
                yield at, telling[shapes[at]]
        if self.telling_bytes > MAX_TELLING_BYTES:
            self.telling.clear()
            self.telling_bytes = 0

    def _learn(self, shapes: set[bytes], samples: Mapping[bytes, bytes]) -> None:
        """Look at each shape once: it is telling if it has one of the words and is worth something."""
        told: dict[bytes, tuple[frozenset[bytes], Worth]] = {}
        known = self.words.intersection
        for shape in shapes:
            inside = shape if self.wrapping is None else self.wrapping.open(samples[shape]).translate(None, DIGITS)
            words = known(inside.translate(LETTERS).split())
            if words:
                worth = self.judge(inside, words)
                if worth is not None:
                    told[shape] = words, worth
        dull = shapes.difference(told)
        self.telling |= told
        self.telling_bytes += sum(map(len, told))
        self.dull_bytes += sum(map(len, dull))
        if self.dull_bytes > MAX_DULL_BYTES:
            self.dull.clear()
            self.dull_bytes = 0
        self.dull |= dull


def _parts(line: bytes, words: frozenset[bytes]) -> Iterator[bytes]:
    """Of a very long line the parts around the words."""
    lowered, end = line.lower(), 0
    for at in sorted(at for word in words for at in _places(lowered, word)):
        if at >= end:
            start, end = max(0, at - WINDOW_BYTES // 8), at + WINDOW_BYTES
            yield line[start:end]


def _places(text: bytes, word: bytes) -> Iterator[int]:
    """Where a word stands, once per window at most and not without end."""
    at = text.find(word)
    for _ in range(MAX_WINDOWS_OF_A_LINE):
        if at < 0:
            return
        yield at
        at = text.find(word, at + WINDOW_BYTES // 2)
