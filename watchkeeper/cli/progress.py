"""A progress line on standard error; silent if standard error is not a terminal."""

from __future__ import annotations

import sys

import click

WIDTH = 60


class Progress:
    """One line of text: `update` replaces it, `clear` removes it."""

    def __init__(self, *, is_shown: bool | None = None) -> None:
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown

    def update(self, text: str) -> None:
        if self._is_shown:
            click.echo(f"\r{text:<{WIDTH}}", err=True, nl=False)

    def clear(self) -> None:
        if self._is_shown:
            click.echo(f"\r{'':<{WIDTH}}\r", err=True, nl=False)
