"""Usage out of a table of jobs (`sacct`, or any CSV), for those who have no hub yet.

Which column is what is found by packs/usage_columns.csv or said by the caller. A line that cannot be used is named and
counted; of a job id that stands twice the first row is used, of a job that Slurm requeued each run; a job without an
end runs until the window's end. Nothing in such a table says how active a GPU was, so all of it is unmeasured unless
there is a column of activity.
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
NO_JOB_STEPS = "steps of jobs"
# Less is the rounding of shares that are added up.
LEAST_GPUS = 1e-6
# Enough rows to see when the jobs of a table ran.
SAMPLED_ROWS = 1000
# No share of a GPU is twice all of it: a column with such a number counts per cent.
SURELY_PER_CENT = 2.0


@dataclass(frozen=True, slots=True)
class JobUsage:
    """GPUs of one model that a job held; `ended` None is still running, `share` its mean activity where it is known."""

    key: usage.Key
    gpus: float
    started: float
    ended: float | None
    share: float | None = None


@dataclass(frozen=True, slots=True)
class JobTable:
    """What a table says; a job that held GPUs of two models is there twice, and counts once in `count`."""

    jobs: tuple[JobUsage, ...]
    count: int
    rows: int
    problems: table.Problems
    counts: Mapping[str, int]

    @property
    def since(self) -> float:
        """The first moment that the table names."""
        return min(at for job in self.jobs for at in (job.started, job.ended) if at is not None and math.isfinite(at))

    @property
    def until(self) -> float:
        return max(at for job in self.jobs for at in (job.started, job.ended) if at is not None and math.isfinite(at))


@functools.cache
def columns() -> Mapping[str, str]:
    """Column of a table, in small letters, to what it holds."""
    return dict(pack.load("usage_columns.csv", _column_row))


def _column_row(cells: Mapping[str, str]) -> tuple[str, str]:
    pack.required(cells["source"])
    return pack.required(cells["column"]), pack.choice(cells["field"], FIELDS)


@dataclass(slots=True)
class _JobTableOptions:
    """How the cells of a table are read; `whole` is what its column of activity has for all of a GPU, 1 or 100.

    `middle` is a time in the middle of those of the table.
    """

    zone: ZoneInfo
    model: str
    whole: float = 1.0
    middle: float | None = None
    counts: Counter[str] = field(default_factory=Counter)


def read_job_table(
    text: str, *, where: str, zone: ZoneInfo, told: Mapping[str, str] | None = None, model: str = ""
) -> JobTable:
    """The jobs of a table; `told` maps our words to its columns, `model` is the GPU of rows that name none.

    A time without a zone is in `zone`.
    """
    problems = table.Problems(where)
    rows = table.read_table(text, where=where, problems=problems)
    places = _places(rows.columns, told or {}, where=where)
    reading = _JobTableOptions(zone, model, _whole(rows, places.get("share")), _middle(rows, places, zone))
    found: dict[tuple[str, ...], list[JobUsage]] = {}
    read_rows = len(rows.rows) + problems.counts.total()
    for row in rows.rows:
        line, named = row.line, {name: row.cells[column] for name, column in places.items()}
        try:
            jobs = _jobs(named, line, reading)
        except ValueError as error:
            problems.add("cannot be used", line, str(error))
            continue
        if not jobs:
            continue
        id = named.get("job") or f"line {line}"
        # Pods of two namespaces and jobs of two clusters may have the same name.
        known_as = (named.get("cluster", ""), named.get("namespace", ""), id)
        earlier = found.setdefault(known_as, [])
        # Slurm gives a requeued job a row for each run; in any other table a second row is a mistake.
        if earlier and not ("tres" in named and all(_is_apart(jobs[0], job) for job in earlier)):
            problems.add("job id stands twice", line, f"{quote(id)}: the first is used")
            continue
        if earlier:
            reading.counts["further runs of requeued jobs"] += 1
        earlier += jobs
    if not found:
        said = [*problems.lines()[:3], *(f"{what}: {count:,}" for what, count in sorted(reading.counts.items()))]
        raise CollectError("no row is a job that held a GPU", where=where, now="; ".join(said) or None)
    held = tuple(job for jobs in found.values() for job in jobs)
    if all(math.isinf(job.started) and job.ended is None for job in held):
        raise CollectError("no row has a time that can be read", where=where)
    return JobTable(held, len(found), read_rows, problems, reading.counts)


def _is_apart(one: JobUsage, other: JobUsage) -> bool:
    first, second = sorted((one, other), key=lambda job: job.started)
    return first.ended is not None and first.ended <= second.started


def _whole(rows: table.CsvTable, column: str | None) -> float:
    cells = [row.cells[column] for row in rows.rows] if column is not None else []
    return 100.0 if any(csv_text.NUMBER.fullmatch(cell) and float(cell) > SURELY_PER_CENT for cell in cells) else 1.0


def _middle(rows: table.CsvTable, places: Mapping[str, str], zone: ZoneInfo) -> float | None:
    found = []
    for row in rows.rows[:: max(1, len(rows.rows) // SAMPLED_ROWS)]:
        for name in ("started", "ended"):
            with contextlib.suppress(ValueError):
                found.append(table.parse_time(row.cells[places[name]] if name in places else "", zone=zone))
    return table.median_time([at for at in found if at is not None])


def _places(header: Sequence[str], told: Mapping[str, str], *, where: str) -> dict[str, str]:
    """The column of each thing that we know; a table needs a start, and how many GPUs."""
    found: dict[str, str] = {}
    for name in header:
        meaning = columns().get(name.casefold())
        if meaning is not None:
            found.setdefault(meaning, name)
    for word, name in told.items():
        # `activity` and `id` are words of the documentation, and columns of tables.
        meaning = columns().get(word, word)
        if meaning not in FIELDS or name not in header:
            has = ", ".join(header[:20])
            known = ", ".join(sorted(FIELDS))
            raise CollectError(
                f"--column {word[:40]}={name[:40]} cannot be used",
                where=where,
                remedy=f"Columns: {has}. Words: {known}",
            )
        found[meaning] = name
    if "started" not in found or not {"gpus", "tres", "milli"} & set(found):
        raise CollectError(
            "which column is the start of a job, and which its GPUs?",
            where=where,
            now=f"It has {', '.join(header[:12])[:200]}",
            remedy="Say it: --column started=… --column gpus=… --column ended=… (or seconds=…) --column team=…",
        )
    return found


def _jobs(named: Mapping[str, str], line: int, reading: _JobTableOptions) -> list[JobUsage]:
    """One for each model; none for a row that is no job with GPUs; ValueError for one that cannot be used."""
    counts = reading.counts
    # `4711.batch` is a step of a Slurm job: its GPUs are the job's.
    if "tres" in named and "." in named.get("job", ""):
        counts[NO_JOB_STEPS] += 1
        return []
    by_model = _gpus(named, reading.model)
    if not by_model:
        is_share = tres.is_share_of_unknown_size(named.get("tres", ""))
        counts["excluded jobs, shards or MPS shares of unknown size" if is_share else "rows without GPUs"] += 1
        return []
    started, ended = (
        table.check_near(table.parse_time(named.get(name, ""), zone=reading.zone), reading.middle)
        for name in ("started", "ended")
    )
    seconds = table.parse_number(named.get("seconds", ""))
    if started is None and named.get("submitted", "?") not in table.EMPTY:
        counts["jobs that never started"] += 1
        return []
    if started is None and ended is None and seconds is not None:
        raise ValueError(f"it ran for {seconds:,.0f} s, and neither its start nor its end is there")
    if started is None:
        # A table that writes down when jobs come, and not when this one did, begins while it runs.
        counts["jobs that began before the table does"] += 1
        started = -math.inf
    if ended is None and seconds is not None:
        ended = started + seconds
    if ended is None:
        counts["jobs without an end, taken as running"] += 1
    elif ended < started:
        raise ValueError(f"it ends {started - ended:,.0f} s before it starts")
    share = table.parse_number(named.get("share", ""))
    if share is not None and not 0 <= share <= reading.whole:
        raise ValueError(f"an activity of {share:g} is not between 0 and {reading.whole:g}")
    owner = {name: named.get(name, "") for name in usage.DIMENSIONS}
    owner["job"] = owner["job"] or f"line {line}"
    said = owner["model"]
    return [
        JobUsage(
            usage.key(**{**owner, "model": said or model or reading.model}),
            gpus,
            started,
            ended,
            None if share is None else share / reading.whole,
        )
        for model, gpus in by_model.items()
    ]


def _gpus(named: Mapping[str, str], model: str) -> dict[str, float]:
    """GPUs by model; Slurm's word for it is a site's own, and empty where a site has none."""
    if "tres" in named:
        return tres.gpus_by_type(named["tres"], model=named.get("model") or model)
    gpus, milli = table.parse_number(named.get("gpus", "")), table.parse_number(named.get("milli", ""))
    # A share is of one GPU: `num_gpu` 2 with `gpu_milli` 1000 is two whole ones.
    if milli is not None and (gpus is None or (gpus == 1 and 0 < milli < 1000)):
        gpus = milli / 1000
    if gpus is not None and not 0 <= gpus <= fleet.MAX_GPUS:
        raise ValueError(f"{gpus:g} GPUs; between 0 and {fleet.MAX_GPUS:,} are possible")
    return {"": gpus} if gpus else {}


def job_hours(
    found: JobTable, *, since: float, until: float, capacity: float | None = None, model: str = ""
) -> usage.UsageTable:
    """The hours that each job had in a window; with the GPUs that there are, what nobody had is idle."""
    rows: dict[usage.Key, usage.Amounts] = {}
    for job in found.jobs:
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
    notes = [f"{found.problems.where}: {found.count:,} jobs of {found.rows:,} rows"]
    if not rows:
        notes.append(
            f"no job ran in this time; the table is of {format_time(found.since)} to {format_time(found.until)}"
        )
    notes += [f"{what}: {count:,}" for what, count in sorted(found.counts.items())]
    notes += [f"excluded rows, {what}: {count:,}" for what, count in sorted(found.problems.counts.items())]
    if capacity is None:
        notes.append("how many GPUs there are is not said: nothing is known about idle ones")
    else:
        idle, said = _idle(found.jobs, capacity, since, until)
        notes += said
        rows[unowned_key(model=model)] = np.array(
            [idle if part == usage.IDLE else 0.0 for part in range(len(usage.PARTS))]
        )
    amounts = np.array(list(rows.values())) if rows else np.zeros((0, len(usage.PARTS)))
    return usage.UsageTable(since, until, tuple(rows), amounts, tuple(notes))


def _held(jobs: Sequence[JobUsage], since: float, until: float) -> tuple[usage.Amounts, usage.Amounts]:
    """GPUs that were held at once, and for how many hours, in each stretch of a window between two changes."""
    gpus = np.array([job.gpus for job in jobs])
    starts = np.clip([job.started for job in jobs], since, until)
    ends = np.clip([until if job.ended is None else job.ended for job in jobs], starts, until)
    times, changes = np.concatenate([starts, ends]), np.concatenate([gpus, -gpus])
    order = np.argsort(times, kind="stable")
    held = np.concatenate([[0.0], np.cumsum(changes[order])])
    return held, np.diff([since, *times[order], until]) / HOUR


def _idle(jobs: Sequence[JobUsage], gpus: float, since: float, until: float) -> tuple[float, list[str]]:
    """GPU-hours that nobody held of so many GPUs, moment by moment, so that windows sum however they are cut."""
    held, hours = _held(jobs, since, until)
    beyond = (held > gpus + LEAST_GPUS) & (hours > 0)
    idle = float(np.clip(gpus - held, 0.0, None) @ hours)
    if not beyond.any():
        return idle, []
    most, long = held[beyond].max(), hours[beyond].sum()
    return idle, [
        f"jobs held up to {most:,.6g} GPUs at once, and there are {gpus:,g}: for {long:,.1f} hours none was idle"
    ]
