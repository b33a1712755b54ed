"""`watchkeeper capacity`: forecast demand, show free GPUs, and replay jobs on a different fleet."""

from __future__ import annotations

import functools
import math
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import click

from watchkeeper import errors
from watchkeeper.cli import options
from watchkeeper.cli.accounting import capacity_text
from watchkeeper.client import answers, reading
from watchkeeper.client.hub import Client
from watchkeeper.kit import durations, wire
from watchkeeper.model import fleet

SERIES = ("demand", "allocated", "queued", "used")
TABLE_OPTIONS = ("time_column", "value_column", "where", "time_unit", "combine", "step", "holiday", "capacity")


@click.group("capacity", cls=options.FullHelpGroup)
def command() -> None:
    """Plan capacity: forecast demand, show free GPUs, and replay jobs on a different fleet."""


class PositiveDuration(options.Duration):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if seconds <= 0:
            self.fail(f"`{value}` must be longer than zero", param, ctx)
        return seconds


class FiniteNumber(click.FloatRange):
    """A number in a range; click's own type accepts `nan`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"`{value}` is not a number", param, ctx)
        return number


class NameValuePair(click.ParamType[tuple[str, str]]):
    name = "NAME=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        left, equals, right = str(value).partition("=")
        if not left or not equals:
            self.fail(f"`{str(value)[:40]}` is not NAME=VALUE", param, ctx)
        return left, right


DURATION, GPU_COUNT = PositiveDuration(), FiniteNumber(0, fleet.MAX_GPUS)
DATE = click.DateTime(["%Y-%m-%d"])
pairs_option = functools.partial(click.option, type=NameValuePair(), multiple=True)
gpus_option = functools.partial(click.option, type=click.IntRange(0, fleet.MAX_GPUS), default=0)


def read_text(path: str) -> str:
    """Read a file, or standard input for `-`."""
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise errors.InputError("is not UTF-8", where=f"{path[:200]}:{line}", remedy="Save it as UTF-8") from error
    except OSError as error:
        raise errors.InputError(f"cannot be read: {errors.error_reason(error)}", where=path[:200]) from error


@command.command("forecast")
@options.file_option("--csv", "csv_path", help="Read demand from this table instead of a hub; `-` is standard input.")
@click.option("--time-column", metavar="COLUMN", help="With --csv: column of the times.  [default: the first]")
@click.option(
    "--value-column", metavar="COLUMN", help="With --csv: column of the demand, if there are several columns."
)
@pairs_option("--where", help="With --csv: use only rows with this value in this column; repeatable.")
@click.option("--time-unit", type=click.Choice(["s", "ms", "m", "h", "d"]), help="With --csv: unit of numeric times.")
@click.option("--combine", type=click.Choice(["mean", "sum", "max", "last"]), help="With --csv: merge rows of a step.")
@click.option("--holiday", type=DATE, metavar="YYYY-MM-DD", multiple=True, help="With --csv: a holiday; repeatable.")
@click.option("--step", type=DURATION, help="With --csv: step of the series.  [default: as in the table]")
@click.option("--horizon", type=DURATION, default="7d", help="How far ahead to forecast.")
@click.option("--capacity", type=GPU_COUNT, help="With --csv: number of GPUs in the fleet.")
@click.option("--target", type=FiniteNumber(0.05, 1.0), default=0.8, help="Highest share of GPUs to allocate.")
@click.option("--about", type=click.Choice(SERIES), default="demand", help="Without --csv: series to forecast.")
@click.option("--cluster", metavar="NAME", help="Without --csv: forecast only this cluster.")
@options.with_hub_and_json
def forecast(hub: Client, csv_path: str | None, as_json: bool, **params: Any) -> None:
    """Forecast demand, with 80 % prediction intervals and the error of past forecasts.

    Below two days of history it prints how much has been learnt, and no forecast.

    \b
    watchkeeper capacity forecast --horizon 7d
    watchkeeper capacity forecast --csv demand.csv --time-column time --value-column running_gpus --horizon 24h --json
    """
    if csv_path is None:
        table_only = [name for name in TABLE_OPTIONS if params[name]]
        if table_only:
            raise click.UsageError(f"--{table_only[0].replace('_', '-')} applies to a table: add --csv FILE")
        horizon, target = durations.format_seconds(params["horizon"]), f"{params['target']:g}"
        answer = hub.forecast(about=params["about"], horizon=horizon, target=target, cluster=params["cluster"])
        if answer.reason is not None and answer.learning is None:
            raise errors.HubError(answer.reason, where=hub.url)
    else:
        answer = reading.read_answer(answers.CapacityForecast, wire.to_plain(forecast_from_table(csv_path, **params)))
    width = shutil.get_terminal_size().columns
    options.print_result(answer.plain, capacity_text.forecast(answer, width=width), as_json=as_json)


def forecast_from_table(path: str, **params: Any) -> dict[str, Any]:
    # numpy takes a tenth of a second to load, and only tables need it.
    from watchkeeper.capacity import demand, demand_table, report
    from watchkeeper.readers import table

    text = read_text(path)
    names, _ = table.open_table(text, where=path, problems=table.Problems(path))
    time_column = params["time_column"] or names[0]
    value_column = params["value_column"] or _choose_value_column(names, time_column, where=path)
    unit, combine, horizon = params["time_unit"] or "", params["combine"] or "", params["horizon"]
    columns = demand_table.DemandColumns(time_column, value_column, dict(params["where"]), unit=unit, combine=combine)
    table_demand = demand_table.read_points(text, columns, where=path, now=time.time())
    series = demand.regular_series(
        table_demand.points, combine=combine, step_seconds=params["step"], horizon_seconds=horizon, where=path
    ).with_notes(table_demand.notes)
    holidays = [day.replace(tzinfo=UTC).timestamp() for day in params["holiday"]]
    answer = report.forecast_report(
        series, horizon, capacity_gpus=params["capacity"], target=params["target"], holidays=holidays
    )
    return {**answer, "rows": dict(table_demand.counts), "problems": table_demand.problems.plain()}


def _choose_value_column(names: Sequence[str], time_column: str, *, where: str) -> str:
    from watchkeeper.capacity import jobs

    others = [name for name in names if name and name != time_column]
    if not others:
        problem = f"the first line has only one column, {errors.quote(names[0])}: a forecast needs a time and a value"
        raise errors.CollectError(problem, where=f"{where}:1")
    layout = jobs.find_layout(names)
    if layout is not None:
        problem = f"this is a table of jobs ({layout}); a forecast needs demand: one value for each time"
        remedy = "Count its GPU-hours with `watchkeeper usage --jobs`, replay it with `capacity whatif --jobs`, "
        remedy += "or forecast the mean of one column with --value-column"
        raise errors.CollectError(problem, where=where, remedy=remedy)
    if len(others) > 1:
        names = ", ".join(others)[:200]
        raise click.UsageError(f"several columns hold values; choose one with --value-column: {names}")
    return others[0]


@command.command("now")
@click.option("--window", default="1d", metavar="DURATION", help="Time window in which GPU use is measured.")
@click.option("--cluster", metavar="NAME", help="Show only this cluster.")
@options.file_option("--nodes", "nodes_path", help="Read the nodes from this table instead of a hub; needs --jobs.")
@options.file_option("--jobs", "jobs_path", help="Read the jobs from this table, at its latest time; needs --nodes.")
@options.with_hub_and_json
def now(
    hub: Client, window: str, cluster: str | None, nodes_path: str | None, jobs_path: str | None, as_json: bool
) -> None:
    """Show capacity now: free GPUs by job size, queue waits, use, and rightsizing advice."""
    if (nodes_path is None) != (jobs_path is None):
        raise click.UsageError("--nodes and --jobs need each other: give both, or neither")
    if nodes_path is None or jobs_path is None:
        answer = hub.capacity_now(window=window, cluster=cluster)
    else:
        answer = reading.read_answer(answers.CapacityNow, wire.to_plain(_capacity_from_tables(nodes_path, jobs_path)))
    options.print_result(answer.plain, capacity_text.now(answer), as_json=as_json)


def _capacity_from_tables(nodes_path: str, jobs_path: str) -> dict[str, Any]:
    from watchkeeper.capacity import fleet_capacity, jobs

    nodes, node_problems = jobs.read_nodes(read_text(nodes_path), where=nodes_path)
    recorded = jobs.read_jobs(read_text(jobs_path), where=jobs_path)
    capacity = fleet_capacity.capacity_from_tables(nodes, [*recorded.jobs, *recorded.waiting], at=recorded.until)
    return {
        "standing": wire.to_plain(fleet_capacity.summarise_capacity(capacity.nodes)),
        "waits": wire.to_plain(fleet_capacity.queue_waits(capacity.requests, now=recorded.until)),
        "unplaced": {"jobs": len(capacity.unplaced), "gpus": sum(job.shape.gpus for job in capacity.unplaced)},
        "jobs": dict(recorded.counts),
        "problems": recorded.problems.plain(),
        "node_problems": node_problems.plain(),
    }


@command.command("whatif")
@options.file_option("--jobs", "jobs_path", help="Replay the jobs of this table (CSV or sacct), not those of a hub.")
@click.option("--window", type=DURATION, default="1d", help="Without --jobs: replay the jobs of this time, at most 2w.")
@pairs_option("--column", help="With --jobs: the column of a field, for example gpus=num_gpus; repeatable.")
@options.file_option("--nodes", "nodes_path", help="With --jobs: table of nodes with columns name, gpus, model, rack.")
@click.option("--gpus", type=click.IntRange(1, fleet.MAX_GPUS), help="With --jobs, without --nodes: number of GPUs.")
@click.option("--gpus-per-node", type=click.IntRange(1, 1024), default=8, help="With --gpus: GPUs in each node.")
@gpus_option("--add", "add_gpus", help="Add this many GPUs, in nodes like the others.")
@gpus_option("--remove", "remove_gpus", help="Remove this many GPUs.")
@click.option("--remove-rack", "remove_racks", multiple=True, metavar="RACK", help="Remove this rack; repeatable.")
@click.option("--remove-node", "remove_nodes", multiple=True, metavar="NODE", help="Remove this node; repeatable.")
@click.option("--repartition", metavar="GPUSxSLICES", help="Use MIG: 16x7 splits 16 GPUs into 7 instances each.")
@click.option("--keep-wait", type=DURATION, help="With --jobs: GPUs to add so that the p95 wait is at most this long.")
@click.option("--policy", type=click.Choice(["fifo", "backfill"]), default="backfill", help="Scheduling policy.")
@options.with_hub_and_json
def whatif(hub: Client, jobs_path: str | None, nodes_path: str | None, as_json: bool, **params: Any) -> None:
    """Replay recorded jobs on today's fleet and on a changed one, and compare waits and utilisation.

    Without --jobs, the hub replays its own recorded jobs on its own fleet.

    \b
    watchkeeper capacity whatif --window 7d --add 64
    watchkeeper capacity whatif --jobs jobs.csv --nodes nodes.csv --add 64
    sacct -aDXP -S 2026-10-01 -o JobID,Submit,Start,End,AllocTRES,ReqTRES > jobs.txt
    watchkeeper capacity whatif --jobs jobs.txt --gpus 512 --remove 64 --json
    """
    if jobs_path is None:
        answer = _replay_on_hub(hub, nodes=nodes_path, **params)
    elif (nodes_path is None) == (params["gpus"] is None):
        raise click.UsageError("--jobs needs the fleet: --nodes FILE or --gpus N, not both")
    else:
        answer = reading.read_answer(answers.WhatIf, wire.to_plain(_replay_table(jobs_path, nodes_path, **params)))
    options.print_result(answer.plain, capacity_text.whatif(answer), as_json=as_json)


def _replay_on_hub(hub: Client, **params: Any) -> answers.WhatIf:
    for name in ("nodes", "gpus", "column", "keep_wait"):
        if params[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} applies to a table of jobs: add --jobs FILE")
    slice_gpus, slices = _parse_repartition(params["repartition"])
    return hub.whatif(
        window=durations.format_seconds(params["window"]),
        add=params["add_gpus"],
        remove=params["remove_gpus"],
        remove_racks=list(params["remove_racks"]),
        remove_nodes=list(params["remove_nodes"]),
        slice_gpus=slice_gpus,
        slices=slices,
        policy=params["policy"],
    )


def _replay_table(jobs_path: str, nodes_path: str | None, **params: Any) -> dict[str, Any]:
    from watchkeeper.capacity import jobs, replay, whatif
    from watchkeeper.capacity import whatif as replay_runs

    recorded = jobs.read_jobs(read_text(jobs_path), where=jobs_path, columns=dict(params["column"]))
    node_problems: dict[str, object] = {}
    if nodes_path is None:
        nodes = jobs.uniform_nodes(params["gpus"], gpus_per_node=params["gpus_per_node"])
    else:
        nodes, problems = jobs.read_nodes(read_text(nodes_path), where=nodes_path)
        node_problems = {"node_problems": problems.plain()}
    slice_gpus, slices = _parse_repartition(params["repartition"])
    change = replay_runs.FleetChange(
        params["add_gpus"], params["remove_gpus"], params["remove_racks"], params["remove_nodes"], slice_gpus, slices
    )
    policy = replay.QueuePolicy(params["policy"])
    answer = {**replay_runs.compare(recorded, nodes, change, policy=policy), **node_problems}
    if params["keep_wait"] is not None:
        fitting_jobs, _ = replay_runs.jobs_for_fleet(recorded.jobs, nodes)
        addition = whatif.find_smallest_addition(fitting_jobs, nodes, target_seconds=params["keep_wait"], policy=policy)
        answer["keep_wait"] = wire.to_plain(addition)
    return answer


def _parse_repartition(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    match = re.fullmatch("([0-9]+)x([0-9]+)", text)
    if match is None:
        remedy = "write 16x7 to split 16 GPUs into 7 instances each"
        raise click.UsageError(f"--repartition `{text[:40]}` is not GPUSxSLICES: {remedy}")
    return int(match[1]), int(match[2])
