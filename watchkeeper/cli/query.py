"""`watchkeeper query`: PromQL from a terminal, as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import Any

import click

from watchkeeper.cli import options
from watchkeeper.client.hub import HubClient
from watchkeeper.model.labels import Labels


@click.command("query")
@click.argument("expr", metavar="PROMQL")
@click.option("--at", metavar="TIME", help="Ask about this time instead of now: RFC 3339 or seconds since 1970.")
@click.option("--from", "start", metavar="TIME", help="Start of a range query.")
@click.option("--to", "end", metavar="TIME", help="End of a range query.")
@click.option("--step", metavar="DURATION", default="1m", help="Distance of the points of a range query.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@options.as_json
@options.with_hub
def command(
    hub: HubClient,
    expr: str,
    at: str | None,
    start: str | None,
    end: str | None,
    step: str,
    as_csv: bool,
    as_json: bool,
) -> None:
    """Ask a hub a PromQL question.

    \b
    watchkeeper query 'count by (modelName) (DCGM_FI_DEV_GPU_TEMP)'
    watchkeeper query 'avg(DCGM_FI_PROF_SM_ACTIVE)' --from 2026-01-31T09:00:00Z --to 2026-01-31T10:00:00Z
    """
    if (start is None) != (end is None):
        raise click.UsageError("a range query needs both --from and --to")
    if start is not None and at is not None:
        raise click.UsageError("--at is for one time, --from and --to for a range: give one of them")
    answer = hub.query_range(expr, start=start, end=end or "", step=step) if start else hub.query(expr, at=at)
    if as_json:
        options.print_json(answer)
        return
    header, rows = tabulate(answer)
    if as_csv:
        sheet = io.StringIO()
        csv.writer(sheet).writerows([header, *rows])
        click.echo(sheet.getvalue(), nl=False)
    elif rows:
        options.print_table(header, rows)
    else:
        click.echo("No series match.")


def tabulate(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Rows of Prometheus' result: one per series, or one per point where there are several times."""
    kind, result = answer["resultType"], answer["result"]
    if kind in ("scalar", "string"):
        return ["value"], [[result[1]]]
    if kind == "vector":
        rows = [[str(Labels(series["metric"])), series["value"][1]] for series in result]
        return ["series", "value"], rows
    points = [
        [str(Labels(series["metric"])), datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), value]
        for series in result
        for at, value in series["values"]
    ]
    return ["series", "time", "value"], points
