"""`watchkeeper sim`: the simulated fleet by itself, and faults while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import click

from watchkeeper.cli import groups, options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import durations


@click.group("sim", cls=groups.FullHelpGroup)
def command() -> None:
    """Run a simulated fleet, list what can go wrong in it, and make it go wrong."""


@command.command("list")
@options.as_json
def list_scenarios(as_json: bool) -> None:
    """The faults that are shipped, with the right answer to each."""
    from watchkeeper.kit import wire
    from watchkeeper.sim import scenario

    known = scenario.load_all()
    if as_json:
        options.print_json([wire.to_plain(one) for one in known.values()])
        return
    rows = [[one.name, one.truth.cause, one.truth.severity, one.title] for one in known.values()]
    options.print_table(["scenario", "cause", "severity", "what happens"], rows)


@command.command("inject")
@click.argument("fault")
@click.argument("place", metavar="[NODE[:GPU]]", required=False)
@options.as_json
@options.with_hub
def inject(hub: Client, fault: str, place: str | None, as_json: bool) -> None:
    """Make a fault happen now, on a node, on one GPU, or wherever the seed says.

    \b
    watchkeeper sim inject xid-79 gpu-r01-02:3
    """
    body: dict[str, object] = {"scenario": fault}
    if place:
        node, _, gpu = place.partition(":")
        if gpu and not gpu.isdigit():
            raise click.BadParameter(f"`{gpu}` is not a GPU's number; write {node}:3", param_hint="NODE[:GPU]")
        body |= {"node": node} | ({"gpu": int(gpu)} if gpu else {})
    answer = hub.inject(body)
    if as_json:
        options.print_json(answer.plain)
        return
    where = answer.node if answer.gpu is None else f"{answer.node}:{answer.gpu}"
    when = f" {begins}" if (begins := _begins(answer)) else ""
    click.echo(f"{answer.scenario} at {where}{when} (fault {answer.id}); the right cause is {answer.truth.cause}.")


@command.command("faults")
@options.as_json
@options.with_hub
def faults(hub: Client, as_json: bool) -> None:
    """What is broken on purpose now."""
    active = hub.faults()
    if as_json:
        options.print_json([one.plain for one in active])
    elif active:
        rows = [
            [one.id, one.scenario, one.node, "" if one.gpu is None else str(one.gpu), _begins(one)] for one in active
        ]
        options.print_table(["fault", "scenario", "node", "gpu", "begins"], rows)
    else:
        click.echo("Nothing is broken on purpose.")


def _begins(fault: answers.SimulatedFault) -> str:
    """When a fault begins that has not yet; empty for the others."""
    seconds = fault.strikes_in_seconds
    return f"in {durations.format_seconds(seconds)}" if seconds else ""


@command.command("end")
@click.argument("fault_id")
@options.with_hub
def end(hub: Client, fault_id: str) -> None:
    """End a fault as if it had been repaired."""
    hub.end_fault(fault_id)
    click.echo(f"Fault {fault_id} ended.")


@command.command("run")
@click.option(
    "--gpus",
    type=click.IntRange(1, 200_000),
    default=512,
    show_default=True,
    help="GPUs in the fleet, eight to a node.",
)
@click.option("--port", type=click.IntRange(0, 65_535), default=9481, help="Loopback port; 0 takes a free one.")
@click.option("--seed", type=int, default=1, help="The same seed gives the same fleet.")
@click.option("--speed", type=click.FloatRange(0.1, 1000), default=1.0, help="Simulated seconds per second.")
@click.option("--epoch", type=float, help="Seconds since 1970 from which a faster clock counts; now by default.")
@click.option("--scenario", "scenarios", multiple=True, help="A fault to start with; may be given several times.")
@click.option("--scenario-after", type=click.IntRange(0), default=0, help="Seconds until they start.")
@click.option("--announce", is_flag=True, help="Print the address only, and stop with standard input.")
def run(
    gpus: int,
    port: int,
    seed: int,
    speed: float,
    epoch: float | None,
    scenarios: tuple[str, ...],
    scenario_after: int,
    announce: bool,
) -> None:
    """Serve a simulated fleet on this machine until stopped."""
    from watchkeeper.cli import processes
    from watchkeeper.kit import logs, memory
    from watchkeeper.sim import server

    memory.release_eagerly()
    logs.configure(level="warning" if announce else "info")
    settings = server.SimSettings(
        gpus=gpus,
        port=port,
        seed=seed,
        speed=speed,
        epoch_seconds=epoch,
        scenarios=scenarios,
        scenarios_after_seconds=scenario_after,
    )
    with contextlib.closing(server.open_listener(settings)) as listener:
        # The socket queues connections from here on: whoever reads the address may use it at once.
        listener.listen()
        if announce:
            click.echo(f"http://{settings.host}:{listener.getsockname()[1]}")
        body = functools.partial(server.serve, settings, listener=listener)
        asyncio.run(processes.run_until_stopped(body, stop_with_input=announce))
