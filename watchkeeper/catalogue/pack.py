"""Reads one table of packs/: CSV text becomes typed rows, or an error with file and line.

Each table is read once, at its first lookup, so that importing the catalogue is cheap.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from watchkeeper.errors import PackError, quote

Row = TypeVar("Row")


def load(file: str, read_row: Callable[[Mapping[str, str]], Row]) -> tuple[Row, ...]:
    return read(text_of(file), read_row, file=file)


def text_of(file: str) -> str:
    """The text of packs/`file`. Not with importlib.resources, which loads zipfile and 1 MiB into every agent."""
    content = pkgutil.get_data("watchkeeper.packs", file)
    if content is None:
        raise PackError("the package cannot be read where it is installed", where=f"packs/{file}")
    return content.decode("utf-8")


def read(text: str, read_row: Callable[[Mapping[str, str]], Row], *, file: str) -> tuple[Row, ...]:
    """Rows of CSV text; `read_row` raises ValueError or KeyError for a cell it cannot accept."""
    reader = csv.DictReader(io.StringIO(text), strict=True)
    rows = []
    try:
        for cells in reader:
            if None in cells or None in cells.values():
                raise ValueError(f"a row needs {len(reader.fieldnames or ())} cells, as the header has")
            rows.append(read_row(cells))
    except KeyError as error:
        raise PackError(f"column {error} is missing", where=f"packs/{file}:1") from error
    except (ValueError, csv.Error) as error:
        raise PackError(str(error), where=f"packs/{file}:{reader.line_num}") from error
    return tuple(rows)


def cell(convert: Callable[[str], Any] = str, column: str = "") -> Any:
    """A field of a row, converted from the cell of `column`, by default the column with the name of the field."""
    return dataclasses.field(metadata={"convert": convert, "column": column})


def row_reader(kind: type[Row], *required_columns: str) -> Callable[[Mapping[str, str]], Row]:
    """Read a dataclass whose fields are cells; `required_columns` are not part of the row, and must not be empty."""
    fields = [field for field in dataclasses.fields(kind) if field.metadata]  # type: ignore[arg-type]

    def read_row(cells: Mapping[str, str]) -> Row:
        for column in required_columns:
            required(cells[column])
        return kind(
            **{field.name: field.metadata["convert"](cells[field.metadata["column"] or field.name]) for field in fields}
        )

    return read_row


def optional(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: convert(text) if text else None


def yes_or_no(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"expected yes or no, found {quote(text)}")
    return text == "yes"


def choice(text: str, choices: frozenset[str]) -> str:
    if text not in choices:
        raise ValueError(f"expected one of {', '.join(sorted(choices))}; found {quote(text)}")
    return text


def required(text: str) -> str:
    if not text.strip():
        raise ValueError("a required cell is empty")
    return text
