"""`watchkeeper lemons`: nodes that break again and again, or are on their way there, the most hazardous first."""

from __future__ import annotations

import click

from watchkeeper.cli import options
from watchkeeper.client.hub import Client


@click.command("lemons")
@click.option("--days", type=click.IntRange(1, 366), default=90, show_default=True, help="How far back.")
@options.as_json
@options.with_hub
def command(hub: Client, days: int, as_json: bool) -> None:
    """Rank nodes by how often they break, against the whole fleet, and by counters that grow.

    A node is called a lemon when so many faults are no luck, even with the whole fleet looked at.
    Exits with 1 when there is one.
    """
    answer = hub.lemons(days=days)
    found = answer.lemons
    if as_json:
        options.print_json({name: answer.plain[name] for name in ("since", "lemons", "left_out", "unmapped", "unseen")})
    elif found:
        rows = [
            [
                one.name,
                "lemon" if one.is_lemon else "",
                str(one.faults),
                f"{one.times_fleet:.1f}×",
                ", ".join(one.reasons),
            ]
            for one in found
        ]
        click.echo(f"Since {answer.since:%Y-%m-%d}; the hazard is against the whole fleet's.")
        options.print_table(["node", "", "faults", "hazard", "why"], rows)
    else:
        click.echo(f"No node had a hardware fault in {days} days, and no counter grows.")
    if not as_json:
        for line in options.unmapped(answer.unmapped):
            click.echo(line)
    for gap in answer.unseen:
        click.echo(f"not seen: {gap}", err=True)
    if any(one.is_lemon for one in found):
        click.get_current_context().exit(1)
