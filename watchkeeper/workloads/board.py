"""Every job in one line, from a fixed number of questions whatever the number of GPUs, and some about jobs in trouble.

packs/rules/jobs.yaml and training.yaml have already put GPUs and ranks together by job, once a minute; here their
answers meet what schedulers say, prices and incidents. `web/jobs_api` asks, and `report` begins with the same line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from watchkeeper.catalogue import prices
from watchkeeper.errors import WatchkeeperError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import clock_reasons, jobs, workloads
from watchkeeper.model.labels import Labels
from watchkeeper.query import gpu_errors
from watchkeeper.query.engine import Engine
from watchkeeper.workloads import efficiency, identity, job_inspection, pending_pods
from watchkeeper.workloads.identity import JobKey
from watchkeeper.workloads.job_queries import JobQueries

# What is asked for every list. A name that starts with `h_` is about the last hour.
QUESTIONS: Mapping[str, str] = {
    "gpus": "watchkeeper:job_gpus:sum",
    "nodes": "watchkeeper:job_nodes:count",
    "seen": "timestamp(watchkeeper:job_nodes:count)",
    # Means of an hour, because a job that exchanges gradients this minute is not bound by that.
    "h_uses": (
        'avg_over_time(watchkeeper:job_use:ratio{of!="memory"}[1h]) or watchkeeper:job_use:ratio{of="memory"}'
    ),
    "held_down": f"{gpu_errors.CLOCK_REASONS} >= {clock_reasons.SW_THERMAL}",
    "idle": "watchkeeper:job_idle:seconds",
    "trainings": "watchkeeper:job_training:group",
    "ages": "watchkeeper:training_last_step_age:seconds",
    "worlds": "max by (cluster, job_name) (training_world_size)",
    "training_nodes": (
        "count by (cluster, job_name) (group by (cluster, job_name, Hostname) (training_rank_info))"
    ),
    "h_goodput": "avg_over_time(watchkeeper:training_productive:ratio[1h])",
    "paused": "max by (cluster, job_name) (training_paused) == 1",
    "waits": "max by (cluster, job_name) (rate(training_data_wait_seconds_total[5m]))",
    "slow": (
        "watchkeeper:training_rank_slow:ratio * on (cluster, job_name, rank) group_left (Hostname, gpu, UUID) "
        "max by (cluster, job_name, rank, Hostname, gpu, UUID) (training_rank_info)"
        " or watchkeeper:training_rank_slow:ratio"
        " or avg_over_time(watchkeeper:job_gpu_busier:ratio[15m]) > 0.1"
    ),
    "waiting": pending_pods.QUESTION,
    "alerts": 'ALERTS{alertstate="firing",job_name!=""}',
}  # fmt: skip
# Which jobs hold GPUs; asked about those few whose clocks are held down.
SLOWED = 'count by (cluster, workload_kind, namespace, job_name) (watchkeeper:job_gpu:share{{UUID=~"{}"}})'
# When a job was first seen: hours of a week, and minutes of the newest hour. Kept for a while by whoever asks.
FIRST_SEEN = (
    "min_over_time(timestamp(watchkeeper:job_nodes:count)[7d:1h])",
    "min_over_time(timestamp(watchkeeper:job_nodes:count)[1h:1m])",
)
# Which state an alert means; packs/rules decides when it fires. The order of JobState decides between several.
STATES = {
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
# What the rank or GPU does that such an alert is about.
DOES = {
    "TrainingRankSlow": "computes {:.0%} longer than the others at each step",
    "JobRankSlow": "keeps its SMs busy {:.0%} longer than the others, which wait for it",
}
# As in packs/rules/jobs.yaml: longer than compiling, evaluation, checkpoints and most data loading take.
STILL_SECONDS = 900.0
# At so many jobs of a list, the gravest, a closer look is taken: some ten questions each.
MOST_LOOKS, MOST_SLOWED = 16, 1000
NOT_YET = "no GPU is put to a job yet, which rules do once a minute: use, team, GPU-hours and cost are unknown"
ORDER = {state: at for at, state in enumerate(jobs.JobState)}
BY_TRAINING = ("ages", "worlds", "training_nodes", "h_goodput", "waits", "paused")
Rows = Mapping[Labels, float]
Training = tuple[str, str]


@dataclass(frozen=True, slots=True)
class BoardInputs:
    """What is known beside the series: schedulers, the price book, and open incidents by the name of a job."""

    scheduled: Sequence[workloads.ScheduledWorkload] = ()
    book: prices.PriceBook | None = None
    incidents: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    first_seen: Mapping[JobKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Board:
    """All jobs, the gravest state first; `problems` are questions that were refused."""

    lines: tuple[jobs.JobLine, ...]
    keys: Mapping[JobKey, str]
    problems: tuple[str, ...] = ()
    # What each is judged by, and those at whose ranks it is worth to look.
    facts: Mapping[JobKey, efficiency.JobFacts] = field(default_factory=dict)
    # Pods or the Slurm job, as schedulers know them.
    parts: Mapping[JobKey, Sequence[workloads.ScheduledWorkload]] = field(default_factory=dict)
    suspects: frozenset[JobKey] = frozenset()

    def find_line(self, key: JobKey) -> jobs.JobLine:
        return next(one for one in self.lines if (one.cluster, one.kind, one.id) == (key.cluster, key.kind, key.id))


def make_board(engine: Engine, now: datetime, around: BoardInputs) -> Board:
    at_ms, problems = round(now.timestamp() * 1000), []
    told: dict[str, Rows] = {}
    for name, expr in QUESTIONS.items():
        try:
            told[name] = engine.instant(expr, at_ms).latest()
        except WatchkeeperError as error:
            told[name] = {}
            problems.append(f"{name} of jobs could not be asked: {error}")
    if told["worlds"] and not told["gpus"] and not problems:
        problems.append(NOT_YET)
    told["slowed"] = _slowed(engine, at_ms, told["held_down"], problems)
    return _looked_at(engine, now, _BoardBuilder(told, around, now).board(tuple(problems)))


def _slowed(engine: Engine, at_ms: int, reasons: Rows, problems: list[str]) -> Rows:
    """How many GPUs of each job are slowed down by heat or the power brake."""
    gpus = [labels.get("UUID", "") for labels, value in reasons.items() if gpu_errors.is_throttled(value)]
    if not gpus:
        return {}
    try:
        return engine.instant(SLOWED.format("|".join(map(own_metrics.escape, gpus[:MOST_SLOWED]))), at_ms).latest()
    except WatchkeeperError as error:
        problems.append(f"slowed GPUs of jobs could not be asked: {error}")
        return {}


def _looked_at(engine: Engine, now: datetime, found: Board) -> Board:
    """The same with what the ranks of suspects show, so that a list says what the page of the job says."""
    known = {(line.cluster, line.kind, line.id): line for line in found.lines}
    lines, facts = {key: known[key.cluster, key.kind, key.id] for key in found.suspects}, dict(found.facts)
    problems = list(found.problems)
    for key in sorted(lines, key=lambda one: _gravest_first(lines[one]))[:MOST_LOOKS]:
        questions = JobQueries(engine, now, key, training=found.keys[key])
        look = job_inspection.inspect_job(questions, lines[key])
        lines[key], facts[key] = job_inspection.refine_line(lines[key], facts[key], look)
        problems += [problem for problem in questions.refused if problem not in problems]
    if (left := len(lines) - MOST_LOOKS) > 0:
        problems.append(f"{left} more jobs are in trouble than are looked at closely: the page of one may say more")
    known |= {(line.cluster, line.kind, line.id): line for line in lines.values()}
    ordered = tuple(sorted(known.values(), key=_gravest_first))
    return replace(found, lines=ordered, facts=facts, problems=tuple(problems))


def _gravest_first(line: jobs.JobLine) -> tuple[int, int, str]:
    return ORDER[line.state], -line.gpus, line.id


def first_seen(engine: Engine, now: datetime) -> dict[JobKey, float]:
    """When each job that runs was first seen within a week."""
    found: dict[JobKey, float] = {}
    for expr in FIRST_SEEN:
        for labels, value in engine.instant(expr, round(now.timestamp() * 1000)).latest().items():
            key = identity.job_of_labels(labels)
            found[key] = min(value, found.get(key, value))
    return found


class _BoardBuilder:
    """One list in the making: rows by job."""

    def __init__(self, told: Mapping[str, Rows], around: BoardInputs, now: datetime) -> None:
        self._around, self._now = around, now
        self._gpus = _by_key(told["gpus"])
        self._uses: dict[JobKey, dict[str, float]] = {}
        for labels, value in told["h_uses"].items():
            self._uses.setdefault(identity.job_of_labels(labels), {})[labels.get("of", "")] = value
        self._parts: dict[JobKey, list[workloads.ScheduledWorkload]] = {}
        for part in [*around.scheduled, *pending_pods.read_pending_pods(told["waiting"], around.scheduled)]:
            if part.state is not workloads.WorkloadState.ENDED and part.gpus:
                self._parts.setdefault(identity.job_of_workload(part), []).append(part)
        self._by_job = {name: _by_training(told[name]) for name in BY_TRAINING}
        self._ages = self._by_job["ages"]
        self._nodes_of = {identity.job_of_labels(labels): value for labels, value in told["nodes"].items()}
        self._seen = {identity.job_of_labels(labels): value for labels, value in told["seen"].items()}
        self._slowed = {identity.job_of_labels(labels): round(value) for labels, value in told["slowed"].items()}
        self._facts: dict[JobKey, efficiency.JobFacts] = {}
        self._idle = {identity.job_of_labels(labels): value for labels, value in told["idle"].items()}
        self._names = {identity.job_of_labels(labels): labels.get("training_job", "") for labels in told["trainings"]}
        self._alerts: dict[Training, list[str]] = {}
        for labels in told["alerts"]:
            self._alerts.setdefault(_training(labels), []).append(labels.get("alertname", ""))
        self._slow: dict[Training, tuple[Labels, float]] = {}
        for labels, value in told["slow"].items():
            if value > self._slow.get(_training(labels), (labels, 0.0))[1]:
                self._slow[_training(labels)] = (labels, value)

    def board(self, problems: tuple[str, ...]) -> Board:
        keys = {key: self._training_of(key) for key in {*self._gpus, *self._parts}}
        taken = {(key.cluster, name) for key, name in keys.items() if name}
        alone = {*self._by_job["worlds"], *self._ages} - taken
        keys |= {JobKey(cluster, jobs.JobKind.PLAIN, "", name): name for cluster, name in alone}
        lines = {key: self._line(key, training) for key, training in keys.items()}
        suspects = {key for key, line in lines.items() if self._is_suspect(line, (key.cluster, keys[key] or key.name))}
        ordered = tuple(sorted(lines.values(), key=_gravest_first))
        return Board(ordered, keys, problems, self._facts, self._parts, frozenset(suspects))

    def _is_suspect(self, line: jobs.JobLine, own: Training) -> bool:
        """Whether alerts or its ranks' own steps speak of trouble, so that its ranks may tell who makes it.

        Without them GPUs that differ are no reason to call a job slow: packs/rules/jobs.yaml says why.
        """
        steps = own in self._slow and "rank" in self._slow[own][0]
        return line.state in (*job_inspection.STUCK, jobs.JobState.SLOW) or (
            steps and line.state is jobs.JobState.RUNNING
        )

    def _training_of(self, key: JobKey) -> str:
        """The name under which the job tells about itself; its own where nothing else is known, empty for none."""
        name = self._names.get(key) or key.name
        # Rules may be late with the age of its last step; how many ranks it has it tells itself.
        is_told = any((key.cluster, name) in told for told in (self._ages, self._by_job["worlds"]))
        return name if is_told else ""

    def _line(self, key: JobKey, training: str) -> jobs.JobLine:
        rows, parts = self._gpus.get(key, []), self._parts.get(key, [])
        own = (key.cluster, training or key.name)
        gpus = sum(value for _, value in rows) or self._by_job["worlds"].get(own, 0.0)
        running = [part for part in parts if part.state is workloads.WorkloadState.RUNNING]
        if not rows and parts:
            gpus = float(sum(part.gpus for part in parts))
        started = min((part.started_at for part in running if part.started_at), default=None)
        # A job of this minute is not among those whose past was asked for: it is known since the rules saw it.
        since = started if started is not None else self._around.first_seen.get(key, self._seen.get(key))
        hours = None if since is None else max(0.0, self._now.timestamp() - since) / 3600 * gpus
        straggler = self._straggler(own)
        uses = self._uses.get(key, {})
        state = self._state(key, own, uses)
        # Seconds without a step; for one that tells of none, without any kernel, which one that spins has.
        age = self._ages.get(own, self._idle.get(key) if state is jobs.JobState.STALLED else None)
        is_still = state in (jobs.JobState.STALLED, jobs.JobState.HUNG) and age is not None
        facts = efficiency.JobFacts(
            gpus, uses, self._value("waits", own), straggler, self._slowed.get(key, 0), state in job_inspection.STUCK,
            is_idle=state is jobs.JobState.IDLE,
        )  # fmt: skip
        self._facts[key] = facts
        return jobs.JobLine(
            key.id, key.kind, key.cluster, training or key.name, key.namespace,
            _first((labels.get("user", "") for labels, _ in rows), (part.workload.user for part in parts)),
            _first((labels.get("team", "") for labels, _ in rows), (part.account for part in parts)),
            state, self._nodes(key, own, running), round(gpus),
            None if started is None else datetime.fromtimestamp(started, UTC),
            None if hours is None else round(hours, 2), uses.get("active"), uses.get("memory"),
            efficiency.bound_by(facts), self._value("h_goodput", own),
            clock.from_unix_seconds(self._now.timestamp() - (age or 0.0)) if is_still else None,
            straggler, self._cost(rows, hours), self._incidents(key, training),
            None if since is None else datetime.fromtimestamp(since, UTC),
        )  # fmt: skip

    def _state(self, key: JobKey, own: Training, uses: Mapping[str, float]) -> jobs.JobState:
        told = [STATES[name] for name in self._alerts.get(own, ()) if name in STATES]
        if told:
            return min(told, key=ORDER.__getitem__)
        if key not in self._gpus and self._parts.get(key):
            is_waiting = all(part.state is workloads.WorkloadState.PENDING for part in self._parts[key])
            return jobs.JobState.PENDING if is_waiting else jobs.JobState.UNKNOWN
        if own in self._ages:
            return jobs.JobState.PAUSED if own in self._by_job["paused"] else jobs.JobState.RUNNING
        if not uses:
            return jobs.JobState.UNKNOWN
        # The mean of an hour hides for most of an hour that nothing runs any more.
        is_idle = uses.get("active", 1.0) < efficiency.IDLE or self._idle.get(key, 0.0) >= STILL_SECONDS
        return jobs.JobState.IDLE if is_idle else jobs.JobState.RUNNING

    def _straggler(self, own: Training) -> jobs.Straggler | None:
        does = next((DOES[name] for name in self._alerts.get(own, ()) if name in DOES), None)
        if own not in self._slow or does is None:
            return None
        labels, score = self._slow[own]
        return jobs.Straggler(
            identity.rank_of(labels),
            labels.get("Hostname", ""),
            labels.get("gpu", ""),
            labels.get("UUID", ""),
            score,
            does.format(score),
        )

    def _nodes(self, key: JobKey, own: Training, running: Sequence[workloads.ScheduledWorkload]) -> int:
        seen = self._nodes_of.get(key)
        if seen is None:
            seen = self._value("training_nodes", own)
        return round(seen) if seen is not None else len({node for part in running for node in part.nodes})

    def _value(self, name: str, own: Training) -> float | None:
        return self._by_job[name].get(own)

    def _cost(self, rows: Iterable[tuple[Labels, float]], hours: float | None) -> jobs.Money | None:
        book = self._around.book
        held = list(rows)
        gpus = sum(value for _, value in held)
        if book is None or hours is None or not gpus:
            return None
        now = self._now.timestamp()
        rates = [
            (book.rate(labels.get("modelName", ""), labels.get("pool", ""), at=now), value) for labels, value in held
        ]
        if any(rate is None for rate, _ in rates):
            return jobs.Money(None, book.currency)
        hourly = sum(rate.per_gpu_hour * value for rate, value in rates if rate is not None)
        return jobs.Money(round(hourly * hours / gpus, 2), book.currency)

    def _incidents(self, key: JobKey, training: str) -> tuple[str, ...]:
        names = {training, key.name, key.id} - {""}
        return tuple(sorted({one for name in names for one in self._around.incidents.get(name, ())}))


def _by_key(rows: Rows) -> dict[JobKey, list[tuple[Labels, float]]]:
    found: dict[JobKey, list[tuple[Labels, float]]] = {}
    for labels, value in rows.items():
        found.setdefault(identity.job_of_labels(labels), []).append((labels, value))
    return found


def _by_training(rows: Rows) -> dict[Training, float]:
    # Programs write these themselves, and may write anything.
    return {_training(labels): value for labels, value in rows.items() if math.isfinite(value)}


def _training(labels: Labels) -> Training:
    return labels.get("cluster", ""), labels.get("job_name", "")


def _first(*several: Iterable[str]) -> str:
    return next((text for some in several for text in some if text), "")
