"""`watchkeeper slo`: what is left of each error budget, and how fast it burns."""

from __future__ import annotations

import click

from watchkeeper.cli import options, times
from watchkeeper.client import answers
from watchkeeper.client.hub import Client

UNKNOWN = "unknown"
# Worth an exit code other than 0; what is unknown is not fine either, but nobody can act on it.
TROUBLE = frozenset({"burning_fast", "burning", "spent"})


@click.command("slo")
@options.as_json
@options.with_hub
def command(hub: Client, as_json: bool) -> None:
    """List the service level objectives: how well each is kept now, what is left of its budget, how fast it burns.

    A burn rate of 1 uses up the budget exactly by the end of its window; each column shows the rate over that window.
    Exits with 1 when a budget is spent or burns too fast.
    """
    slos = hub.slos()
    if as_json:
        options.print_json([one.plain for one in slos])
    elif slos:
        windows = [burn.window for burn in slos[0].burn_rates]
        header = ["objective", "about", "now", "goal", "budget left", *(f"burn {one}" for one in windows), "state"]
        options.print_table(header, [_row(one) for one in slos])
        short = {one.name: one for one in slos if one.covered not in (None, one.window)}
        for one in short.values():
            click.echo(f"{one.name}: samples reach back {one.covered} of its window of {one.window}")
    else:
        click.echo("This hub has no objectives. Set [rules] slos, or use the shipped ones.")
    if any(one.state in TROUBLE for one in slos):
        raise SystemExit(1)


def _row(one: answers.SloStatus) -> list[str]:
    since = f" since {times.utc(one.since)}" if one.since else ""
    told = f" {', '.join(one.incidents)}" if one.incidents else ""
    return [
        one.name,
        ", ".join(one.labels.values()) or "no samples",
        _share(one.indicator, digits=3),
        _share(one.objective, digits=3),
        _share(one.left, digits=1),
        *(UNKNOWN if burn.rate is None else f"{burn.rate:.3g}" for burn in one.burn_rates),
        one.state.replace("_", " ") + since + told,
    ]


def _share(value: float | None, *, digits: int) -> str:
    return UNKNOWN if value is None else f"{100 * value:.{digits}f} %"
