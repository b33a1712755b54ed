"""`watchkeeper fabric`: sweep the InfiniBand fabric from this node, once or repeatedly; print or push the result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.client.hub import Client
from watchkeeper.clusters.fabric import fabric_sweep
from watchkeeper.errors import CollectError, HubError
from watchkeeper.kit import wire
from watchkeeper.model import fabric

MAX_PORTS = 50
EXISTING_PATH = click.Path(exists=True, path_type=Path)
TIMEOUT_HELP = "Timeout of each infiniband-diags program."


@click.group("fabric", cls=options.FullHelpGroup)
def command() -> None:
    """Read the InfiniBand fabric from this node; changes nothing."""


@command.command("sweep")
@click.option("--adapter", metavar="NAME", help="Adapter to use, for example mlx5_0.  [default: first active]")
@click.option("--port", type=int, help="Port number of --adapter.")
@click.option("--names", "node_names", type=EXISTING_PATH, help="File that maps GUIDs of switches to names.")
@click.option("--timeout", "timeout_seconds", type=options.Duration(), default="30s", help=TIMEOUT_HELP)
@click.option("--push", is_flag=True, help="Push the sweep to the hub instead of printing it.")
@click.option("--every", type=options.Duration(), help="With --push: repeat the sweep at this interval, such as 60s.")
@options.with_hub_and_json
@click.pass_context
def sweep(ctx: click.Context, /, hub: Client, push: bool, every: float | None, as_json: bool, **params: Any) -> None:
    """Sweep the fabric with infiniband-diags: switches, links, rates, errors, and the leaf of each host.

    Needs root and the package infiniband-diags. Exit codes: 0 no problem, 1 a link is slow or has errors, 3 the fabric
    cannot be read.
    """
    if every is not None and not push:
        raise click.UsageError("--every repeats until it is stopped: it needs --push")
    settings = fabric_sweep.SweepSettings(**params)
    # With --every, a failure is printed, and the sweep is repeated at the next interval.
    while every is not None:
        try:
            _push(hub, fabric_sweep.sweep(settings, at_ms=_now_ms()))
        except (CollectError, HubError) as error:
            click.echo(f"watchkeeper: {error}", err=True)
        time.sleep(every)
    try:
        snapshot = fabric_sweep.sweep(settings, at_ms=_now_ms())
    except CollectError as error:
        click.echo(f"watchkeeper: {error}", err=True)
        ctx.exit(options.EXIT_UNKNOWN)
    if push:
        _push(hub, snapshot)
        return
    topology = fabric.FabricTopology(snapshot)
    plain = {**wire.to_plain(snapshot), "leaf_of": topology.leaf_by_node()}
    options.print_result(plain, describe(topology), as_json=as_json)
    ctx.exit(1 if topology.slow_ports or any(_error_counters(port) for port in snapshot.ports) else 0)


def _push(hub: Client, snapshot: fabric.Fabric) -> None:
    answer = hub.push_sweep(wire.to_plain(snapshot))
    click.echo(f"pushed {len(snapshot.ports):,} ports, swept in {snapshot.seconds:g} s; {answer.changes} changes")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def describe(topology: fabric.FabricTopology) -> Iterator[str]:
    snapshot = topology.fabric
    switches, hosts = topology.switches(), {link.node for link in topology.host_links()}
    links = sum(1 for _ in topology.links())
    yield f"{len(switches)} switches, {len(hosts)} hosts, {links} links; swept in {snapshot.seconds:g} s"
    for problem in (*snapshot.problems, *snapshot.unread):
        yield f"incomplete: {problem}"
    for name in topology.shared_names():
        yield f"several switches have the name {name or '(no name)'}; only their GUIDs differ"
    if topology.unnamed_hosts():
        yield f"{len(topology.unnamed_hosts())} adapters have no host name yet: their nodes are unknown"
    problem_ports = [port for port in snapshot.ports if port.key in topology.slow_ports or _error_counters(port)]
    for port in problem_ports[:MAX_PORTS]:
        rate = f"slow: {port.gbps:g} Gb/s ({port.lanes}x {port.speed})" if port.key in topology.slow_ports else ""
        errors = ", ".join(f"{name} {value}" for name, value in _error_counters(port).items())
        peer = "" if port.peer is None else f" to {topology.device_name(port.peer[0])} port {port.peer[1]}"
        yield f"  {topology.device_name(port.guid)} port {port.number}{peer}: {'; '.join(filter(None, (rate, errors)))}"
    if len(problem_ports) > MAX_PORTS:
        yield f"  and {len(problem_ports) - MAX_PORTS} more ports; list all with --json"
    leaves: dict[str, list[str]] = {}
    for node, leaf in topology.leaf_by_node().items():
        leaves.setdefault(leaf, []).append(node)
    for leaf, nodes in sorted(leaves.items(), key=lambda item: fabric.natural_sort_key(item[0])):
        nodes.sort(key=fabric.natural_sort_key)
        more = f" … {nodes[-1]}" if len(nodes) > 4 else ""
        yield f"leaf {leaf}: {len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}, {', '.join(nodes[:4])}{more}"


def _error_counters(port: fabric.FabricPort) -> dict[str, int]:
    """Counters of errors that are not 0; traffic and wait counters are not errors."""
    ignored = ("Data", "Pkts", "Wait")
    return {name: value for name, value in (port.counters or {}).items() if value and not name.endswith(ignored)}
