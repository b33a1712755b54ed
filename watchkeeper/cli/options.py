"""Options that several commands share, and the two ways they print: a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from watchkeeper.client.hub import DEFAULT_URL, HubClient


def with_hub(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --hub and --token, and hand the command a HubClient as `hub`."""

    @click.option(
        "--hub",
        "hub_url",
        metavar="URL",
        default=DEFAULT_URL,
        show_default=True,
        envvar="WATCHKEEPER_HUB",
        help="The hub to ask; also WATCHKEEPER_HUB.",
    )
    @click.option(
        "--token", metavar="TOKEN", envvar="WATCHKEEPER_TOKEN", help="Bearer token; better given as WATCHKEEPER_TOKEN."
    )
    def wrapper(*args: Any, hub_url: str, token: str | None, **kwargs: Any) -> Any:
        return command(*args, hub=HubClient(hub_url, token=token), **kwargs)

    wrapper.__name__, wrapper.__doc__ = command.__name__, command.__doc__
    wrapper.__click_params__ = [*getattr(command, "__click_params__", []), *getattr(wrapper, "__click_params__", [])]  # type: ignore[attr-defined]
    return wrapper


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell; plain text, so that it reads the same in a pipe."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    for row in [header, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
