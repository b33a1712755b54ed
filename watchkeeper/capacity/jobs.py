"""Read jobs and nodes for a replay from tables, and report each dropped row.

packs/job_layouts.csv (Watchkeeper's format, sacct, public traces) or the caller maps columns to fields. Jobs are sorted
by submission.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchkeeper.capacity.simulated_fleet import GPU_MILLI, FleetNode, GpuRequest
from watchkeeper.catalogue import pack
from watchkeeper.errors import CollectError
from watchkeeper.model import fleet
from watchkeeper.readers import table
from watchkeeper.readers.clusters import tres

OWN_LAYOUT = "watchkeeper"
FIELDS = ("id", "gpus", "milli", "share", "tres", "models", "submitted", "started", "ended", "seconds")
REQUESTED_COLUMN = "ReqTRES"
# The columns that may have the name, the GPUs, the model and the rack of a node.
NODE_COLUMNS = (("name", "node", "sn"), ("gpus", "gpu"), ("model",), ("rack",))

TIME_FIELDS = ("submitted", "started", "ended")
# Submission, start and end.
Times = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """One recorded job: submission, requested GPUs and duration; `started` is None if unknown."""

    id: str
    submitted: float
    seconds: float
    shape: GpuRequest
    started: float | None = None
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class JobRecords:
    """The jobs of a table, by submission; `counts` are the rows by result."""

    jobs: tuple[RecordedJob, ...]
    layout: str
    counts: Mapping[str, int]
    problems: table.Problems
    since: float = 0.0
    until: float = 0.0
    # They had not started when the table ends: their duration is unknown, so no replay includes them.
    waiting: tuple[RecordedJob, ...] = ()


@dataclass(slots=True)
class _JobTableReader:
    columns: Mapping[str, str]
    problems: table.Problems
    counts: Counter[str] = field(default_factory=Counter)
    waiting: list[RecordedJob] = field(default_factory=list)

    def read_cell(self, row: table.TableRow, name: str) -> str:
        return row.cells[self.columns[name]] if name in self.columns else ""

    def read_times(self, rows: Sequence[table.TableRow]) -> list[Times | None]:
        """Return the times of each row; None and a problem if one is invalid, or years away from the others."""
        times: list[Times | None] = []
        for row in rows:
            try:
                at = [table.parse_time(self.read_cell(row, name)) for name in TIME_FIELDS]
                times.append((at[0], at[1], at[2]))
            except ValueError as error:
                self.problems.add("bad time", row.line, str(error))
                times.append(None)
        median_time = table.median_time([at for row_times in times if row_times for at in row_times if at is not None])
        for index, row_times in enumerate(times):
            try:
                for time in row_times or ():
                    table.check_near(time, median_time)
            except ValueError as error:
                self.problems.add("bad time", rows[index].line, str(error))
                times[index] = None
        return times


@functools.cache
def load_layouts() -> dict[str, dict[str, str]]:

    def read(cells: Mapping[str, str]) -> tuple[str, str, str]:
        pack.required(cells["source"])
        layout, column = pack.required(cells["layout"]), pack.required(cells["column"])
        return layout, pack.choice(cells["field"], frozenset(FIELDS)), column

    columns_by_layout: dict[str, dict[str, str]] = {}
    for layout, name, column in pack.load("job_layouts.csv", read):
        columns_by_layout.setdefault(layout, {})[name] = column
    return columns_by_layout


def read_jobs(text: str, *, where: str, columns: Mapping[str, str] | None = None) -> JobRecords:
    problems = table.Problems(where)
    job_table = table.read_table(text, where=where, problems=problems)
    malformed = problems.counts.total()
    layout, field_columns = _choose_layout(job_table, columns or {}, where=where)
    reader = _JobTableReader(field_columns, problems)
    row_times = reader.read_times(job_table.rows)
    # Rows with invalid times do not define the start and the end of the table.
    given_times = [[at for at in times if at is not None] for times in row_times if times]
    all_times = [at for given in given_times if given == sorted(given) for at in given]
    if not all_times:
        raise CollectError("no row has a valid time", where=where, now="; ".join(problems.lines()[:3]))
    since, until = min(all_times), max(all_times)
    jobs: dict[str, list[RecordedJob]] = {}
    for row, times in zip(job_table.rows, row_times, strict=True):
        job = None if times is None else _parse_job(row, times, reader, window=(since, until))
        if job is None:
            continue
        runs = jobs.setdefault(job.id, [])
        # Slurm gives a requeued job a row for each run; in any other table a second row is a mistake.
        if runs and not ("tres" in field_columns and all(_is_disjoint(job, run) for run in runs)):
            problems.add("duplicate job id", row.line, f"{table.escape_cell(job.id)[:60]}: the first row is used")
            continue
        if runs:
            reader.counts["further_runs"] += 1
            job = replace(job, id=f"{job.id} run {len(runs) + 1}")
        runs.append(job)
    every_run = [job for runs in jobs.values() for job in runs]
    in_order = tuple(sorted(every_run, key=lambda job: (job.submitted, job.id)))
    total, dropped = len(job_table.rows) + malformed, problems.counts.total()
    counts = {"rows": total, "jobs": len(in_order), **reader.counts, "left_out": dropped}
    return JobRecords(in_order, layout, counts, problems, since, until, tuple(reader.waiting))


def _is_disjoint(job: RecordedJob, other: RecordedJob) -> bool:
    starts = [run.submitted if run.started is None else run.started for run in (job, other)]
    return starts[0] + job.seconds <= starts[1] or starts[1] + other.seconds <= starts[0]


def find_layout(columns: Sequence[str]) -> str | None:
    layouts = load_layouts().items()
    return next((name for name, fields in layouts if set(fields.values()) <= set(columns)), None)


def _choose_layout(job_table: table.CsvTable, columns: Mapping[str, str], *, where: str) -> tuple[str, dict[str, str]]:
    for column in columns.values():
        table.require_column(job_table.columns, column, where=where)
    name = find_layout(job_table.columns)
    if name is not None:
        # A table in Watchkeeper's format can have any of its fields.
        own_columns = {field: field for field in FIELDS if field in job_table.columns} if name == OWN_LAYOUT else {}
        return name, {**own_columns, **load_layouts()[name], **columns}
    has_size = any(name in columns for name in ("gpus", "milli", "tres"))
    if "submitted" in columns and has_size and ("ended" in columns or "seconds" in columns):
        # If the table has ids, a second row with the same id is a mistake.
        return "custom columns", {**({"id": "id"} if "id" in job_table.columns else {}), **columns}
    available = ", ".join(table.escape_cell(name)[:40] for name in job_table.columns[:12])
    raise CollectError(
        f"unknown layout of the job table; its columns are {available}",
        where=where,
        remedy="Name the columns: --column submitted=… --column gpus=… --column ended=… (or seconds=…)",
    )


def _parse_job(
    row: table.TableRow, times: Times, reader: _JobTableReader, *, window: tuple[float, float]
) -> RecordedJob | None:
    submitted, started, ended = times
    id = reader.read_cell(row, "id") or f"line {row.line}"
    # `123.batch` is a step of a Slurm job: its GPUs are the job's.
    if "tres" in reader.columns and "." in id:
        reader.counts["steps_skipped"] += 1
        return None
    try:
        shape = _parse_request(row, reader)
        seconds = table.parse_number(reader.read_cell(row, "seconds"))
    except ValueError as error:
        reader.problems.add("bad number", row.line, str(error))
        return None
    if shape is None:
        is_share = tres.is_share_of_unknown_size(reader.read_cell(row, "tres"))
        reader.counts["shares_of_unknown_size" if is_share else "without_gpus"] += 1
        return None
    if submitted is None:
        # The job was submitted before the trace begins.
        reader.counts["began_before"] += 1
        submitted = window[0] if started is None else started
        started = submitted
    if seconds is None:
        if started is None and "started" in reader.columns:
            reader.problems.add("never ran", row.line, "it is pending" if ended is None else "it ended in the queue")
            if ended is None:
                reader.waiting.append(RecordedJob(id, submitted, 0.0, shape, is_cut_off=True))
            return None
        if ended is None:
            reader.counts["without_end"] += 1
        begin = submitted if started is None else started
        seconds = (window[1] if ended is None else ended) - begin
    if seconds < 0 or (started is not None and started < submitted):
        early = "it ends before it starts" if seconds < 0 else "it starts before it was submitted"
        reader.problems.add("negative duration", row.line, early)
        return None
    is_cut_off = ended is None and "ended" in reader.columns
    return RecordedJob(id, submitted, seconds, shape, started=started, is_cut_off=is_cut_off)


def _parse_request(row: table.TableRow, reader: _JobTableReader) -> GpuRequest | None:
    """Return the GPUs that a row requests; None for a job without GPUs."""
    model = reader.read_cell(row, "models")
    if "tres" in reader.columns:
        # AllocTRES is empty while a job is pending.
        tres_text = reader.read_cell(row, "tres") or row.cells.get(REQUESTED_COLUMN, "")
        gpus: float | None = sum(tres.gpus_by_type(tres_text, model=model).values())
    else:
        gpus = table.parse_number(reader.read_cell(row, "gpus"))
    milli = table.parse_number(reader.read_cell(row, "milli"))
    share = table.parse_number(reader.read_cell(row, "share"))
    if gpus is None and milli is not None:
        gpus = milli / GPU_MILLI
    if gpus is None or gpus == 0:
        return None
    if not 0 < gpus <= fleet.MAX_GPUS:
        raise ValueError(f"{gpus:g} GPUs; the number must be between 0 and {fleet.MAX_GPUS:,}")
    requested_milli = round(gpus * GPU_MILLI)
    # A share refers to one GPU: `num_gpu` 2 with `gpu_milli` 1000 is two whole GPUs.
    if gpus == 1 and milli is not None and 0 < milli < GPU_MILLI:
        requested_milli = round(milli)
    # More than one GPU is rounded up to whole GPUs: no hardware provides 1.5 GPUs.
    requested_milli = requested_milli if requested_milli < GPU_MILLI else -(-requested_milli // GPU_MILLI) * GPU_MILLI
    models = tuple(sorted(filter(None, model.split("|"))))
    used_milli = round(share * GPU_MILLI) if share is not None and 0 < share < 1 and requested_milli <= GPU_MILLI else 0
    slice_milli = used_milli or (requested_milli if requested_milli < GPU_MILLI else 0)
    return GpuRequest(max(1, requested_milli), models, slice_milli=slice_milli)


def read_nodes(text: str, *, where: str) -> tuple[tuple[FleetNode, ...], table.Problems]:
    problems = table.Problems(where)
    node_table = table.read_table(text, where=where, problems=problems)
    name_column, gpu_column, model_column, rack_column = (
        next((column for column in names if column in node_table.columns), None) for names in NODE_COLUMNS
    )
    if name_column is None or gpu_column is None:
        available = ", ".join(table.escape_cell(name)[:40] for name in node_table.columns[:12])
        problem = "a table of nodes needs the columns name and gpus"
        raise CollectError(problem, where=where, now=f"Its columns are {available}")
    nodes: dict[str, FleetNode] = {}
    for row in node_table.rows:
        name = row.cells[name_column]
        try:
            gpus = table.parse_number(row.cells[gpu_column])
            if gpus is not None and (gpus != int(gpus) or not 0 <= gpus <= fleet.MAX_GPUS):
                raise ValueError(f"{gpus:g} is not a number of GPUs between 0 and {fleet.MAX_GPUS:,}")
        except ValueError as error:
            problems.add("bad number", row.line, str(error))
            continue
        if not name or name in nodes:
            problem = "duplicate node" if name else "node without a name"
            problems.add(problem, row.line, table.escape_cell(name)[:60])
        elif gpus:
            model, rack = (row.cells[column] if column else "" for column in (model_column, rack_column))
            nodes[name] = FleetNode(name, int(gpus), model=model, rack=rack)
    if not nodes:
        raise CollectError("no row names a node with GPUs", where=where)
    return tuple(nodes.values()), problems


def uniform_nodes(gpus: int, *, gpus_per_node: int) -> tuple[FleetNode, ...]:
    """Return nodes of one size with `gpus` GPUs in total; the last node has the remainder."""
    full, rest = divmod(gpus, gpus_per_node)
    sizes = [gpus_per_node] * full + ([rest] if rest else [])
    return tuple(FleetNode(f"node-{at}", size) for at, size in enumerate(sizes, start=1))


def unknown_models(jobs: Iterable[RecordedJob], nodes: Sequence[FleetNode]) -> dict[str, int]:
    node_models = {node.model for node in nodes}
    missing = Counter(table.escape_cell(model)[:60] for job in jobs for model in set(job.shape.models) - node_models)
    return dict(sorted(missing.items()))
