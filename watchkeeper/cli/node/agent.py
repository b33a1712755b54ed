"""`watchkeeper agent`: a GPU node's side."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import agent, agent_server, node_facts
from watchkeeper.agent.attribution import attribution_page, node_holders
from watchkeeper.cli import processes
from watchkeeper.cli.node import agent_control, chassis_options
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.kit import clock, logs
from watchkeeper.net import access

PATH = click.Path(path_type=Path)
# Everything is closed by then; a file of a program that hangs in the driver may keep a reading thread for ever.
LEAVE_SECONDS = 2.0


# Deliberately long: one entry for each option, and nothing else.
@click.group("agent", cls=agent_control.AgentCommands, invoke_without_command=True)
@click.option(
    "--hub",
    "hub_url",
    metavar="URL",
    default=DEFAULT_URL,
    show_default=True,
    envvar="WATCHKEEPER_HUB",
    help="Where events are pushed to.",
)
@click.option("--no-hub", is_flag=True, help="Tell no hub; serve /metrics only, as dcgm-exporter does.")
@click.option(
    "--token", metavar="TOKEN", envvar="WATCHKEEPER_TOKEN", help="Agent token; better given as WATCHKEEPER_TOKEN."
)
@click.option("--hub-ca", type=PATH, envvar="WATCHKEEPER_HUB_CA", help="Certificates to believe the hub by.")
@click.option(
    "--hub-cert", type=PATH, envvar="WATCHKEEPER_HUB_CERT", help="Our certificate, for a hub that asks for one."
)
@click.option("--hub-key", type=PATH, envvar="WATCHKEEPER_HUB_KEY", help="Its key, where it is in a file of its own.")
@click.option("--cluster", default="main", help="The cluster this node belongs to.")
@click.option(
    "--node",
    default=os.uname().nodename,
    show_default="host name",
    help="The name under which the hub knows this node.",
)
@click.option("--expected-gpus", type=click.IntRange(0, 1024), help="GPUs this node should have; told to the hub.")
@click.option(
    "--listen",
    "address",
    metavar="HOST:PORT",
    default=f"127.0.0.1:{agent_server.PORT}",
    show_default=True,
    help="Where /metrics is served; `none` serves nothing.",
)
@click.option("--socket", type=PATH, help="Serve on this Unix socket instead.")
@click.option("--token-file", type=PATH, help="Bearer tokens that may read /metrics, one a line.")
@click.option("--basic-auth-file", "basic_file", type=PATH, help="`user:password` lines that may read /metrics.")
@click.option("--open-metrics", "is_open", is_flag=True, help="Let everyone who reaches the address read /metrics.")
@click.option("--tls-cert", "certificate", type=PATH, help="Certificate for HTTPS.")
@click.option("--tls-key", "key", type=PATH, help="Its key.")
@click.option("--counters", type=PATH, help="A counters file of dcgm-exporter: which fields to show.")
@click.option("--interval", type=click.FloatRange(0.1, 60), default=1.0, help="Seconds between readings of a GPU.")
@click.option(
    "--attribution",
    "shown",
    type=click.Choice([each.value for each in attribution_page.HolderDisplay]),
    default=attribution_page.HolderDisplay.BOTH.value,
    help="Show who holds a GPU as labels of dcgm-exporter, as an information series, or both.",
)
@click.option("--hpc-job-mapping-dir", "job_files", type=PATH, help="Job files of a Slurm prolog, one for each GPU.")
@click.option("--slurm-node", metavar="NAME", show_default="--node", help="Slurm's name of this node.")
@click.option("--no-gpus", is_flag=True, help="Do not read GPUs: another exporter does.")
@click.option(
    "--spool",
    "spool_directory",
    type=PATH,
    default=Path("/var/lib/watchkeeper/spool"),
    show_default=True,
    help="Where events wait while the hub is away.",
)
@click.option("--kmsg", type=PATH, default=Path("/dev/kmsg"), show_default=True, help="The kernel log to follow.")
@click.option(
    "--kernel-log",
    metavar="kmsg|journald|FILE",
    default="kmsg",
    show_default=True,
    help="Where kernel lines come from: /dev/kmsg, systemd's journal, or a file that syslog writes.",
)
@click.option(
    "--host-root", type=PATH, default=Path("/"), show_default=True, help="Where the node's root is mounted, in a pod."
)
@click.option("--metrics-file", type=PATH, help="Also write the agent's own metrics here, for node_exporter.")
@chassis_options.with_chassis_options
@agent_control.with_control
@click.option("--log-json", is_flag=True, help="Log as JSON.")
def command(log_json: bool, **options: Any) -> None:
    """Read this node's GPUs, kernel log and host; serve /metrics and push events to the hub.

    Events are kept on disk while the hub is away, and are pushed in order when it is back. The agent
    accepts no commands. It serves on loopback unless it is told who may read:

    \b
    watchkeeper agent --no-hub
    watchkeeper agent --hub http://hub:9480 --listen 0.0.0.0:9400 --token-file /etc/watchkeeper/scrape
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(as_json=log_json or options["control"].logs_gpu_context)
    settings = settings_from(**options)
    asyncio.run(processes.run_until_stopped(lambda stop: run(settings, stop)))


async def run(settings: agent.AgentSettings, stop: asyncio.Event) -> None:
    """Run until told to stop, and then leave: Python would wait for a thread that sits in the kernel, for ever."""
    await agent.run(settings, clock.ScaledClock(), stop)
    late = threading.Timer(LEAVE_SECONDS, os._exit, (0,))
    late.daemon = True
    late.start()


def settings_from(
    *,
    hub_url: str,
    no_hub: bool,
    host_root: Path,
    interval: float,
    no_gpus: bool,
    address: str,
    socket: Path | None,
    token_file: Path | None,
    basic_file: Path | None,
    is_open: bool,
    certificate: Path | None,
    key: Path | None,
    shown: str,
    job_files: Path | None,
    slurm_node: str | None,
    hub_ca: Path | None,
    hub_cert: Path | None,
    hub_key: Path | None,
    **same: Any,
) -> agent.AgentSettings:
    """The agent's settings; what has the same name on both sides is handed over as it is."""
    listen = None
    if address != "none" or socket is not None:
        host, port = read_address(address) if address != "none" else ("127.0.0.1", 0)
        guards = agent_server.load_credentials(token_file, basic_file)
        listen = agent_server.ListenSettings(host, port, socket, guards, is_open, certificate, key)
    return agent.AgentSettings(
        hub_url=None if no_hub else hub_url,
        hub_access=access.Access(ca_file=str(hub_ca or ""), cert_file=str(hub_cert or ""), key_file=str(hub_key or "")),
        roots=node_facts.Roots(host_root / "proc", host_root / "sys", host_root),
        interval_seconds=interval,
        reads_gpus=not no_gpus,
        listen=listen,
        holder_settings=node_holders.HolderSettings(attribution_page.HolderDisplay(shown), job_files, slurm_node),
        **same,
    )


def read_address(text: str) -> tuple[str, int]:
    """`0.0.0.0:9400`, `:9400`, `[::1]:9400`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.UsageError(f"--listen {text}: HOST:PORT is needed, such as 127.0.0.1:{agent_server.PORT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104
