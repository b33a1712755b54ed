"""What log shippers, mail and web pages put around lines, taken off again.

A log rarely comes as its program wrote it: journald and Docker wrap each line in JSON, a thread quotes it with `> `,
a web page escapes it, and collectors put a prefix before each line. The doctor asks `opening_of` how the lines of a
stream are taken out, and reads listings, whose lines must begin where the tool began them, through `bare`. Lines of
JSON are costly to open and mostly dull: `log_text` opens one of each shape (`JsonLines`). Others are opened all.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.readers.logs import log_text, shipped_fields
from watchkeeper.readers.logs.log_text import ByteStream

Unwrapper = Callable[[bytes], bytes]

# Enough lines to see a habit, few enough to look at each.
LOOKED_AT_LINES = 200
# A paste often has a sentence before and after what it quotes.
USUAL_SHARE = 0.8
LEAST_LINES = 3
# A line without end is cut here, as `log_text` does.
MAX_LINE_BYTES = 4 << 20

DECODER = json.JSONDecoder()

# The journal's name of a line, different in each and read by nobody.
CURSOR_KEY = b'"__CURSOR"'
CURSOR = re.compile(CURSOR_KEY + rb' ?: ?"[^"\\\n]*"')
EMPTY = {b'""': b'"\x01"', b"[]": b"[\x01]"}
# The character that an escape stands for is told by its digits.
ESCAPE = b"\\u"
QUOTE = re.compile(rb"^ {0,3}(?:> ?)+")
ENTITY = re.compile(rb"&(?:lt|gt|amp|quot|nbsp|#39|#x27|#34|#x2F);")
MARKUP = re.compile(rb"(?i)</?(?:pre|code|p|div|span|blockquote|samp|tt|li)(?: [^<>]{0,200})?>")
LINE_BREAK = re.compile(rb"(?i)<br ?/?>")

PREFIXES = (
    # 2026-08-10T05:36:05.101234+00:00 gpu07 health-check[4711]: …
    re.compile(r"^\d{4}-\d\d-\d\dT\S+ [\w.-]+ [\w./@-]+(?:\[\d+\])?: "),
    # 2026-08-10T05:36:05.101234567Z stderr F …      (container runtimes; also without the stream, from CI systems)
    re.compile(
        r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)(?: std(?:out|err) [FP]| \[rank\d+\]:)? ?"
    ),
    # [pod/trainer-0/main] …      (kubectl logs --prefix)
    re.compile(r"^\[pod/[^\]]{1,300}\] ?"),
    # (RayWorker pid=4711, ip=10.0.0.7) …      (VllmWorker rank=3 pid=4711) ERROR 08-10 05:36:05 [executor.py:470] …
    re.compile(
        r"^\([\w:.-]+(?:\([^)]*\))? (?:rank=\d+ )?pid=\d+(?:, ip=[\w.:-]+)?\) ?"
        r"(?:[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[[\w./]+:\d+\] ?)?"
    ),
    # [default3]:…      [rank3]: …      (torchrun)
    re.compile(r"^\[(?:default|rank)\d+\]: ?"),
    # Aug 10 20:36:51 gpu07 health-check[4711]: …
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]+ [\w./@-]+(?:\[\d+\])?: "),
    # 2026-08-10 05:36:05.101 | ERROR    | train:main:42 - …      (loguru)
    re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.,]\d+ \| \w+ +\| \S+ - "),
    # E0810 05:36:05.101234 140000 launcher.py:96] …      (glog, klog, absl)
    re.compile(r"^[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.-]+:\d+\] ?"),
    # │ … │      (a box around the text)
    re.compile(r"^[│┃] ?|\s*[│┃]$"),
    # trainer-1  | …      (docker compose)
    re.compile(r"^[\w.-]+ +\| "),
)
# A column of names before a bar is also what some listings look like: a shipper repeats the same few names.
MOST_PREFIXES = 16


def find_unwrapper(start: bytes) -> Unwrapper | None:
    """How a line is taken out of what is around it, from the beginning of an input; None if lines have none."""
    lines = [line for line in start.split(b"\n")[:LOOKED_AT_LINES] if line.strip()]
    if lines and _usual(lines, lambda line: line.lstrip().startswith(b"{") and _message(line) is not None, least=1):
        return from_json
    if start.lstrip()[:1] in (b"{", b"["):
        return None
    if (from_csv := _csv_opening(lines)) is not None:
        return from_csv
    steps: list[Unwrapper] = []
    if sum(line.startswith(b">") for line in lines) >= LEAST_LINES:
        steps.append(_unquote)
    if b"<nvidia_smi_log" not in start and any(map(_is_marked_up, lines)):
        steps.append(_from_html)
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else lambda line: _from_html(_unquote(line))


def _usual(lines: Sequence[bytes], test: Callable[[bytes], bool], *, least: int = LEAST_LINES) -> bool:
    return sum(map(test, lines)) >= max(least, USUAL_SHARE * len(lines))


def _is_marked_up(line: bytes) -> bool:
    return any(pattern.search(line) is not None for pattern in (ENTITY, LINE_BREAK, MARKUP))


def _unquote(line: bytes) -> bytes:
    return QUOTE.sub(b"", line)


def _from_html(line: bytes) -> bytes:
    plain = MARKUP.sub(b"", LINE_BREAK.sub(b"", line)) if b"<" in line else line
    if b"&" not in plain:
        return plain
    return html.unescape(plain.decode("utf-8", errors="replace")).replace("\xa0", " ").encode()


def _message(line: bytes) -> tuple[Mapping[str, Any], str] | None:
    """The fields of a structured line and which of them has the text."""
    try:
        text = line.decode("utf-8", errors="replace").strip(" \t\r")
        fields, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return shipped_fields.find_message(fields) if end == len(text) else None


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Lines of JSON, of which those of one shape differ inside in digits alone (`log_text.Wrapping`)."""

    def open(self, line: bytes, /) -> bytes:
        text = from_json(line)
        return log_text.ANSI.sub(b"", text) if b"\x1b" in text else text

    def shapes(self, lines: Sequence[bytes], /) -> list[bytes]:
        """An empty value gets a mark: unlike one of digits it is left out of the line."""
        text = b"\n".join(lines)
        if CURSOR_KEY in text:
            text = CURSOR.sub(b"", text)
        for empty, marked in EMPTY.items():
            text = text.replace(empty, marked)
        shapes = text.translate(None, log_text.DIGITS).split(b"\n")
        if ESCAPE in text:
            for at in [at for at, shape in enumerate(shapes) if ESCAPE in shape]:
                shapes[at] = self.open(lines[at]).translate(None, log_text.DIGITS)
        return shapes


