"""Parquet of our own, read back by the format's rules: a footer in Thrift's compact protocol, pages of plain values."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.accounting.command import run
from watchkeeper.accounting import parquet
from watchkeeper.cli.accounting import cost

ROWS: list[dict[str, str | float]] = [
    {"team": "vision ü", "money": 12.5, "hours": 3},
    {"team": "", "money": 0.0, "hours": 1e9},
]


class Reader:
    """Thrift's compact protocol, as far as parquet.thrift needs it: a struct is a dict by field number."""

    def __init__(self, content: bytes, at: int = 0) -> None:
        self.content, self.at = content, at

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.content[self.at]
            self.at, value, shift = self.at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    def value(self, kind: int) -> Any:
        if kind in (5, 6):
            number = self.varint()
            return number >> 1 ^ -(number & 1)
        if kind == 8:
            length = self.varint()
            self.at += length
            return self.content[self.at - length : self.at]
        if kind == 9:
            head = self.content[self.at]
            self.at += 1
            count = head >> 4 if head >> 4 < 15 else self.varint()
            return [self.value(head & 15) for _ in range(count)]
        return self.struct()

    def struct(self) -> dict[int, Any]:
        fields, number = {}, 0
        while head := self.content[self.at]:
            self.at, number = self.at + 1, number + (head >> 4)
            fields[number] = self.value(head & 15)
        self.at += 1
        return fields


def read(file: bytes) -> list[dict[str, Any]]:
    assert file[:4] == file[-4:] == b"PAR1"
    footer = Reader(file[-8 - struct.unpack("<I", file[-8:-4])[0] : -8]).struct()
    root, *leaves = footer[2]
    assert root[5] == len(leaves)
    columns = []
    for leaf, chunk in zip(leaves, footer[4][0][1] if footer[4] else [], strict=True):
        about, page = chunk[3], Reader(file, chunk[3][9])
        head = page.struct()
        assert (about[1], about[3], about[5], head[5][1]) == (leaf[1], [leaf[4]], footer[3], footer[3])
        content = file[page.at : page.at + head[3]]
        assert page.at + head[3] - about[9] == about[7]
        columns.append((leaf[4].decode(), _plain(content, leaf[1], footer[3])))
    return [{name: values[at] for name, values in columns} for at in range(footer[3])]


def _plain(content: bytes, kind: int, count: int) -> list[Any]:
    if kind == parquet.DOUBLE:
        return list(struct.unpack(f"<{count}d", content))
    cells, at = [], 0
    for _ in range(count):
        length = struct.unpack_from("<I", content, at)[0]
        cells.append(content[at + 4 : at + 4 + length].decode())
        at += 4 + length
    assert at == len(content)
    return cells


def test_rows_come_back_as_they_were() -> None:
    assert read(parquet.encode_table(ROWS, example_row=ROWS[0])) == ROWS


def test_a_table_without_rows_still_has_its_columns() -> None:
    footer = Reader(parquet.encode_table([], example_row=ROWS[0])[4:]).struct()
    assert (footer[3], footer[4]) == (0, [])
    assert [leaf[4] for leaf in footer[2][1:]] == [b"team", b"money", b"hours"]


@pytest.mark.slow
@given(
    st.lists(
        st.fixed_dictionaries({f"c{at}": st.text() if at % 2 else st.floats(allow_nan=False) for at in range(20)}),
        min_size=1,
    )
)
def test_any_names_and_numbers_come_back(rows: list[dict[str, Any]]) -> None:
    assert read(parquet.encode_table(rows, example_row=rows[0])) == rows


def test_a_cost_report_is_written_as_parquet(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("id,team,gpus,started,ended,model\n1,=x,8,2026-11-01T00:00:00Z,2026-11-01T10:00:00Z,NVIDIA H200\n")
    run(cost.command, "report", "--jobs", jobs, "--format", "parquet", "-o", tmp_path / "cost.parquet")
    (line,) = read((tmp_path / "cost.parquet").read_bytes())
    assert (line["team"], line["allocated_hours"]) == ("=x", 80)
    assert line["money"] == line["direct"] > 0


def test_another_reader_finds_every_value_and_type(tmp_path: Path) -> None:
    odd = [{"team": "\0 \" ' 😀" * 9000, "money": number, "hours": -0.0} for number in (5e-324, 1e308, float("-inf"))]
    (tmp_path / "a.parquet").write_bytes(parquet.encode_table([*ROWS, *odd], example_row=ROWS[0]))
    (tmp_path / "empty.parquet").write_bytes(parquet.encode_table([], example_row=ROWS[0]))
    written, empty = (pyarrow.parquet.read_table(tmp_path / name) for name in ("a.parquet", "empty.parquet"))
    assert written.to_pylist() == [*ROWS, *odd]
    assert written.schema == empty.schema
    assert [(column.name, str(column.type)) for column in written.schema] == [
        ("team", "string"),
        ("money", "double"),
        ("hours", "double"),
    ]
