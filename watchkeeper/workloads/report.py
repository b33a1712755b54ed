"""Build the report of one job: its line, efficiency, goodput, ranks, hardware events and loss anomalies.

`web.fleet.jobs_api` calls it for each page, and `verdict` sums it up. `job_queries` reads the series;
`job_inspection`, `goodput`, `efficiency` and `losses` decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from watchkeeper.kit import clock
from watchkeeper.model import clock_reasons, events, fleet, jobs, workloads
from watchkeeper.query import gpu_errors
from watchkeeper.query.engine import Engine
from watchkeeper.workloads import efficiency, goodput, job_inspection, losses, ranks
from watchkeeper.workloads.identity import JobKey
from watchkeeper.workloads.job_queries import JobQueries, Rows

HOUR_SECONDS = 3600.0
MAX_WINDOW = timedelta(hours=24)
MAX_RANKS, MAX_EVENTS = 4096, 200
# Missing data about a loss anomaly, by the metric that the GPUs do not export.
MISSING_TEXTS = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "memory errors of its GPUs (DCGM_FI_DEV_ECC_*), which may explain the loss",
    gpu_errors.CLOCK_REASONS: f"throttle reasons of its GPUs ({gpu_errors.CLOCK_REASONS}), which may explain the loss",
}
# The text of each rank state.
STATE_TEXTS = {
    **{state: state.value for state in jobs.RankState},
    jobs.RankState.WORKS: "working",
    jobs.RankState.WAITS: "waiting",
}


@dataclass(frozen=True, slots=True)
class JobReportInputs:
    """A job of the list, and the hub's events about its hardware."""

    line: jobs.JobLine
    key: JobKey
    training: str
    # Its measurements in the list, and whether its ranks may refine them.
    facts: efficiency.JobFacts
    is_suspect: bool
    parts: Sequence[workloads.ScheduledWorkload]
    # Events since `window_start`, of all clusters and nodes.
    node_events: Sequence[events.Event]
    format_place: Callable[[fleet.Place], str]
    find_cause: Callable[[events.Event], str | None]
    first_seen: float | None = None


def make_report(engine: Engine, now: datetime, inputs: JobReportInputs) -> jobs.JobReport:
    queries = JobQueries(engine, now, inputs.key, training=inputs.training)
    inspection = job_inspection.inspect_job(queries, inputs.line)
    readings, nodes, compared = inspection.readings, inspection.nodes, inspection.ranks
    ordered = sorted(compared, key=lambda rank: (rank.rank is None, rank.rank or 0, rank.node, rank.gpu))
    line, facts = inputs.line, inputs.facts
    if inputs.is_suspect:
        line, facts = job_inspection.refine_line(line, facts, inspection)
    since = window_start(inputs.line, inputs.first_seen, now)
    rank_by_uuid = {reading.uuid: reading.rank for reading in readings}
    if nodes:
        # The list does not read the memory of the job's GPUs and the CPUs of its nodes.
        memory = [value for labels, value in queries.gpu_memory(nodes).items() if labels.get("UUID") in rank_by_uuid]
        cpus, busy = queries.cpu_cores(nodes)
        memory_bytes = sum(memory) * 1024 * 1024 if memory else None
        facts = replace(facts, memory_bytes=memory_bytes, cpus=cpus, cpus_used=busy)
    why, use = _explain(line, inspection), efficiency.assess_efficiency(facts, HOUR_SECONDS)
    if line.state is jobs.JobState.PENDING:
        why, use = _explain_pending(inputs)
    hardware = _collect_hardware_events(inputs, nodes=nodes, rank_by_uuid=rank_by_uuid)
    loss_events, missing = _collect_loss_events(queries, inputs, since, readings=readings, hardware=hardware)
    run_urls = (_safe_url(labels.get("run_url", "")) for labels in queries.series("training_run_info"))
    return jobs.JobReport(
        line,
        why,
        use,
        _account_goodput(queries, inputs, since, now),
        tuple(ordered[:MAX_RANKS]),
        max(0, len(compared) - MAX_RANKS),
        tuple(hardware[-MAX_EVENTS:]),
        loss_events,
        next(filter(None, run_urls), None),
        (*queries.problems, *missing),
        inspection.last_step_at,
        line.straggler or inspection.straggler,
    )


