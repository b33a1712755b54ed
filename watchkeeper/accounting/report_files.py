"""Write reports as CSV, protected against spreadsheet formulas, and as Parquet.

Both have one row for each line; CSV also has a row for the total. Numbers are unformatted. The CLI writes the files.
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
    """Format an amount; None is an unknown cost, shown as `no price` and not as zero."""
    return "no price" if amount is None else f"{amount:,.2f} {currency}".rstrip()


def escape_cell(text: str) -> str:
    """Escape a name for CSV; names such as `-5` are escaped too, because they are text and not numbers."""
    is_signed = text.startswith(table.FORMULA_STARTS) and csv_text.NUMBER.fullmatch(text) is not None
    return f"'{text}" if is_signed else table.escape_cell(text)


def flatten_report(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of a usage or cost report and their total as flat rows, names first."""

    def flatten(line: Mapping[str, Any]) -> dict[str, Any]:
        cells = {name: value for name, value in line.items() if not isinstance(value, Mapping)}
        hours = line.get("hours", {})
        return cells | {name if name == "kwh" else f"{name}_hours": value for name, value in hours.items()}

    labels = {name: TOTAL if at == 0 else "" for at, name in enumerate(report["by"])}
    return [*map(flatten, report["lines"]), labels | flatten(report["total"])]


def to_csv(report: Mapping[str, Any]) -> str:
    def format_cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6f}".rstrip("0").rstrip(".") or "0"
        return "" if value is None else escape_cell(str(value))

    rows = flatten_report(report)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(escape_cell, rows[0]))
    writer.writerows([format_cell(line.get(name, "")) for name in rows[0]] for line in rows)
    return buffer.getvalue()


def to_parquet(report: Mapping[str, Any]) -> bytes:
    """Encode a report without its total row, because readers of Parquet compute totals themselves."""
    *lines, total = flatten_report(report)
    return parquet.encode_table(lines, example_row=total)
