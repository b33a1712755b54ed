"""A table as a Parquet file, in the plainest form of that format: one group of rows, required columns, no compression.

Reports have some thousand lines of names and numbers, for which a library of forty megabytes would be much. Every
reader understands this form (Apache Parquet 2.10, Encodings: PLAIN; the footer is Thrift's compact protocol). `written`
hands its rows over.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchkeeper.kit.protobuf import encode_varint

MAGIC = b"PAR1"
# Types of a field in Thrift's compact protocol.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
# Enums of parquet.thrift.
DOUBLE, BYTE_ARRAY = 5, 6
REQUIRED, UTF8, DATA_PAGE, PLAIN, RLE, UNCOMPRESSED = 0, 0, 0, 0, 3, 0
WRITER = "watchkeeper"
Cell = str | float | None


@dataclass(frozen=True, slots=True)
class _ThriftField:
    """A value as it stands in the footer, with its type."""

    kind: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _ColumnChunk:
    """One column of the file: where its page begins and how long it is with its header."""

    name: str
    kind: int
    offset: int
    length: int


def table(rows: Sequence[Mapping[str, Cell]], *, like: Mapping[str, Cell]) -> bytes:
    """Rows that all have the columns of `like`: text where it has text, else floating-point numbers."""
    file = bytearray(MAGIC)
    chunks = []
    for name, example in like.items():
        kind = BYTE_ARRAY if isinstance(example, str) else DOUBLE
        page = _page([row[name] for row in rows], kind) if rows else b""
        chunks.append(_ColumnChunk(name, kind, len(file), len(page)))
        file += page
    footer = _footer(chunks, len(rows))
    return bytes(file + footer + struct.pack("<I", len(footer)) + MAGIC)


def _page(cells: Sequence[Cell], kind: int) -> bytes:
    if kind == BYTE_ARRAY:
        texts = [str(cell).encode() for cell in cells]
        content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        # Required columns have no empty cells: a number that is not known is none.
        content = struct.pack(f"<{len(cells)}d", *(math.nan if cell is None else float(cell) for cell in cells))
    about = _struct({1: _i32(len(cells)), 2: _i32(PLAIN), 3: _i32(RLE), 4: _i32(RLE)})
    size = _i32(len(content))
    return _struct({1: _i32(DATA_PAGE), 2: size, 3: size, 5: about}).content + content


def _footer(chunks: Sequence[_ColumnChunk], rows: int) -> bytes:
    root = _struct({4: _text("table"), 5: _i32(len(chunks))})
    leaves = [_leaf(chunk) for chunk in chunks]
    columns = [_struct({2: _i64(one.offset), 3: _column(one, rows)}) for one in chunks]
    whole = sum(chunk.length for chunk in chunks)
    group = _struct({1: _list(STRUCT, columns), 2: _i64(whole), 3: _i64(rows)})
    groups = [group] if rows else []
    return _struct(
        {
            1: _i32(1),
            2: _list(STRUCT, [root, *leaves]),
            3: _i64(rows),
            4: _list(STRUCT, groups),
            6: _text(WRITER),
        }
    ).content


def _leaf(chunk: _ColumnChunk) -> _ThriftField:
    told = {1: _i32(chunk.kind), 3: _i32(REQUIRED), 4: _text(chunk.name)}
    return _struct(told | {6: _i32(UTF8)} if chunk.kind == BYTE_ARRAY else told)


def _column(chunk: _ColumnChunk, rows: int) -> _ThriftField:
    length = _i64(chunk.length)
    return _struct(
        {
            1: _i32(chunk.kind),
            2: _list(I32, [_i32(PLAIN), _i32(RLE)]),
            3: _list(BINARY, [_text(chunk.name)]),
            4: _i32(UNCOMPRESSED),
            5: _i64(rows),
            6: length,
            7: length,
            9: _i64(chunk.offset),
        }
    )


def _struct(fields: Mapping[int, _ThriftField]) -> _ThriftField:
    """Fields by their number, rising by at most 15: each begins with how far it is from the one before."""
    content, before = bytearray(), 0
    for number, field in fields.items():
        content.append((number - before) << 4 | field.kind)
        content += field.content
        before = number
    return _ThriftField(STRUCT, bytes(content + b"\0"))


def _list(kind: int, items: Sequence[_ThriftField]) -> _ThriftField:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + encode_varint(len(items))
    return _ThriftField(LIST, head + b"".join(item.content for item in items))


def _text(text: str) -> _ThriftField:
    return _ThriftField(BINARY, encode_varint(len(text.encode())) + text.encode())


# Signed numbers come doubled, as zigzag writes those of zero and above.
def _i32(number: int) -> _ThriftField:
    return _ThriftField(I32, encode_varint(number * 2))


def _i64(number: int) -> _ThriftField:
    return _ThriftField(I64, encode_varint(number * 2))
