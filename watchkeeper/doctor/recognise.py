"""Recognise the kind of an input: the first row of packs/input_kinds.csv that matches its beginning or its file name.

`examine` calls this once for each input. The kind is shown and decides which readers are tried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.readers import bundles, flight_recorder

FILE = "input_kinds.csv"
# Enough to recognise a file, and short enough to try every pattern.
MAX_CHARACTERS = 32_768
# Text has tabs, line ends and colours; a file with more other control bytes than this is binary.
MAX_CONTROL_SHARE = 0.1
# Source code contains the messages of all failures; they are not failures that happened.
SOURCE_FILE = re.compile(r"\.(?:pyi?|go|c|h|cc|cpp|hpp|cu|cuh|rs|java|kt|js|tsx?|lua|rb|pl)$")
SOURCE_CODE = "source_code"
NOT_LOGS = frozenset({SOURCE_CODE, "alert_rules"})
CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r\x0b\x0c\x1b")


@dataclass(frozen=True, slots=True)
class InputKind:
    """A row of the table; `file_name` is a part of file names, used if no pattern matches the text."""

    kind: str
    title: str
    file_name: str
    pattern: re.Pattern[str]


def recognise(name: str, head: bytes) -> str:
    """The kind of an input; `text` if it is readable but not recognised, otherwise `binary` or `empty`."""
    if not head.strip():
        return "empty"
    if flight_recorder.is_dump(head):
        return "flight_recorder"
    if is_binary(head):
        return "binary"
    text = head[: MAX_CHARACTERS * 2].decode("utf-8", errors="replace")[:MAX_CHARACTERS].replace("\r\n", "\n")
    base = name.rsplit("/", 1)[-1].lower()
    if SOURCE_FILE.search(base):
        return SOURCE_CODE
    for row in input_kinds():
        if row.pattern.search(text):
            return row.kind
    return next((row.kind for row in input_kinds() if row.file_name and row.file_name in base), "text")


def is_binary(head: bytes) -> bool:
    sample = head[:8192]
    if bundles.detect_utf16(sample) is not None:
        return False
    control = len(sample) - len(sample.translate(None, CONTROL))
    return control > MAX_CONTROL_SHARE * len(sample)


@cache
def input_kinds() -> tuple[InputKind, ...]:
    return pack.load(FILE, read_row)


def title_of(kind: str) -> str:
    return next((row.title for row in input_kinds() if row.kind == kind), kind)


def read_row(cells: Mapping[str, str]) -> InputKind:
    try:
        pattern = re.compile(cells["pattern"], re.MULTILINE)
    except re.error as error:
        raise ValueError(f"pattern: {error}") from error
    return InputKind(pack.required(cells["kind"]), pack.required(cells["title"]), cells["file_name"], pattern)
