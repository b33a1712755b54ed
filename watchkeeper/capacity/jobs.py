"""Recorded jobs and the nodes they ran on, out of tables: what a replay needs of each, and what had to be left out.

Which column is what is found by the layouts of packs/job_layouts.csv (our own, sacct, public traces) or said by the
caller. Jobs come back in the order in which they were submitted; `replay` runs them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchkeeper.capacity.simulated_fleet import WHOLE, FleetNode, GpuRequest
from watchkeeper.catalogue import pack
from watchkeeper.errors import CollectError
from watchkeeper.model import fleet
from watchkeeper.readers import table
from watchkeeper.readers.clusters import tres

OWN_LAYOUT = "watchkeeper"
FIELDS = ("id", "gpus", "milli", "share", "tres", "models", "submitted", "started", "ended", "seconds")
REQUESTED = "ReqTRES"
NODE_NAMES = {"name": ("name", "node", "sn"), "gpus": ("gpus", "gpu"), "model": ("model",), "rack": ("rack",)}

# Submission, start and end.
Times = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """One recorded job: when it came, what it asked for, how long it ran; `started` is None where nobody wrote it."""

    id: str
    submitted: float
    seconds: float
    shape: GpuRequest
    started: float | None = None
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The jobs of a table, by submission; `counts` says what was read, taken as it is, and left out.

    `waiting` had not started when the table ends: nobody knows how long they run, so no replay has them.
    """

    jobs: tuple[RecordedJob, ...]
    layout: str
    counts: Mapping[str, int]
    problems: table.Problems
    since: float = 0.0
    until: float = 0.0
    waiting: tuple[RecordedJob, ...] = ()


@dataclass(slots=True)
class _JobTableReader:
    columns: Mapping[str, str]
    problems: table.Problems
    counts: dict[str, int] = field(default_factory=dict)
    waiting: list[RecordedJob] = field(default_factory=list)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


@functools.cache
def layouts() -> dict[str, dict[str, str]]:
    """The columns of each known table by what they hold."""
    found: dict[str, dict[str, str]] = {}
    for layout, name, column in pack.load("job_layouts.csv", _layout_row):
        found.setdefault(layout, {})[name] = column
    return found


def _layout_row(cells: Mapping[str, str]) -> tuple[str, str, str]:
    pack.required(cells["source"])
    return (
        pack.required(cells["layout"]),
        pack.choice(cells["field"], frozenset(FIELDS)),
        pack.required(cells["column"]),
    )


def read_jobs(text: str, *, where: str, columns: Mapping[str, str] | None = None) -> JobRecords:
    """Jobs of a table; `columns` maps our words to its columns where the layout is none that we know."""
    problems = table.Problems(where)
    found = table.read_table(text, where=where, problems=problems)
    misshapen = problems.counts.total()
    layout, chosen = _layout(found, columns or {}, where=where)
    reading = _JobTableReader(chosen, problems)
    rows = _near(found.rows, [_times(row, reading) for row in found.rows], problems)
    # A row that is left out because its times cannot be says nothing about when the table begins and ends.
    known = [at for times in rows if times and _is_ordered(times) for at in times if at is not None]
    if not known:
        raise CollectError("no row has a time that can be read", where=where, now="; ".join(problems.lines()[:3]))
    since, until = min(known), max(known)
    jobs: dict[str, list[RecordedJob]] = {}
    for row, times in zip(found.rows, rows, strict=True):
        job = None if times is None else _job(row, times, reading, window=(since, until))
        if job is None:
            continue
        runs = jobs.setdefault(job.id, [])
        # Slurm gives a requeued job a row for each run; in any other table a second row is a mistake.
        if runs and not ("tres" in chosen and all(_is_apart(job, run) for run in runs)):
            problems.add("job id stands twice", row.line, f"{table.escape_cell(job.id)[:60]}: the first is used")
            continue
        if runs:
            reading.count("further_runs")
        runs.append(replace(job, id=f"{job.id} run {len(runs) + 1}") if runs else job)
    every_run = [job for runs in jobs.values() for job in runs]
    in_order = tuple(sorted(every_run, key=lambda job: (job.submitted, job.id)))
    counts = {
        "rows": len(found.rows) + misshapen,
        "jobs": len(in_order),
        **reading.counts,
        "left_out": problems.counts.total(),
    }
    return JobRecords(in_order, layout, counts, problems, since, until, tuple(reading.waiting))


