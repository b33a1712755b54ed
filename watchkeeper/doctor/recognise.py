"""What an input is: the first row of packs/input_kinds.csv that its beginning, or its file name, fits.

`examine` asks once per input. The kind is shown to people and decides which readers of whole documents are tried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from watchkeeper.catalogue import pack
from watchkeeper.readers import encodings, flight_recorder

FILE = "input_kinds.csv"
# Enough to see what a file is, little enough to try every pattern on.
LOOKED_AT_CHARACTERS = 32_768
# Text has tabs and ends of lines, and colours; a file with more control bytes than this is something else.
MAX_CONTROL_SHARE = 0.1
# Programs speak of every failure that they know; what they printed is in other files.
SOURCE_FILE = re.compile(r"\.(?:pyi?|go|c|h|cc|cpp|hpp|cu|cuh|rs|java|kt|js|tsx?|lua|rb|pl)$")
SOURCE_CODE = "source_code"
NO_LOGS = frozenset({SOURCE_CODE, "alert_rules"})
CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r\x0b\x0c\x1b")


@dataclass(frozen=True, slots=True)
class InputKind:
    """One row; `file_name` is a part of a file's name that settles what its text leaves open."""

    kind: str
    title: str
    file_name: str
    pattern: re.Pattern[str]


def recognise(name: str, head: bytes) -> str:
    """The kind of an input; `text` if it is readable and nothing more is known, `binary` or `empty` otherwise."""
    if not head.strip():
        return "empty"
    if flight_recorder.looks_like(head):
        return "flight_recorder"
    if is_binary(head):
        return "binary"
    text = (
        head[: LOOKED_AT_CHARACTERS * 2].decode("utf-8", errors="replace")[:LOOKED_AT_CHARACTERS].replace("\r\n", "\n")
    )
    base = name.rsplit("/", 1)[-1].lower()
    if SOURCE_FILE.search(base):
        return SOURCE_CODE
    for row in input_kinds():
        if row.pattern.search(text):
            return row.kind
    return next((row.kind for row in input_kinds() if row.file_name and row.file_name in base), "text")


def is_binary(head: bytes) -> bool:
    sample = head[:8192]
    if encodings.utf16_name(sample) is not None:
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
