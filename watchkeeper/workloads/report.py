"""One job in full: its line, efficiency, goodput, ranks side by side, hardware events and losses in its time.

`web/jobs_api` and `explain job` ask; the answers come through `questions`, the decisions are in `closer`, `goodput`,
`efficiency` and `losses`, and here they meet.
"""

from __future__ import annotations

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
LONGEST = timedelta(hours=24)
MOST_RANKS, MOST_EVENTS = 4096, 200
# What nobody can say about a loss that went wrong where its GPUs do not export it.
UNTOLD = {
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "memory errors of its GPUs (DCGM_FI_DEV_ECC_*): they may explain its loss",
    gpu_errors.CLOCK_REASONS: f"why clocks of its GPUs were slow ({gpu_errors.CLOCK_REASONS}): it may explain its loss",
}
# How several of a state are counted in a sentence.
DOES = {
    **{state: state.value for state in jobs.RankState},
    jobs.RankState.WORKS: "at work",
    jobs.RankState.WAITS: "waiting",
}


@dataclass(frozen=True, slots=True)
class JobReportInputs:
    """One job of a board, and what the hub knows of its hardware."""

    line: jobs.JobLine
    key: JobKey
    training: str
    # What the list judged it by, and whether a closer look may change that.
    facts: efficiency.JobFacts
    is_suspect: bool
    parts: Sequence[workloads.ScheduledWorkload]
    # Of the window that `since` tells, of any cluster and node.
    happened: Sequence[events.Event]
    place_name: Callable[[fleet.Place], str]
    cause_of: Callable[[events.Event], str | None]
    first_seen: float | None = None


def make_report(engine: Engine, now: datetime, asked: JobReportInputs) -> jobs.JobReport:
    questions = JobQueries(engine, now, asked.key, training=asked.training)
    look = job_inspection.inspect_job(questions, asked.line)
    seen, nodes, beside = look.readings, look.nodes, look.ranks
    line, facts = asked.line, asked.facts
    if asked.is_suspect:
        line, facts = job_inspection.refine_line(line, facts, look)
    waits = _command(asked) if line.state is jobs.JobState.PENDING else None
    began = window_start(asked.line, asked.first_seen, now)
    facts = _held(questions, facts, nodes, {one.uuid for one in seen}) if nodes else facts
    hardware = _hardware(asked, nodes=nodes, rank_of={one.uuid: one.rank for one in seen})
    lost, untold = _losses(questions, asked, began, seen=seen, hardware=hardware)
    runs = (_link(labels.get("run_url", "")) for labels in questions.series("training_run_info"))
    return jobs.JobReport(
        line,
        _why(line, look) if waits is None else _waits(asked),
        efficiency.assess_efficiency(facts, HOUR_SECONDS) if waits is None else efficiency.pending_efficiency(waits),
        _goodput(questions, asked, began, now),
        tuple(sorted(beside, key=_rank_first)[:MOST_RANKS]),
        max(0, len(beside) - MOST_RANKS),
        tuple(hardware[-MOST_EVENTS:]),
        lost,
        next(filter(None, runs), None),
        (*questions.refused, *untold),
    )