def _is_apart(one: RecordedJob, other: RecordedJob) -> bool:
    """Whether one run was over before the other began."""
    begins = [job.submitted if job.started is None else job.started for job in (one, other)]
    return begins[0] + one.seconds <= begins[1] or begins[1] + other.seconds <= begins[0]


def known_layout(columns: Sequence[str]) -> str | None:
    """Which table of jobs has such columns; None for any other table."""
    return next((name for name, wanted in layouts().items() if set(wanted.values()) <= set(columns)), None)


def _layout(found: table.CsvTable, columns: Mapping[str, str], *, where: str) -> tuple[str, dict[str, str]]:
    for column in columns.values():
        table.require_column(found.columns, column, where=where)
    name = known_layout(found.columns)
    if name is not None:
        # A table in our own words may have any of them.
        own = {field: field for field in FIELDS if field in found.columns} if name == OWN_LAYOUT else {}
        return name, {**own, **layouts()[name], **columns}
    has_size = any(name in columns for name in ("gpus", "milli", "tres"))
    if "submitted" in columns and has_size and ("ended" in columns or "seconds" in columns):
        # Whatever a row is called by, a second one of that name is a mistake.
        return "as told", {**({"id": "id"} if "id" in found.columns else {}), **columns}
    has = ", ".join(table.escape_cell(name)[:40] for name in found.columns[:12])
    raise CollectError(
        f"this table of jobs is none that we know ({has})",
        where=where,
        remedy="Say which column is what: --column submitted=… --column gpus=… --column ended=… (or seconds=…)",
    )


def _near(
    rows: Sequence[table.TableRow], times: Sequence[Times | None], problems: table.Problems
) -> list[Times | None]:
    """The times of each row, without rows whose times are years away from the others."""
    middle = table.median_time([at for row_times in times if row_times for at in row_times if at is not None])
    found: list[Times | None] = []
    for row, row_times in zip(rows, times, strict=True):
        try:
            for at in row_times or ():
                table.check_near(at, middle)
            found.append(row_times)
        except ValueError as error:
            problems.add("bad time", row.line, str(error))
            found.append(None)
    return found


def _is_ordered(times: Times) -> bool:
    known = [at for at in times if at is not None]
    return known == sorted(known)


def _times(row: table.TableRow, reading: _JobTableReader) -> Times | None:
    """Submission, start and end of a row; None where one of them cannot be read, which is noted."""
    try:
        at = [table.parse_time(_cell(row, name, reading)) for name in ("submitted", "started", "ended")]
    except ValueError as error:
        reading.problems.add("bad time", row.line, str(error))
        return None
    return at[0], at[1], at[2]


def _cell(row: table.TableRow, name: str, reading: _JobTableReader) -> str:
    return row.cells[reading.columns[name]] if name in reading.columns else ""


def _job(
    row: table.TableRow,
    times: Times,
    reading: _JobTableReader,
    *,
    window: tuple[float, float],
) -> RecordedJob | None:
    submitted, started, ended = times
    id = _cell(row, "id", reading) or f"line {row.line}"
    # `123.batch` is a step of a Slurm job: its GPUs are the job's.
    if "tres" in reading.columns and "." in id:
        reading.count("steps_skipped")
        return None
    try:
        shape = _shape(row, reading)
        seconds = table.parse_number(_cell(row, "seconds", reading))
    except ValueError as error:
        reading.problems.add("bad number", row.line, str(error))
        return None
    if shape is None:
        is_share = tres.is_share_of_unknown_size(_cell(row, "tres", reading))
        reading.count("shares_of_unknown_size" if is_share else "without_gpus")
        return None
    if submitted is None:
        # A trace that begins while a job runs does not know when it came.
        reading.count("began_before")
        submitted = window[0] if started is None else started
        started = submitted
    if seconds is None:
        if started is None and "started" in reading.columns:
            reading.problems.add("never ran", row.line, "it waits still" if ended is None else "it ended in the queue")
            if ended is None:
                reading.waiting.append(RecordedJob(id, submitted, 0.0, shape, is_cut_off=True))
            return None
        if ended is None:
            reading.count("without_end")
        begin = submitted if started is None else started
        seconds = (window[1] if ended is None else ended) - begin
    if seconds < 0 or (started is not None and started < submitted):
        early = "it ends before it starts" if seconds < 0 else "it starts before it was submitted"
        reading.problems.add("negative duration", row.line, early)
        return None
    return RecordedJob(
        id, submitted, seconds, shape, started=started, is_cut_off=ended is None and "ended" in reading.columns
    )


