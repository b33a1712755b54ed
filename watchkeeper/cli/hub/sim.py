"""`watchkeeper sim`: run a simulated fleet, list scenarios, inject and end faults."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import durations

AFTER_HELP = "Seconds until --scenario faults begin."


@click.group("sim", cls=options.FullHelpGroup)
def command() -> None:
    """Run a simulated fleet, list its fault scenarios, and inject faults."""


@command.command("list")
@options.as_json
def list_scenarios(as_json: bool) -> None:
    """List the fault scenarios with the cause that the hub should diagnose.

    Further scenarios are `xid-CODE`, for each code of `watchkeeper explain xid CODE`.
    """
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    scenarios = scenario.load_scenarios().values()
    rows = [[entry.name, entry.truth.cause, entry.truth.severity, entry.title] for entry in scenarios]
    header = ["scenario", "cause", "severity", "what happens"]
    options.print_rows([wire.to_plain(entry) for entry in scenarios], header, rows, as_json=as_json)


@command.command("inject")
@click.argument("fault")
@click.argument("place", metavar="[NODE[:GPU]]", required=False)
@options.with_hub_and_json
def inject(hub: Client, fault: str, place: str | None, as_json: bool) -> None:
    """Inject FAULT into a simulated fleet now: on a node, on one GPU, or at a place that the seed selects.

    \b
    watchkeeper sim inject xid-79 gpu-r01-02:3
    """
    body: dict[str, object] = {"scenario": fault}
    if place:
        node, _, gpu = place.partition(":")
        if gpu and not gpu.isdigit():
            raise click.BadParameter(f"`{gpu}` is not the index of a GPU; write {node}:3", param_hint="NODE[:GPU]")
        body |= {"node": node} | ({"gpu": int(gpu)} if gpu else {})
    answer = hub.inject(body)
    place = answer.node if answer.gpu is None else f"{answer.node}:{answer.gpu}"
    start_text = f" {begins}" if (begins := _format_start(answer)) else ""
    about = f"{answer.scenario} at {place}{start_text} (fault {answer.id})"
    options.print_result(answer.plain, [f"{about}; expected cause: {answer.truth.cause}."], as_json=as_json)


@command.command("faults")
@options.with_hub_and_json
def faults(hub: Client, as_json: bool) -> None:
    """List the injected faults that are active."""
    active = hub.faults()
    rows = [
        [fault.id, fault.scenario, fault.node, "" if fault.gpu is None else str(fault.gpu), _format_start(fault)]
        for fault in active
    ]
    header = ["fault", "scenario", "node", "gpu", "begins"]
    options.print_rows([fault.plain for fault in active], header, rows, as_json=as_json, empty="No injected faults.")


def _format_start(fault: answers.SimulatedFault) -> str:
    """When a fault will begin; empty if it has begun."""
    seconds = fault.strikes_in_seconds
    return f"in {durations.format_seconds(seconds)}" if seconds else ""


@command.command("end")
@click.argument("fault_id")
@options.with_hub
def end(hub: Client, fault_id: str) -> None:
    """End an injected fault as if it had been repaired."""
    hub.end_fault(fault_id)
    click.echo(f"Fault {fault_id} ended.")


@command.command("run")
@options.gpu_count
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=9481, help="Port on the loopback address; 0 selects a free port."
)
@options.seed
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1.0, help="Simulated seconds per second.")
@click.option(
    "--epoch", "epoch_seconds", type=float, help="Start of the simulated clock, seconds since 1970.  [default: now]"
)
@click.option("--scenario", "scenarios", multiple=True, help="Inject this fault at the start; repeatable.")
@click.option("--scenario-after", "scenarios_after_seconds", type=click.IntRange(0), default=0, help=AFTER_HELP)
@click.option("--announce", is_flag=True, help="Print only the URL, and stop at the end of standard input.")
def run(announce: bool, **params: Any) -> None:
    """Serve a simulated fleet on this machine until stopped."""
    from watchkeeper.cli import processes
    from watchkeeper.kit import logs, memory
    from watchkeeper.sim import server

    memory.release_eagerly()
    logs.configure(level="warning" if announce else "info")
    settings = server.SimSettings(**params)
    with contextlib.closing(server.open_listener(settings)) as listener:
        # The socket queues connections from here on, so the printed URL can be used at once.
        listener.listen()
        if announce:
            click.echo(f"http://{settings.host}:{listener.getsockname()[1]}")
        body = functools.partial(server.serve, settings, listener=listener)
        asyncio.run(processes.run_until_stopped(body, stop_with_input=announce))
