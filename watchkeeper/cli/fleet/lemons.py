"""`watchkeeper lemons`: nodes with repeated hardware faults or growing error counters, highest hazard first."""

from __future__ import annotations

import click

from watchkeeper.cli import options
from watchkeeper.client.hub import Client


@click.command("lemons")
@click.option("--days", type=click.IntRange(1, 366), default=90, help="Count the faults of this many days.")
@options.with_hub_and_json
def command(hub: Client, days: int, as_json: bool) -> None:
    """Rank nodes by repeated hardware faults, relative to the whole fleet, and by growing error counters.

    A lemon has more faults than chance explains, corrected for the size of the fleet. Exit code 1 if there is one.
    """
    answer = hub.lemons(days=days)
    nodes = answer.lemons
    if as_json:
        options.print_json({name: answer.plain[name] for name in ("since", "lemons", "left_out", "unmapped", "unseen")})
    elif nodes:
        rows = []
        for node in nodes:
            hazard = [str(node.faults), f"{node.times_fleet:.1f}×", ", ".join(node.reasons)]
            rows.append([node.name, "lemon" * node.is_lemon, *hazard])
        click.echo(f"Since {answer.since:%Y-%m-%d}; hazard is relative to the whole fleet.")
        options.print_table(["node", "", "faults", "hazard", "why"], rows)
    else:
        click.echo(f"No node had a hardware fault in {days} days, and no error counter grows.")
    if not as_json:
        for line in options.unmapped_lines(answer.unmapped):
            click.echo(line)
    for gap in answer.unseen:
        click.echo(f"no data: {gap}", err=True)
    if any(node.is_lemon for node in nodes):
        click.get_current_context().exit(1)
