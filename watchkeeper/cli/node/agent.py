"""`watchkeeper agent`: run the agent of a GPU node."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import agent, agent_server, node_facts
from watchkeeper.agent.attribution import node_holders
from watchkeeper.cli import options, processes
from watchkeeper.cli.node import agent_control
from watchkeeper.cli.options import SPOOL, path_option
from watchkeeper.client.address import DEFAULT_URL
from watchkeeper.kit import clock, logs
from watchkeeper.net import access

LISTEN, INTERVAL = f"127.0.0.1:{agent_server.PORT}", click.FloatRange(0.1, 60)
# Everything is closed by then, but a thread that reads a file of a hung driver may never end.
EXIT_AFTER_SECONDS = 2.0


# Deliberately long: one entry for each option, and nothing else.
@click.group("agent", cls=agent_control.AgentCommands, invoke_without_command=True)
@options.hub_url("URL of the hub that receives events.", default=DEFAULT_URL)
@click.option("--no-hub", is_flag=True, help="Use no hub: only serve /metrics, as dcgm-exporter does.")
@options.token
@path_option("--hub-ca", envvar="WATCHKEEPER_HUB_CA", help="CA certificates that verify the hub.")
@path_option("--hub-cert", envvar="WATCHKEEPER_HUB_CERT", help="Client certificate, for a hub that requires one.")
@path_option("--hub-key", envvar="WATCHKEEPER_HUB_KEY", help="Private key of --hub-cert, if in a separate file.")
@click.option("--cluster", default="main", help="Cluster of this node.")
@click.option("--node", default=os.uname().nodename, show_default="host name", help="Name of this node on the hub.")
@options.expected_gpus
@click.option(
    "--listen", "address", metavar="HOST:PORT", default=LISTEN, help="Address of /metrics; `none` serves nothing."
)
@path_option("--socket", help="Serve /metrics on this Unix socket instead of --listen.")
@path_option("--token-file", help="File of bearer tokens that may read /metrics, one per line.")
@path_option("--basic-auth-file", "basic_file", help="File of `user:password` lines that may read /metrics.")
@click.option("--open-metrics", "is_open", is_flag=True, help="Let everyone who can connect read /metrics.")
@path_option("--tls-cert", "certificate", help="Certificate for serving HTTPS.")
@path_option("--tls-key", "key", help="Private key of --tls-cert.")
@path_option("--counters", help="Counters file of dcgm-exporter that selects the exported fields.")
@click.option("--interval", "interval_seconds", type=INTERVAL, default=1.0, help="Seconds between readings of a GPU.")
@click.option(
    "--attribution",
    "holder_display",
    type=click.Choice([each.value for each in node_holders.HolderDisplay]),
    default=node_holders.HolderDisplay.BOTH.value,
    help="Export the holder of a GPU as dcgm-exporter's labels, as an info series, or both.",
)
@path_option("--hpc-job-mapping-dir", "job_files", help="Folder of job files of a Slurm prolog, one per GPU.")
@click.option("--slurm-node", metavar="NAME", show_default="--node", help="Name of this node in Slurm.")
@click.option("--no-gpus", is_flag=True, help="Do not read GPUs, because another exporter does.")
@path_option("--spool", "spool_directory", default=SPOOL, help="Folder for events until the hub confirms them.")
@path_option("--kmsg", default="/dev/kmsg", help="Kernel log that --kernel-log kmsg follows.")
@click.option(
    "--kernel-log",
    metavar="kmsg|journald|FILE",
    default="kmsg",
    help="Source of kernel messages: /dev/kmsg, systemd's journal, or a file that syslog writes.",
)
@path_option("--host-root", default="/", help="Where the node's root file system is mounted, for an agent in a pod.")
@path_option("--metrics-file", help="Also write the agent's own metrics to this file, for node_exporter.")
@agent_control.with_chassis
@agent_control.with_control
@click.option("--log-json", is_flag=True, help="Write the log as JSON.")
def command(log_json: bool, **params: Any) -> None:
    """Run the agent of a GPU node: read GPUs, kernel log and host; serve /metrics; push events to the hub.

    Events are spooled on disk while the hub is unreachable, and are pushed in order later. The agent accepts no inbound
    commands. It serves on loopback only, unless you set who may read /metrics:

    \b
    watchkeeper agent --no-hub
    watchkeeper agent --hub http://hub:9480 --listen 0.0.0.0:9400 --token-file /etc/watchkeeper/scrape
    """
    control = agent_control.take_control(params)
    if click.get_current_context().invoked_subcommand is not None:
        return
    logs.configure(as_json=log_json or control.logs_gpu_context)
    settings = build_settings(**params, control=control)
    asyncio.run(processes.run_until_stopped(lambda stop: run(settings, stop)))


async def run(settings: agent.AgentSettings, stop: asyncio.Event) -> None:
    """Run until `stop`, then exit even if a thread hangs in the kernel: Python would wait for it forever."""
    await agent.run(settings, clock.ScaledClock(), stop)
    exit_timer = threading.Timer(EXIT_AFTER_SECONDS, os._exit, (0,))
    exit_timer.daemon = True
    exit_timer.start()


def build_settings(
    *,
    hub_url: str,
    no_hub: bool,
    host_root: Path,
    no_gpus: bool,
    address: str,
    socket: Path | None,
    token_file: Path | None,
    basic_file: Path | None,
    is_open: bool,
    certificate: Path | None,
    key: Path | None,
    holder_display: str,
    job_files: Path | None,
    slurm_node: str | None,
    hub_ca: Path | None,
    hub_cert: Path | None,
    hub_key: Path | None,
    **agent_options: Any,
) -> agent.AgentSettings:
    """Build the agent's settings from the options; `agent_options` have the names of settings."""
    listen = None
    if address != "none" or socket is not None:
        host, port = parse_address(address) if address != "none" else ("127.0.0.1", 0)
        credentials = agent_server.load_credentials(token_file, basic_file)
        listen = agent_server.ListenSettings(host, port, socket, credentials, is_open, certificate, key)
    display = node_holders.HolderDisplay(holder_display)
    return agent.AgentSettings(
        hub_url=None if no_hub else hub_url,
        hub_access=access.Access(ca_file=str(hub_ca or ""), cert_file=str(hub_cert or ""), key_file=str(hub_key or "")),
        roots=node_facts.Roots(host_root / "proc", host_root / "sys", host_root),
        reads_gpus=not no_gpus,
        listen=listen,
        holder_settings=node_holders.HolderSettings(display, job_files, slurm_node),
        **agent_options,
    )


def parse_address(text: str) -> tuple[str, int]:
    """Parse `0.0.0.0:9400`, `:9400` or `[::1]:9400` into host and port."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.UsageError(f"--listen {text} is not HOST:PORT, for example 127.0.0.1:{agent_server.PORT}")
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104