def from_json(line: bytes) -> bytes:
    found = _message(line)
    return line if found is None else shipped_fields.format_entry(*found).encode("utf-8", errors="replace")


def _csv_opening(lines: Sequence[bytes]) -> Unwrapper | None:
    """How rows are read below a heading that names a column of messages, as web consoles export logs."""
    names = [name.strip() for name in _cells(lines[0])] if lines and b"," in lines[0] else []
    message = shipped_fields.message_column(names)
    if message is None or len(names) < 2 or not any(len(_cells(line)) == len(names) for line in lines[1:]):
        return None

    def opening(line: bytes) -> bytes:
        cells = _cells(line)
        if line == lines[0]:
            return b""
        if len(cells) != len(names):
            return line
        return shipped_fields.format_entry(dict(zip(names, cells, strict=True)), message).encode(
            "utf-8", errors="replace"
        )

    return opening


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", errors="replace").rstrip("\r")], strict=True), [])
    except csv.Error:
        return []


@dataclass(slots=True)
class UnwrappedStream:
    """A stream whose lines are taken out of what is around them; a line stays one line, so that numbers stay true."""

    source: ByteStream
    opening: Unwrapper
    _carry: list[bytes] = field(default_factory=list)
    _carried: int = 0

    def read(self, size: int, /) -> bytes:
        while piece := self.source.read(size):
            if text := self.feed(piece):
                return text
        return self.feed(b"")

    def feed(self, piece: bytes) -> bytes:
        """What can be opened with this piece; nothing means the end, and gives what was left."""
        if not piece:
            last, self._carry, self._carried = b"".join(self._carry), [], 0
            return self.opening(last) if last else b""
        whole, end, rest = piece.rpartition(b"\n")
        if not end and self._carried + len(piece) < MAX_LINE_BYTES:
            self._keep(piece)
            return b""
        lines = b"".join((*self._carry, whole if end else piece)).split(b"\n")
        self._carry, self._carried = [], 0
        self._keep(rest if end else b"")
        return b"\n".join(map(self.opening, lines)) + end

    def _keep(self, piece: bytes) -> None:
        self._carry.append(piece)
        self._carried += len(piece)


def strip_prefixes(text: str) -> str:
    """A listing without the prefix that most of its lines have, and without their common indentation."""
    lines = text.split("\n")
    looked_at = [line for line in lines[:LOOKED_AT_LINES] if line.strip()]
    for pattern in PREFIXES:
        found = [match[0] for line in looked_at if (match := pattern.search(line)) is not None]
        if len(found) >= max(LEAST_LINES, USUAL_SHARE * len(looked_at)) and _repeats(found):
            return "\n".join(pattern.sub("", line) for line in lines)
    depth = min((len(line) - len(line.lstrip()) for line in looked_at), default=0)
    return "\n".join(line[depth:] for line in lines) if depth and len(looked_at) >= LEAST_LINES else text


def _repeats(prefixes: Sequence[str]) -> bool:
    """Whether these are few texts again and again, times and numbers aside."""
    kinds = Counter(re.sub(r"\d+", "", prefix) for prefix in prefixes)
    return len(kinds) <= min(MOST_PREFIXES, max(1, len(prefixes) // 2))
