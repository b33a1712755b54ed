"""`watchkeeper usage`: GPU-hours by owner: allocated, used, wasted, idle, lost and unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from watchkeeper.cli import options, terminal, times
from watchkeeper.cli.accounting.capacity import GPU_COUNT, pairs_option, read_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.kit import wire

GROUPINGS = ("team", "project", "namespace", "user", "job", "model", "node", "pool", "cluster", "kind")
HOUR_COLUMNS = ("total", "allocated", "used", "wasted", "idle", "lost", "unknown")


class TimeZone(click.ParamType[ZoneInfo]):
    name = "ZONE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        if isinstance(value, ZoneInfo):
            return value
        try:
            return ZoneInfo(str(value))
        except (ZoneInfoNotFoundError, ValueError, OSError):
            self.fail(f"`{str(value)[:40]}` is not a time zone such as Europe/Berlin", param, ctx)


def _refuse_repeated_names(ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> Any:
    """Refuse a name that is given twice: one of its values would be ignored."""
    names = [name for name, _ in pairs]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise click.BadParameter(f"{repeated[:40]} is given twice; give it once", ctx, param)
    return pairs


# Options that select GPU-hours: window, time zone, filter, or a table of jobs instead of a hub.
with_window = options.option_group(
    click.option(
        "--from", "since", metavar="TIME", help="Start.  [default: 1 day ago, or the start of the --jobs table]"
    ),
    click.option("--to", "until", metavar="TIME", help="End.  [default: now, or the end of the --jobs table]"),
    click.option("--zone", type=TimeZone(), default="UTC", help="Time zone of days and of times without a zone."),
    pairs_option("--of", callback=_refuse_repeated_names, help="Count only this, for example team=vision; repeatable."),
    options.file_option("--jobs", "jobs_path", help="Read jobs from this table (sacct or CSV) instead of a hub."),
    click.option("--gpus", type=GPU_COUNT, help="With --jobs: number of GPUs in the fleet."),
    click.option("--model", default="", help="With --jobs: GPU model of jobs that name none."),
    pairs_option("--column", help="With --jobs: the column of a field, for example team=account; repeatable."),
)
by_option = click.option(
    "--by", type=click.Choice(GROUPINGS), multiple=True, help="Group by this; repeatable.  [default: team]"
)


@click.command("usage")
@by_option
@with_window
@options.with_hub_and_json
def command(hub: Client, by: tuple[str, ...], as_json: bool, **params: Any) -> None:
    """Report GPU-hours by owner: allocated, used, wasted, idle, lost and unknown.

    `--of team=vision` lists the jobs of one team. Without a hub:

    \b
    sacct -aDPX -S 2026-11-01 -o JobID,User,Account,Partition,Start,End,AllocTRES > jobs.csv
    watchkeeper usage --jobs jobs.csv
    """
    grouping = choose_grouping(by, params)
    if params["jobs_path"]:
        from watchkeeper.accounting import summary

        report = summary.usage_report(read_job_hours(params)[0], grouping, filters=dict(params["of"]))
        answer = reading.read_answer(answers.UsageReport, wire.to_plain(report))
    else:
        answer = hub.usage(by=list(grouping), **query_params(params, hub))
    if as_json:
        options.print_json(options.answer_fields(answer))
    else:
        _print_report(answer)


def choose_grouping(by: Sequence[str], params: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns to group by: those of --by, else jobs for a filtered report, else teams."""
    return tuple(dict.fromkeys(by)) or (("job",) if params["of"] else ("team",))


def query_params(params: Mapping[str, Any], hub: Client) -> dict[str, Any]:
    start, end = add_zone(params["since"] or "-1d", params), add_zone(params["until"] or "now", params)
    since, until = times.parse_window(start, end, hub)
    filters = [f"{name}={value}" for name, value in params["of"]]
    return {"since": times.seconds(since), "until": times.seconds(until), "of": filters}


def add_zone(text: str, params: Mapping[str, Any]) -> str:
    """Add the time zone of --zone to a time that has none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if at.tzinfo is not None else at.replace(tzinfo=params["zone"]).astimezone(UTC).isoformat()


def read_job_hours(params: Mapping[str, Any], book: Any = None) -> list[Any]:
    """The usage in a table of jobs, split where a price changes; problems of the table go to stderr."""
    from watchkeeper.accounting import job_files

    path = params["jobs_path"]
    table = job_files.read_job_table(
        read_text(path), where=path, zone=params["zone"], column_overrides=dict(params["column"]), model=params["model"]
    )
    for line in table.problems.lines():
        click.echo(line, err=True)
    now = datetime.now(UTC)
    since = times.parse(add_zone(params["since"], params), now).timestamp() if params["since"] else table.since
    until = times.parse(add_zone(params["until"], params), now).timestamp() if params["until"] else table.until
    # The rest of the current month is neither allocated nor idle yet.
    until = min(until, max(now.timestamp(), table.until))
    times.check_order(datetime.fromtimestamp(since, UTC), datetime.fromtimestamp(until, UTC))
    periods = [(since, until)] if book is None else book.price_periods(since, until)
    return [
        job_files.sum_job_hours(table, since=start, until=end, capacity=params["gpus"], model=params["model"])
        for start, end in periods
    ]


def _print_report(answer: answers.UsageReport) -> None:
    click.echo(f"{format_window(answer)}; GPU-hours")
    lines = answer.lines
    amounts = (*lines, answer.total)
    # A column of zeros is omitted, except `unknown`.
    columns = [name for name in HOUR_COLUMNS if name == "unknown" or any(map(attrgetter(name), amounts))]
    if any(line.unmeasured for line in lines):
        columns.insert(columns.index("allocated") + 1, "unmeasured")
    has_energy = any(line.kwh for line in lines)
    header = [*answer.by, *columns, "use", *(["kWh"] if has_energy else [])]
    rows = [[*line_labels(line, answer.by), *_format_cells(line, columns, has_energy=has_energy)] for line in lines]
    rows.append(["total", *[""] * (len(answer.by) - 1), *_format_cells(answer.total, columns, has_energy=has_energy)])
    terminal.print_table(header, rows, names=len(answer.by))
    print_notes(answer.notes)


def line_labels(line: answers.UsageLine | answers.CostLine, by: Sequence[str]) -> list[str]:
    return [attrgetter(name)(line) for name in by]


def _format_cells(
    line: answers.UsageLine | answers.HourAmounts, columns: Sequence[str], *, has_energy: bool
) -> list[str]:
    measured = line.allocated - line.unmeasured
    use = f"{line.used / measured:.0%}" if measured > 0 else "-"
    return [*(f"{attrgetter(name)(line):,.1f}" for name in columns), use, *([f"{line.kwh:,.1f}"] if has_energy else [])]


def print_notes(notes: Sequence[str], *, err: bool = False) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=err)


def format_window(answer: answers.UsageReport | answers.CostReport) -> str:
    since, until = (datetime.fromtimestamp(at, UTC) for at in (answer.since, answer.until))
    return f"{since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC ({(until - since).total_seconds() / 3600:,.1f} h)"
