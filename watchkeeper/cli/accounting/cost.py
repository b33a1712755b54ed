"""`watchkeeper cost`: what GPUs cost whom: reports, monthly statements and budgets, from a hub or a table of jobs."""

from __future__ import annotations

import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import groups, options
from watchkeeper.cli.accounting import usage
from watchkeeper.cli.accounting.capacity import read_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import CollectError, error_reason
from watchkeeper.kit import files, wire

POLICIES = ("none", "use", "allocation", "even")
FORMS = ("table", "csv", "json", "html", "parquet")
# Tables of numbers, without who wastes what; what is excluded from them is said beside them.
NUMBERS_ALONE = frozenset({"csv", "parquet"})
# Every job of a year is millions of names; a month of them takes a second on ten thousand GPUs.
LONGEST_WASTE_SECONDS = 35 * 86_400.0
TROUBLE = frozenset({"over", "will_be_over"})
policy_option = click.option(
    "--policy", type=click.Choice(POLICIES), default="none", help="Split of idle GPUs and overhead; none is showback."
)
prices_option = click.option(
    "--prices", "prices_path", type=options.FILE, metavar="FILE", help="With --jobs: a price book; TOML or CSV."
)


@click.group("cost", cls=groups.FullHelpGroup)
def command() -> None:
    """What GPUs cost whom: reports, monthly statements and budgets."""


