"""`watchkeeper accuracy`: how often diagnosed causes were right, confirmed by people and in drills."""

from __future__ import annotations

import click

from watchkeeper.cli import options
from watchkeeper.client import answers
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire


@click.command("accuracy")
@options.with_hub_and_json
def command(hub: Client, as_json: bool) -> None:
    """Show for each cause how often people confirmed or corrected it, and how often drills found it.

    `watchkeeper incidents cause ID CAUSE` confirms the same cause and corrects another.
    `watchkeeper drill --tell` sends drill results to the hub.
    """
    drill_scores = {score.cause: score for score in hub.drill_accuracy()}
    scores = {score.cause: score for score in hub.accuracy()}
    for name in sorted(drill_scores.keys() - scores.keys()):
        scores[name] = answers.Accuracy(cause=name, diagnosed=0, judged=0, right=0, right_share=None, instead=())
    plain, rows = [], []
    for cause in scores.values():
        drills = drill_scores.get(cause.cause)
        plain.append({**wire.to_plain(cause), "drills": None if drills is None else drills.plain})
        share = "-" if cause.right_share is None else f"{cause.right_share:.0%}"
        scored = "-" if drills is None else f"{drills.right} of {drills.drills}"
        actual_causes = dict.fromkeys([*cause.instead, *(drills.instead if drills else ())])
        rows.append([cause.cause, str(cause.diagnosed), str(cause.judged), share, scored, ", ".join(actual_causes)])
    header = ["cause", "diagnosed", "judged", "right", "right in drills", "actual cause if wrong"]
    empty = "No diagnosed incidents and no drill results yet."
    options.print_rows(plain, header, rows, as_json=as_json, empty=empty)
