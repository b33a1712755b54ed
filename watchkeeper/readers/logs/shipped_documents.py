"""Answers of log stores, as whole documents of JSON: their entries become lines again.

Loki's and Elasticsearch's HTTP API, `gcloud logging read`, `aws logs` and consoles that export JSON give one document
with entries inside. The doctor asks `looks_like` of the beginning of an input, then `lines_of` of all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from watchkeeper.readers.logs import shipped_fields

# A query of a log store is answered with some thousand entries; a larger document is read line by line.
MAX_BYTES = 32 << 20
MAX_DEPTH = 8
# Where answers keep their entries: Loki, Elasticsearch, CloudWatch, and consoles that export.
CONTAINERS = ("data", "result", "results", "streams", "events", "hits", "entries", "logs", "messages", "tables")
LOOKS = re.compile(rb'\A\s*(?:\[\s*[\[{]|\{[\s\S]*"(?:' + "|".join(CONTAINERS).encode() + rb')"\s*:\s*[\[{])')


def looks_like(start: bytes) -> bool:
    return LOOKS.match(start) is not None


def lines_of(raw: bytes) -> bytes | None:
    """The entries of a document, each on the line of its text where every entry has one; None if it has none."""
    text = raw.decode("utf-8", errors="replace")
    try:
        found = list(_entries(json.loads(text), 0))
    except (ValueError, RecursionError):
        return None
    lines: list[str] = []
    at, line = 0, 1
    for fields, name in found:
        place = text.find(json.dumps(fields[name], ensure_ascii=False), at) if at >= 0 else -1
        if place >= 0:
            line += text.count("\n", at, place)
            lines += [""] * (line - 1 - len(lines))
        # Where one is written otherwise, the numbers of the others are no better.
        at = place
        lines.append(shipped_fields.format_entry(fields, name))
    return "\n".join(lines).encode("utf-8", errors="replace") if lines else None


def _entries(value: object, depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        if (cells := _insight(value)) is not None:
            value = [cells]
        for one in value:
            yield from _entries(one, depth + 1)
    elif isinstance(value, dict):
        if isinstance(value.get("stream"), dict) and isinstance(value.get("values"), list):
            yield from _of_loki(value["stream"], value["values"])
        elif isinstance(value.get("columns"), list) and isinstance(value.get("rows"), list):
            yield from _entries(_rows(value["columns"], value["rows"]), depth + 1)
        elif (found := shipped_fields.find_message(value)) is not None:
            yield dict(found[0]), found[1]
        else:
            for name in CONTAINERS:
                if name in value:
                    yield from _entries(value[name], depth + 1)


def _of_loki(labels: dict[str, Any], values: list[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for pair in values:
        if isinstance(pair, list) and len(pair) > 1 and isinstance(pair[1], str):
            yield {"labels": labels, "timestamp": pair[0], "line": pair[1]}, "line"


def _rows(columns: list[Any], rows: list[Any]) -> list[dict[str, Any]]:
    """A table, as Azure's and other query languages answer."""
    names = [str(column.get("name")) if isinstance(column, dict) else str(column) for column in columns]
    return [dict(zip(names, row, strict=False)) for row in rows if isinstance(row, list)]


def _insight(cells: list[Any]) -> dict[str, Any] | None:
    """A row of CloudWatch Logs Insights, which is a list of its fields."""
    if cells and all(isinstance(cell, dict) and {"field", "value"} <= cell.keys() for cell in cells):
        return {str(cell["field"]): cell["value"] for cell in cells}
    return None