@command.command("report")
@click.option("--by", type=click.Choice(usage.BY), multiple=True, help="One line each; repeatable.  [default: team]")
@click.option("--format", "form", type=click.Choice(FORMS), default="table")
@click.option("--output", "-o", metavar="FILE", help="Write here instead of to the standard output.")
@options.force
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@policy_option
@prices_option
@usage.with_window
@options.with_hub
def report(
    hub: Client, by: tuple[str, ...], form: str, output: str | None, force: bool, as_json: bool, **asked: Any
) -> None:
    """Cost by team, job or anything else, with hours, energy and what nobody used.

    `--of team=vision` lists the jobs behind a line. `--policy allocation` makes a showback a chargeback.
    """
    chosen = usage.lines_by(by, asked)
    form = "json" if as_json else form
    if output and form == "table":
        raise click.UsageError("--output is for a file of another form: add --format csv, json, html or parquet")
    if output:
        options.refuse_to_replace(Path(output), force=force)
    asked["read"] = _read(asked)
    found = _ask(hub, chosen, asked)
    waste: tuple[answers.WastedHours, ...] = ()
    if form not in NUMBERS_ALONE:
        found, waste = _with_waste(hub, found, asked)
    if form == "table":
        _show(found, waste)
        return
    content = _written(found, waste, form=form, asked=asked)
    if form == "parquet" and not output and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal: add -o FILE")
    if form in NUMBERS_ALONE:
        usage.notes(found.notes, err=True)
    if output:
        _write(Path(output), content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def _ask(hub: Client, by: tuple[str, ...], asked: Mapping[str, Any]) -> answers.CostReport:
    if asked["read"]:
        from watchkeeper.accounting import cost

        viewed = cost.report_as_json(cost.report_bill(asked["read"], by, of=dict(asked["of"])))
        return reading.read_answer(answers.CostReport, wire.to_plain(viewed))
    return hub.cost(by=list(by), policy=asked["policy"], **usage.query_params(asked, hub))


def _with_waste(
    hub: Client, found: answers.CostReport, asked: Mapping[str, Any]
) -> tuple[answers.CostReport, tuple[answers.WastedHours, ...]]:
    """Who holds what and does not use it; the bill says so where the time is too long to look at every job."""
    if asked["read"]:
        from watchkeeper.accounting import summary, waste

        rows = summary.matching_rows(asked["read"].table, dict(asked["of"]))
        wasted = wire.to_plain(waste.wasted_by_owner(asked["read"], rows))
        return found, reading.read_answer(tuple[answers.WastedHours, ...], wasted)
    if found.until - found.since > LONGEST_WASTE_SECONDS:
        notes = [*found.notes, "who held GPUs and did not use them is listed for at most 35 days"]
        return reading.read_answer(answers.CostReport, {**found.plain, "notes": notes}), ()
    of = [f"{name}={value}" for name, value in asked["of"]]
    return found, hub.waste(since=found.since, until=found.until, of=of).waste


def _read(asked: Mapping[str, Any]) -> Any:
    """The bill of a table of jobs, once for all questions; None where a hub is asked."""
    path = asked["prices_path"]
    if not asked["jobs_path"]:
        if path:
            raise click.UsageError("--prices is for --jobs; a hub has its own price book: [cost] prices")
        return None
    from watchkeeper.accounting import cost
    from watchkeeper.catalogue import prices

    book = prices.shipped_book() if path is None else prices.read_book(read_text(path), where=path)
    return cost.price_usage(usage.job_tables(asked, book), book, policy=cost.Policy(asked["policy"]))


def _written(
    bill: answers.CostReport, wasted: Sequence[answers.WastedHours], *, form: str, asked: Mapping[str, Any]
) -> bytes:
    from watchkeeper.accounting import report_files, statement

    found, waste = options.fields(bill), [one.plain for one in wasted]

    if form == "json":
        import json

        return (json.dumps({**found, "waste": waste}, indent=2, ensure_ascii=False) + "\n").encode()
    if form == "html":
        of = "".join(f", {name} {value}" for name, value in asked["of"])
        title = f"GPU cost by {', '.join(bill.by)}{of}"
        return statement.render_statement(statement.StatementPage(title, found, asked["zone"], waste=waste)).encode()
    return report_files.to_csv(found).encode() if form == "csv" else report_files.to_parquet(found)


def _show(found: answers.CostReport, waste: Sequence[answers.WastedHours]) -> None:
    from watchkeeper.accounting import report_files

    click.echo(f"{usage.format_window(found)}; {found.currency}; {found.policy_words}")
    names = list(found.by)
    # Only energy of own hardware costs extra; a column of nought beside kWh would say that it is free.
    money = ("direct", *(["energy"] if found.total.energy else []), "shared")
    header = [*names, "GPU-hours", "used", "wasted", *money, "cost"]
    rows = [[*usage.line_labels(line, names), *_cells(line, money)] for line in found.lines]
    rows.append(["total", *[""] * (len(names) - 1), *_cells(found.total, money)])
    usage.print_numbers(header, rows, names=len(names))
    if found.shared:
        said = ", ".join(f"{item} {shared:,.2f}" for item, shared in found.shared.items())
        click.echo(f"shared cost: {said}")
    if found.kwh:
        pue = f", {found.kwh_with_pue:,.1f} kWh with PUE {found.pue:g}" if found.pue and found.kwh_with_pue else ""
        paid = "; that of rented GPUs is in their price" if any(one.kind != "own" for one in found.rates) else ""
        click.echo(f"energy: {found.kwh:,.1f} kWh at the GPUs{pue}{paid}")
    for one in waste[:5]:
        lost = report_files.format_money(one.money, found.currency)
        click.echo(f"held and not used: {one.job} of {one.team}, {one.gpu_hours:,.1f} GPU-hours, {lost}")
    usage.notes(found.notes)


def _cells(line: answers.CostLine | answers.CostAmounts, money: Sequence[str]) -> list[str]:
    from watchkeeper.accounting import report_files

    hours = [f"{hours:,.1f}" for hours in (line.hours.total, line.hours.used, line.hours.wasted)]
    return [*hours, *(report_files.format_money(attrgetter(name)(line)) for name in (*money, "money"))]


@command.command("statement")
@click.option("--month", metavar="YYYY-MM", help="Which month; without it, this one so far.")
@click.option("--team", "teams", multiple=True, help="Only this team; repeatable.  [default: every team]")
@click.option("--output", "-o", "folder", metavar="DIR", default=".", help="Where the pages go, one for each team.")
@policy_option
@prices_option
@usage.with_window
@options.with_hub
def statement_command(hub: Client, month: str | None, teams: tuple[str, ...], folder: str, **asked: Any) -> None:
    """A page for each team, to read or to print: what it held and used, what that cost, and the jobs behind it."""
    if asked["since"] or asked["until"]:
        raise click.UsageError("a statement is of a whole month: say --month instead of --from and --to")
    from watchkeeper.accounting import report_files

    for one in _of_jobs(month, teams, asked) if asked["jobs_path"] else _of_hub(hub, month, teams, asked):
        path = Path(folder) / f"{one.month}-{_file_name(one.team)}.html"
        _write(path, one.page.encode())
        click.echo(f"{path}: {report_files.format_money(one.money, one.currency)}")


def _of_hub(
    hub: Client, month: str | None, teams: tuple[str, ...], asked: Mapping[str, Any]
) -> Iterator[answers.Statement]:
    _read(asked)
    of = [f"{name}={value}" for name, value in asked["of"]]
    return hub.statements(month=month, zone=str(asked["zone"]), policy=asked["policy"], team=list(teams), of=of)


def _of_jobs(month: str | None, teams: tuple[str, ...], asked: Mapping[str, Any]) -> Iterator[answers.Statement]:
    from watchkeeper.accounting import monthly, time_ranges

    if month is None:
        raise click.UsageError("--jobs needs --month")
    try:
        since, until = time_ranges.month(month, asked["zone"])
    except ValueError as error:
        raise click.UsageError(f"--month `{month[:40]}`: write it like 2026-11") from error
    bill = _read({**asked, "since": _rfc(since), "until": _rfc(until)})
    wanted = monthly.StatementRequest(month, asked["zone"], teams, dict(asked["of"]))
    return (reading.read_answer(answers.Statement, wire.to_plain(one)) for one in monthly.statements(bill, wanted))


def _file_name(team: str) -> str:
    """No two teams have the same."""
    return re.sub(r"[^\w.-]", lambda found: urllib.parse.quote(found[0], safe=""), team)


@command.command("budget")
@click.option("--month", metavar="YYYY-MM", help="Which month; without it, this one.")
@click.option("--zone", type=usage.TimeZone(), default="UTC", help="Time zone of days and months.")
@policy_option
@options.as_json
@options.with_hub
def budget(hub: Client, month: str | None, zone: Any, policy: str, as_json: bool) -> None:
    """What each team has spent this month, and where that leads by its end.

    Budgets are in the price book. Exits with 1 when one is over, or will be at the run rate so far.
    """
    from watchkeeper.accounting import report_files

    found = hub.budgets(month=month, zone=str(zone), policy=policy)
    if as_json:
        options.print_json(options.fields(found))
    else:
        click.echo(f"{found.month}; {found.currency}")
        header = ["team", "spent", "at month end", "80 % interval", "budget", "state"]
        rows = [
            [
                one.team,
                report_files.format_money(one.spent),
                report_files.format_money(one.forecast),
                "-"
                if one.spent is None
                else "too few days"
                if one.low is None
                else f"{one.low:,.0f} to {one.high:,.0f}",
                "-" if one.budget is None else f"{one.budget:,.2f}",
                one.state.replace("_", " "),
            ]
            for one in found.budgets
        ]
        usage.print_numbers(header, rows, names=1)
        usage.notes(found.notes)
    if any(one.state in TROUBLE for one in found.budgets):
        raise SystemExit(1)


def _rfc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat()


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, content)
    except OSError as error:
        raise CollectError(f"cannot be written: {error_reason(error)}", where=str(path)) from error
