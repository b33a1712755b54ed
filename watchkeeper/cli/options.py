"""Options that several commands share, and the two ways they print: a table or JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.client.hub import HubClient


def with_hub(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --hub and --token, and hand the command a HubClient as `hub`; a group's choice holds for its commands."""

    @click.option(
        "--hub", "hub_url", metavar="URL", envvar="WATCHKEEPER_HUB", show_default=DEFAULT_URL, help="The hub to ask."
    )
    @click.option("--token", metavar="TOKEN", envvar="WATCHKEEPER_TOKEN", help="Bearer token, best given as variable.")
    @functools.wraps(command)
    def wrapper(*args: Any, hub_url: str | None, token: str | None, **kwargs: Any) -> Any:
        context = click.get_current_context()
        chosen = context.find_object(HubClient)
        if chosen is None or hub_url or token:
            chosen = HubClient(hub_url or DEFAULT_URL, token=token)
        context.obj = chosen
        return command(*args, hub=chosen, **kwargs)

    return wrapper


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell; plain text, so that it reads the same in a pipe."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    for row in [header, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
