"""`watchkeeper accuracy`: how often the causes that the hub names are right, by the word of people and in drills."""

from __future__ import annotations

import click

from watchkeeper.cli import options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire


@click.command("accuracy")
@options.as_json
@options.with_hub
def command(hub: Client, as_json: bool) -> None:
    """Count for each cause how often a person confirmed or corrected it, and how often it was found in drills.

    `watchkeeper incidents cause ID CAUSE` says what it was; the same cause again says that it was right.
    `watchkeeper drill --tell` hands the score of a game day to the hub.
    """
    practised = {one.cause: one for one in hub.drill_accuracy()}
    judged = {one.cause: one for one in hub.accuracy()}
    found = [*judged.values(), *(_only_drilled(cause) for cause in sorted(practised.keys() - judged.keys()))]
    if as_json:
        drilled = [practised.get(one.cause) for one in found]
        options.print_json(
            [
                {**wire.to_plain(one), "drills": None if drills is None else drills.plain}
                for one, drills in zip(found, drilled, strict=True)
            ]
        )
        return
    if not found:
        click.echo("No incident has been diagnosed yet, and this hub was told of no drill.")
        return
    rows = []
    for one in found:
        drills = practised.get(one.cause)
        share = "-" if one.right_share is None else f"{one.right_share:.0%}"
        scored = "-" if drills is None else f"{drills.right} of {drills.drills}"
        instead = dict.fromkeys([*one.instead, *(drills.instead if drills else ())])
        rows.append([one.cause, str(one.diagnosed), str(one.judged), share, scored, ", ".join(instead)])
    options.print_table(["cause", "named", "judged", "right", "right in drills", "was instead"], rows)


def _only_drilled(cause: str) -> answers.Accuracy:
    """A cause that no incident has had."""
    return answers.Accuracy(cause=cause, diagnosed=0, judged=0, right=0, right_share=None, instead=())
