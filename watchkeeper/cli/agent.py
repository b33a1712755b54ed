"""`watchkeeper agent`: a GPU node's side."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from watchkeeper import agent
from watchkeeper.cli import processes
from watchkeeper.client.hub import DEFAULT_URL
from watchkeeper.kit import clock, logs


@click.command("agent")
@click.option(
    "--hub",
    "hub_url",
    metavar="URL",
    default=DEFAULT_URL,
    show_default=True,
    envvar="WATCHKEEPER_HUB",
    help="Where events are pushed to.",
)
@click.option(
    "--token", metavar="TOKEN", envvar="WATCHKEEPER_TOKEN", help="Agent token; better given as WATCHKEEPER_TOKEN."
)
@click.option("--cluster", default="main", help="The cluster this node belongs to.")
@click.option(
    "--node",
    default=os.uname().nodename,
    show_default="host name",
    help="The name under which the hub knows this node.",
)
@click.option(
    "--spool",
    "spool_directory",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/watchkeeper/spool"),
    show_default=True,
    help="Where events wait while the hub is away.",
)
@click.option(
    "--kmsg",
    type=click.Path(path_type=Path),
    default=Path("/dev/kmsg"),
    show_default=True,
    help="The kernel log to follow.",
)
@click.option("--log-json", is_flag=True, help="Log as JSON.")
def command(
    hub_url: str, token: str | None, cluster: str, node: str, spool_directory: Path, kmsg: Path, log_json: bool
) -> None:
    """Follow this node's kernel log and push what it says about GPUs to the hub.

    Events are kept on disk while the hub is away, and are pushed in order when it is back.
    """
    logs.start(as_json=log_json)
    settings = agent.AgentSettings(
        hub_url=hub_url, spool_directory=spool_directory, cluster=cluster, node=node, token=token, kmsg=kmsg
    )
    asyncio.run(processes.until_stopped(lambda stop: agent.run(settings, clock.ScaledClock(), stop)))
