"""A progress line on standard error."""

from __future__ import annotations

import sys
from time import monotonic

import click

ERASE = "\r\x1b[K"


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
