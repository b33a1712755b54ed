"""What a job does and why it does not get on: ranks, nodes, GPUs and links, hardware events in its time, and the cause.

A job is diagnosed with the same checks as an incident of a job, whether or not an alert fires: `look` reads the series
of its ranks and GPUs, `explain` makes the facts of them and of what happened on its nodes. `web/explain_api` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import explain as explaining
from watchkeeper.diagnose import place_context
from watchkeeper.diagnose.checks import training
from watchkeeper.diagnose.evidence import IncidentFacts, cause_of
from watchkeeper.diagnose.explained import Explained, ExplainedLine, step_text
from watchkeeper.kit import clock
from watchkeeper.model import alerts, events, fleet, incidents, workloads
from watchkeeper.query import engine as engines
from watchkeeper.query import gpu_errors

# Whoever makes the pods of a job writes its name into one of these labels.
NAME_LABELS = (
    "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", "job-name", "jobset.sigs.k8s.io/jobset-name",
    "ray.io/cluster", "leaderworkerset.sigs.k8s.io/name", "volcano.sh/job-name", "pytorch-job-name",
)  # fmt: skip
AROUND = timedelta(hours=1)
MILDEST = "training_slow"
IDLE_SM_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A job by the name that a person typed, what its schedulers know of it, and the name that its ranks give it."""

    cluster: str
    name: str
    scheduled: Sequence[workloads.ScheduledWorkload] = ()
    rank_job_name: str = ""

    @property
    def pending_workloads(self) -> list[workloads.ScheduledWorkload]:
        return [part for part in self.scheduled if part.state is workloads.WorkloadState.PENDING]


@dataclass(frozen=True, slots=True)
class JobSeries:
    """What the series say of a job, the nodes that it is on, and what could not be asked."""

    place: fleet.Place
    context: place_context.PlaceContext
    nodes: tuple[fleet.Place, ...]
    failures: tuple[str, ...]


def workloads_of_job(name: str, known: Iterable[workloads.ScheduledWorkload]) -> list[workloads.ScheduledWorkload]:
    """The pods of a job by their labels or owner, or a Slurm job by its id; `namespace/name` narrows it."""
    namespace, slash, short = name.partition("/")
    wanted = short if slash else name
    return [
        part
        for part in known
        if (not slash or part.workload.namespace == namespace)
        and (
            part.workload.name == wanted
            or part.owner.rpartition("/")[2] == wanted
            or any(part.labels.get(label) == wanted for label in NAME_LABELS)
        )
    ]


def read_job(engine: engines.InstantEngine, query: JobQuery, now: datetime) -> JobSeries | None:
    """None where neither a scheduler nor a series knows the job."""
    short = query.rank_job_name or query.name.rpartition("/")[2]
    place = fleet.Place(query.cluster, domain=f"job={short}")
    questions = place_context.PlaceQueries(engine, place, clock.to_ms(now), window=AROUND)
    around = place_context.gather_context(questions)
    is_told = any(name.startswith("training_") for name in around.series) or around.rows("DCGM_FI_DEV_GPU_UTIL")
    if not is_told and not query.scheduled:
        return None
    nodes = sorted(_nodes(around) | {node for part in query.scheduled for node in part.nodes})
    places = tuple(fleet.Place(query.cluster, node=node) for node in nodes)
    return JobSeries(place, around, places, tuple(questions.failures))


def explain(
    query: JobQuery,
    series: JobSeries,
    now: datetime,
    *,
    happened: Sequence[events.Event],
    names: Callable[[fleet.Place], str],
) -> Explained:
    """`happened` are the events of its nodes, node by node, from `AROUND` ago until now."""
    happened = tuple(event for event in happened if cause_of(event) is not None)
    nodes = [node.node or "" for node in series.nodes]
    asked_about = _as_incident(series.place, now, _told_cause(series.context))
    facts = IncidentFacts(asked_about, now, names, happened, context=series.context, missing_data=series.failures)
    answers = [finding for finding in explaining.run_checks(facts).findings if finding.cause != "unknown"]
    ranked = sorted(answers, key=lambda finding: -finding.confidence)
    lines = (*_rank_lines(facts), *_node_lines(facts, nodes), *_event_lines(happened, names), *_waits(query))
    unseen = (*facts.missing_data, *_gaps(facts))
    if ranked:
        best = ranked[0]
        why = " ".join([best.why, "; ".join(item.text for item in best.evidence[:2])])
        apart = explaining.discriminating_check(tuple(ranked))
        steps = (*map(step_text, best.actions), *((f"To be sure: {apart}",) if apart else ()))
        return Explained(query.name, best.title, best.cause, why, lines, "", steps, unseen)
    if query.pending_workloads:
        part = query.pending_workloads[0]
        headline = (
            f"{len(query.pending_workloads)} of {len(query.scheduled)} parts wait: {part.reason or 'no reason given'}"
        )
        step = f"watchkeeper explain pod {part.workload}" if part.workload.namespace else "scontrol show job"
        return Explained(query.name, headline, None, part.detail, lines, "", (step,), unseen)
    return Explained(query.name, _pace(facts, nodes), None, "", lines, "", (), unseen)


