"""Unwrap log lines from JSON, CSV, mail quotes and HTML, and strip common prefixes.

The doctor calls `find_unwrapper` for a stream, and `strip_prefixes` for command output, whose lines must start as the
tool printed them. Parsing JSON is slow: `log_text` unwraps one JSON line of each shape (`JsonLines`), and all lines of
other formats.
"""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchkeeper.readers.logs import log_text, shipped_fields
from watchkeeper.readers.logs.log_text import ByteStream

Unwrapper = Callable[[bytes], bytes]

# Lines that are checked to detect the format.
SAMPLE_LINES = 200
# A paste often has a sentence before and after the log.
MIN_SHARE = 0.8
MIN_LINES = 3
# A longer line is split here, as in `log_text`.
MAX_LINE_BYTES = 4 << 20

DECODER = json.JSONDecoder()

# The journal's cursor differs in each line and is not used.
CURSOR_KEY = b'"__CURSOR"'
CURSOR = re.compile(CURSOR_KEY + rb' ?: ?"[^"\\\n]*"')
EMPTY_VALUES = {b'""': b'"\x01"', b"[]": b"[\x01]"}
# The digits of a `\u` escape are the character, so they must not be removed.
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
# Some command output also has names before a bar; a log shipper repeats the same few names.
MAX_PREFIXES = 16


def find_unwrapper(start: bytes) -> Unwrapper | None:
    """The function that unwraps a line, detected from the start of an input; None if lines are not wrapped."""
    lines = [line for line in start.split(b"\n")[:SAMPLE_LINES] if line.strip()]
    json_lines = (line for line in lines if line.lstrip().startswith(b"{"))
    json_count = sum(_read_json_message(line) is not None for line in json_lines)
    if lines and json_count >= max(1, MIN_SHARE * len(lines)):
        return unwrap_json
    if start.lstrip()[:1] in (b"{", b"["):
        return None
    if (csv_unwrapper := _csv_unwrapper(lines)) is not None:
        return csv_unwrapper
    steps: list[Unwrapper] = []
    if sum(line.startswith(b">") for line in lines) >= MIN_LINES:
        steps.append(_strip_quotes)
    has_markup = any(pattern.search(line) for line in lines for pattern in (ENTITY, LINE_BREAK, MARKUP))
    if b"<nvidia_smi_log" not in start and has_markup:
        steps.append(_strip_html)
    if not steps:
        return None
    return steps[0] if len(steps) == 1 else lambda line: _strip_html(_strip_quotes(line))


def _strip_quotes(line: bytes) -> bytes:
    return QUOTE.sub(b"", line)


def _strip_html(line: bytes) -> bytes:
    text = MARKUP.sub(b"", LINE_BREAK.sub(b"", line)) if b"<" in line else line
    if b"&" not in text:
        return text
    return html.unescape(text.decode("utf-8", errors="replace")).replace("\xa0", " ").encode()


def _read_json_message(line: bytes) -> tuple[Mapping[str, Any], str] | None:
    """The fields of a JSON line and the key of its message; None for any other line."""
    try:
        text = line.decode("utf-8", errors="replace").strip(" \t\r")
        fields, end = DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return shipped_fields.find_message(fields) if end == len(text) else None


@dataclass(frozen=True, slots=True)
class JsonLines:
    """JSON lines as a `log_text.Wrapping`: unwrapped lines of one shape differ only in digits."""

    def open(self, line: bytes, /) -> bytes:
        text = unwrap_json(line)
        return log_text.ANSI.sub(b"", text) if b"\x1b" in text else text

    def shapes(self, lines: Sequence[bytes], /) -> list[bytes]:
        """The lines without digits; empty values get a marker, because they are omitted from the unwrapped line."""
        text = b"\n".join(lines)
        if CURSOR_KEY in text:
            text = CURSOR.sub(b"", text)
        for empty, marker in EMPTY_VALUES.items():
            text = text.replace(empty, marker)
        shapes = text.translate(None, log_text.DIGITS).split(b"\n")
        if ESCAPE in text:
            for index in [at for at, shape in enumerate(shapes) if ESCAPE in shape]:
                shapes[index] = self.open(lines[index]).translate(None, log_text.DIGITS)
        return shapes


def unwrap_json(line: bytes) -> bytes:
    message = _read_json_message(line)
    return line if message is None else shipped_fields.format_entry(*message).encode("utf-8", errors="replace")


def _csv_unwrapper(lines: Sequence[bytes]) -> Unwrapper | None:
    """The function that unwraps CSV rows, as web consoles export logs; None without a message column."""
    names = [name.strip() for name in _cells(lines[0])] if lines and b"," in lines[0] else []
    message_column = shipped_fields.find_message_column(names)
    if message_column is None or len(names) < 2 or not any(len(_cells(line)) == len(names) for line in lines[1:]):
        return None

    def unwrap_row(line: bytes) -> bytes:
        cells = _cells(line)
        if line == lines[0]:
            return b""
        if len(cells) != len(names):
            return line
        entry = shipped_fields.format_entry(dict(zip(names, cells, strict=True)), message_column)
        return entry.encode("utf-8", errors="replace")

    return unwrap_row


def _cells(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8", errors="replace").rstrip("\r")], strict=True), [])
    except csv.Error:
        return []


@dataclass(slots=True)
class UnwrappedStream:
    """A stream of unwrapped lines; each line stays one line, so that line numbers stay correct."""

    source: ByteStream
    unwrap: Unwrapper
    _carried: list[bytes] = field(default_factory=list)
    _carried_bytes: int = 0

    def read(self, size: int, /) -> bytes:
        while piece := self.source.read(size):
            if text := self.feed(piece):
                return text
        return self.feed(b"")

    def feed(self, piece: bytes) -> bytes:
        """Unwrap the lines that this piece completes; an empty piece is the end and flushes the last line."""
        if not piece:
            last_line, self._carried, self._carried_bytes = b"".join(self._carried), [], 0
            return self.unwrap(last_line) if last_line else b""
        complete_lines, end, rest = piece.rpartition(b"\n")
        if not end and self._carried_bytes + len(piece) < MAX_LINE_BYTES:
            self._carry_over(piece)
            return b""
        lines = b"".join((*self._carried, complete_lines if end else piece)).split(b"\n")
        self._carried, self._carried_bytes = [], 0
        self._carry_over(rest if end else b"")
        return b"\n".join(map(self.unwrap, lines)) + end

    def _carry_over(self, piece: bytes) -> None:
        self._carried.append(piece)
        self._carried_bytes += len(piece)


def strip_prefixes(text: str) -> str:
    """Remove the prefix that most lines of a text have, or else their common indentation."""
    lines = text.split("\n")
    sample = [line for line in lines[:SAMPLE_LINES] if line.strip()]
    for pattern in PREFIXES:
        prefixes = [match[0] for line in sample if (match := pattern.search(line)) is not None]
        # The prefixes of a log repeat few texts, apart from digits.
        texts = {re.sub(r"\d+", "", prefix) for prefix in prefixes}
        is_repeated = len(texts) <= min(MAX_PREFIXES, max(1, len(prefixes) // 2))
        if len(prefixes) >= max(MIN_LINES, MIN_SHARE * len(sample)) and is_repeated:
            return "\n".join(pattern.sub("", line) for line in lines)
    depth = min((len(line) - len(line.lstrip()) for line in sample), default=0)
    return "\n".join(line[depth:] for line in lines) if depth and len(sample) >= MIN_LINES else text
