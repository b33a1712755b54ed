"""Output on a terminal: tables with bold heads, colours and folded cells, charts of ASCII characters, a progress line.

In a pipe a row is one line and never truncated, for grep and awk. Commands print rows with `options.print_table`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from time import monotonic
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
MARKS = "*o+x#@%&"
AXIS_WIDTH = 11
MIN_WIDTH, HEIGHT = 40, 15
# Time in seconds, value.
Points = Sequence[tuple[float, float]]
ERASE = "\r\x1b[K"

Row = Sequence[str]


def print_table(header: Row, rows: Sequence[Row], *, names: int | None = None) -> None:
    """Print rows under a header; the first `names` columns (default: all) are left-aligned, others right-aligned."""
    left_columns = len(header) if names is None else names
    if sys.stdout.isatty() and _print_rich(header, rows, left_columns):
        return
    for line in format_lines(header, rows, left_columns):
        click.echo(line)


def format_lines(header: Row, rows: Sequence[Row], left_columns: int | None = None) -> Iterator[str]:
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


def _natural_widths(header: Row, rows: Sequence[Row]) -> list[int]:
    return [max(map(len, column)) for column in zip(header, *rows, strict=True)]


def _print_rich(header: Row, rows: Sequence[Row], left_columns: int) -> bool:
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
    """Column widths for a terminal: short columns keep their width, long ones share the rest; None if too narrow."""
    # Rich alone would truncate cells on a narrow terminal.
    long = [width for width in natural_widths if width > MAX_FIXED_WIDTH]
    fixed = sum(natural_widths) - sum(long) + GAP * (len(natural_widths) - 1)
    shared = total_width - fixed - MIN_FOLDED_WIDTH * len(long)
    if shared < 0:
        return None
    excess = sum(width - MIN_FOLDED_WIDTH for width in long)
    share = min(1.0, shared / excess) if excess else 1.0
    return [
        width if width <= MAX_FIXED_WIDTH else MIN_FOLDED_WIDTH + int((width - MIN_FOLDED_WIDTH) * share)
        for width in natural_widths
    ]


def draw_chart(series: Sequence[tuple[str, Points]], *, width: int, height: int = HEIGHT) -> list[str]:
    """Draw the first eight series: the chart, the time axis and a legend, as lines of text."""
    shown = [(name, [(at, value) for at, value in points if math.isfinite(value)]) for name, points in series]
    shown = [(name, points) for name, points in shown if points][: len(MARKS)]
    if not shown:
        return ["Nothing to draw: no point is a finite number."]
    columns = max(MIN_WIDTH, width) - AXIS_WIDTH - 2
    times = [at for _, points in shown for at, _ in points]
    values = [value for _, points in shown for _, value in points]
    left, right, low, high = min(times), max(times), min(values), max(values)
    cells = [[" "] * columns for _ in range(height)]
    for mark, (_, points) in zip(MARKS, shown, strict=False):
        for at, value in points:
            row = height - 1 - _scale(value, low, high, steps=height)
            cells[row][_scale(at, left, right, steps=columns)] = mark
    labels = [_axis_label(row, low, high, height=height) for row in range(height)]
    lines = [f"{label:>{AXIS_WIDTH}} |{''.join(row)}".rstrip() for label, row in zip(labels, cells, strict=True)]
    lines += [" " * AXIS_WIDTH + " +" + "-" * columns, _time_axis(left, right, columns=columns)]
    lines += [f"  {mark} {name[: max(MIN_WIDTH, width) - 4]}" for mark, (name, _) in zip(MARKS, shown, strict=False)]
    omitted = len(series) - len(shown)
    return [*lines, f"  and {omitted} more series, not drawn"] if omitted else lines


def _scale(value: float, low: float, high: float, *, steps: int) -> int:
    if high <= low:
        return steps // 2
    return min(steps - 1, int((value - low) / (high - low) * steps))


def _axis_label(row: int, low: float, high: float, *, height: int) -> str:
    """The value at the top, middle and bottom row; empty for other rows."""
    if high <= low:
        return f"{low:.4g}" if row == height - 1 - height // 2 else ""
    if row not in (0, height // 2, height - 1):
        return ""
    return f"{high - (high - low) * row / (height - 1):.4g}"


def _time_axis(left: float, right: float, *, columns: int) -> str:
    form = "%H:%M:%S" if right - left < 86_400 else "%m-%d %H:%M"
    first, last = (datetime.fromtimestamp(at, UTC).strftime(form) for at in (left, right))
    day = datetime.fromtimestamp(left, UTC).strftime("%Y-%m-%d UTC")
    width = max(1, columns - len(first) - len(last))
    return " " * (AXIS_WIDTH + 2) + first + (day if len(day) + 2 <= width else "").center(width) + last


class Progress:
    """One line on a terminal, which `update` replaces; elsewhere silent, or a line per `log_seconds`."""

    def __init__(self, *, log_seconds: float = float("inf")) -> None:
        self.is_terminal = sys.stderr.isatty()
        self._log_seconds, self._logged_at = log_seconds, monotonic()

    def update(self, text: str) -> None:
        if self.is_terminal:
            click.echo(f"{ERASE}{text}", err=True, nl=False)
        elif monotonic() - self._logged_at >= self._log_seconds:
            self._logged_at = monotonic()
            click.echo(text, err=True)

    def clear(self) -> None:
        if self.is_terminal:
            click.echo(ERASE, err=True, nl=False)
