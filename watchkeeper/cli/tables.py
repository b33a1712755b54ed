"""Tables: bold heads, colours and folded cells on a terminal; one line per row, never truncated, in a pipe.

Commands print rows with `options.print_table`, which calls this. Whole lines in a pipe suit grep and awk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Literal

import click

# States and severities of Watchkeeper and of schedulers. Colour repeats what the word says.
STYLES = {
    "bold red": "critical, down, failed, silent, gone, hung, stalled, diverged, burning_fast, NO-GO",
    "yellow": "warning, short, never_seen, never seen, degraded, slow, waits, pending, burning, spent",
    "green": "up, ok, healthy, running, resolved, GO",
    "cyan": "info, acknowledged, mitigating",
    "dim": "unknown, –, ?, N/A",
}
MAX_FIXED_WIDTH, MIN_FOLDED_WIDTH = 20, 12
GAP = 2
STYLE_OF = {word: style for style, words in STYLES.items() for word in words.split(", ")}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int | None = None) -> None:
    """Print rows under a header; the first `names` columns (default: all) are left-aligned, others right-aligned."""
    left_columns = len(header) if names is None else names
    if sys.stdout.isatty() and _print_rich(header, rows, left_columns):
        return
    for line in format_lines(header, rows, left_columns):
        click.echo(line)


def format_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int | None = None
) -> Iterator[str]:
    left_columns = len(header) if left_columns is None else left_columns
    widths = _natural_widths(header, rows)
    for row in [header, *rows]:
        padded = (
            cell.ljust(width) if column < left_columns else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(padded).rstrip()


def format_count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _natural_widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]], left_columns: int) -> bool:
    """Print the table with rich; False if rich is not installed (agent-only node) or the terminal is too narrow."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    console = Console(highlight=False)
    column_widths = fit_widths(_natural_widths(header, rows), console.width)
    if column_widths is None:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column, (name, width) in enumerate(zip(header, column_widths, strict=True)):
        justify: Literal["left", "right"] = "left" if column < left_columns else "right"
        table.add_column(Text(name), overflow="fold", width=width, justify=justify)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLE_OF.get(cell, "")) for cell in row))
    console.print(table)
    return True


def fit_widths(natural_widths: Sequence[int], total_width: int) -> list[int] | None:
    """Column widths for a terminal: short columns keep their width, long ones share the rest; None if too narrow.

    Rich alone would truncate cells on a narrow terminal.
    """
    free = (
        total_width
        - sum(width for width in natural_widths if width <= MAX_FIXED_WIDTH)
        - GAP * (len(natural_widths) - 1)
    )
    long = [width for width in natural_widths if width > MAX_FIXED_WIDTH]
    shared = free - MIN_FOLDED_WIDTH * len(long)
    if shared < 0:
        return None
    excess = sum(width - MIN_FOLDED_WIDTH for width in long)
    share = min(1.0, shared / excess) if excess else 1.0
    return [
        width if width <= MAX_FIXED_WIDTH else MIN_FOLDED_WIDTH + int((width - MIN_FOLDED_WIDTH) * share)
        for width in natural_widths
    ]
