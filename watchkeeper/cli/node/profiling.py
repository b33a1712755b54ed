"""`watchkeeper agent profiling`: pause the agent's profiling counters for nsys and ncu, as `dcgmi profile --pause`.

On this node it writes or removes the file that the agent watches; with `--node` it sends a work order.
"""

from __future__ import annotations

import getpass
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import click

from watchkeeper.agent import profiling
from watchkeeper.cli import options
from watchkeeper.cli.node import agent_order
from watchkeeper.client.hub import Client
from watchkeeper.kit import clock, durations, wire


@click.group("profiling", cls=options.FullHelpGroup)
def command() -> None:
    """Pause and resume the profiling counters of a node, so that nsys or ncu can use them.

    While paused, the DCGM_FI_PROF_* series are absent and watchkeeper_agent_profiling_paused is 1.
    """


with_node = options.option_group(
    click.option("--node", metavar="NAME", help="Send a work order to this node.  [default: this node, no order]"),
    options.node_cluster,
    options.spool,
    options.with_hub,
)


@command.command("pause")
@click.option("--for", "length", metavar="DURATION", default="1h", help="Resume automatically after this time.")
@with_node
def pause(length: str, node: str | None, cluster: str | None, spool: Path, hub: Client) -> None:
    """Pause sampling of the profiling counters for some time."""
    duration = parse_pause_length(length)
    if node is not None:
        seconds = str(int(duration.total_seconds()))
        _send_order(hub, node, "profiling_pause", {"seconds": seconds, "by": _user_name()}, cluster=cluster)
        return
    now = clock.ScaledClock().now()
    profiling.PauseFile(spool).write(profiling.Pause(now, now + duration, _user_name()))
    click.echo(f"Profiling paused until {(now + duration).astimezone():%H:%M:%S}; the agent applies it within 1 s.")


@command.command("resume")
@with_node
def resume(node: str | None, cluster: str | None, spool: Path, hub: Client) -> None:
    """Resume sampling of the profiling counters."""
    if node is not None:
        _send_order(hub, node, "profiling_resume", {}, cluster=cluster)
    elif profiling.PauseFile(spool).clear():
        click.echo("Profiling resumed; the agent applies it within 1 s.")
    else:
        click.echo("Profiling was not paused.")


@command.command("show")
@options.as_json
@options.spool
def show(as_json: bool, spool: Path) -> None:
    """Show whether profiling is paused on this node, since when, until when, and by which user."""
    now = clock.ScaledClock().now()
    pause = profiling.PauseFile(spool).read()
    active_pause = pause if pause is not None and now < pause.until else None
    line = "Profiling is not paused."
    if active_pause is not None:
        since, until = (f"{at.astimezone():%Y-%m-%d %H:%M:%S}" for at in (active_pause.since, active_pause.until))
        line = f"Paused by {active_pause.by} since {since}, until {until}."
    plain = {"is_paused": active_pause is not None, "pause": wire.to_plain(active_pause)}
    options.print_result(plain, [line], as_json=as_json)


def parse_pause_length(text: str) -> timedelta:
    try:
        length = timedelta(seconds=durations.parse_seconds(text))
    except ValueError as error:
        raise click.UsageError(f"--for: {error}") from error
    if not timedelta(seconds=1) <= length <= profiling.MAX_PAUSE:
        hours = profiling.MAX_PAUSE.total_seconds() / 3600
        raise click.UsageError(f"--for {text}: a pause lasts from 1s to {hours:g}h")
    return length


def _send_order(hub: Client, node: str, kind: str, arguments: dict[str, str], *, cluster: str | None) -> None:
    _, receipt = agent_order.send_and_wait(hub, node, kind, arguments=arguments, cluster=cluster)
    click.echo(agent_order.format_receipt(node, receipt))
    sys.exit(0 if receipt.result in agent_order.SUCCESS_RESULTS else 1)


def _user_name() -> str:
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown user"
