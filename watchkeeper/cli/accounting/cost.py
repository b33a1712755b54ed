"""`watchkeeper cost`: reports, monthly statements and budgets, from a hub or a table of jobs."""

from __future__ import annotations

import json
import re
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import click

from watchkeeper.cli import options, terminal
from watchkeeper.cli.accounting import usage
from watchkeeper.cli.accounting.capacity import read_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.errors import CollectError, error_reason
from watchkeeper.kit import files, wire

POLICIES = ("none", "use", "allocation", "even")
FORMATS = ("table", "csv", "json", "html", "parquet")
# Numbers only, without the list of waste; notes go to stderr.
NUMERIC_FORMATS = frozenset({"csv", "parquet"})
# A year has millions of jobs; a month takes one second for ten thousand GPUs.
MAX_WASTE_SECONDS = 35 * 86_400.0
OVER_BUDGET = frozenset({"over", "will_be_over"})
POLICY_HELP = "How to split idle GPUs and overhead among owners; none is showback."
policy_option = click.option("--policy", type=click.Choice(POLICIES), default="none", help=POLICY_HELP)
prices_option = options.file_option("--prices", "prices_path", help="With --jobs: the price book, TOML or CSV.")


@click.group("cost", cls=options.FullHelpGroup)
def command() -> None:
    """Report what GPUs cost: by owner or job, monthly statements, budgets."""


@command.command("report")
@usage.by_option
@click.option("--format", "file_format", type=click.Choice(FORMATS), default="table", help="Output format.")
@click.option("--output", "-o", metavar="FILE", help="Write to this file instead of standard output.")
@options.force
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@policy_option
@prices_option
@usage.with_window
@options.with_hub
def report(hub: Client, by: tuple[str, ...], output: str | None, force: bool, as_json: bool, **params: Any) -> None:
    """Report cost by team, job or another grouping, with GPU-hours, energy and waste.

    `--of team=vision` lists the jobs of one team. `--policy allocation` turns showback into chargeback.
    """
    grouping = usage.choose_grouping(by, params)
    params["file_format"] = file_format = "json" if as_json else params["file_format"]
    if output and file_format == "table":
        raise click.UsageError("--output needs a file format: add --format csv, json, html or parquet")
    if output:
        options.refuse_to_replace(Path(output), force=force)
    bill, waste = _read_report(hub, grouping, params)
    if file_format == "table":
        _print_report(bill, waste)
        return
    content = _encode_report(bill, waste, params)
    if file_format == "parquet" and not output and sys.stdout.isatty():
        raise click.UsageError("Parquet is not for a terminal: add -o FILE")
    if file_format in NUMERIC_FORMATS:
        usage.print_notes(bill.notes, err=True)
    if output:
        _write_file(Path(output), content)
    else:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()


def _read_report(
    hub: Client, by: tuple[str, ...], params: Mapping[str, Any]
) -> tuple[answers.CostReport, tuple[answers.WastedHours, ...]]:
    """The report, and the waste by owner unless the format has only numbers."""
    has_waste, filters = params["file_format"] not in NUMERIC_FORMATS, dict(params["of"])
    if priced := _read_bill(params):
        from watchkeeper.accounting import cost, summary

        report_json = cost.report_as_json(cost.create_bill_report(priced, by, filters=filters))
        rows = summary.matching_rows(priced.table, filters) if has_waste else ()
        wasted = wire.to_plain(cost.wasted_by_owner(priced, rows))
        bill = reading.read_answer(answers.CostReport, wire.to_plain(report_json))
        return bill, reading.read_answer(tuple[answers.WastedHours, ...], wasted)
    bill = hub.cost(by=list(by), policy=params["policy"], **usage.query_params(params, hub))
    if has_waste and bill.until - bill.since > MAX_WASTE_SECONDS:
        notes = [*bill.notes, "allocated, idle GPUs are listed for at most 35 days"]
        return reading.read_answer(answers.CostReport, {**bill.plain, "notes": notes}), ()
    return bill, hub.waste(since=bill.since, until=bill.until, of=_filters(params)).waste if has_waste else ()


def _filters(params: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in params["of"]]


def _read_bill(params: Mapping[str, Any]) -> Any:
    """The bill of a table of jobs; None without --jobs."""
    path = params["prices_path"]
    if not params["jobs_path"]:
        if path:
            raise click.UsageError("--prices needs --jobs; a hub has its own price book: [cost] prices")
        return None
    from watchkeeper.accounting import cost
    from watchkeeper.catalogue import prices

    book = prices.shipped_book() if path is None else prices.read_book(read_text(path), where=path)
    return cost.price_usage(usage.read_job_hours(params, book), book, policy=cost.Policy(params["policy"]))


def _encode_report(bill: answers.CostReport, wasted: Sequence[answers.WastedHours], params: Mapping[str, Any]) -> bytes:
    from watchkeeper.accounting import report_files, statement

    report_json, waste = options.answer_fields(bill), [hours.plain for hours in wasted]
    match params["file_format"]:
        case "json":
            return (json.dumps({**report_json, "waste": waste}, indent=2, ensure_ascii=False) + "\n").encode()
        case "html":
            filters = "".join(f", {name} {value}" for name, value in params["of"])
            title = f"GPU cost by {', '.join(bill.by)}{filters}"
            page = statement.StatementPage(title, report_json, params["zone"], waste=waste)
            return statement.render_statement(page).encode()
        case "csv":
            return report_files.to_csv(report_json).encode()
    return report_files.to_parquet(report_json)


