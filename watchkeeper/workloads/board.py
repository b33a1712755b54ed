"""Build the list of jobs with a fixed number of queries, and some more for jobs with a problem.

packs/rules/jobs.yaml and training.yaml aggregate GPUs and ranks by job once a minute; this module joins their series
with the workloads of schedulers, prices and incidents. `web.fleet.jobs_api` calls it; `report` starts with a line of
the list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from watchkeeper.catalogue import prices
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import jobs, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors
from watchkeeper.query.engine import Engine
from watchkeeper.workloads import board_queries, efficiency, identity, job_inspection, ranks
from watchkeeper.workloads.identity import JobKey
from watchkeeper.workloads.job_queries import JobQueries

# The state that an alert implies; of several, the first in JobState is used.
STATE_OF_ALERT = {
    "TrainingJobStalled": jobs.JobState.STALLED,
    "TrainingRankDied": jobs.JobState.HUNG,
    "JobHung": jobs.JobState.HUNG,
    "JobStalled": jobs.JobState.STALLED,
    "TrainingLossNotFinite": jobs.JobState.DIVERGED,
    "TrainingLossRising": jobs.JobState.DIVERGED,
    "TrainingGradientNorm": jobs.JobState.DIVERGED,
    "TrainingRankSlow": jobs.JobState.SLOW,
    "JobRankSlow": jobs.JobState.SLOW,
    "TrainingThroughputDrop": jobs.JobState.SLOW,
    "TrainingInputStarved": jobs.JobState.SLOW,
}
# The text about the straggler of an alert.
STRAGGLER_TEXTS = {"TrainingRankSlow": ranks.SLOW_STEP_TEXT, "JobRankSlow": ranks.BUSY_SMS_TEXT}
# As in packs/rules/jobs.yaml: longer than compiling, evaluation, checkpoints and most data loading take.
IDLE_LIMIT_SECONDS = 900.0
# A job with GPUs that do not report is stalled after this time without a step, or after three steps.
MIN_STALL_SECONDS, STALL_STEPS = 60.0, 3
# The ranks of at most this many jobs, the most severe, are inspected: some ten queries each.
MAX_INSPECTED_JOBS, MAX_THROTTLED_GPUS = 16, 1000
NO_HOLDERS_YET = (
    "no GPU is assigned to a job yet (the rules run every minute): use, team, GPU-hours and cost are unknown"
)
SEVERITY_ORDER = {state: at for at, state in enumerate(jobs.JobState)}
TRAINING_QUERIES = (
    "step_ages", "ended_steps", "step_seconds", "world_sizes", "training_nodes", "goodput", "input_waits", "paused",
)  # fmt: skip
Rows = Mapping[Labels, float]
TrainingKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BoardInputs:
    """The inputs beside series: workloads of schedulers, the price book, and open incidents by job name."""

    scheduled: Sequence[workloads.ScheduledWorkload] = ()
    price_book: prices.PriceBook | None = None
    incidents_by_job: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    first_seen: Mapping[JobKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobBoard:
    """All jobs, the most severe state first; `problems` has the failed queries."""

    lines: tuple[jobs.JobLine, ...]
    training_names: Mapping[JobKey, str]
    problems: tuple[str, ...] = ()
    # The measurements of each job; `suspects` are the jobs whose ranks are inspected.
    facts: Mapping[JobKey, efficiency.JobFacts] = field(default_factory=dict)
    # The pods or the Slurm job, as their scheduler reports them.
    parts: Mapping[JobKey, Sequence[workloads.ScheduledWorkload]] = field(default_factory=dict)
    suspects: frozenset[JobKey] = frozenset()

    def find_line(self, key: JobKey) -> jobs.JobLine:
        identity_of_key = (key.cluster, key.kind, key.id)
        return next(line for line in self.lines if (line.cluster, line.kind, line.id) == identity_of_key)


def make_board(engine: Engine, now: datetime, inputs: BoardInputs) -> JobBoard:
    at_ms, problems = round(now.timestamp() * 1000), []
    rows_by_query: dict[str, Rows] = {}
    for name, expr in board_queries.QUERIES.items():
        try:
            rows_by_query[name] = engine.instant(expr, at_ms).latest()
        except WatchkeeperError as error:
            rows_by_query[name] = {}
            problems.append(f"the query for {name.replace('_', ' ')} of jobs failed: {error}")
    if rows_by_query["world_sizes"] and not rows_by_query["gpus"] and not problems:
        problems.append(NO_HOLDERS_YET)
    rows_by_query["throttled_gpus"] = _count_throttled_gpus(engine, at_ms, rows_by_query["throttle_reasons"], problems)
    return _inspect_suspects(engine, now, _BoardBuilder(rows_by_query, inputs, now).build(tuple(problems)))


def _count_throttled_gpus(engine: Engine, at_ms: int, reasons: Rows, problems: list[str]) -> Rows:
    """Return how many GPUs of each job are throttled by heat or the power brake."""
    throttled = [labels.get("UUID", "") for labels, value in reasons.items() if gpu_errors.is_throttling(value)]
    if not throttled:
        return {}
    try:
        pattern = "|".join(map(own_metrics.escape, throttled[:MAX_THROTTLED_GPUS]))
        return engine.instant(board_queries.THROTTLED_QUERY.format(pattern), at_ms).latest()
    except WatchkeeperError as error:
        problems.append(f"the query for throttled GPUs of jobs failed: {error}")
        return {}


def _inspect_suspects(engine: Engine, now: datetime, board: JobBoard) -> JobBoard:
    """Refine the lines of suspects by their ranks, so that the list agrees with the page of the job."""
    lines_by_id = {(line.cluster, line.kind, line.id): line for line in board.lines}
    lines, facts = {key: lines_by_id[key.cluster, key.kind, key.id] for key in board.suspects}, dict(board.facts)
    problems = list(board.problems)
    for key in sorted(lines, key=lambda suspect: _severity_key(lines[suspect]))[:MAX_INSPECTED_JOBS]:
        queries = JobQueries(engine, now, key, training=board.training_names[key])
        inspection = job_inspection.inspect_job(queries, lines[key])
        lines[key], facts[key] = job_inspection.refine_line(lines[key], facts[key], inspection)
        problems += [problem for problem in queries.problems if problem not in problems]
    if (skipped := len(lines) - MAX_INSPECTED_JOBS) > 0:
        problems.append(f"the ranks of {skipped} more jobs with problems were not inspected: open the page of the job")
    lines_by_id |= {(line.cluster, line.kind, line.id): line for line in lines.values()}
    ordered = tuple(sorted(lines_by_id.values(), key=_severity_key))
    return replace(board, lines=ordered, facts=facts, problems=tuple(problems))


def _severity_key(line: jobs.JobLine) -> tuple[int, int, str]:
    return SEVERITY_ORDER[line.state], -line.gpus, line.id


def find_first_seen(engine: Engine, now: datetime) -> dict[JobKey, float]:
    """Return when each running job was first recorded within a week."""
    first_seen: dict[JobKey, float] = {}
    for expr in board_queries.FIRST_SEEN_QUERIES:
        for labels, value in engine.instant(expr, round(now.timestamp() * 1000)).latest().items():
            key = identity.job_from_labels(labels)
            first_seen[key] = min(value, first_seen.get(key, value))
    return first_seen


class _BoardBuilder:
    """Groups the rows of all queries by job, and builds the list from them."""

    def __init__(self, rows: Mapping[str, Rows], inputs: BoardInputs, now: datetime) -> None:
        self._inputs, self._now = inputs, now
        self._gpus = _group_by_job(rows["gpus"])
        self._uses: dict[JobKey, dict[str, float]] = {}
        for labels, value in rows["usage"].items():
            self._uses.setdefault(identity.job_from_labels(labels), {})[labels.get("of", "")] = value
        self._parts: dict[JobKey, list[workloads.ScheduledWorkload]] = {}
        for part in [*inputs.scheduled, *identity.read_pending_pods(rows["pending"], inputs.scheduled)]:
            if part.state is not workloads.WorkloadState.ENDED and part.gpus:
                self._parts.setdefault(identity.job_from_workload(part), []).append(part)
        self._by_training = {name: _map_by_training(rows[name]) for name in TRAINING_QUERIES}
        self._last_step_ages = self._by_training["step_ages"]
        self._all_step_ages = {**self._by_training["ended_steps"], **self._last_step_ages}
        self._node_counts = _map_by_job(rows["nodes"])
        self._recorded_at = _map_by_job(rows["recorded_at"])
        self._throttled_gpus = _map_by_job(rows["throttled_gpus"])
        self._idle_seconds = _map_by_job(rows["idle"])
        self._facts: dict[JobKey, efficiency.JobFacts] = {}
        self._training_names = {
            identity.job_from_labels(labels): labels.get("training_job", "") for labels in rows["training_names"]
        }
        self._silent_gpus = _map_by_job(rows["silent_gpus"])
        self._alerts: dict[TrainingKey, list[str]] = {}
        for labels in rows["alerts"]:
            self._alerts.setdefault(_training_key(labels), []).append(labels.get("alertname", ""))
        self._alert_starts = {
            (*_training_key(labels), labels.get("alertname", "")): value
            for labels, value in rows["alert_starts"].items()
        }
        self._slow_ranks: dict[TrainingKey, tuple[Labels, float]] = {}
        for labels, value in rows["slow_ranks"].items():
            if value > self._slow_ranks.get(_training_key(labels), (labels, 0.0))[1]:
                self._slow_ranks[_training_key(labels)] = (labels, value)

    def build(self, problems: tuple[str, ...]) -> JobBoard:
        training_names = {key: self._find_training_name(key) for key in {*self._gpus, *self._parts}}
        assigned = {(key.cluster, name) for key, name in training_names.items() if name}
        unassigned = {*self._by_training["world_sizes"], *self._last_step_ages} - assigned
        training_names |= {JobKey(cluster, jobs.JobKind.PLAIN, "", name): name for cluster, name in unassigned}
        lines = {key: self._build_line(key, training) for key, training in training_names.items()}
        training_keys = {key: (key.cluster, name or key.name) for key, name in training_names.items()}
        suspects = frozenset(key for key, line in lines.items() if self._is_suspect(line, training_keys[key]))
        ordered = tuple(sorted(lines.values(), key=_severity_key))
        return JobBoard(ordered, training_names, problems, self._facts, self._parts, suspects)

    def _is_suspect(self, line: jobs.JobLine, training_key: TrainingKey) -> bool:
        """Whether alerts or the ranks' step times show a problem, so that the ranks may show its source.

        GPUs that differ are not enough to call a job slow: packs/rules/jobs.yaml has the reasons.
        """
        if line.state is jobs.JobState.RUNNING:
            return training_key in self._slow_ranks and "rank" in self._slow_ranks[training_key][0]
        return line.state in (*job_inspection.STUCK, jobs.JobState.SLOW)

    def _find_training_name(self, key: JobKey) -> str:
        """Return the name in the job's own training series; empty if it exports none."""
        name = self._training_names.get(key) or key.name
        # The age of the last step comes from a rule and may be late; the world size comes from the job itself.
        training_key = (key.cluster, name)
        has_series = any(
            training_key in self._by_training[rows] for rows in ("step_ages", "ended_steps", "world_sizes")
        )
        return name if has_series else ""

    def _build_line(self, key: JobKey, training: str) -> jobs.JobLine:
        rows, parts = self._gpus.get(key, []), self._parts.get(key, [])
        training_key = (key.cluster, training or key.name)
        gpus = sum(value for _, value in rows) or self._by_training["world_sizes"].get(training_key, 0.0)
        running = [part for part in parts if part.state is workloads.WorkloadState.RUNNING]
        if not rows and parts:
            gpus = float(sum(part.gpus for part in parts))
        started = min((part.started_at for part in running if part.started_at), default=None)
        # A job of this minute is not in `first_seen` yet: use the time when the rules recorded it.
        first_seen = started if started is not None else self._inputs.first_seen.get(key, self._recorded_at.get(key))
        gpu_hours = None if first_seen is None else max(0.0, self._now.timestamp() - first_seen) / 3600 * gpus
        straggler = self._find_straggler(training_key)
        uses = self._uses.get(key, {})
        state = self._decide_state(key, training_key, uses)
        # Seconds without a step; for a job that exports no steps, without a kernel.
        kernel_age = self._idle_seconds.get(key) if state is jobs.JobState.STALLED else None
        idle_seconds = self._all_step_ages.get(training_key, kernel_age)
        is_stalled = state in (jobs.JobState.STALLED, jobs.JobState.HUNG) and idle_seconds is not None
        stalled_at = self._now.timestamp() - (idle_seconds or 0.0) if is_stalled else None
        # What a job did before it stopped reporting is not how it does.
        goodput = self._value("goodput", training_key) if training_key in self._last_step_ages else None
        facts = efficiency.JobFacts(
            gpus, uses, self._value("input_waits", training_key), straggler, round(self._throttled_gpus.get(key, 0.0)),
            is_stuck=state in job_inspection.STUCK, is_idle=state is jobs.JobState.IDLE,
        )  # fmt: skip
        self._facts[key] = facts
        return jobs.JobLine(
            key.id, key.kind, key.cluster, training or key.name, key.namespace,
            _first_nonempty((labels.get("user", "") for labels, _ in rows), (part.workload.user for part in parts)),
            _first_nonempty((labels.get("team", "") for labels, _ in rows), (part.account for part in parts)),
            state, self._count_nodes(key, training_key, running), round(gpus),
            None if started is None else datetime.fromtimestamp(started, UTC),
            None if gpu_hours is None else round(gpu_hours, 2), uses.get("active"), uses.get("memory"),
            efficiency.find_bottleneck(facts), goodput,
            None if stalled_at is None else clock.from_unix_seconds(stalled_at), straggler,
            self._cost(rows, gpu_hours), self._find_incidents(key, training),
            None if first_seen is None else datetime.fromtimestamp(first_seen, UTC),
            self._find_problem_start(key, training_key, state, stalled_at=stalled_at),
            round(self._silent_gpus.get(key, 0.0)),
        )  # fmt: skip

    def _find_problem_start(
        self, key: JobKey, training_key: TrainingKey, state: jobs.JobState, *, stalled_at: float | None
    ) -> datetime | None:
        if state is jobs.JobState.IDLE and key in self._idle_seconds:
            stalled_at = self._now.timestamp() - self._idle_seconds[key]
        # A running job may have an alert that is pending.
        is_running = state is jobs.JobState.RUNNING
        names = STATE_OF_ALERT if is_running else [name for name in STATE_OF_ALERT if STATE_OF_ALERT[name] is state]
        starts = (self._alert_starts.get((*training_key, name)) for name in names)
        start = stalled_at if stalled_at is not None else min((at for at in starts if at is not None), default=None)
        return None if start is None else clock.from_unix_seconds(start)

    def _decide_state(self, key: JobKey, training_key: TrainingKey, uses: Mapping[str, float]) -> jobs.JobState:
        states = [STATE_OF_ALERT[name] for name in self._alerts.get(training_key, ()) if name in STATE_OF_ALERT]
        if states:
            return min(states, key=SEVERITY_ORDER.__getitem__)
        if key not in self._gpus and self._parts.get(key):
            is_pending = all(part.state is workloads.WorkloadState.PENDING for part in self._parts[key])
            return jobs.JobState.PENDING if is_pending else jobs.JobState.UNKNOWN
        if training_key in self._last_step_ages:
            if self._lost_its_gpus(key, training_key):
                return jobs.JobState.STALLED
            return jobs.JobState.PAUSED if training_key in self._by_training["paused"] else jobs.JobState.RUNNING
        # Means of an hour remain for an hour after the last rank or GPU of the job stopped reporting.
        if training_key in self._by_training["ended_steps"] and training_key not in self._by_training["world_sizes"]:
            # Neither a rank nor a GPU does anything, but the job holds its GPUs.
            is_idle = self._idle_seconds.get(key, 0.0) >= MIN_STALL_SECONDS
            return jobs.JobState.STALLED if is_idle else jobs.JobState.UNKNOWN
        if not uses:
            return jobs.JobState.UNKNOWN
        if self._silent_gpus.get(key, 0.0) >= sum(value for _, value in self._gpus.get(key, [])) > 0:
            return jobs.JobState.UNKNOWN
        # The mean of an hour falls only slowly after the last kernel.
        is_long_idle = self._idle_seconds.get(key, 0.0) >= IDLE_LIMIT_SECONDS
        is_idle = is_long_idle or uses.get("active", 1.0) < efficiency.IDLE_SHARE
        return jobs.JobState.IDLE if is_idle else jobs.JobState.RUNNING

    def _lost_its_gpus(self, key: JobKey, training_key: TrainingKey) -> bool:
        """Whether GPUs of the job do not report and no step ends: an exporter alone that is down stops no job."""
        limit = max(MIN_STALL_SECONDS, STALL_STEPS * (self._value("step_seconds", training_key) or 0.0))
        return self._silent_gpus.get(key, 0.0) > 0 and self._last_step_ages[training_key] > limit

    def _find_straggler(self, training_key: TrainingKey) -> jobs.Straggler | None:
        alerts = self._alerts.get(training_key, ())
        text = next((STRAGGLER_TEXTS[name] for name in alerts if name in STRAGGLER_TEXTS), None)
        if training_key not in self._slow_ranks or text is None:
            return None
        labels, score = self._slow_ranks[training_key]
        node, gpu, uuid = (labels.get(name, "") for name in ("Hostname", "gpu", "UUID"))
        return jobs.Straggler(identity.read_rank(labels), node, gpu, uuid, score, text.format(score))

    def _count_nodes(
        self, key: JobKey, training_key: TrainingKey, running: Sequence[workloads.ScheduledWorkload]
    ) -> int:
        node_count = self._node_counts.get(key, self._value("training_nodes", training_key))
        return round(node_count) if node_count is not None else len({node for part in running for node in part.nodes})

    def _value(self, name: str, training_key: TrainingKey) -> float | None:
        return self._by_training[name].get(training_key)

    def _cost(self, rows: Sequence[tuple[Labels, float]], gpu_hours: float | None) -> jobs.Money | None:
        price_book, now = self._inputs.price_book, self._now.timestamp()
        gpus = sum(value for _, value in rows)
        if price_book is None or gpu_hours is None or not gpus:
            return None
        names = [(labels.get("modelName", ""), labels.get("pool", ""), value) for labels, value in rows]
        rates = [(price_book.rate(model, pool, at=now), value) for model, pool, value in names]
        if any(rate is None for rate, _ in rates):
            return jobs.Money(None, price_book.currency)
        hourly = sum(rate.per_gpu_hour * value for rate, value in rates if rate is not None)
        return jobs.Money(round(hourly * gpu_hours / gpus, 2), price_book.currency)

    def _find_incidents(self, key: JobKey, training: str) -> tuple[str, ...]:
        names = {training, key.name, key.id} - {""}
        return tuple(sorted({incident for name in names for incident in self._inputs.incidents_by_job.get(name, ())}))


def _map_by_job(rows: Rows) -> dict[JobKey, float]:
    return {identity.job_from_labels(labels): value for labels, value in rows.items()}


def _group_by_job(rows: Rows) -> dict[JobKey, list[tuple[Labels, float]]]:
    grouped: dict[JobKey, list[tuple[Labels, float]]] = {}
    for labels, value in rows.items():
        grouped.setdefault(identity.job_from_labels(labels), []).append((labels, value))
    return grouped


def _map_by_training(rows: Rows) -> dict[TrainingKey, float]:
    # Programs export these themselves, so a value may be NaN or infinite.
    return {_training_key(labels): value for labels, value in rows.items() if math.isfinite(value)}


def _training_key(labels: Labels) -> TrainingKey:
    return labels.get("cluster", ""), labels.get("job_name", "")


def _first_nonempty(*sources: Iterable[str]) -> str:
    return next((text for texts in sources for text in texts if text), "")