def _link(text: str) -> str | None:
    """An address that a person may click: whoever writes a job's page chose it, and a browser runs what others say."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    return text if parts.scheme in ("http", "https") and parts.netloc and text.isprintable() else None


def _rank_first(one: jobs.Rank) -> tuple[bool, int, str, str]:
    return one.rank is None, one.rank or 0, one.node, one.gpu


def _why(line: jobs.JobLine, look: job_inspection.JobInspection) -> str:
    states = [one.state for one in look.ranks]
    counted = ", ".join(f"{states.count(state)} {DOES[state]}" for state in jobs.RankState if state in states)
    slow = line.straggler or look.straggler
    if slow is not None:
        return f"{jobs.straggler_name(slow)} {slow.why} ({counted})"
    return f"ranks: {counted}" if counted else "no GPU or rank of it is seen"


def _waits(asked: JobReportInputs) -> str:
    reasons = {part.reason for part in asked.parts} - {""}
    parts = "it waits" if len(asked.parts) == 1 else f"its {len(asked.parts)} parts wait"
    gpus = "a GPU" if asked.line.gpus == 1 else f"{asked.line.gpus} GPUs"
    return f"{parts} for {gpus}: {', '.join(sorted(reasons)) or 'no reason is given'}"


def _command(asked: JobReportInputs) -> str:
    first = min((part.workload for part in asked.parts), key=str)
    return f"watchkeeper explain pod {first}" if first.namespace else f"scontrol show job {first.name}"


def window_start(line: jobs.JobLine, first_seen: float | None, now: datetime) -> datetime:
    """The begin of its window: when it started or was first seen, a day at most; an hour where nobody knows."""
    known = line.started_at
    if known is None and first_seen is not None:
        known = datetime.fromtimestamp(first_seen, UTC)
    return max(known, now - LONGEST) if known is not None else now - timedelta(hours=1)


def _held(questions: JobQueries, facts: efficiency.JobFacts, nodes: set[str], own: set[str]) -> efficiency.JobFacts:
    """With the memory of its GPUs and the CPUs of its nodes, which a list does not show."""
    memory = [value for labels, value in questions.memory(nodes).items() if labels.get("UUID") in own]
    cpus, busy = questions.cpus(nodes)
    return replace(facts, memory_bytes=sum(memory) * 1024 * 1024 if memory else None, cpus=cpus, cpus_used=busy)


def _goodput(questions: JobQueries, asked: JobReportInputs, since: datetime, now: datetime) -> jobs.Goodput:
    steps = questions.timeline("training_iterations_total", since)
    restarts = dict(questions.values_over("training_restarts_total", since))
    missing = dict(questions.values_over("watchkeeper:training_ranks_missing:count", since))
    stalled = dict(questions.values_over("ALERTS", since, where='alertname="TrainingJobStalled",alertstate="firing"'))
    paused = dict(questions.values_over("training_paused", since))
    points = [
        goodput.ProgressPoint(at, value, restarts.get(at), at in missing, at in stalled, paused.get(at) == 1)
        for at, value in steps
    ]
    # What lies before its first word is no failure: nobody saw it.
    while points and points[0].steps is None:
        del points[0]
    if not points:
        points = [goodput.ProgressPoint(since.timestamp(), None), goodput.ProgressPoint(now.timestamp(), None)]
    usual = goodput.UsualPace(
        questions.learned_value("watchkeeper:training_step:seconds"),
        questions.learned_value("watchkeeper:training_longest_pause:max1d"),
        questions.learned_value("watchkeeper:training_stall_limit:seconds"),
    )
    asked_at = min((part.requested_at for part in asked.parts if part.requested_at), default=None)
    began_at = min((part.started_at for part in asked.parts if part.started_at), default=None)
    queue = None if asked_at is None or began_at is None else max(0.0, began_at - asked_at)
    return goodput.account_time(points, usual, queue_seconds=queue)


def _hardware(
    asked: JobReportInputs, *, nodes: set[str], rank_of: Mapping[str, int | None]
) -> list[jobs.HardwareEvent]:
    return [
        jobs.HardwareEvent(
            event.at,
            asked.place_name(event.place),
            event.kind.value,
            str(event.code or ""),
            asked.cause_of(event),
            event.text[:200],
            rank_of.get(event.place.gpu or ""),
        )
        for event in asked.happened
        if event.place.cluster == asked.key.cluster
        and event.place.node in nodes
        and (asked.cause_of(event) is not None or event.kind is events.EventKind.GPU_RESET)
    ]


def _told_losses(rows: Rows) -> list[losses.LossAnomaly]:
    """What watchkeeper.instrument counts: when a loss or gradient last became bad, by kind."""
    return [
        losses.LossAnomaly(at, labels.get("kind", "event").replace("_", " "))
        for labels, value in rows.items()
        if value > 0 and (at := clock.from_unix_seconds(value)) is not None
    ]


def _losses(
    questions: JobQueries,
    asked: JobReportInputs,
    since: datetime,
    *,
    seen: Sequence[ranks.RankReading],
    hardware: Sequence[jobs.HardwareEvent],
) -> tuple[tuple[jobs.LossEvent, ...], list[str]]:
    """What went wrong with loss and gradients, with what its GPUs did around then; and what of that nobody exports."""
    wrong = losses.merge_anomalies(
        _told_losses(questions.series("training_event_timestamp_seconds")),
        losses.find_anomalies(
            questions.values_over("training_loss", since), questions.values_over("training_grad_norm", since)
        ),
    )
    gpus = {one.uuid: one for one in seen if one.uuid}
    nodes = {one.node for one in gpus.values()} - {""}
    own = [one for one in hardware if one.rank is not None]
    found, told = [], set()
    for one in wrong:
        rows = questions.trouble(nodes, one.at) if nodes else {}
        theirs = {labels: value for labels, value in rows.items() if labels.get("UUID", "") in gpus}
        told |= {labels.get("field", "") for labels in theirs}
        found.append(losses.with_hardware_events(one, own, _trouble(theirs, one.at, gpus, names=asked.place_name)))
    untold = [what for field, what in UNTOLD.items() if found and field not in told]
    return tuple(found), untold


def _trouble(
    told: Rows, at: datetime, gpus: Mapping[str, ranks.RankReading], *, names: Callable[[fleet.Place], str]
) -> list[jobs.HardwareEvent]:
    """Memory errors and slowed clocks of its GPUs around a time, as events: counters have no moment of their own."""
    found = []
    for labels, value in told.items():
        one, field = gpus[labels.get("UUID", "")], labels.get("field", "")
        place = names(fleet.Place(labels.get("cluster", ""), node=one.node, gpu=one.uuid))
        if field in gpu_errors.MEMORY_ERRORS and value > 0:
            cause, what = gpu_errors.MEMORY_ERRORS[field]
            found.append(jobs.HardwareEvent(at, place, "ecc", "", cause, f"{value:.0f} {what} within 15 min", one.rank))
        elif field == gpu_errors.CLOCK_REASONS and gpu_errors.is_throttled(value):
            cause = "power_brake" if int(value) & clock_reasons.POWER_BRAKE else "thermal_throttle"
            text = f"clocks held down, reasons 0x{int(value):x}"
            found.append(jobs.HardwareEvent(at, place, "throttle", f"0x{int(value):x}", cause, text, one.rank))
    return found
