"""`watchkeeper fabric`: the InfiniBand fabric as this host sees it, once or on an interval, for people or for a hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click

from watchkeeper.cli import groups, options
from watchkeeper.client.hub import Client
from watchkeeper.clusters.fabric import fabric_sweep
from watchkeeper.errors import CollectError, HubError
from watchkeeper.kit import durations, wire
from watchkeeper.model import fabric

SHOWN_PORTS = 50
CANNOT_TELL = 3


@click.group("fabric", cls=groups.FullHelpGroup)
def command() -> None:
    """Look at the InfiniBand fabric from this host; only reads."""


@command.command("sweep")
@click.option("--adapter", metavar="NAME", help="Adapter to look from, such as mlx5_0.  [default: first active one]")
@click.option("--port", type=int, help="Port of that adapter.")
@click.option("--names", type=click.Path(exists=True, path_type=Path), help="File of switch names by GUID.")
@click.option("--timeout", default="30s", help="How long each program may take.")
@click.option("--push", is_flag=True, help="Hand the sweep to the hub instead of printing it.")
@click.option("--every", metavar="TIME", help="Go on, with a sweep each such time (`60s`); with --push.")
@options.as_json
@options.with_hub
@click.pass_context
def sweep(
    ctx: click.Context,
    hub: Client,
    adapter: str | None,
    port: int | None,
    names: Path | None,
    timeout: str,
    push: bool,
    every: str | None,
    as_json: bool,
) -> None:
    """Walk the fabric with infiniband-diags: switches, links, rates, errors, and which host is on which leaf.

    Needs root and the package infiniband-diags. Exits with 0 when nothing is wrong, 1 when a link is slow or counts
    errors, and 3 when the fabric could not be read.
    """
    if every and not push:
        raise click.UsageError("--every goes on until it is stopped, which makes sense with --push only")
    wanted = fabric_sweep.SweepSettings(_seconds(timeout), adapter, port, names)
    if every:
        _push_forever(hub, wanted, pause_seconds=_seconds(every))
    try:
        found = fabric_sweep.sweep(wanted, at_ms=_now_ms())
    except CollectError as error:
        click.echo(f"watchkeeper: {error}", err=True)
        ctx.exit(CANNOT_TELL)
    if push:
        _push(hub, found)
        return
    layout = fabric.FabricTopology(found)
    if as_json:
        options.print_json({**wire.to_plain(found), "leaf_of": layout.leaf_by_node()})
    else:
        for line in describe(layout):
            click.echo(line)
    ctx.exit(1 if layout.slow_ports or any(_errors(port) for port in found.ports) else 0)


def _push(hub: Client, found: fabric.Fabric) -> None:
    answer = hub.push_sweep(wire.to_plain(found))
    click.echo(f"{len(found.ports):,} ports in {found.seconds:g} s handed over, {answer.changes} changes")


def _push_forever(hub: Client, wanted: fabric_sweep.SweepSettings, *, pause_seconds: float) -> NoReturn:
    """What goes wrong once is said, and tried again at the next turn."""
    while True:
        try:
            _push(hub, fabric_sweep.sweep(wanted, at_ms=_now_ms()))
        except (CollectError, HubError) as error:
            click.echo(f"watchkeeper: {error}", err=True)
        time.sleep(pause_seconds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _seconds(text: str) -> float:
    try:
        return durations.parse_seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def describe(layout: fabric.FabricTopology) -> Iterator[str]:
    """The sweep as lines of text, trouble first."""
    found = layout.fabric
    switches, hosts = layout.switches(), {link.node for link in layout.host_links()}
    links = sum(1 for _ in layout.links())
    yield f"{len(switches)} switches, {len(hosts)} hosts, {links} links; swept in {found.seconds:g} s"
    for problem in (*found.problems, *found.unread):
        yield f"incomplete: {problem}"
    for name in layout.shared_names():
        yield f"several switches are called {name or '(no name)'}; their GUIDs tell them apart"
    if layout.unnamed_hosts():
        yield f"{len(layout.unnamed_hosts())} adapters have no host name yet: nobody can say which node they are in"
    bad = [port for port in found.ports if port.key in layout.slow_ports or _errors(port)]
    for port in bad[:SHOWN_PORTS]:
        rate = f"slow: {port.gbps:g} Gb/s ({port.lanes}x {port.speed})" if port.key in layout.slow_ports else ""
        errors = ", ".join(f"{name} {value}" for name, value in _errors(port).items())
        there = "" if port.peer is None else f" to {layout.device_name(port.peer[0])} port {port.peer[1]}"
        yield f"  {layout.device_name(port.guid)} port {port.number}{there}: {'; '.join(filter(None, (rate, errors)))}"
    if len(bad) > SHOWN_PORTS:
        yield f"  and {len(bad) - SHOWN_PORTS} more ports; --json has them all"
    leaves: dict[str, list[str]] = {}
    for node, leaf in layout.leaf_by_node().items():
        leaves.setdefault(leaf, []).append(node)
    for leaf, nodes in sorted(leaves.items(), key=lambda item: fabric.natural_sort_key(item[0])):
        nodes.sort(key=fabric.natural_sort_key)
        more = f" … {nodes[-1]}" if len(nodes) > 4 else ""
        yield f"leaf {leaf}: {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}, {', '.join(nodes[:4])}{more}"


def _errors(port: fabric.FabricPort) -> dict[str, int]:
    """Counters that speak of a fault; waiting and traffic are no errors."""
    ignored = ("Data", "Pkts", "Wait")
    return {name: value for name, value in (port.counters or {}).items() if value and not name.endswith(ignored)}
