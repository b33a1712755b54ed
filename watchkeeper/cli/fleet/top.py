"""`watchkeeper top`: GPUs with their holders, programs and incidents, live on a terminal or once as a table."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.cli.fleet.top_rows import HEADER, SortColumn, TopPage, TopView, cells
from watchkeeper.errors import StartRefused

CANNOT_TELL = 3
MOST_LINES = 10_000
NONE_HERE = "No GPU can be seen on this node. Those of a hub: watchkeeper top --hub URL"


@click.command("top")
@options.hub_url("Show a whole hub, not this node.")
@options.token
@click.option(
    "-s",
    "--sort",
    type=click.Choice([one.value for one in SortColumn]),
    default=SortColumn.NAME.value,
    help="What to order by.",
)
@click.option("-r", "--reverse", "is_reversed", is_flag=True, help="The other way round.")
@click.option("-f", "--filter", "text", default="", help="Only rows with these words: node, model, holder, cause.")
@click.option("-d", "--delay", type=click.FloatRange(0.5, 3600), default=2.0, help="Seconds between readings.")
@click.option("-n", "--lines", type=click.IntRange(1, MOST_LINES), default=50, help="With --once: how many GPUs.")
@click.option("--once", is_flag=True, help="Print one table and end; also what a pipe gets.")
def command(
    hub_url: str | None,
    token: str | None,
    sort: str,
    is_reversed: bool,
    text: str,
    delay: float,
    lines: int,
    once: bool,
) -> None:
    """Show GPUs and who holds them, again and again.

    Without --hub these are the GPUs of this node, with the programs on them, their pods and jobs. With --hub it is the
    whole fleet, page by page, with its open incidents. Needs the extra `top` on a terminal; --once does without,
    and exits with 1 when something is wrong: a GPU that does not answer, or an open incident.
    """
    view = TopView(SortColumn(sort), is_reversed, text, limit=lines)
    with _source(hub_url, token, delay) as source:
        if once or not sys.stdout.isatty():
            page = source.read(view)
            _print(page, nobody="No GPU can be seen." if hub_url else NONE_HERE)
            is_blind = page.notes and not page.total
            sys.exit(CANNOT_TELL if is_blind else int(page.is_troubled))
        _screen()(source, view, interval_seconds=delay).run()


def _screen() -> Any:
    try:
        from watchkeeper.cli.fleet.top_screen import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        remedy = "Install it with: pip install 'watchkeeper[top]', or print one table with --once"
        raise StartRefused("the live screen needs the package textual", where="top", remedy=remedy) from error
    return Top


@contextlib.contextmanager
def _source(hub_url: str | None, token: str | None, delay: float) -> Iterator[Any]:
    from watchkeeper.cli.fleet import top_sources

    if hub_url:
        from watchkeeper.client.hub import Client

        yield top_sources.HubSource(Client(hub_url, token=token, access=options.certificates()))
        return
    from watchkeeper.agent import node_facts
    from watchkeeper.agent.gpus import scan_readings
    from watchkeeper.kit import clock, logs
    from watchkeeper.readers.nvml import choice

    logs.configure(level="critical")
    look = scan_readings.ReadingOptions(choice.choose_families(), interval_seconds=delay)
    with scan_readings.running_sampler(look, clock.ScaledClock()) as sampler:
        source = top_sources.LocalSource(sampler, node=os.uname().nodename, roots=node_facts.Roots())
        with contextlib.closing(source):
            yield source


def _print(page: TopPage, *, nobody: str) -> None:
    if page.rows:
        options.print_table(HEADER, [cells(row) for row in page.rows])
    if page.total > len(page.rows):
        click.echo(f"{len(page.rows):,} of {page.total:,} GPUs; more with --lines.")
    if page.programs:
        click.echo()
        shown = [
            (str(one.gpu), str(one.pid), one.user, one.command, one.workload or "–", _busy(one.busy_percent))
            for one in page.programs
        ]
        options.print_table(("GPU", "PID", "USER", "PROGRAM", "POD OR JOB", "BUSY"), shown)
    if page.incidents:
        click.echo()
        rows = [(one.severity, one.id, one.title, one.next_step) for one in page.incidents]
        options.print_table(("SEVERITY", "INCIDENT", "WHAT", "NEXT STEP"), rows)
    for note in page.notes:
        click.echo(note, err=True)
    if not page.rows:
        click.echo("No GPU fits." if page.total or not page.notes else nobody, err=True)


def _busy(percent: int | None) -> str:
    return "–" if percent is None else f"{percent}%"
