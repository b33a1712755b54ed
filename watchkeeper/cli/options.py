"""Options that several commands share, and the two ways they print: a table or JSON."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from watchkeeper.cli import tables
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.net import access

if TYPE_CHECKING:
    from watchkeeper.client import reading

Command = TypeVar("Command", bound=Callable[..., Any])


class IncidentId(click.ParamType[str]):
    """`INC-7`, however it is typed: `inc-7`, `INC7` or `7`."""

    name = "id"
    FORM = re.compile(r"(?:INC-?)?(\d+)", re.IGNORECASE | re.ASCII)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        one = self.FORM.fullmatch(str(value))
        return str(value) if one is None else f"INC-{one[1].lstrip('0')}"


INCIDENT = IncidentId()


def hub_url(help: str, **settings: Any) -> Callable[[Command], Command]:
    return click.option(
        "--hub", "hub_url", metavar="URL", envvar="WATCHKEEPER_HUB", show_envvar=True, help=help, **settings
    )


token = click.option(
    "--token",
    metavar="TOKEN",
    envvar="WATCHKEEPER_TOKEN",
    show_envvar=True,
    help="Bearer token, best given as variable.",
)


def with_hub(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --hub and --token, and hand the command a Client as `hub`; a group's choice holds for its commands."""

    @hub_url("The hub to ask.", show_default=DEFAULT_URL)
    @token
    @functools.wraps(command)
    def wrapper(*args: Any, hub_url: str | None, token: str | None, **kwargs: Any) -> Any:
        # Its types take a twentieth of a second to load, which commands without a hub are spared.
        from watchkeeper.client.hub import Client

        context = click.get_current_context()
        chosen = context.find_object(Client)
        if chosen is None or hub_url or token:
            chosen = Client(hub_url or DEFAULT_URL, token=token, access=certificates())
        context.obj = chosen
        return command(*args, hub=chosen, **kwargs)

    return wrapper


def certificates() -> access.Access:
    """Who vouches for a hub with TLS, and our own certificate; from the environment, as it is the same every day."""
    ca, cert, key = (os.environ.get(f"WATCHKEEPER_HUB_{name}", "") for name in ("CA", "CERT", "KEY"))
    return access.Access(ca_file=ca, cert_file=cert, key_file=key)


# What a command reads; `-` is the standard input where it takes that. A file that is not there is wrong use.
FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
force = click.option("--force", is_flag=True, help="Replace a file that is there.")


def refuse_to_replace(file: Path, *, force: bool) -> None:
    """Wrong use where the file is there and nobody has said that it may go; told before any work is done."""
    if file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is not a plain file")
    if file.exists() and not force:
        raise click.UsageError(f"{file} exists; --force replaces it")


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def fields(answer: reading.HubAnswer) -> dict[str, Any]:
    """An answer as it came, without the `ok` that only programs need to see."""
    return {name: value for name, value in answer.plain.items() if name != "ok"}


def unmapped(counts: Mapping[str, int]) -> list[str]:
    """The line of a report about what nobody has said of its nodes; none where all is said."""
    missing = [f"{fact} of {count}" for fact, count in counts.items() if count]
    return [f"Unmapped: {', '.join(missing)} nodes. Say it in the file of `fleet.inventory`"] if missing else []


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows for people on a terminal, whole lines in a pipe; see `tables`."""
    tables.print_table(header, rows)
