"""Reads docs/reference/definitions.csv, the definition of every number, and writes docs/reference/definitions.md.

`generate` writes the page, and `test_definitions` compares the rows with the console, the API and the code.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

PACKAGE = ROOT / "watchkeeper"

ROWS = ROOT / "docs" / "reference" / "definitions.csv"
PAGES = ROOT / "console" / "src" / "pages"
# `name={`GPUs, ${nodes}`}` is the number `GPUs`: what follows varies.
TILE = re.compile(r"<Tile\b.*?/>", re.DOTALL)
TILE_NAME = re.compile(r'\bname=(?:"([^"]+)"|\{`([^`$]+))')
COLUMN = re.compile(r'title: "([^"]+)"[^{}]*?\bnumeric: true|\bnumeric: true[^{}]*?title: "([^"]+)"')
# The charts of a page, by the file of packs/console with their queries.
CHARTS = {"fleet.json": "fleet", "job.json": "jobs", "slo.json": "slo"}


@dataclass(frozen=True, slots=True)
class Definition:
    number: str
    pages: tuple[str, ...]
    definition: str
    unit: str
    owner: str
    also: str


def definitions() -> list[Definition]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        return [
            Definition(**{**row, "pages": tuple(filter(None, row["pages"].split(";")))})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        ]


def shown_numbers() -> Iterator[tuple[str, str]]:
    """The page and label of every tile, of every column with numbers and of every chart of the console."""
    for path in sorted(PAGES.rglob("*.tsx")):
        page, text = path.relative_to(PAGES).parts[0].removesuffix(".tsx"), path.read_text(encoding="utf-8")
        yield from ((page, label) for label in labels(text))
    for file, page in CHARTS.items():
        charts = json.loads((PACKAGE / "packs" / "console" / file).read_text(encoding="utf-8"))
        yield from ((page, chart["label"]) for chart in charts)


def labels(text: str) -> list[str]:
    """The labels of the tiles and numeric columns in the source of a page."""
    tiles = [match for tile in TILE.findall(text) for match in TILE_NAME.findall(tile)]
    return [(first or second).strip().rstrip(",") for first, second in [*tiles, *COLUMN.findall(text)]]


def page(head: str) -> str:
    law = "Every number that a page, a command or the API shows: its one definition, and what computes it."
    text = "Rows: `docs/reference/definitions.csv`. A GPU is in exactly one state; the states add up to all GPUs.\n"
    rows = [
        f"| {row.number} | {', '.join(row.pages) or '–'} | {row.definition} | {row.unit or '–'} | {_owner(row.owner)} "
        f"| {row.also or '–'} |"
        for row in definitions()
    ]
    table = ["| Number | Pages | Definition | Unit | Owner | Also |", "|---|---|---|---|---|---|", *rows]
    return "\n".join([head.format(title="Definitions", law=law), text, *table, ""])


def _owner(owner: str) -> str:
    module, _, _ = owner.partition(":")
    is_module = module.startswith("watchkeeper.")
    return f"`{module.removeprefix('watchkeeper.').replace('.', '/')}.py`" if is_module else f"`{owner}`"


def module_path(owner: str) -> Path:
    return ROOT / (owner.partition(":")[0].replace(".", "/") + ".py")
