"""Groups and options that several commands share, and output as a table or as JSON."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from watchkeeper.cli import terminal
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.kit import durations
from watchkeeper.model.gpu_states import GpuCounts
from watchkeeper.net import access

if TYPE_CHECKING:
    from watchkeeper.client import reading

Command = TypeVar("Command", bound=Callable[..., Any])
# Longer than the first sentence of any command.
MAX_HELP_LENGTH = 1_000


class FullHelpGroup(click.Group):
    """A group whose help shows the whole first sentence of each command; click truncates it to one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        lines = [(name, command.get_short_help_str(MAX_HELP_LENGTH)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


FullHelpGroup.group_class = FullHelpGroup


class IncidentId(click.ParamType[str]):
    """The id of an incident: `INC-7`, also written `inc-7`, `INC7` or `7`."""

    name = "id"
    FORM = re.compile(r"(?:INC-?)?(\d+)", re.IGNORECASE | re.ASCII)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        match = self.FORM.fullmatch(str(value))
        return str(value) if match is None else f"INC-{match[1].lstrip('0')}"


INCIDENT, EXIT_UNKNOWN = IncidentId(), 3


class Duration(click.ParamType[float]):
    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return durations.parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def hub_url(help: str, **settings: Any) -> Callable[[Command], Command]:
    return click.option(
        "--hub", "hub_url", metavar="URL", envvar="WATCHKEEPER_HUB", show_envvar=True, help=help, **settings
    )


token = click.option(
    "--token",
    metavar="TOKEN",
    envvar="WATCHKEEPER_TOKEN",
    show_envvar=True,
    help="Bearer token for the hub; prefer the environment variable.",
)


def option_group(*decorators: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """One decorator that adds several options, in this order."""
    return lambda command: functools.reduce(lambda body, decorate: decorate(body), reversed(decorators), command)


def combined(name: str, build: Callable[..., Any], *decorators: Callable[[Any], Any]) -> Callable[..., Any]:
    """One decorator that adds several options, and passes what `build` makes of their values as one argument."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @option_group(*decorators)
        @functools.wraps(command)
        def wrapper(*args: Any, **params: Any) -> Any:
            values = {parameter: params.pop(parameter) for parameter in inspect.signature(build).parameters}
            return command(*args, **{name: build(**values)}, **params)

        return wrapper

    return decorate


def client_certificates() -> access.Access:
    """The CA and client certificate for a hub with TLS, from environment variables."""
    ca, cert, key = (os.environ.get(f"WATCHKEEPER_HUB_{name}", "") for name in ("CA", "CERT", "KEY"))
    return access.Access(ca_file=ca, cert_file=cert, key_file=key)


def _hub_client(hub_url: str | None, token: str | None) -> Any:
    """The client of the hub; options of a group apply to its commands."""
    # Importing its types takes 50 ms, which commands without a hub do not need.
    from watchkeeper.client.hub import Client

    context = click.get_current_context()
    client = context.find_object(Client)
    if client is None or hub_url or token:
        client = Client(hub_url or DEFAULT_URL, token=token, access=client_certificates())
    context.obj = client
    return client


with_hub = combined("hub", _hub_client, hub_url("URL of the hub.", show_default=DEFAULT_URL), token)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# `-` is standard input. A missing file is a usage error.
FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)
file_option = functools.partial(click.option, type=FILE, metavar="FILE")
path_option = functools.partial(click.option, type=click.Path(path_type=Path))
hub_config = path_option("--config", "config_file", metavar="FILE", help="Settings file of the hub.")
SPOOL = Path("/var/lib/watchkeeper/spool")
spool = path_option("--spool", default=SPOOL, help="Folder of the agent's --spool on this node.")
node_cluster = click.option("--cluster", metavar="NAME", help="Cluster of the node, if it is not the hub's own.")
expected_gpus = click.option(
    "--expected-gpus", type=click.IntRange(0, 1024), help="Number of GPUs that a node should have."
)
busy_ok = click.option("--busy-ok", "is_busy_ok", is_flag=True, help="Also test GPUs that are in use.")
python = click.option(
    "--python", metavar="PATH", default=sys.executable, show_default=False, help="Python interpreter with torch."
)
expected_bandwidth = click.option(
    "--expected", type=click.FloatRange(0, min_open=True), help="Minimum bus bandwidth of all-reduce, in GB/s."
)
force = click.option("--force", is_flag=True, help="Overwrite an existing file.")
gpu_count = click.option(
    "--gpus", type=click.IntRange(1, 200_000), default=512, help="Number of simulated GPUs, eight per node."
)
seed = click.option("--seed", type=int, default=1, help="Random seed; the same seed gives the same fleet.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON with a stable shape.")
with_hub_and_json = option_group(as_json, with_hub)


def refuse_to_replace(file: Path, *, force: bool) -> None:
    """Raise a usage error for an existing file without --force; called before any work."""
    if file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is not a regular file")
    if file.exists() and not force:
        raise click.UsageError(f"{file} exists; use --force to overwrite it")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_result(plain: Any, lines: Iterable[str], *, as_json: bool) -> None:
    if as_json:
        print_json(plain)
    else:
        click.echo("\n".join(lines))


def answer_fields(answer: reading.HubAnswer) -> dict[str, Any]:
    """The JSON of an answer without `ok`, which only API clients need."""
    return {name: value for name, value in answer.plain.items() if name != "ok"}


def unmapped_lines(counts: Mapping[str, int]) -> list[str]:
    """A line that counts nodes without pool, rack or other facts; empty if no fact is missing."""
    missing = ", ".join(f"{fact} of {count}" for fact, count in counts.items() if count)
    return [f"Unmapped: {missing} nodes. Set them in the inventory file (`fleet.inventory`)"] if missing else []


def gpu_lines(answer: reading.HubAnswer) -> list[str]:
    """A line that counts the GPUs of the fleet by state; empty from an older hub."""
    from watchkeeper.client import reading

    counts = answer.plain.get("gpus")
    return [] if counts is None else [reading.read_answer(GpuCounts, counts).describe()]


print_table = terminal.print_table


def print_rows(
    plain: Any, header: terminal.Row, rows: Sequence[terminal.Row], *, as_json: bool, empty: str = ""
) -> None:
    if as_json:
        print_json(plain)
    elif rows or not empty:
        print_table(header, rows)
    else:
        click.echo(empty)
