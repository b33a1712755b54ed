"""Convert JSON documents of log stores back to log lines.

The HTTP APIs of Loki and Elasticsearch, `gcloud logging read`, `aws logs` and JSON exports of consoles return one
document with all entries. The doctor calls `is_document` with the start of an input, then `read_lines` with all of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from watchkeeper.readers.logs import shipped_fields

# A query of a log store returns a few thousand entries; a larger document is read line by line.
MAX_BYTES = 32 << 20
MAX_DEPTH = 8
# Keys that contain the entries: Loki, Elasticsearch, CloudWatch, and exports of consoles.
ENTRY_KEYS = ("data", "result", "results", "streams", "events", "hits", "entries", "logs", "messages", "tables")
DOCUMENT_START = re.compile(rb'\A\s*(?:\[\s*[\[{]|\{[\s\S]*"(?:' + "|".join(ENTRY_KEYS).encode() + rb')"\s*:\s*[\[{])')


def is_document(start: bytes) -> bool:
    return DOCUMENT_START.match(start) is not None


def read_lines(raw: bytes) -> bytes | None:
    """The entries of a document as lines, with the line numbers of the document if possible; None without entries."""
    text = raw.decode("utf-8", errors="replace")
    try:
        entries = list(_find_entries(json.loads(text), 0))
    except (ValueError, RecursionError):
        return None
    lines: list[str] = []
    position, line_number = 0, 1
    for fields, name in entries:
        entry_position = text.find(json.dumps(fields[name], ensure_ascii=False), position) if position >= 0 else -1
        if entry_position >= 0:
            line_number += text.count("\n", position, entry_position)
            lines += [""] * (line_number - 1 - len(lines))
        # If the text of one entry is not in the document, later line numbers are unknown too.
        position = entry_position
        lines.append(shipped_fields.format_entry(fields, name))
    return "\n".join(lines).encode("utf-8", errors="replace") if lines else None


def _find_entries(value: object, depth: int) -> Iterator[tuple[dict[str, Any], str]]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        if (cells := _read_insights_row(value)) is not None:
            value = [cells]
        for item in value:
            yield from _find_entries(item, depth + 1)
    elif isinstance(value, dict):
        if isinstance(value.get("stream"), dict) and isinstance(value.get("values"), list):
            yield from _read_loki_stream(value["stream"], value["values"])
        elif isinstance(value.get("columns"), list) and isinstance(value.get("rows"), list):
            yield from _find_entries(_read_rows(value["columns"], value["rows"]), depth + 1)
        elif (entry := shipped_fields.find_message(value)) is not None:
            yield dict(entry[0]), entry[1]
        else:
            for name in ENTRY_KEYS:
                if name in value:
                    yield from _find_entries(value[name], depth + 1)


def _read_loki_stream(labels: dict[str, Any], values: list[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for pair in values:
        if isinstance(pair, list) and len(pair) > 1 and isinstance(pair[1], str):
            yield {"labels": labels, "timestamp": pair[0], "line": pair[1]}, "line"


def _read_rows(columns: list[Any], rows: list[Any]) -> list[dict[str, Any]]:
    """Read a table with columns and rows, as Azure and others return it."""
    names = [str(column.get("name")) if isinstance(column, dict) else str(column) for column in columns]
    return [dict(zip(names, row, strict=False)) for row in rows if isinstance(row, list)]


def _read_insights_row(cells: list[Any]) -> dict[str, Any] | None:
    """Read a row of CloudWatch Logs Insights, which is a list of fields; None for any other list."""
    if cells and all(isinstance(cell, dict) and {"field", "value"} <= cell.keys() for cell in cells):
        return {str(cell["field"]): cell["value"] for cell in cells}
    return None