def _print_report(bill: answers.CostReport, waste: Sequence[answers.WastedHours]) -> None:
    from watchkeeper.accounting import report_files

    click.echo(f"{usage.format_window(bill)}; {bill.currency}; {bill.policy_words}")
    names = list(bill.by)
    # Only energy of owned hardware costs extra; a column of zeros beside kWh would mean that energy is free.
    money = ("direct", *(["energy"] if bill.total.energy else []), "shared")
    header = [*names, "GPU-hours", "used", "wasted", *money, "cost"]
    rows = [[*usage.line_labels(line, names), *_format_cells(line, money)] for line in bill.lines]
    rows.append(["total", *[""] * (len(names) - 1), *_format_cells(bill.total, money)])
    terminal.print_table(header, rows, names=len(names))
    if bill.shared:
        amounts = ", ".join(f"{item} {shared:,.2f}" for item, shared in bill.shared.items())
        click.echo(f"shared cost: {amounts}")
    if bill.kwh:
        pue = f", {bill.kwh_with_pue:,.1f} kWh with PUE {bill.pue:g}" if bill.pue and bill.kwh_with_pue else ""
        has_rented = any(rate.kind != "own" for rate in bill.rates)
        rented_note = "; the price of rented GPUs includes energy" if has_rented else ""
        click.echo(f"energy: {bill.kwh:,.1f} kWh at the GPUs{pue}{rented_note}")
    for hours in waste[:5]:
        cost = report_files.format_money(hours.money, bill.currency)
        click.echo(f"allocated, idle: {hours.job} of {hours.team}, {hours.gpu_hours:,.1f} GPU-hours, {cost}")
    usage.print_notes(bill.notes)


def _format_cells(line: answers.CostLine | answers.CostAmounts, money: Sequence[str]) -> list[str]:
    from watchkeeper.accounting import report_files

    hours = [f"{hours:,.1f}" for hours in (line.hours.total, line.hours.used, line.hours.wasted)]
    return [*hours, *(report_files.format_money(attrgetter(name)(line)) for name in (*money, "money"))]


@command.command("statement")
@click.option("--month", metavar="YYYY-MM", help="Month of the statement.  [default: this month so far]")
@click.option("--team", "teams", multiple=True, help="Write only this team's page; repeatable.  [default: all teams]")
@click.option("--output", "-o", "folder", metavar="DIR", default=".", help="Folder for the pages, one for each team.")
@policy_option
@prices_option
@usage.with_window
@options.with_hub
def statement_command(hub: Client, month: str | None, teams: tuple[str, ...], folder: str, **params: Any) -> None:
    """Write an HTML page for each team: GPUs allocated and used, their cost, and the jobs behind it."""
    if params["since"] or params["until"]:
        raise click.UsageError("a statement covers a whole month: use --month instead of --from and --to")
    from watchkeeper.accounting import report_files

    if params["jobs_path"]:
        statements = _statements_from_jobs(month, teams, params)
    else:
        _read_bill(params)
        window = {"month": month, "zone": str(params["zone"])}
        statements = hub.statements(**window, policy=params["policy"], team=list(teams), of=_filters(params))
    for statement in statements:
        # Escaped, so that each team has its own file.
        team = re.sub(r"[^\w.-]", lambda character: urllib.parse.quote(character[0], safe=""), statement.team)
        path = Path(folder) / f"{statement.month}-{team}.html"
        _write_file(path, statement.page.encode())
        click.echo(f"{path}: {report_files.format_money(statement.money, statement.currency)}")


def _statements_from_jobs(
    month: str | None, teams: tuple[str, ...], params: Mapping[str, Any]
) -> Iterator[answers.Statement]:
    from watchkeeper.accounting import monthly, time_ranges

    if month is None:
        raise click.UsageError("--jobs needs --month")
    try:
        since, until = time_ranges.month_range(month, params["zone"])
    except ValueError as error:
        raise click.UsageError(f"--month `{month[:40]}` is not YYYY-MM, for example 2026-11") from error
    window = {name: datetime.fromtimestamp(at, UTC).isoformat() for name, at in (("since", since), ("until", until))}
    bill = _read_bill({**params, **window})
    request = monthly.StatementRequest(month, params["zone"], teams, dict(params["of"]))
    for page in monthly.create_statements(bill, request):
        yield reading.read_answer(answers.Statement, wire.to_plain(page))


@command.command("budget")
@click.option("--month", metavar="YYYY-MM", help="Month of the budget.  [default: this month]")
@click.option("--zone", type=usage.TimeZone(), default="UTC", help="Time zone of days and months.")
@policy_option
@options.with_hub_and_json
def budget(hub: Client, month: str | None, zone: Any, policy: str, as_json: bool) -> None:
    """Show what each team has spent this month, and the forecast for its end.

    Budgets come from the price book. Exit code 1 if a team is over budget, or will be at the current rate.
    """
    report = hub.budgets(month=month, zone=str(zone), policy=policy)
    if as_json:
        options.print_json(options.answer_fields(report))
    else:
        click.echo(f"{report.month}; {report.currency}")
        header = ["team", "spent", "at month end", "80 % interval", "budget", "state"]
        terminal.print_table(header, [_budget_row(line) for line in report.budgets], names=1)
        usage.print_notes(report.notes)
    if any(line.state in OVER_BUDGET for line in report.budgets):
        raise SystemExit(1)


def _budget_row(line: answers.TeamBudget) -> list[str]:
    from watchkeeper.accounting.report_files import format_money

    interval = "too few days" if line.low is None else f"{line.low:,.0f} to {line.high:,.0f}"
    interval = "-" if line.spent is None else interval
    budget, state = "-" if line.budget is None else f"{line.budget:,.2f}", line.state.replace("_", " ")
    return [line.team, format_money(line.spent), format_money(line.forecast), interval, budget, state]


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(path, content)
    except OSError as error:
        raise CollectError(f"cannot be written: {error_reason(error)}", where=str(path)) from error