def _shape(row: table.TableRow, reading: _JobTableReader) -> GpuRequest | None:
    """What a row asks for; None for a job without GPUs."""
    model = _cell(row, "models", reading)
    if "tres" in reading.columns:
        # Slurm has allocated nothing to a job that waits.
        said = _cell(row, "tres", reading) or row.cells.get(REQUESTED, "")
        gpus: float | None = sum(tres.gpus_by_type(said, model=model).values())
    else:
        gpus = table.parse_number(_cell(row, "gpus", reading))
    milli = table.parse_number(_cell(row, "milli", reading))
    share = table.parse_number(_cell(row, "share", reading))
    if gpus is None and milli is not None:
        gpus = milli / WHOLE
    if gpus is None or gpus == 0:
        return None
    if not 0 < gpus <= fleet.MAX_GPUS:
        raise ValueError(f"{gpus:g} GPUs; between 0 and {fleet.MAX_GPUS:,} are possible")
    wanted = round(gpus * WHOLE)
    # A share is of one GPU; `num_gpu` 2 with `gpu_milli` 1000 is two whole ones.
    if gpus == 1 and milli is not None and 0 < milli < WHOLE:
        wanted = round(milli)
    # Between one and two GPUs there is no share that hardware could give.
    wanted = wanted if wanted < WHOLE else -(-wanted // WHOLE) * WHOLE
    models = tuple(sorted(filter(None, model.split("|"))))
    used = round(share * WHOLE) if share is not None and 0 < share < 1 and wanted <= WHOLE else 0
    return GpuRequest(max(1, wanted), models, slice_milli=used or (wanted if wanted < WHOLE else 0))


def read_nodes(text: str, *, where: str) -> tuple[tuple[FleetNode, ...], table.Problems]:
    """Nodes with GPUs of a table with name, gpus, and where it has them model and rack."""
    problems = table.Problems(where)
    found = table.read_table(text, where=where, problems=problems)
    columns = {
        name: next((column for column in known if column in found.columns), None) for name, known in NODE_NAMES.items()
    }
    name_column, gpu_column = columns["name"], columns["gpus"]
    if name_column is None or gpu_column is None:
        has = ", ".join(table.escape_cell(name)[:40] for name in found.columns[:12])
        raise CollectError("a table of nodes needs the columns name and gpus", where=where, remedy=f"It has: {has}")
    nodes: dict[str, FleetNode] = {}
    for row in found.rows:
        name = row.cells[name_column]
        try:
            gpus = table.parse_number(row.cells[gpu_column])
            if gpus is not None and (gpus != int(gpus) or not 0 <= gpus <= fleet.MAX_GPUS):
                raise ValueError(f"{gpus:g} GPUs cannot be")
        except ValueError as error:
            problems.add("bad number", row.line, str(error))
            continue
        if not name or name in nodes:
            problems.add(
                "node without a name" if not name else "node stands twice", row.line, table.escape_cell(name)[:60]
            )
        elif gpus:
            model, rack = (row.cells[found_at] if found_at else "" for found_at in (columns["model"], columns["rack"]))
            nodes[name] = FleetNode(name, int(gpus), model=model, rack=rack)
    if not nodes:
        raise CollectError("no row names a node with GPUs", where=where)
    return tuple(nodes.values()), problems


def uniform_nodes(gpus: int, *, of_node: int) -> tuple[FleetNode, ...]:
    """So many GPUs in nodes of one size, the last with what is left."""
    full, rest = divmod(gpus, of_node)
    sizes = [of_node] * full + ([rest] if rest else [])
    return tuple(FleetNode(f"node-{at}", size) for at, size in enumerate(sizes, start=1))


def unknown_models(jobs: Iterable[RecordedJob], nodes: Sequence[FleetNode]) -> dict[str, int]:
    """Models that jobs ask for and no node has, with how many jobs name them."""
    known = {node.model for node in nodes}
    missing: dict[str, int] = {}
    for job in jobs:
        for model in set(job.shape.models) - known:
            shown = table.escape_cell(model)[:60]
            missing[shown] = missing.get(shown, 0) + 1
    return dict(sorted(missing.items()))