def _told_cause(around: place_context.PlaceContext) -> str:
    """What an alert about the job says that fires; without one the mildest that a job may have."""
    told = {labels.get("cause", "") for labels, _ in around.rows(place_context.FIRING, alertstate="firing")}
    return next(
        (row.cause for row in causes.all_causes() if row.cause in told and row.family in training.FAMILIES), MILDEST
    )


def _as_incident(place: fleet.Place, now: datetime, cause: str) -> incidents.Incident:
    """What the checks ask of an incident: that it is about a job."""
    return incidents.Incident(
        incidents.IncidentId("none"), place, "", alerts.Severity.INFO, incidents.IncidentState.OPEN, now,
        cause, causes.lookup(cause).family, (),
    )  # fmt: skip


def _nodes(around: place_context.PlaceContext) -> set[str]:
    return {labels.get("Hostname", "") for labels, _ in around.rows("DCGM_FI_DEV_GPU_UTIL")} - {""}


def _pace(facts: IncidentFacts, nodes: Sequence[str]) -> str:
    age, world = training.step_age_seconds(facts), facts.context.max_value(training.WORLD)
    ranks = "" if world is None else f"{world:g} ranks on "
    where = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    step = "no rank tells about its steps" if age is None else f"the last step ended {age:.0f} s ago"
    return f"{ranks}{where}; {step}"


def _rank_lines(facts: IncidentFacts) -> list[ExplainedLine]:
    """Ranks that stand out; thousands that do not are one line."""
    gone, seconds = training.missing_ranks(facts), training.compute_seconds(facts)
    lines = [ExplainedLine(f"rank {rank}", "missing: it says nothing any more") for rank in gone[:8]]
    if seconds:
        ordered = sorted(seconds.values())
        middle = ordered[len(ordered) // 2]
        late = [rank for rank in training.late_ranks(facts) if rank in seconds]
        for rank in late[-8:]:
            gpu = training.gpu_of_rank(facts, int(rank)) if rank.isdigit() else None
            where = f" on {facts.names(gpu)}" if gpu is not None else ""
            lines.append(
                ExplainedLine(
                    f"rank {rank}", f"slow: {seconds[rank]:.2g} s a step, the middle is {middle:.2g} s{where}"
                )
            )
        lines.append(
            ExplainedLine("ranks", f"{len(seconds) - len(late)} of {len(seconds)} compute about {middle:.2g} s a step")
        )
    share = facts.context.max_value(training.WAIT)
    return (
        lines
        if share is None
        else [*lines, ExplainedLine("input", f"{share:.0%} of the time passes in waiting for it")]
    )


def _node_lines(facts: IncidentFacts, nodes: Sequence[str]) -> list[ExplainedLine]:
    lines = []
    for node in nodes:
        here = [(labels, value) for labels, value in facts.context.rows("DCGM_FI_DEV_GPU_UTIL", Hostname=node)]
        clocks = [value for _, value in facts.context.rows("DCGM_FI_DEV_SM_CLOCK", Hostname=node)]
        busy = [value for _, value in facts.context.rows("DCGM_FI_PROF_SM_ACTIVE", Hostname=node)]
        slowed = [
            labels.get("gpu", "?")
            for labels, value in facts.context.rows(gpu_errors.CLOCK_REASONS, Hostname=node)
            if gpu_errors.is_throttled(value)
        ]
        read = facts.context.rows(place_context.READ_NOW, Hostname=node)
        parts = [f"{len(here)} GPUs" if here else "GPUs not seen"]
        parts += [f"{len(here) - len(read)} of them no longer read"] if len(read) < len(here) else []
        parts += [f"clock {min(clocks):.0f} to {max(clocks):.0f} MHz"] if clocks else []
        parts += [f"{sum(value < IDLE_SM_SHARE for value in busy)} idle"] if busy else []
        parts += [f"slowed down: GPU {', '.join(slowed[:8])}"] if slowed else []
        lines.append(ExplainedLine(node, ", ".join(parts)))
    ports = facts.context.rows("ib_errors_per_second")
    return lines + [
        ExplainedLine(
            labels.get("instance", "?").rsplit(":", 1)[0], f"port {labels.get('device', '?')} is down or loses symbols"
        )
        for labels, _ in ports[:8]
    ]


def _event_lines(happened: Sequence[events.Event], names: Callable[[fleet.Place], str]) -> list[ExplainedLine]:
    return [
        ExplainedLine(f"{event.at:%H:%M:%S} UTC", f"{names(event.place)}: {event.text[:120]}")
        for event in happened[-8:]
    ]


def _waits(asked: JobQuery) -> list[ExplainedLine]:
    return [
        ExplainedLine(str(part.workload), f"waits: {part.reason or 'no reason given'}")
        for part in asked.pending_workloads[:8]
    ]


def _gaps(facts: IncidentFacts) -> list[str]:
    gaps = []
    if not facts.context.rows(training.LAST_STEP):
        gaps.append("the ranks' own series (training_*): only the scheduler and the GPUs speak")
    if not facts.context.rows("DCGM_FI_DEV_GPU_UTIL"):
        gaps.append("which GPUs it holds: no exporter names its pods or its Slurm id")
    if facts.context.rows("DCGM_FI_DEV_GPU_UTIL") and not facts.context.rows("DCGM_FI_PROF_SM_ACTIVE"):
        gaps.append("profiling fields (DCGM_FI_PROF_*): 100 % utilisation may be work or waiting")
    return gaps
