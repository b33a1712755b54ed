"""Explain a job: its ranks, nodes, GPUs, links and hardware events, and why it makes no progress.

A job is diagnosed with the same checks as an incident of a job, whether or not an alert fires: `read_job` queries the
series of its ranks and GPUs, `explain` runs the checks on them and on the events of its nodes. `web/explain_api` calls
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median_high

from watchkeeper.catalogue import causes
from watchkeeper.diagnose import explain as explaining
from watchkeeper.diagnose import place_context
from watchkeeper.diagnose.checks import training
from watchkeeper.diagnose.evidence import IncidentFacts, cause_of
from watchkeeper.diagnose.explain_result import ExplainLine, ExplainResult, step_text
from watchkeeper.kit import clock
from watchkeeper.model import alerts, events, fleet, incidents, workloads
from watchkeeper.query import engine as engines
from watchkeeper.query import gpu_errors

# The controller that creates the pods of a job writes the job name into one of these labels.
NAME_LABELS = (
    "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name", "job-name", "jobset.sigs.k8s.io/jobset-name",
    "ray.io/cluster", "leaderworkerset.sigs.k8s.io/name", "volcano.sh/job-name", "pytorch-job-name",
)  # fmt: skip
LOOKBACK = timedelta(hours=1)
DEFAULT_CAUSE = "training_slow"
IDLE_SM_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A job by the name that the user entered, its workloads in schedulers, and its name in rank metrics."""

    cluster: str
    name: str
    scheduled: Sequence[workloads.ScheduledWorkload] = ()
    rank_job_name: str = ""

    @property
    def pending_workloads(self) -> list[workloads.ScheduledWorkload]:
        return [part for part in self.scheduled if part.state is workloads.WorkloadState.PENDING]


@dataclass(frozen=True, slots=True)
class JobSeries:
    """The series of a job, its nodes, and failed queries."""

    place: fleet.Place
    context: place_context.PlaceContext
    nodes: tuple[fleet.Place, ...]
    failures: tuple[str, ...]


def workloads_of_job(name: str, candidates: Iterable[workloads.ScheduledWorkload]) -> list[workloads.ScheduledWorkload]:
    """The pods of a job by label or owner, or a Slurm job by id; `namespace/name` limits it to a namespace."""
    namespace, slash, short = name.partition("/")
    job_name = short if slash else name
    return [
        part
        for part in candidates
        if (not slash or part.workload.namespace == namespace)
        and (
            part.workload.name == job_name
            or part.owner.rpartition("/")[2] == job_name
            or any(part.labels.get(label) == job_name for label in NAME_LABELS)
        )
    ]


def read_job(engine: engines.InstantEngine, query: JobQuery, now: datetime) -> JobSeries | None:
    """The series of a job; None if no scheduler and no series has it."""
    short = query.rank_job_name or query.name.rpartition("/")[2]
    place = fleet.Place(query.cluster, domain=f"job={short}")
    queries = place_context.PlaceQueries(engine, place, clock.to_ms(now), window=LOOKBACK)
    context = place_context.gather_context(queries)
    has_series = any(name.startswith("training_") for name in context.series) or context.rows("DCGM_FI_DEV_GPU_UTIL")
    if not has_series and not query.scheduled:
        return None
    gpu_nodes = {labels.get("Hostname", "") for labels, _ in context.rows("DCGM_FI_DEV_GPU_UTIL")} - {""}
    nodes = sorted(gpu_nodes | {node for part in query.scheduled for node in part.nodes})
    places = tuple(fleet.Place(query.cluster, node=node) for node in nodes)
    return JobSeries(place, context, places, tuple(queries.failures))


def explain(
    query: JobQuery,
    series: JobSeries,
    now: datetime,
    *,
    node_events: Sequence[events.Event],
    names: Callable[[fleet.Place], str],
) -> ExplainResult:
    """Explain a job; `node_events` are the events on its nodes within LOOKBACK."""
    node_events = tuple(event for event in node_events if cause_of(event) is not None)
    nodes = [node.node or "" for node in series.nodes]
    job_incident = _as_incident(series.place, now, series.context)
    facts = IncidentFacts(job_incident, now, names, node_events, context=series.context, missing_data=series.failures)
    findings = [finding for finding in explaining.run_checks(facts)[0] if finding.cause != "unknown"]
    ranked = sorted(findings, key=lambda finding: -finding.confidence)
    rows = [(f"{event.at:%H:%M:%S} UTC", f"{names(event.place)}: {event.text[:120]}") for event in node_events[-8:]]
    rows += [(str(part.workload), f"pending: {part.reason or 'no reason'}") for part in query.pending_workloads[:8]]
    lines = (*_rank_lines(facts), *_node_lines(facts, nodes), *(ExplainLine(name, text) for name, text in rows))
    missing_data = (*facts.missing_data, *_missing_series(facts))
    if ranked:
        best = ranked[0]
        why = " ".join([best.why, "; ".join(item.text for item in best.evidence[:2])])
        check = explaining.distinguishing_check(tuple(ranked))
        steps = (*map(step_text, best.actions), *((check,) if check else ()))
        return ExplainResult(query.name, best.title, best.cause, why, lines, "", steps, missing_data, reason=best.why)
    if query.pending_workloads:
        part = query.pending_workloads[0]
        count = f"{len(query.pending_workloads)} of {len(query.scheduled)}"
        headline = f"{count} workloads pending: {part.reason or 'no reason'}"
        step = f"watchkeeper explain pod {part.workload}" if part.workload.namespace else "scontrol show job"
        return ExplainResult(query.name, headline, None, part.detail, lines, "", (step,), missing_data)
    return ExplainResult(query.name, _progress_text(facts, nodes), None, "", lines, "", (), missing_data)


