"""`watchkeeper accuracy`: how often the causes that the hub names are right, by the word of those who looked."""

from __future__ import annotations

import click

from watchkeeper.cli import options
from watchkeeper.client.hub import HubClient


@click.command("accuracy")
@options.as_json
@options.with_hub
def command(hub: HubClient, as_json: bool) -> None:
    """Count for each cause how often a person confirmed or corrected it.

    `watchkeeper incidents cause ID CAUSE` says what it was; the same cause again says that it was right.
    """
    found = hub.accuracy()
    if as_json:
        options.print_json(found)
        return
    if not found:
        click.echo("No incident has been diagnosed yet.")
        return
    rows = [
        [
            one["cause"],
            str(one["diagnosed"]),
            str(one["judged"]),
            "-" if one["right_share"] is None else f"{one['right_share']:.0%}",
            ", ".join(one["instead"]),
        ]
        for one in found
    ]
    options.print_table(["cause", "named", "judged", "right", "was instead"], rows)
