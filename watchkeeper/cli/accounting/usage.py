"""`watchkeeper usage`: who held which GPUs, what they did with them, and what was idle, lost or unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from watchkeeper.cli import options, tables, times
from watchkeeper.cli.accounting.capacity import FiniteNumber, NameValuePair, read_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire
from watchkeeper.model import fleet

BY = ("team", "project", "namespace", "user", "job", "model", "node", "pool", "cluster", "kind")
HOURS = ("total", "allocated", "used", "wasted", "idle", "lost", "unknown")


class TimeZone(click.ParamType[ZoneInfo]):
    """`Europe/Berlin`."""

    name = "ZONE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(str(value))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"`{str(value)[:40]}` is no time zone such as Europe/Berlin", param, ctx)


def _once(ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> Any:
    """Nothing is of two teams at once, and one of the two would be left out silently."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise click.BadParameter(f"{twice[:40]} is asked for twice; ask for one at a time", ctx, param)
    return pairs


def with_window(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that say which hours: a window, a zone, a part, or a table of jobs instead of a hub."""
    for option in (
        click.option(
            "--from", "since", metavar="TIME", help="Begin; without it, a day ago, or where the table begins."
        ),
        click.option("--to", "until", metavar="TIME", help="End; without it, now, or where the table ends."),
        click.option("--zone", type=TimeZone(), default="UTC", help="Time zone of days, and of times without one."),
        click.option(
            "--of", "of", type=NameValuePair(), multiple=True, callback=_once, help="Only these, such as team=vision."
        ),
        click.option(
            "--jobs",
            "jobs_path",
            type=options.FILE,
            metavar="FILE",
            help="A table of jobs (sacct, CSV) instead of a hub.",
        ),
        click.option("--gpus", type=FiniteNumber(0, fleet.MOST_GPUS), help="With --jobs: how many GPUs there are."),
        click.option("--model", default="", help="With --jobs: the GPU of jobs that name none."),
        click.option(
            "--column", "columns", type=NameValuePair(), multiple=True, help="With --jobs: a column, as team=account."
        ),
    ):
        command = option(command)
    return command


@click.command("usage")
@click.option("--by", type=click.Choice(BY), multiple=True, help="One line each; repeatable.  [default: team]")
@with_window
@options.as_json
@options.with_hub
def command(hub: Client, by: tuple[str, ...], as_json: bool, **window: Any) -> None:
    """Who held which GPUs, what they did with them, and what was idle, lost or unknown, in GPU-hours.

    Every number can be looked into: `--of team=vision` lists the jobs behind a line. Without a hub:

    \b
    sacct -aDPX -S 2026-11-01 -o JobID,User,Account,Partition,Start,End,AllocTRES > jobs.csv
    watchkeeper usage --jobs jobs.csv
    """
    chosen = lines_by(by, window)
    if window["jobs_path"]:
        from watchkeeper.accounting import summary

        found = summary.usage_report(job_tables(window)[0], chosen, of=dict(window["of"]))
        answer = reading.read_answer(answers.UsageReport, wire.to_plain(found))
    else:
        answer = hub.usage(by=list(chosen), **query_params(window, hub))
    if as_json:
        options.print_json(options.fields(answer))
    else:
        _show(answer)


def lines_by(by: Sequence[str], window: Mapping[str, Any]) -> tuple[str, ...]:
    """What a report has a line for: what was asked for, or the jobs behind a line, or teams."""
    return tuple(dict.fromkeys(by)) or (("job",) if window["of"] else ("team",))


def query_params(window: Mapping[str, Any], hub: Client) -> dict[str, Any]:
    """The window as the hub is asked for it."""
    since, until = times.window(local(window["since"] or "-1d", window), local(window["until"] or "now", window), hub)
    return {
        "since": times.seconds(since),
        "until": times.seconds(until),
        "of": [f"{name}={value}" for name, value in window["of"]],
    }


def local(text: str, window: Mapping[str, Any]) -> str:
    """A time without a zone is in the zone that was chosen."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if at.tzinfo is not None else at.replace(tzinfo=window["zone"]).astimezone(UTC).isoformat()


def job_tables(window: Mapping[str, Any], book: Any = None) -> list[Any]:
    """Usage out of a table of jobs, cut where a price begins; lines that could not be used are said on stderr."""
    from watchkeeper.accounting import job_files

    path = window["jobs_path"]
    found = job_files.read_job_table(
        read_text(path), where=path, zone=window["zone"], told=dict(window["columns"]), model=window["model"]
    )
    for line in found.problems.lines():
        click.echo(line, err=True)
    now = datetime.now(UTC)
    since = times.read(local(window["since"], window), now).timestamp() if window["since"] else found.since
    until = times.read(local(window["until"], window), now).timestamp() if window["until"] else found.until
    # What is still to come of a month nobody has held yet, and nobody has left idle.
    until = min(until, max(now.timestamp(), found.until))
    if not since < until:
        begin, end = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}" for at in (since, until))
        raise click.UsageError(f"--from ({begin}) must be before --to ({end})")
    stretches = [(since, until)] if book is None else book.price_periods(since, until)
    return [
        job_files.job_hours(found, since=start, until=end, capacity=window["gpus"], model=window["model"])
        for start, end in stretches
    ]


def _show(answer: answers.UsageReport) -> None:
    click.echo(f"{format_window(answer)}; GPU-hours")
    lines = answer.lines
    # A column that is nought throughout is left out, but never one that says what is not known.
    parts = [
        name for name in HOURS if name == "unknown" or any(attrgetter(name)(line) for line in (*lines, answer.total))
    ]
    if any(line.unmeasured for line in lines):
        parts.insert(parts.index("allocated") + 1, "unmeasured")
    has_energy = any(line.kwh for line in lines)
    header = [*answer.by, *parts, "use", *(["kWh"] if has_energy else [])]
    rows = [[*line_labels(line, answer.by), *_cells(line, parts, has_energy=has_energy)] for line in lines]
    rows.append(["total", *[""] * (len(answer.by) - 1), *_cells(answer.total, parts, has_energy=has_energy)])
    print_numbers(header, rows, names=len(answer.by))
    notes(answer.notes)


def line_labels(line: answers.UsageLine | answers.CostLine, by: Sequence[str]) -> list[str]:
    """What a line is about: its team, job or node."""
    return [attrgetter(name)(line) for name in by]


def _cells(line: answers.UsageLine | answers.HourAmounts, parts: Sequence[str], *, has_energy: bool) -> list[str]:
    measured = line.allocated - line.unmeasured
    use = f"{line.used / measured:.0%}" if measured > 0 else "-"
    return [*(f"{attrgetter(name)(line):,.1f}" for name in parts), use, *([f"{line.kwh:,.1f}"] if has_energy else [])]


def print_numbers(header: Sequence[str], rows: Sequence[Sequence[str]], *, names: int) -> None:
    """A table whose first columns are names and whose others are numbers, aligned where numbers are compared."""
    tables.print_table(header, rows, names=names)


def notes(said: Sequence[str], *, err: bool = False) -> None:
    for note in said:
        click.echo(f"note: {note}", err=err)


def format_window(answer: answers.UsageReport | answers.CostReport) -> str:
    since, until = (datetime.fromtimestamp(at, UTC) for at in (answer.since, answer.until))
    return f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC ({(until - since).total_seconds() / 3600:,.1f} h)"
