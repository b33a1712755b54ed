"""Encode a table as a Parquet file: one row group, required columns, PLAIN encoding, no compression.

A report has some thousand rows, which does not justify a library of 40 MB. Every Parquet reader supports this subset
(Apache Parquet 2.10, Encodings: PLAIN; the footer uses Thrift's compact protocol).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchkeeper.kit.protobuf import encode_varint

MAGIC = b"PAR1"
# Field types of Thrift's compact protocol.
I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
# Enums of parquet.thrift.
DOUBLE, BYTE_ARRAY = 5, 6
REQUIRED, UTF8, DATA_PAGE, PLAIN, RLE, UNCOMPRESSED = 0, 0, 0, 0, 3, 0
WRITER = "watchkeeper"
Cell = str | float | None


@dataclass(frozen=True, slots=True)
class _ThriftField:
    kind: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _ColumnChunk:
    """One column of the file; `length` includes the page header."""

    name: str
    kind: int
    offset: int
    length: int


def encode_table(rows: Sequence[Mapping[str, Cell]], *, example_row: Mapping[str, Cell]) -> bytes:
    """Encode rows with the columns of `example_row`: strings where it has a string, else doubles."""
    file = bytearray(MAGIC)
    chunks = []
    for name, example_cell in example_row.items():
        kind = BYTE_ARRAY if isinstance(example_cell, str) else DOUBLE
        page = _encode_page([row[name] for row in rows], kind) if rows else b""
        chunks.append(_ColumnChunk(name, kind, len(file), len(page)))
        file += page
    footer = _encode_footer(chunks, len(rows))
    return bytes(file + footer + struct.pack("<I", len(footer)) + MAGIC)


def _encode_page(cells: Sequence[Cell], kind: int) -> bytes:
    if kind == BYTE_ARRAY:
        texts = [str(cell).encode() for cell in cells]
        content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    else:
        # Required columns cannot have empty cells: NaN stands for an unknown number.
        content = struct.pack(f"<{len(cells)}d", *(math.nan if cell is None else float(cell) for cell in cells))
    page_header = _struct(
        {1: _number(I32, len(cells)), 2: _number(I32, PLAIN), 3: _number(I32, RLE), 4: _number(I32, RLE)}
    )
    size = _number(I32, len(content))
    return _struct({1: _number(I32, DATA_PAGE), 2: size, 3: size, 5: page_header}).content + content


def _encode_footer(chunks: Sequence[_ColumnChunk], rows: int) -> bytes:
    schema = [_struct({4: _text("table"), 5: _number(I32, len(chunks))})]
    columns = []
    for chunk in chunks:
        kind, length, offset = _number(I32, chunk.kind), _number(I64, chunk.length), _number(I64, chunk.offset)
        element = {1: kind, 3: _number(I32, REQUIRED), 4: _text(chunk.name)}
        schema.append(_struct(element | {6: _number(I32, UTF8)} if chunk.kind == BYTE_ARRAY else element))
        encodings = _list(I32, [_number(I32, PLAIN), _number(I32, RLE)])
        metadata = {1: kind, 2: encodings, 3: _list(BINARY, [_text(chunk.name)]), 4: _number(I32, UNCOMPRESSED)}
        metadata |= {5: _number(I64, rows), 6: length, 7: length, 9: offset}
        columns.append(_struct({2: offset, 3: _struct(metadata)}))
    total_bytes = sum(chunk.length for chunk in chunks)
    group = _struct({1: _list(STRUCT, columns), 2: _number(I64, total_bytes), 3: _number(I64, rows)})
    groups = _list(STRUCT, [group] if rows else [])
    footer = {1: _number(I32, 1), 2: _list(STRUCT, schema), 3: _number(I64, rows), 4: groups, 6: _text(WRITER)}
    return _struct(footer).content


def _struct(fields: Mapping[int, _ThriftField]) -> _ThriftField:
    """Encode fields by ascending number, at most 15 apart: each header has the difference from the previous number."""
    content, previous_number = bytearray(), 0
    for number, field in fields.items():
        content.append((number - previous_number) << 4 | field.kind)
        content += field.content
        previous_number = number
    return _ThriftField(STRUCT, bytes(content + b"\0"))


def _list(kind: int, items: Sequence[_ThriftField]) -> _ThriftField:
    header = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + encode_varint(len(items))
    return _ThriftField(LIST, header + b"".join(item.content for item in items))


def _text(text: str) -> _ThriftField:
    return _ThriftField(BINARY, encode_varint(len(text.encode())) + text.encode())


def _number(kind: int, number: int) -> _ThriftField:
    # Zigzag encoding doubles numbers from zero up.
    return _ThriftField(kind, encode_varint(number * 2))
