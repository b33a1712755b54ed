"""Read usage from a table of jobs (`sacct` output, or any CSV), without a hub.

packs/usage_columns.csv or the caller maps columns to fields. A line that cannot be used is reported and counted; of
duplicate job ids the first row is used. A job without an end runs until the end of the window.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

import numpy as np

from watchkeeper.accounting import usage
from watchkeeper.accounting.tally import HOUR, format_time, unowned_key
from watchkeeper.catalogue import pack
from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import csv_text
from watchkeeper.model import fleet
from watchkeeper.readers import table
from watchkeeper.readers.clusters import tres

FIELDS = frozenset({"gpus", "tres", "milli", "submitted", "started", "ended", "seconds", "share", *usage.DIMENSIONS})
JOB_STEPS = "steps of jobs"
# A smaller difference is a rounding error of summed shares.
MIN_GPUS = 1e-6
# The rows from which the median time of a table is estimated.
SAMPLED_ROWS = 1000
# A share of a GPU is at most 1: a column with a value above 2 is in per cent.
MIN_PERCENT_ACTIVITY = 2.0


@dataclass(frozen=True, slots=True)
class JobUsage:
    """GPUs of one model allocated to a job; `ended` is None while it runs, `share` is its mean activity or None."""

    key: usage.Key
    gpus: float
    started: float
    ended: float | None
    share: float | None = None

    def is_disjoint(self, other: JobUsage) -> bool:
        first, second = sorted((self, other), key=lambda job: job.started)
        return first.ended is not None and first.ended <= second.started


@dataclass(frozen=True, slots=True)
class JobTable:
    """The jobs of a table; a job with GPUs of two models has two entries in `jobs`, and counts once in `count`."""

    jobs: tuple[JobUsage, ...]
    count: int
    rows: int
    problems: table.Problems
    counts: Mapping[str, int]

    @property
    def since(self) -> float:
        """The first time in the table."""
        return min(at for job in self.jobs for at in (job.started, job.ended) if at is not None and math.isfinite(at))

    @property
    def until(self) -> float:
        return max(at for job in self.jobs for at in (job.started, job.ended) if at is not None and math.isfinite(at))


@functools.cache
def load_column_fields() -> Mapping[str, str]:

    def read(cells: Mapping[str, str]) -> tuple[str, str]:
        pack.required(cells["source"])
        return pack.required(cells["column"]), pack.choice(cells["field"], FIELDS)

    return dict(pack.load("usage_columns.csv", read))


@dataclass(slots=True)
class _JobTableOptions:
    zone: ZoneInfo
    model: str
    # The value of the activity column for a fully used GPU, 1 or 100.
    full_activity: float = 1.0
    median_time: float | None = None
    counts: Counter[str] = field(default_factory=Counter)


def read_job_table(
    text: str, *, where: str, zone: ZoneInfo, column_overrides: Mapping[str, str] | None = None, model: str = ""
) -> JobTable:
    """Read the jobs of a table. `column_overrides` maps fields to columns; `model` is for rows without a GPU model."""
    # A time without a time zone is read in `zone`.
    problems = table.Problems(where)
    rows = table.read_table(text, where=where, problems=problems)
    field_columns = _find_columns(rows.columns, column_overrides or {}, where=where)
    shares = [row.cells[field_columns["share"]] for row in rows.rows] if "share" in field_columns else []
    is_percent = any(csv_text.NUMBER.fullmatch(cell) and float(cell) > MIN_PERCENT_ACTIVITY for cell in shares)
    median_time = _find_median_time(rows, field_columns, zone)
    options = _JobTableOptions(zone, model, 100.0 if is_percent else 1.0, median_time)
    jobs_by_identity: dict[tuple[str, ...], list[JobUsage]] = {}
    read_rows = len(rows.rows) + problems.counts.total()
    for row in rows.rows:
        line, values = row.line, {name: row.cells[column] for name, column in field_columns.items()}
        try:
            row_jobs = _parse_row(values, line, options)
        except ValueError as error:
            problems.add("invalid row", line, str(error))
            continue
        if not row_jobs:
            continue
        id = values.get("job") or f"line {line}"
        # Pods of two namespaces and jobs of two clusters may have the same name.
        identity = (values.get("cluster", ""), values.get("namespace", ""), id)
        earlier = jobs_by_identity.setdefault(identity, [])
        # Slurm gives a requeued job a row for each run; in any other table a second row is a mistake.
        if earlier and not ("tres" in values and all(row_jobs[0].is_disjoint(job) for job in earlier)):
            problems.add("duplicate job id", line, f"{quote(id)}: the first row is used")
            continue
        if earlier:
            options.counts["further runs of requeued jobs"] += 1
        earlier += row_jobs
    if not jobs_by_identity:
        reasons = [*problems.lines()[:3], *(f"{reason}: {count:,}" for reason, count in sorted(options.counts.items()))]
        raise CollectError("no row is a job with a GPU", where=where, now="; ".join(reasons) or None)
    all_jobs = tuple(job for jobs in jobs_by_identity.values() for job in jobs)
    if all(math.isinf(job.started) and job.ended is None for job in all_jobs):
        raise CollectError("no row has a valid time", where=where)
    return JobTable(all_jobs, len(jobs_by_identity), read_rows, problems, options.counts)


def _find_median_time(rows: table.CsvTable, field_columns: Mapping[str, str], zone: ZoneInfo) -> float | None:
    columns = [field_columns[name] for name in ("started", "ended") if name in field_columns]
    times = []
    for row in rows.rows[:: max(1, len(rows.rows) // SAMPLED_ROWS)]:
        for column in columns:
            with contextlib.suppress(ValueError):
                times.append(table.parse_time(row.cells[column], zone=zone))
    return table.median_time([at for at in times if at is not None])


def _find_columns(header: Sequence[str], overrides: Mapping[str, str], *, where: str) -> dict[str, str]:
    """Return the column of each field; a table needs the start of a job and its number of GPUs."""
    columns_by_field: dict[str, str] = {}
    for column in header:
        field_name = load_column_fields().get(column.casefold())
        if field_name is not None:
            columns_by_field.setdefault(field_name, column)
    for name, column in overrides.items():
        # The documentation uses column names such as `activity` and `id` for fields as well.
        field_name = load_column_fields().get(name, name)
        if field_name not in FIELDS or column not in header:
            remedy = f"Columns: {', '.join(header[:20])}. Fields: {', '.join(sorted(FIELDS))}"
            problem = f"--column {name[:40]}={column[:40]}: unknown field or column"
            raise CollectError(problem, where=where, remedy=remedy)
        columns_by_field[field_name] = column
    if "started" not in columns_by_field or not {"gpus", "tres", "milli"} & set(columns_by_field):
        raise CollectError(
            "the columns for the start of a job and its GPUs are unknown",
            where=where,
            now=f"The columns are {', '.join(header[:12])[:200]}",
            remedy="Set them: --column started=… --column gpus=… --column ended=… (or seconds=…) --column team=…",
        )
    return columns_by_field


def _parse_row(values: Mapping[str, str], line: int, options: _JobTableOptions) -> list[JobUsage]:
    """Return one entry for each GPU model, none for a row without GPUs; raise ValueError for an invalid row."""
    counts = options.counts
    # `4711.batch` is a step of a Slurm job: its GPUs are the job's.
    if "tres" in values and "." in values.get("job", ""):
        counts[JOB_STEPS] += 1
        return []
    gpus_by_model = _parse_gpus(values, options.model)
    if not gpus_by_model:
        is_share = tres.is_share_of_unknown_size(values.get("tres", ""))
        counts["excluded jobs, shards or MPS shares of unknown size" if is_share else "rows without GPUs"] += 1
        return []
    started, ended = (
        table.check_near(table.parse_time(values.get(name, ""), zone=options.zone), options.median_time)
        for name in ("started", "ended")
    )
    seconds = table.parse_number(values.get("seconds", ""))
    if started is None and values.get("submitted", "?") not in table.EMPTY:
        counts["jobs that never started"] += 1
        return []
    if started is None and ended is None and seconds is not None:
        raise ValueError(f"it ran for {seconds:,.0f} s, and has neither a start nor an end")
    if started is None:
        # The table has submission times, but not of this job: it started before the table begins.
        counts["jobs that started before the table begins"] += 1
        started = -math.inf
    if ended is None and seconds is not None:
        ended = started + seconds
    if ended is None:
        counts["jobs without an end, counted as running"] += 1
    elif ended < started:
        raise ValueError(f"it ends {started - ended:,.0f} s before it starts")
    share = table.parse_number(values.get("share", ""))
    if share is not None and not 0 <= share <= options.full_activity:
        raise ValueError(f"an activity of {share:g} is not between 0 and {options.full_activity:g}")
    dimensions = {name: values.get(name, "") for name in usage.DIMENSIONS}
    dimensions["job"] = dimensions["job"] or f"line {line}"
    row_model = dimensions["model"]
    row_share = None if share is None else share / options.full_activity
    return [
        JobUsage(
            usage.make_key(**dimensions | {"model": row_model or model or options.model}),
            gpus,
            started,
            ended,
            row_share,
        )
        for model, gpus in gpus_by_model.items()
    ]


def _parse_gpus(values: Mapping[str, str], model: str) -> dict[str, float]:
    """Return the number of GPUs by model; the GRES type of Slurm is site-specific, and may be empty."""
    if "tres" in values:
        return tres.gpus_by_type(values["tres"], model=values.get("model") or model)
    gpus, milli = table.parse_number(values.get("gpus", "")), table.parse_number(values.get("milli", ""))
    # A share refers to one GPU: `num_gpu` 2 with `gpu_milli` 1000 is two whole GPUs.
    if milli is not None and (gpus is None or (gpus == 1 and 0 < milli < 1000)):
        gpus = milli / 1000
    if gpus is not None and not 0 <= gpus <= fleet.MAX_GPUS:
        raise ValueError(f"{gpus:g} GPUs; the number must be between 0 and {fleet.MAX_GPUS:,}")
    return {"": gpus} if gpus else {}


def sum_job_hours(
    job_table: JobTable, *, since: float, until: float, capacity: float | None = None, model: str = ""
) -> usage.UsageTable:
    """Sum the hours of each job in a window; `capacity` is the number of GPUs, and gives the idle hours."""
    rows: dict[usage.Key, usage.Amounts] = {}
    for job in job_table.jobs:
        end = until if job.ended is None else job.ended
        hours = (min(end, until) - max(job.started, since)) / HOUR * job.gpus
        if hours <= 0:
            continue
        row = rows.setdefault(job.key, np.zeros(len(usage.PARTS)))
        row[usage.ALLOCATED] += hours
        if job.share is None:
            row[usage.UNMEASURED] += hours
        else:
            row[usage.USED] += hours * job.share
            row[usage.WASTED] += hours * (1 - job.share) if job.share < usage.WASTE_FLOOR else 0.0
    notes = [f"{job_table.problems.where}: {job_table.count:,} jobs of {job_table.rows:,} rows"]
    if not rows:
        covered = f"{format_time(job_table.since)} to {format_time(job_table.until)}"
        notes.append(f"no job ran in this period; the table covers {covered}")
    notes += [f"{reason}: {count:,}" for reason, count in sorted(job_table.counts.items())]
    notes += [f"excluded rows, {reason}: {count:,}" for reason, count in sorted(job_table.problems.counts.items())]
    if capacity is None:
        notes.append("the number of GPUs is unknown, so idle hours are not counted; set --capacity")
    else:
        idle, idle_notes = _sum_idle_hours(job_table.jobs, capacity, since, until)
        notes += idle_notes
        rows[unowned_key(model=model)] = idle * (np.arange(len(usage.PARTS)) == usage.IDLE)
    amounts = np.array(list(rows.values())) if rows else np.zeros((0, len(usage.PARTS)))
    return usage.UsageTable(since, until, tuple(rows), amounts, tuple(notes))


def _sum_idle_hours(jobs: Sequence[JobUsage], gpus: float, since: float, until: float) -> tuple[float, list[str]]:
    """Return the unallocated hours of `gpus` GPUs and notes."""
    # They are summed interval by interval between two changes, so that the parts of a window add up to the whole.
    counts = np.array([job.gpus for job in jobs])
    starts = np.clip([job.started for job in jobs], since, until)
    ends = np.clip([until if job.ended is None else job.ended for job in jobs], starts, until)
    times, changes = np.concatenate([starts, ends]), np.concatenate([counts, -counts])
    order = np.argsort(times, kind="stable")
    allocated = np.concatenate([[0.0], np.cumsum(changes[order])])
    hours = np.diff([since, *times[order], until]) / HOUR
    is_over_capacity = (allocated > gpus + MIN_GPUS) & (hours > 0)
    idle = float(np.clip(gpus - allocated, 0.0, None) @ hours)
    if not is_over_capacity.any():
        return idle, []
    peak, over_hours = allocated[is_over_capacity].max(), hours[is_over_capacity].sum()
    at_once = f"jobs used up to {peak:,.6g} GPUs at once, but the capacity is {gpus:,g}"
    return idle, [f"{at_once}: exceeded for {over_hours:,.1f} hours"]
