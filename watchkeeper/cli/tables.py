"""A table of texts: with bold heads and colours on a terminal, plain and never cut in a pipe.

Every command that prints rows comes through `options.print_table`, which calls this. On a terminal long cells are
folded; in a pipe a row is one line, whatever its length, so that grep and awk see all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

# States and severities in our own words and the schedulers'; a word says what the colour says.
STYLES = {
    "bold red": (
        "critical",
        "down",
        "failed",
        "silent",
        "gone",
        "hung",
        "stalled",
        "diverged",
        "burning_fast",
        "NO-GO",
    ),
    "yellow": (
        "warning",
        "short",
        "never_seen",
        "never seen",
        "degraded",
        "slow",
        "waits",
        "pending",
        "burning",
        "spent",
    ),
    "green": ("up", "ok", "healthy", "running", "resolved", "GO"),
    "cyan": ("info", "acknowledged", "mitigating"),
    "dim": ("unknown", "–", "?", "N/A"),
}
SHORT_CHARACTERS, LEAST_CHARACTERS = 20, 12
GAP = 2
STYLE_OF = {word: style for style, words in STYLES.items() for word in words}


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int | None = None) -> None:
    """Rows under a header; with `names`, only so many columns are names and the others are numbers, to the right."""
    left = len(header) if names is None else names
    if sys.stdout.isatty() and _print_rich(header, rows, left):
        return
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    for row in [header, *rows]:
        cells = [row[at].ljust(widths[at]) if at < left else row[at].rjust(widths[at]) for at in range(len(header))]
        click.echo("  ".join(cells).rstrip())


def _print_rich(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> bool:
    """The table for people; False where rich is not installed, as on a node with the agent only, or has no room."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ModuleNotFoundError:
        return False
    console = Console(highlight=False)
    fitted = widths([max(len(row[at]) for row in [header, *rows]) for at in range(len(header))], console.width)
    if fitted is None:
        return False
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, name in enumerate(header):
        table.add_column(Text(name), overflow="fold", width=fitted[at], justify="left" if at < left else "right")
    for row in rows:
        table.add_row(*(Text(cell, style=STYLE_OF.get(cell, "")) for cell in row))
    console.print(table)
    return True


def widths(wanted: Sequence[int], room: int) -> list[int] | None:
    """How wide each column may be: ids, times and numbers stay whole, sentences share the rest; None: no room.

    Rich alone would cut cells where columns with a least width meet a narrow terminal.
    """
    free = room - sum(width for width in wanted if width <= SHORT_CHARACTERS) - GAP * (len(wanted) - 1)
    long = [width for width in wanted if width > SHORT_CHARACTERS]
    spare = free - LEAST_CHARACTERS * len(long)
    if spare < 0:
        return None
    more = sum(width - LEAST_CHARACTERS for width in long)
    share = min(1.0, spare / more) if more else 1.0
    return [
        width if width <= SHORT_CHARACTERS else LEAST_CHARACTERS + int((width - LEAST_CHARACTERS) * share)
        for width in wanted
    ]
