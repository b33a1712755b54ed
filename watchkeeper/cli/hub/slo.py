"""`watchkeeper slo`: list SLOs with error budget left and burn rates."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

UNKNOWN = "unknown"
# States with exit code 1. Unknown is not one of them: no one can act on it.
PROBLEM_STATES = frozenset({"burning_fast", "burning", "spent"})


@click.command("slo")
@options.with_hub_and_json
def command(hub: Client, as_json: bool) -> None:
    """List service level objectives: indicator now, goal, error budget left, and burn rates.

    A burn rate of 1 uses up the error budget exactly at the end of its window; each burn column shows the rate over
    that time. Exit code 1 if an error budget is spent or burns too fast.
    """
    slos = hub.slos()
    if as_json:
        options.print_json([slo.plain for slo in slos])
    elif slos:
        burns = [f"burn {burn.window}" for burn in slos[0].burn_rates]
        header = ["objective", "about", "now", "goal", "budget left", *burns, "state"]
        options.print_table(header, [_format_row(slo) for slo in slos])
        partly_covered = {slo.name: slo for slo in slos if slo.covered not in (None, slo.window)}
        for slo in partly_covered.values():
            click.echo(f"{slo.name}: the samples cover {slo.covered} of its window of {slo.window}")
    else:
        click.echo("This hub has no SLOs. Set [rules] slos, or use the shipped SLOs.")
    if any(slo.state in PROBLEM_STATES for slo in slos):
        raise SystemExit(1)


def _format_row(slo: answers.SloStatus) -> list[str]:
    since = f" since {times.utc(slo.since)}" if slo.since else ""
    incidents = f" {', '.join(slo.incidents)}" if slo.incidents else ""
    shares = ((slo.indicator, 3), (slo.objective, 3), (slo.left, 1))
    return [
        slo.name,
        ", ".join(slo.labels.values()) or "no samples",
        *(UNKNOWN if share is None else f"{100 * share:.{digits}f} %" for share, digits in shares),
        *(UNKNOWN if burn.rate is None else f"{burn.rate:.3g}" for burn in slo.burn_rates),
        slo.state.replace("_", " ") + since + incidents,
    ]
