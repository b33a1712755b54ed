"""`watchkeeper agent profiling`: leave the profiling counters to nsys and ncu for a while, as `dcgmi profile --pause`.

On the node itself it writes or removes the file that the agent watches; with `--node` it asks the hub for a work order.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import profiling
from watchkeeper.cli import groups
from watchkeeper.cli.node import agent_order
from watchkeeper.cli.options import as_json, print_json, with_hub
from watchkeeper.client.hub import Client
from watchkeeper.kit import clock, durations, wire

SPOOL = Path("/var/lib/watchkeeper/spool")


@click.group("profiling", cls=groups.FullHelpGroup)
def command() -> None:
    """Leave this node's profiling counters to nsys or ncu, and take them up again.

    While they are paused the DCGM_FI_PROF_* series are absent, and watchkeeper_agent_profiling_paused is 1.
    """


def _where(body: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--node", metavar="NAME", help="Another node: the hub orders it from that node's agent."),
        click.option("--cluster", metavar="NAME", help="That node's cluster, if it is not the hub's own."),
        click.option(
            "--spool",
            type=click.Path(path_type=Path),
            default=SPOOL,
            show_default=True,
            help="This node's agent's --spool.",
        ),
        with_hub,
    ):
        body = option(body)
    return body


@command.command("pause")
@click.option(
    "--for", "length", metavar="DURATION", default="1h", show_default=True, help="After this it resumes by itself."
)
@_where
def pause(length: str, node: str | None, cluster: str | None, spool: Path, hub: Client) -> None:
    """Stop sampling the profiling counters, for an hour unless told otherwise."""
    lasts = read_length(length)
    if node is not None:
        seconds = str(int(lasts.total_seconds()))
        _order(hub, node, "profiling_pause", {"seconds": seconds, "by": _me()}, cluster=cluster)
        return
    now = clock.ScaledClock().now()
    profiling.PauseFile(spool).write(profiling.Pause(now, now + lasts, _me()))
    click.echo(f"Profiling is paused until {(now + lasts).astimezone():%H:%M:%S}; the agent notices within a second.")


@command.command("resume")
@_where
def resume(node: str | None, cluster: str | None, spool: Path, hub: Client) -> None:
    """Sample the profiling counters again."""
    if node is not None:
        _order(hub, node, "profiling_resume", {}, cluster=cluster)
    elif profiling.PauseFile(spool).clear():
        click.echo("Profiling goes on; the agent notices within a second.")
    else:
        click.echo("Profiling was not paused.")


@command.command("show")
@as_json
@click.option("--spool", type=click.Path(path_type=Path), default=SPOOL, show_default=True, help="The agent's --spool.")
def show(as_json: bool, spool: Path) -> None:
    """Say whether profiling is paused on this node, since when, and by whom."""
    now = clock.ScaledClock().now()
    found = profiling.PauseFile(spool).read()
    holds = found if found is not None and now < found.until else None
    if as_json:
        print_json({"is_paused": holds is not None, "pause": wire.to_plain(holds)})
    elif holds is None:
        click.echo("Profiling is not paused.")
    else:
        click.echo(f"Paused by {holds.by} since {_local(holds.since)}, until {_local(holds.until)}.")


def read_length(text: str) -> timedelta:
    """How long a pause lasts; UsageError with both numbers if that is no length for one."""
    try:
        length = timedelta(seconds=durations.parse_seconds(text))
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from error
    if not timedelta(seconds=1) <= length <= profiling.MAX_PAUSE:
        raise click.UsageError(
            f"--for {text}: a pause lasts from 1s to {profiling.MAX_PAUSE.total_seconds() / 3600:g}h"
        )
    return length


def _order(hub: Client, node: str, kind: str, arguments: dict[str, str], *, cluster: str | None) -> None:
    """Have it done by another node's agent, and say what came of it."""
    _, receipt = agent_order.give_and_wait(hub, node, kind, arguments=arguments, cluster=cluster)
    click.echo(agent_order.said(node, receipt))
    sys.exit(0 if receipt.result in agent_order.DONE else 1)


def _me() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "somebody"


def _local(at: datetime) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
