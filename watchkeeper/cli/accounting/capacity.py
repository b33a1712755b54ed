"""`watchkeeper capacity`: when is the fleet full, what is true about it now, and what if it were another."""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from watchkeeper import errors
from watchkeeper.cli import groups, options
from watchkeeper.cli.accounting import capacity_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.kit import durations, wire
from watchkeeper.model import fleet

ABOUT = ("demand", "allocated", "queued", "used")
OF_TABLES = {
    "time_column": "--time-column",
    "value_column": "--value-column",
    "rows": "--where",
    "time_unit": "--time-unit",
    "combine": "--combine",
    "step": "--step",
    "holidays": "--holiday",
    "capacity_gpus": "--capacity",
}


@click.group("capacity", cls=groups.FullHelpGroup)
def command() -> None:
    """When is the fleet full, what is true about it now, and what if it were another."""


class PositiveDuration(click.ParamType[float]):
    """`7d` as seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = durations.parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"`{value}` must be longer than nothing", param, ctx)
        return seconds


class FiniteNumber(click.FloatRange):
    """A number in a range; click lets `nan` into every one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"`{value}` is no number", param, ctx)
        return found


class NameValuePair(click.ParamType[tuple[str, str]]):
    """`name=value`."""

    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        left, equals, right = str(value).partition("=")
        if not left or not equals:
            self.fail(f"`{str(value)[:40]}` is not like name=value", param, ctx)
        return left, right


