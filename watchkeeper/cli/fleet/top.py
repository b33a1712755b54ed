"""`watchkeeper top`: GPUs with holders, programs and incidents, live on a terminal or once as a table."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.cli.fleet.top_rows import HEADER, SortColumn, TopPage, TopView, format_cells
from watchkeeper.errors import StartRefused

MAX_LINES = 10_000
SORT_COLUMNS, SORT_HELP = list(map(str, SortColumn)), "Column to sort by; numbers are sorted largest first."
NO_LOCAL_GPU = "No GPU on this node. For the GPUs of a hub: watchkeeper top --hub URL"


@click.command("top")
@options.hub_url("Show the fleet of this hub instead of this node.")
@options.token
@click.option("-s", "--sort", type=click.Choice(SORT_COLUMNS), default=SORT_COLUMNS[0], help=SORT_HELP)
@click.option("-r", "--reverse", "is_reversed", is_flag=True, help="Reverse the sort order.")
@click.option(
    "-f", "--filter", "text", default="", help="Show only rows with all these words in node, model, holder or cause."
)
@click.option("-d", "--delay", type=click.FloatRange(0.5, 3600), default=2.0, help="Seconds between refreshes.")
@click.option(
    "-n", "--lines", "limit", type=click.IntRange(1, MAX_LINES), default=50, help="With --once: print this many GPUs."
)
@click.option("--once", is_flag=True, help="Print one table and exit; the default in a pipe.")
def command(hub_url: str | None, token: str | None, sort: str, delay: float, once: bool, **view_params: Any) -> None:
    """Show GPUs and the workloads that use them, live.

    Without --hub, shows the GPUs of this node with their programs, pods and jobs. With --hub, shows the fleet page by
    page, with open incidents. The live screen needs the extra `top`; --once does not. With --once, exit code 1 if a GPU
    does not answer or an incident is open.
    """
    view = TopView(SortColumn(sort), **view_params)
    with _open_source(hub_url, token, delay) as source:
        if once or not sys.stdout.isatty():
            page = source.read(view)
            _print_page(page, no_gpu_text="The hub reports no GPU." if hub_url else NO_LOCAL_GPU)
            is_unknown = page.notes and not page.total
            sys.exit(options.EXIT_UNKNOWN if is_unknown else int(page.has_problem))
        _import_screen()(source, view, interval_seconds=delay).run()


def _import_screen() -> Any:
    try:
        from watchkeeper.cli.fleet.top_screen import TopApp
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        remedy = "Install it: pip install 'watchkeeper[top]', or print one table with --once"
        raise StartRefused("the live screen needs the package textual", where="top", remedy=remedy) from error
    return TopApp


@contextlib.contextmanager
def _open_source(hub_url: str | None, token: str | None, delay: float) -> Iterator[Any]:
    from watchkeeper.cli.fleet import top_sources

    if hub_url:
        from watchkeeper.client.hub import Client

        yield top_sources.HubSource(Client(hub_url, token=token, access=options.client_certificates()))
        return
    from watchkeeper.agent import node_facts
    from watchkeeper.agent.gpus import scan_readings
    from watchkeeper.kit import clock, logs
    from watchkeeper.readers.nvml import choice

    logs.configure(level="critical")
    reading = scan_readings.ReadingOptions(choice.choose_families(), interval_seconds=delay)
    with scan_readings.running_sampler(reading, clock.ScaledClock()) as sampler:
        source = top_sources.LocalSource(sampler, node=os.uname().nodename, roots=node_facts.Roots())
        with contextlib.closing(source):
            yield source


def _print_page(page: TopPage, *, no_gpu_text: str) -> None:
    if page.rows:
        options.print_table(HEADER, [format_cells(row) for row in page.rows])
    if page.total > len(page.rows):
        click.echo(f"{len(page.rows):,} of {page.total:,} GPUs; show more with --lines.")
    if page.counts:
        click.echo(page.counts)
    if page.programs:
        click.echo()
        program_rows = []
        for program in page.programs:
            busy = "–" if program.busy_percent is None else f"{program.busy_percent}%"
            who = (program.user, program.command, program.workload or "–")
            program_rows.append((str(program.gpu), str(program.pid), *who, busy))
        options.print_table(("GPU", "PID", "USER", "PROGRAM", "POD OR JOB", "BUSY"), program_rows)
    if page.incidents:
        click.echo()
        rows = [(card.severity.value, card.id, card.title, card.next_step or "") for card in page.incidents]
        options.print_table(("SEVERITY", "INCIDENT", "WHAT", "NEXT STEP"), rows)
    for note in page.notes:
        click.echo(note, err=True)
    if not page.rows:
        click.echo("No GPU matches." if page.total or not page.notes else no_gpu_text, err=True)
