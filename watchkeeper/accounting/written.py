"""Reports as files for other programs: CSV that a spreadsheet cannot be tricked with, and Parquet.

Both have one row for each line, CSV also one for the total; numbers are plain. The command line writes them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from watchkeeper.accounting import parquet

# A spreadsheet takes a cell that begins so for a formula (OWASP, CSV injection).
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
TOTAL = "total"


def harmless(text: str) -> str:
    """A name from outside as a cell: no formula for a spreadsheet, no control characters."""
    plain = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return f"'{plain}" if text.startswith(FORMULA_STARTS) else plain


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a usage or cost report and their total, flat, names first."""
    names = list(report["by"])
    flat = [_flat(line) for line in report["lines"]]
    if isinstance(report.get("total"), Mapping):
        whole: dict[str, Any] = dict(report["total"])
    else:
        numbers = [name for name in (flat[0] if flat else {}) if name not in names]
        whole = {name: sum(line[name] for line in flat) for name in numbers}
    labels = {name: TOTAL if at == 0 else "" for at, name in enumerate(names)}
    return [*flat, {**labels, **whole}]


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
    hours = line.get("hours", {})
    return made | {name if name == "kwh" else f"{name}_hours": value for name, value in hours.items()}


def to_csv(report: Mapping[str, Any]) -> str:
    flat = rows(report)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    columns = list(flat[0])
    writer.writerow([harmless(name) for name in columns])
    for line in flat:
        writer.writerow([_cell(line.get(name, "")) for name in columns])
    return written.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
    return harmless(str(value))


def to_parquet(report: Mapping[str, Any]) -> bytes:
    """Without the total, which is for people: whoever reads Parquet sums."""
    return parquet.table(rows(report)[:-1])
