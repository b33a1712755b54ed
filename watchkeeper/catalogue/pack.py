"""Reads one table of packs/: CSV text becomes typed rows, or an error with file and line.

Each table is read once, at its first lookup, so that importing the catalogue is cheap.
"""

from __future__ import annotations

import csv
import io
import pkgutil
from collections.abc import Callable, Mapping
from typing import TypeVar

from watchkeeper.errors import PackError, quote

Row = TypeVar("Row")


def load(file: str, read_row: Callable[[Mapping[str, str]], Row]) -> tuple[Row, ...]:
    """Every row of packs/`file`, in its order."""
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
