"""Find the relevant lines of a log of any size, in limited memory.

Most lines of a log repeat with different numbers. `find_lines` removes the digits of each line; the rest is its shape,
which is checked once: a shape with one of the known words goes to a judge, and others are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import compress
from typing import Generic, NamedTuple, Protocol, TypeVar

BLOCK_BYTES = 1 << 20
# Messages are short; of a line of megabytes only the parts around the words are kept.
WINDOW_BYTES = 8192
# A wrapped message, or the second line of a two-line error, is within this many lines.
FOLLOWING_LINES = 3
FOLLOWING_BYTES = 4096
# A longer line is split here, which limits the memory for one line of gigabytes.
MAX_LINE_BYTES = 4 << 20
# Limits of the caches of shapes; clearing a cache costs time, not lines.
MAX_IGNORED_BYTES = 32 << 20
MAX_MATCHED_BYTES = 8 << 20
# Windows of one long line that are read for each word.
MAX_WINDOWS_PER_LINE = 50
DIGITS = b"0123456789"

# ESC [ 31 m, and terminal titles: ESC ] … BEL
ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
# Letters become lower case and everything else a space, so that the text splits into words.
LETTERS = bytes(ord(chr(at).lower()) if chr(at).isalpha() and at < 128 else 32 for at in range(256))
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# | Error         | GPU 3 has uncorrectable memory errors and row  |
TABLE_BORDER = re.compile(r"\s*\|\s*")


class ByteStream(Protocol):
    """A source of bytes: a file, a member of an archive, standard input."""

    def read(self, size: int, /) -> bytes: ...


class Wrapping(Protocol):
    """The format in which a log shipper wraps lines; unwrapped lines of one shape differ only in digits."""

    def open(self, line: bytes, /) -> bytes: ...

    def shapes(self, lines: Sequence[bytes], /) -> list[bytes]: ...


Verdict = TypeVar("Verdict")
# Judges a shape, a line without its digits, with the words that it contains; None if it is irrelevant.
Judge = Callable[[bytes, frozenset[bytes]], Verdict | None]


class LogLine(NamedTuple, Generic[Verdict]):
    """A relevant line, with the line before it and some lines after it; each is decoded only when it is read."""

    # A named tuple, because logs have millions of such lines and it is created three times as fast.
    number: int
    raw: bytes
    verdict: Verdict
    preceding_raw: bytes
    following_raw: Sequence[bytes]
    # `preceding_raw` and `following_raw` are still wrapped, because they are rarely read.
    wrapping: Wrapping | None

    @property
    def text(self) -> str:
        return clean(self.raw)

    @property
    def preceding(self) -> str:
        preceding_raw = self.preceding_raw if self.wrapping is None else self.wrapping.open(self.preceding_raw)
        return clean(preceding_raw[:WINDOW_BYTES])

    @property
    def following(self) -> str:
        following_raw = self.following_raw if self.wrapping is None else map(self.wrapping.open, self.following_raw)
        return clean(b"\n".join(following_raw)[:FOLLOWING_BYTES])

    @property
    def unwrapped(self) -> str:
        """The line and the lines after it as one text, without table borders."""
        joined = f"{self.text}\n{self.following}"
        return re.sub(r"\s+", " ", TABLE_BORDER.sub(" ", joined) if "|" in joined else joined)


def clean(raw: bytes) -> str:
    """Decode text without colours and control characters; invalid UTF-8 becomes replacement characters."""
    text = (ANSI.sub(b"", raw) if b"\x1b" in raw else raw).decode("utf-8", errors="replace")
    return text if text.isprintable() else CONTROL.sub(" ", text.rstrip("\r\n"))


def find_lines(
    stream: ByteStream, words: Set[bytes], judge: Judge[Verdict], *, wrapping: Wrapping | None = None
) -> Iterator[LogLine[Verdict]]:
    """Yield every line with one of the words that the judge finds relevant, in order."""
    # Words are lower-case letters and match in any case. A wrapped line is only unwrapped if its shape is new or
    # relevant.
    finder = _ShapeFinder(frozenset(words), judge, wrapping)
    line_number, carried, preceding_block_line, has_more = 1, b"", b"", True
    while has_more:
        piece = stream.read(BLOCK_BYTES)
        has_more = bool(piece)
        block = carried + piece
        text = ANSI.sub(b"", block) if b"\x1b" in block and wrapping is None else block
        lines = text.split(b"\n")
        shapes = text.translate(None, DIGITS).split(b"\n") if wrapping is None else wrapping.shapes(lines)
        # The last lines are carried to the next block, so that every line has its following lines.
        is_endless = len(lines) <= FOLLOWING_LINES + 1 and len(block) >= MAX_LINE_BYTES
        kept_count = min(len(lines), FOLLOWING_LINES + 1) if has_more and not is_endless else 0
        ready_count = len(lines) - kept_count
        carried = b"\n".join(lines[ready_count:])
        for index, (found_words, verdict) in finder.find(shapes[:ready_count], lines):
            preceding = lines[index - 1] if index else preceding_block_line
            following = lines[index + 1 : index + 1 + FOLLOWING_LINES]
            line = lines[index] if wrapping is None else wrapping.open(lines[index])
            for window in (line,) if len(line) <= WINDOW_BYTES else _split_windows(line, found_words):
                yield LogLine(line_number + index, window, verdict, preceding, following, wrapping)
        preceding_block_line = lines[ready_count - 1] if ready_count else preceding_block_line
        line_number += ready_count - (1 if is_endless and has_more else 0)


@dataclass(slots=True)
class _ShapeFinder(Generic[Verdict]):
    """Caches the irrelevant shapes, and the verdicts of the others."""

    words: frozenset[bytes]
    judge: Judge[Verdict]
    wrapping: Wrapping | None
    ignored: set[bytes] = field(default_factory=set)
    ignored_bytes: int = 0
    matched: dict[bytes, tuple[frozenset[bytes], Verdict]] = field(default_factory=dict)
    matched_bytes: int = 0

    def find(
        self, shapes: Sequence[bytes], lines: Sequence[bytes]
    ) -> Iterator[tuple[int, tuple[frozenset[bytes], Verdict]]]:
        """The indexes of the relevant lines with their words and verdicts; `shapes` are the lines without digits."""
        unique_shapes = set(shapes)
        new_shapes = unique_shapes - self.ignored - self.matched.keys()
        needs_lines = self.wrapping is not None and new_shapes
        self._judge_shapes(new_shapes, dict(zip(shapes, lines, strict=False)) if needs_lines else {})
        matched = self.matched
        if not matched.keys().isdisjoint(unique_shapes):
            # `compress` skips irrelevant lines without a Python step for each, and most lines are irrelevant.
            for index in compress(range(len(shapes)), map(matched.__contains__, shapes)):
                yield index, matched[shapes[index]]
        if self.matched_bytes > MAX_MATCHED_BYTES:
            self.matched.clear()
            self.matched_bytes = 0

    def _judge_shapes(self, shapes: set[bytes], lines_by_shape: Mapping[bytes, bytes]) -> None:
        """Check each new shape once: it is relevant if it has one of the words and a verdict of the judge."""
        newly_matched: dict[bytes, tuple[frozenset[bytes], Verdict]] = {}
        intersect_words = self.words.intersection
        for shape in shapes:
            content = shape
            if self.wrapping is not None:
                content = self.wrapping.open(lines_by_shape[shape]).translate(None, DIGITS)
            words = intersect_words(content.translate(LETTERS).split())
            if words:
                verdict = self.judge(content, words)
                if verdict is not None:
                    newly_matched[shape] = words, verdict
        newly_ignored = shapes.difference(newly_matched)
        self.matched |= newly_matched
        self.matched_bytes += sum(map(len, newly_matched))
        self.ignored_bytes += sum(map(len, newly_ignored))
        if self.ignored_bytes > MAX_IGNORED_BYTES:
            self.ignored.clear()
            self.ignored_bytes = 0
        self.ignored |= newly_ignored


def _split_windows(line: bytes, words: frozenset[bytes]) -> Iterator[bytes]:
    """The parts of a very long line around the words."""
    lower_case, end = line.lower(), 0
    for position in sorted(at for word in words for at in _find_positions(lower_case, word)):
        if position >= end:
            start, end = max(0, position - WINDOW_BYTES // 8), position + WINDOW_BYTES
            yield line[start:end]


def _find_positions(text: bytes, word: bytes) -> Iterator[int]:
    """The positions of a word, at most one for each half window, up to the limit."""
    position = text.find(word)
    for _ in range(MAX_WINDOWS_PER_LINE):
        if position < 0:
            return
        yield position
        position = text.find(word, position + WINDOW_BYTES // 2)
