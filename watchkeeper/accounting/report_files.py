"""Reports as files for other programs: CSV that a spreadsheet cannot be tricked with, and Parquet.

Both have one row for each line, CSV also one for the total; numbers are plain. The command line writes them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from watchkeeper.accounting import parquet
from watchkeeper.kit import csv_text
from watchkeeper.readers import table

TOTAL = "total"


def format_money(amount: float | None, currency: str = "") -> str:
    """An amount as people read it; what has no price costs an unknown amount, which is not nothing."""
    return "no price" if amount is None else f"{amount:,.2f} {currency}".rstrip()


def escape_cell(text: str) -> str:
    """A name from outside as a cell; one that is a number with a sign would lose the sign's meaning as well."""
    is_signed = text.startswith(table.FORMULA_STARTS) and csv_text.NUMBER.fullmatch(text) is not None
    return f"'{text}" if is_signed else table.escape_cell(text)


def rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a usage or cost report and their total, flat, names first."""
    labels = {name: TOTAL if at == 0 else "" for at, name in enumerate(report["by"])}
    return [*(_flat(line) for line in report["lines"]), labels | _flat(report["total"])]


def _flat(line: Mapping[str, Any]) -> dict[str, Any]:
    made = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
    hours = line.get("hours", {})
    return made | {name if name == "kwh" else f"{name}_hours": value for name, value in hours.items()}


def to_csv(report: Mapping[str, Any]) -> str:
    flat = rows(report)
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    columns = list(flat[0])
    writer.writerow([escape_cell(name) for name in columns])
    for line in flat:
        writer.writerow([_cell(line.get(name, "")) for name in columns])
    return written.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
    return escape_cell(str(value))


def to_parquet(report: Mapping[str, Any]) -> bytes:
    """Without the total, which is for people: whoever reads Parquet sums."""
    *lines, total = rows(report)
    return parquet.table(lines, like=total)