def _safe_url(text: str) -> str | None:
    """Return a URL that is safe to click, else None: a job exports it, and a browser would run a script URL."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and parts.netloc and text.isprintable() else None


def _explain(line: jobs.JobLine, inspection: job_inspection.JobInspection) -> str:
    states = [rank.state for rank in inspection.ranks]
    counts = ", ".join(f"{states.count(state)} {STATE_TEXTS[state]}" for state in jobs.RankState if state in states)
    straggler = line.straggler or inspection.straggler
    if straggler is not None:
        return f"{jobs.straggler_name(straggler)} {straggler.why} ({counts})"
    return f"ranks: {counts}" if counts else "no samples of its GPUs or ranks"


def _explain_pending(inputs: JobReportInputs) -> tuple[str, jobs.Efficiency]:
    """Return the reason, and the command that explains it."""
    reasons = {part.reason for part in inputs.parts} - {""}
    subject = "waits" if len(inputs.parts) == 1 else f"its {len(inputs.parts)} parts wait"
    gpus = "a GPU" if inputs.line.gpus == 1 else f"{inputs.line.gpus} GPUs"
    first = min((part.workload for part in inputs.parts), key=str)
    command = f"watchkeeper explain pod {first}" if first.namespace else f"scontrol show job {first.name}"
    why = f"{subject} for {gpus}: {', '.join(sorted(reasons)) or 'no reason reported'}"
    return why, efficiency.pending_efficiency(command)


def window_start(line: jobs.JobLine, first_seen: float | None, now: datetime) -> datetime:
    """Return the start of the report's window: the job's start, at most a day ago; an hour ago if unknown."""
    started_at = line.started_at
    if started_at is None and first_seen is not None:
        started_at = datetime.fromtimestamp(first_seen, UTC)
    return max(started_at, now - MAX_WINDOW) if started_at is not None else now - timedelta(hours=1)


def _account_goodput(queries: JobQueries, inputs: JobReportInputs, since: datetime, now: datetime) -> jobs.Goodput:
    steps = queries.timeline("training_iterations_total", since)
    restarts = dict(queries.values_over("training_restarts_total", since))
    missing = dict(queries.values_over("watchkeeper:training_ranks_missing:count", since))
    stalled = dict(queries.values_over("ALERTS", since, matchers='alertname="TrainingJobStalled",alertstate="firing"'))
    stalled_at = math.inf if inputs.line.stalled_since is None else inputs.line.stalled_since.timestamp()
    paused = dict(queries.values_over("training_paused", since))
    waited = dict(queries.values_over("training_data_wait_seconds_total", since))
    points = [
        goodput.ProgressPoint(
            at,
            value,
            restarts.get(at),
            at in missing,
            at in stalled or at > stalled_at,
            paused.get(at) == 1,
            waited.get(at),
        )
        for at, value in steps
    ]
    # The time before the first sample is not a failure, but unknown.
    while points and points[0].steps is None:
        del points[0]
    if not points:
        points = [goodput.ProgressPoint(since.timestamp(), None), goodput.ProgressPoint(now.timestamp(), None)]
    pace = goodput.LearnedPace(
        queries.learned_value("watchkeeper:training_step:seconds"),
        queries.learned_value("watchkeeper:training_longest_pause:max1d"),
        queries.learned_value("watchkeeper:training_stall_limit:seconds"),
    )
    requested_at = min((part.requested_at for part in inputs.parts if part.requested_at), default=None)
    started_at = min((part.started_at for part in inputs.parts if part.started_at), default=None)
    queue_seconds = None if requested_at is None or started_at is None else max(0.0, started_at - requested_at)
    return goodput.account_time(points, pace, queue_seconds=queue_seconds)


def _collect_hardware_events(
    inputs: JobReportInputs, *, nodes: set[str], rank_by_uuid: Mapping[str, int | None]
) -> list[jobs.HardwareEvent]:
    hardware = []
    for event in inputs.node_events:
        if event.place.cluster == inputs.key.cluster and event.place.node in nodes:
            cause, rank = inputs.find_cause(event), rank_by_uuid.get(event.place.gpu or "")
            if cause is not None or event.kind is events.EventKind.GPU_RESET:
                place, kind, code = inputs.format_place(event.place), event.kind.value, str(event.code or "")
                hardware.append(jobs.HardwareEvent(event.at, place, kind, code, cause, event.text[:200], rank))
    return hardware


def _collect_loss_events(
    queries: JobQueries,
    inputs: JobReportInputs,
    since: datetime,
    *,
    readings: Sequence[ranks.RankReading],
    hardware: Sequence[jobs.HardwareEvent],
) -> tuple[tuple[jobs.LossEvent, ...], list[str]]:
    """Return anomalies of loss and gradients with the hardware events around them, and the missing data."""
    # watchkeeper.instrument exports the last time of each kind.
    reported = [
        losses.LossAnomaly(at, labels.get("kind", "event").replace("_", " "))
        for labels, value in queries.series("training_event_timestamp_seconds").items()
        if value > 0 and (at := clock.from_unix_seconds(value)) is not None
    ]
    loss, grad_norm = (queries.values_over(name, since) for name in ("training_loss", "training_grad_norm"))
    anomalies = losses.merge_anomalies(reported, losses.find_anomalies(loss, grad_norm))
    readings_by_uuid = {reading.uuid: reading for reading in readings if reading.uuid}
    nodes = {reading.node for reading in readings_by_uuid.values()} - {""}
    rank_events = [event for event in hardware if event.rank is not None]
    loss_events, exported_fields = [], set()
    for anomaly in anomalies:
        rows = queries.gpu_faults(nodes, anomaly.at) if nodes else {}
        own_rows = {labels: value for labels, value in rows.items() if labels.get("UUID", "") in readings_by_uuid}
        exported_fields |= {labels.get("field", "") for labels in own_rows}
        events_of_counters = _build_counter_events(
            own_rows, anomaly.at, readings_by_uuid, format_place=inputs.format_place
        )
        loss_events.append(losses.add_hardware_events(anomaly, rank_events, events_of_counters))
    missing = [what for field, what in MISSING_TEXTS.items() if loss_events and field not in exported_fields]
    return tuple(loss_events), missing


def _build_counter_events(
    rows: Rows,
    at: datetime,
    readings_by_uuid: Mapping[str, ranks.RankReading],
    *,
    format_place: Callable[[fleet.Place], str],
) -> list[jobs.HardwareEvent]:
    """Return memory errors and throttling of GPUs around a time as events with that time, as counters have none."""
    counter_events = []
    for labels, value in rows.items():
        reading, field = readings_by_uuid[labels.get("UUID", "")], labels.get("field", "")
        place = format_place(fleet.Place(labels.get("cluster", ""), node=reading.node, gpu=reading.uuid))
        if field in gpu_errors.MEMORY_ERRORS and value > 0:
            cause, what = gpu_errors.MEMORY_ERRORS[field]
            text = f"{value:.0f} {what} within 15 min"
            counter_events.append(jobs.HardwareEvent(at, place, "ecc", "", cause, text, reading.rank))
        elif field == gpu_errors.CLOCK_REASONS and gpu_errors.is_throttling(value):
            cause = "power_brake" if int(value) & clock_reasons.POWER_BRAKE else "thermal_throttle"
            bits = f"0x{int(value):x}"
            text = f"throttled, clocks event reasons {bits}"
            counter_events.append(jobs.HardwareEvent(at, place, "throttle", bits, cause, text, reading.rank))
    return counter_events