def _as_incident(place: fleet.Place, now: datetime, context: place_context.PlaceContext) -> incidents.Incident:
    """An incident about the job, which the checks need; its cause is that of a firing alert, else DEFAULT_CAUSE."""
    firing_causes = {labels.get("cause", "") for labels, _ in context.rows(place_context.FIRING, alertstate="firing")}
    rows = (row for row in causes.all_causes() if row.cause in firing_causes and row.family in training.FAMILIES)
    row = next(rows, causes.lookup(DEFAULT_CAUSE))
    return incidents.Incident(
        incidents.IncidentId("none"), place, "", alerts.Severity.INFO, incidents.IncidentState.OPEN, now,
        row.cause, row.family, (),
    )  # fmt: skip


def _progress_text(facts: IncidentFacts, nodes: Sequence[str]) -> str:
    age, world = training.step_age_seconds(facts), facts.context.max_value(training.WORLD)
    ranks = "" if world is None else f"{world:g} ranks on "
    nodes_text = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    step = "no rank reports its steps" if age is None else f"the last step ended {age:.0f} s ago"
    return f"{ranks}{nodes_text}; {step}"


def _rank_lines(facts: IncidentFacts) -> list[ExplainLine]:
    """A line for each missing or slow rank; all others share one line."""
    missing, seconds = training.missing_ranks(facts), training.compute_seconds(facts)
    lines = [ExplainLine(f"rank {rank}", "missing: does not report") for rank in missing[:8]]
    if seconds:
        median = median_high(seconds.values())
        late = [rank for rank in training.late_ranks(facts) if rank in seconds]
        for rank in late[-8:]:
            gpu = training.gpu_of_rank(facts, int(rank)) if rank.isdigit() else None
            where = f" on {facts.names(gpu)}" if gpu is not None else ""
            text = f"slow: {seconds[rank]:.2g} s per step, median {median:.2g} s{where}"
            lines.append(ExplainLine(f"rank {rank}", text))
        text = f"{len(seconds) - len(late)} of {len(seconds)} compute about {median:.2g} s per step"
        lines.append(ExplainLine("ranks", text))
    share = facts.context.max_value(place_context.WAIT_SHARE)
    return lines if share is None else [*lines, ExplainLine("input", f"ranks wait for input {share:.0%} of the time")]


def _node_lines(facts: IncidentFacts, nodes: Sequence[str]) -> list[ExplainLine]:
    lines = []
    for node in nodes:
        gpus = facts.context.rows("DCGM_FI_DEV_GPU_UTIL", Hostname=node)
        clocks = [value for _, value in facts.context.rows("DCGM_FI_DEV_SM_CLOCK", Hostname=node)]
        busy = [value for _, value in facts.context.rows("DCGM_FI_PROF_SM_ACTIVE", Hostname=node)]
        reasons = facts.context.rows(gpu_errors.CLOCK_REASONS, Hostname=node)
        throttled = [labels.get("gpu", "?") for labels, value in reasons if gpu_errors.is_throttling(value)]
        reporting = facts.context.rows(place_context.REPORTING_GPUS, Hostname=node)
        parts = [f"{len(gpus)} GPUs" if gpus else "GPUs unknown"]
        parts += [f"{len(gpus) - len(reporting)} not reporting"] if len(reporting) < len(gpus) else []
        parts += [f"clock {min(clocks):.0f} to {max(clocks):.0f} MHz"] if clocks else []
        parts += [f"{sum(value < IDLE_SM_SHARE for value in busy)} idle"] if busy else []
        parts += [f"throttled: GPU {', '.join(throttled[:8])}"] if throttled else []
        lines.append(ExplainLine(node, ", ".join(parts)))
    for labels, _ in facts.context.rows(place_context.PORT_ERRORS)[:8]:
        text = f"port {labels.get('device', '?')} is down or has symbol errors"
        lines.append(ExplainLine(labels.get("instance", "?").rsplit(":", 1)[0], text))
    return lines


def _missing_series(facts: IncidentFacts) -> list[str]:
    gaps = []
    if not facts.context.rows(training.LAST_STEP):
        gaps.append("no rank metrics (training_*): steps and ranks are unknown")
    if not facts.context.rows("DCGM_FI_DEV_GPU_UTIL"):
        gaps.append("GPUs of the job: no exporter reports its pods or its Slurm job id")
    if facts.context.rows("DCGM_FI_DEV_GPU_UTIL") and not facts.context.rows("DCGM_FI_PROF_SM_ACTIVE"):
        gaps.append("no profiling fields (DCGM_FI_PROF_*): 100 % utilisation may be work or a wait in a kernel")
    return gaps