def read_text(path: str) -> str:
    """A file, or the standard input for `-`."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise errors.InputError("is not UTF-8", where=f"{path[:200]}:{line}", remedy="Save it as UTF-8") from error
    except OSError as error:
        raise errors.InputError(f"cannot be read: {errors.error_reason(error)}", where=path[:200]) from error


@command.command("forecast")
@click.option(
    "--csv",
    "csv_path",
    type=options.FILE,
    metavar="FILE",
    help="A table of demand instead of a hub; `-` is the standard input.",
)
@click.option("--time-column", metavar="COLUMN", help="Where the times are; without it, the first column.")
@click.option("--value-column", metavar="COLUMN", help="Where the demand is; without it, the second column.")
@click.option("--where", "rows", type=NameValuePair(), multiple=True, help="Only rows with this value in this column.")
@click.option("--time-unit", type=click.Choice(["s", "ms", "m", "h", "d"]), help="What a time counts that is a number.")
@click.option("--combine", type=click.Choice(["mean", "sum", "max", "last"]), help="What to make of rows of one step.")
@click.option("--holiday", "holidays", type=click.DateTime(["%Y-%m-%d"]), multiple=True, help="A day unlike others.")
@click.option("--step", type=PositiveDuration(), help="Length of a step; without it, as the table has it.")
@click.option("--horizon", type=PositiveDuration(), default="7d", help="How far ahead.")
@click.option(
    "--capacity", "capacity_gpus", type=FiniteNumber(0, fleet.MOST_GPUS), help="GPUs there are; a hub knows its own."
)
@click.option("--target", type=FiniteNumber(0.05, 1.0), default=0.8, help="Share of the GPUs that may be taken.")
@click.option("--about", type=click.Choice(ABOUT), default="demand", help="Of a hub: which series.")
@click.option("--cluster", metavar="NAME", help="Of a hub: only this cluster.")
@options.as_json
@options.with_hub
def forecast(hub: Client, csv_path: str | None, as_json: bool, **told: Any) -> None:
    """Forecast demand, with 80 % intervals and with the error that the same forecast would have made so far.

    \b
    watchkeeper capacity forecast --horizon 7d
    watchkeeper capacity forecast --csv demand.csv --time-column time --value-column running_gpus --horizon 24h --json
    """
    if csv_path is None:
        for_tables = [name for name in OF_TABLES if told[name]]
        if for_tables:
            raise click.UsageError(f"{OF_TABLES[for_tables[0]]} is about a table: give --csv FILE as well")
        horizon = durations.format_seconds(told["horizon"])
        asked = {
            "about": told["about"],
            "horizon": horizon,
            "target": f"{told['target']:g}",
            "cluster": told["cluster"],
        }
        answer = hub.forecast(**asked)
        if answer.reason is not None:
            raise errors.HubError(answer.reason, where=hub.url)
    else:
        answer = reading.read_answer(answers.CapacityForecast, wire.to_plain(forecast_table(csv_path, **told)))
    if as_json:
        options.print_json(answer.plain)
        return
    click.echo("\n".join(capacity_text.forecast(answer, width=shutil.get_terminal_size().columns)))


def forecast_table(path: str, **told: Any) -> dict[str, Any]:
    # numpy takes a tenth of a second to load, which only this way needs.
    from watchkeeper.capacity import demand, demand_table, report
    from watchkeeper.readers import table

    text = read_text(path)
    names, _ = table.open_table(text, where=path, problems=table.Problems(path))
    time_column = told["time_column"] or names[0]
    value_column = told["value_column"] or _value_column(names, time_column, where=path)
    columns = demand_table.DemandColumns(
        time_column, value_column, dict(told["rows"]), unit=told["time_unit"] or "", combine=told["combine"] or ""
    )
    found = demand_table.read_points(text, columns, where=path, now=time.time())
    series = demand.regular_series(
        found.points, combine=columns.combine, step_seconds=told["step"], horizon_seconds=told["horizon"], where=path
    ).noted(found.notes)
    answer = report.forecast_report(
        series,
        told["horizon"],
        capacity_gpus=told["capacity_gpus"],
        target=told["target"],
        holidays=[day.replace(tzinfo=UTC).timestamp() for day in told["holidays"]],
    )
    return {**answer, "rows": dict(found.counts), "problems": found.problems.plain()}


def _value_column(names: Sequence[str], time_column: str, *, where: str) -> str:
    from watchkeeper.capacity import jobs

    others = [name for name in names if name and name != time_column]
    if not others:
        said = f"the first line names one column only, {errors.quote(names[0])}: a forecast needs a time and a value"
        raise errors.CollectError(said, where=f"{where}:1")
    layout = jobs.known_layout(names)
    if layout is not None:
        raise errors.CollectError(
            f"this is a table of jobs ({layout}); a forecast needs demand, one value for each time",
            where=where,
            remedy="`watchkeeper usage --jobs` counts its GPU-hours, `capacity whatif --jobs` replays it; "
            "--value-column forecasts the mean of a column all the same",
        )
    if len(others) > 1:
        raise click.UsageError(f"--value-column says which column is meant: {', '.join(others)[:200]}")
    return others[0]


@command.command("now")
@click.option("--window", default="1d", metavar="DURATION", help="How far back use is looked at.")
@click.option("--cluster", metavar="NAME", help="Only this cluster.")
@click.option(
    "--nodes", "nodes_path", type=options.FILE, metavar="FILE", help="A table of nodes instead of a hub; needs --jobs."
)
@click.option("--jobs", "jobs_path", type=options.FILE, metavar="FILE", help="A table of jobs, as of its last time.")
@options.as_json
@options.with_hub
def now(
    hub: Client, window: str, cluster: str | None, nodes_path: str | None, jobs_path: str | None, as_json: bool
) -> None:
    """What is true now: free GPUs by the size of job that could use them, waits, use, and what would fit better."""
    if (nodes_path is None) != (jobs_path is None):
        raise click.UsageError("tables need both --nodes and --jobs")
    if nodes_path is None or jobs_path is None:
        answer = hub.capacity_now(window=window, cluster=cluster)
    else:
        answer = reading.read_answer(answers.CapacityNow, wire.to_plain(_now_of_tables(nodes_path, jobs_path)))
    if as_json:
        options.print_json(answer.plain)
    else:
        click.echo("\n".join(capacity_text.now(answer)))


def _now_of_tables(nodes_path: str, jobs_path: str) -> dict[str, Any]:
    from watchkeeper.capacity import fleet_capacity, jobs

    nodes, bad_nodes = jobs.read_nodes(read_text(nodes_path), where=nodes_path)
    recorded = jobs.read_jobs(read_text(jobs_path), where=jobs_path)
    found = fleet_capacity.capacity_from_tables(nodes, [*recorded.jobs, *recorded.waiting], at=recorded.until)
    return {
        "standing": wire.to_plain(fleet_capacity.summarise_capacity(found.nodes)),
        "waits": wire.to_plain(fleet_capacity.queue_waits(found.asks, now=recorded.until)),
        "unplaced": {"jobs": len(found.unplaced), "gpus": sum(job.shape.gpus for job in found.unplaced)},
        "jobs": dict(recorded.counts),
        "problems": recorded.problems.plain(),
        "node_problems": bad_nodes.plain(),
    }


@command.command("whatif")
@click.option(
    "--jobs",
    "jobs_path",
    type=options.FILE,
    metavar="FILE",
    help="Recorded jobs: CSV, or sacct --parsable2; none: the hub's.",
)
@click.option("--window", type=PositiveDuration(), default="1d", help="Of a hub: the jobs of how long, at most 2w.")
@click.option(
    "--column", "columns", type=NameValuePair(), multiple=True, help="Which column is what, such as gpus=num_gpus."
)
@click.option(
    "--nodes", "nodes_path", type=options.FILE, metavar="FILE", help="The fleet: a table with name, gpus, model, rack."
)
@click.option("--gpus", type=click.IntRange(1, fleet.MOST_GPUS), help="The fleet, where there is no table of nodes.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), default=8, help="With --gpus: the size of a node.")
@click.option(
    "--add", "add_gpus", type=click.IntRange(0, fleet.MOST_GPUS), default=0, help="GPUs more, in nodes like the others."
)
@click.option("--remove", "remove_gpus", type=click.IntRange(0, fleet.MOST_GPUS), default=0, help="GPUs fewer.")
@click.option("--remove-rack", "remove_racks", multiple=True, metavar="RACK", help="Lose this rack.")
@click.option("--remove-node", "remove_nodes", multiple=True, metavar="NODE", help="Lose this node.")
@click.option("--repartition", metavar="GPUSxSLICES", help="Cut GPUs by MIG: 16x7 cuts 16 GPUs into 7 slices each.")
@click.option(
    "--keep-wait", type=PositiveDuration(), help="Also find how many GPUs keep the p95 of waiting at or below this."
)
@click.option("--policy", type=click.Choice(["fifo", "backfill"]), default="backfill", help="Who may start.")
@options.as_json
@options.with_hub
def whatif(hub: Client, jobs_path: str | None, nodes_path: str | None, as_json: bool, **told: Any) -> None:
    """Replay recorded jobs on the fleet as it is and as it might be, and compare waiting and utilisation.

    Without --jobs these are the jobs that the hub has recorded itself, on the fleet that it sees.

    \b
    watchkeeper capacity whatif --window 7d --add 64
    watchkeeper capacity whatif --jobs jobs.csv --nodes nodes.csv --add 64
    sacct -aDXP -S 2026-10-01 -o JobID,Submit,Start,End,AllocTRES,ReqTRES > jobs.txt
    watchkeeper capacity whatif --jobs jobs.txt --gpus 512 --remove 64 --json
    """
    if jobs_path is None:
        answer = _replayed_by(hub, nodes=nodes_path, **told)
    elif (nodes_path is None) == (told["gpus"] is None):
        raise click.UsageError("say what the fleet is: --nodes FILE or --gpus N")
    else:
        answer = reading.read_answer(answers.WhatIf, wire.to_plain(_replayed(jobs_path, nodes_path, **told)))
    if as_json:
        options.print_json(answer.plain)
    else:
        click.echo("\n".join(capacity_text.whatif(answer)))


def _replayed_by(hub: Client, **told: Any) -> answers.WhatIf:
    """The same of a hub, with its own jobs and its own fleet."""
    for_tables = {"nodes": "--nodes", "gpus": "--gpus", "columns": "--column", "keep_wait": "--keep-wait"}
    for name, option in for_tables.items():
        if told[name]:
            raise click.UsageError(f"{option} goes with a table of jobs: give --jobs FILE as well")
    slice_gpus, slices = _slices(told["repartition"])
    return hub.whatif(
        window=durations.format_seconds(told["window"]),
        add=told["add_gpus"],
        remove=told["remove_gpus"],
        remove_racks=list(told["remove_racks"]),
        remove_nodes=list(told["remove_nodes"]),
        slice_gpus=slice_gpus,
        slices=slices,
        policy=told["policy"],
    )


def _replayed(jobs_path: str, nodes_path: str | None, **told: Any) -> dict[str, Any]:
    from watchkeeper.capacity import jobs, replay, sizing
    from watchkeeper.capacity import whatif as compared

    recorded = jobs.read_jobs(read_text(jobs_path), where=jobs_path, columns=dict(told["columns"]))
    bad_nodes: dict[str, object] = {}
    if nodes_path is None:
        nodes = jobs.uniform_nodes(told["gpus"], of_node=told["gpus_per_node"])
    else:
        nodes, problems = jobs.read_nodes(read_text(nodes_path), where=nodes_path)
        bad_nodes = {"node_problems": problems.plain()}
    slice_gpus, slices = _slices(told["repartition"])
    change = compared.FleetChange(
        told["add_gpus"], told["remove_gpus"], told["remove_racks"], told["remove_nodes"], slice_gpus, slices
    )
    policy = replay.QueuePolicy(told["policy"])
    answer = {**compared.compare(recorded, nodes, change, policy=policy), **bad_nodes}
    if told["keep_wait"] is not None:
        jobs_here, _ = compared.jobs_for_fleet(recorded.jobs, nodes)
        found = sizing.smallest_addition(jobs_here, nodes, target_seconds=told["keep_wait"], policy=policy)
        answer["keep_wait"] = wire.to_plain(found)
    return answer


def _slices(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    gpus, by, slices = text.partition("x")
    if not (by and gpus.isascii() and gpus.isdigit() and slices.isascii() and slices.isdigit()):
        raise click.UsageError(f"--repartition `{text[:40]}` is not like 16x7: GPUs, and slices of each")
    return int(gpus), int(slices)
