"""`watchkeeper query`: run a PromQL query and print a table, a chart, JSON or CSV."""

from __future__ import annotations

import csv
import io
import shutil
import sys
from datetime import UTC, datetime
from typing import Any

import click

from watchkeeper.cli import options, terminal, times
from watchkeeper.client.hub import Client
from watchkeeper.kit import durations
from watchkeeper.model.labels import Labels

# One point for each column of a wide terminal.
POINTS = 150
CHART_HELP = "Show a range query as a chart or a table.  [default: a chart on a terminal]"
# Brackets by the bucket's boundary rule in the Prometheus API: includes the upper, the lower, none, or both bounds.
BUCKET_STARTS, BUCKET_ENDS = "([([", "]))]"


@click.command("query")
@click.argument("expr", metavar="PROMQL")
@click.option("--at", metavar="TIME", help=f"Run an instant query at this time instead of now: {times.FORMATS}.")
@click.option("--from", "start", metavar="TIME", help="Start of a range query, for example -1h.")
@click.option("--to", "end", metavar="TIME", help="End of a range query.  [default: now]")
@click.option("--step", metavar="DURATION", help=f"Step of a range query.  [default: {POINTS} points]")
@click.option("--chart/--table", "as_chart", default=None, help=CHART_HELP)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@options.with_hub_and_json
def command(hub: Client, expr: str, at: str | None, start: str | None, as_json: bool, **params: Any) -> None:
    """Run a PromQL query on a hub.

    \b
    watchkeeper query 'count by (modelName) (DCGM_FI_DEV_GPU_TEMP)'
    watchkeeper query 'avg(DCGM_FI_PROF_SM_ACTIVE)' --from -1h
    watchkeeper query 'avg(DCGM_FI_PROF_SM_ACTIVE)' --from 2026-01-31T09:00:00Z --to 2026-01-31T10:00:00Z --csv
    """
    end, step, as_chart = params["end"], params["step"], params["as_chart"]
    if start is None and (end is not None or step is not None or as_chart):
        raise click.UsageError("--to, --step and --chart belong to a range query, which needs --from")
    if start is not None and at is not None:
        raise click.UsageError("--at is for an instant query, --from and --to for a range query: use one of them")
    if start:
        answer = _query_range(hub, expr, start, end or "now", step=step)
    else:
        answer = hub.query_data(expr, at=at and times.seconds(times.parse_on_hub_clock(at, hub))).plain
    if as_json:
        options.print_json(answer)
        return
    for kind in ("warnings", "infos"):
        for line in answer.get(kind, ()):
            click.echo(line, err=True)
    header, rows = tabulate(answer)
    if params["as_csv"]:
        sheet = io.StringIO()
        csv.writer(sheet).writerows([header, *rows])
        click.echo(sheet.getvalue(), nl=False)
    elif not rows:
        click.echo("No series match.")
    elif start and (sys.stdout.isatty() if as_chart is None else as_chart):
        shared, series = split_labels(answer)
        lines = terminal.draw_chart(series, width=shutil.get_terminal_size().columns)
        click.echo("\n".join([*lines, *([f"  all: {shared}"] if shared else [])]))
    else:
        options.print_table(header, rows)


def _query_range(hub: Client, expr: str, start: str, end: str, *, step: str | None) -> dict[str, Any]:
    since, until = times.parse_window(start, end, hub)
    if step is None:
        span_seconds = (until - since).total_seconds()
        step = durations.format_seconds(max(1.0, round(span_seconds / POINTS)))
    return hub.query_range_data(expr, start=times.seconds(since), end=times.seconds(until), step=step).plain


def split_labels(answer: dict[str, Any]) -> tuple[str, list[tuple[str, list[tuple[float, float]]]]]:
    """Split off the labels that all series share; return them, and each series with its other labels and its points.

    A line of the legend is short and must show what distinguishes the series.
    """
    matrix = [(Labels(series["metric"]), series["values"]) for series in answer["result"] if "values" in series]
    shared = set(matrix[0][0].pairs).intersection(*(labels.pairs for labels, _ in matrix)) if len(matrix) > 1 else set()
    series = []
    for labels, values in matrix:
        name = str(Labels(pair for pair in labels.pairs if pair not in shared))
        series.append((name, [(float(at), float(value)) for at, value in values]))
    return str(Labels(shared)) if shared else "", series


def tabulate(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a query result: one row per series, or per point of a range query."""
    kind, result = answer["resultType"], answer["result"]
    if kind in ("scalar", "string"):
        return ["value"], [[result[1]]]
    rows = []
    for series in result:
        name = str(Labels(series["metric"]))
        if kind == "vector":
            has_number = "value" in series
            rows.append([name, str(series["value"][1]) if has_number else _format_histogram(series["histogram"][1])])
            continue
        histograms = [(at, _format_histogram(histogram)) for at, histogram in series.get("histograms", ())]
        for at, value in sorted([*series.get("values", ()), *histograms]):
            rows.append([name, times.utc(datetime.fromtimestamp(at, UTC)), value])
    return ["series", "value"] if kind == "vector" else ["series", "time", "value"], rows


def _format_histogram(histogram: dict[str, Any]) -> str:
    """A native histogram as Prometheus' page shows it: `{count:4, sum:5, (0.5,1]:1, (1,2]:3}`."""
    buckets = (
        f"{BUCKET_STARTS[bounds]}{lower},{upper}{BUCKET_ENDS[bounds]}:{count}"
        for bounds, lower, upper, count in histogram.get("buckets", ())
    )
    return "{" + ", ".join([f"count:{histogram['count']}", f"sum:{histogram['sum']}", *buckets]) + "}"
