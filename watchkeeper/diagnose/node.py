"""What is so about one node: its schedulers' words, its GPUs, what is wrong, what changed, and whether it takes work.

`web/explain_api` gives what the hub knows; nothing is asked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchkeeper.diagnose.explained import Explained, ExplainedLine, step_text
from watchkeeper.model import alerts, cluster, diagnosis, incidents


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """Everything about one node. `reporting` and `expected` GPUs are None where nobody says."""

    name: str
    scheduler_nodes: Sequence[cluster.ScheduledNode] = ()
    holders: Sequence[tuple[str, int]] = ()
    reporting: int | None = None
    expected: int | None = None
    incidents: Sequence[tuple[incidents.Incident, diagnosis.Finding | None]] = ()
    changes: tuple[str, ...] = ()
    missing_data: tuple[str, ...] = ()


def explain(known: NodeSummary) -> Explained:
    """The gravest open incident is the answer; without one, whatever keeps work away."""
    worst = max(known.incidents, key=lambda one: (one[0].severity.rank, -one[0].opened_at.timestamp()), default=None)
    lines = (*_word_lines(known), *_gpu_lines(known), *_trouble_lines(known), *_change_lines(known))
    closed = _why_closed(known)
    if worst is not None and worst[0].severity is not alerts.Severity.INFO:
        incident, finding = worst
        steps = tuple(map(step_text, finding.actions[:3])) if finding is not None else ()
        why = finding.why if finding is not None else "not diagnosed yet"
        headline = f"{incident.title} ({incident.id})" + (f"; {closed}" if closed else "")
        return Explained(known.name, headline, incident.cause, why, lines, "", steps, known.missing_data)
    if closed:
        return Explained(known.name, closed, None, "", lines, _change(known), (), known.missing_data)
    if not known.scheduler_nodes and known.reporting is None:
        return Explained(known.name, "nobody says anything about it now", None, "", lines, "", (), known.missing_data)
    return Explained(
        known.name,
        "nothing is wrong with it" + (", and it takes work" if known.scheduler_nodes else " that can be seen"),
        None,
        "",
        lines,
        "",
        (),
        known.missing_data,
    )


def _why_closed(known: NodeSummary) -> str:
    for word in known.scheduler_nodes:
        by = f" by {word.unschedulable_by}" if word.unschedulable_by else ""
        reason = f": {word.reason}" if word.reason else ""
        if word.is_ready is False:
            return f"is {word.state} for {word.source}{reason}"
        if not word.is_schedulable:
            return f"is closed for work ({word.state}){by}{reason}"
        if word.gpus and word.allocatable_gpus == 0:
            return f"has {word.gpus} GPUs and offers none: its device plugin is gone or finds them all unhealthy"
    missing = (known.expected or 0) - (known.reporting or 0)
    if known.expected is not None and known.reporting is not None and missing > 0:
        return f"{missing} of {known.expected} GPUs do not report"
    return ""


def _change(known: NodeSummary) -> str:
    for word in known.scheduler_nodes:
        if word.is_ready is not False and not word.is_schedulable:
            if word.source == "kubernetes":
                return f"kubectl uncordon {known.name}, once the reason is gone"
            return f"scontrol update NodeName={known.name} State=RESUME, once the reason is gone"
    return ""


def _word_lines(known: NodeSummary) -> list[ExplainedLine]:
    lines = []
    for word in known.scheduler_nodes:
        gpus = "GPUs unknown" if word.gpus is None else f"{word.allocatable_gpus} of {word.gpus} GPUs offered"
        taints = f", taints {', '.join(word.taints)}" if word.taints else ""
        lines.append(
            ExplainedLine(word.source, f"{word.state}, {gpus}{taints}" + (f", {word.reason}" if word.reason else ""))
        )
    return lines


def _gpu_lines(known: NodeSummary) -> list[ExplainedLine]:
    expected = "" if known.expected is None else f" of {known.expected}"
    lines = [] if known.reporting is None else [ExplainedLine("gpus", f"{known.reporting}{expected} report")]
    return lines + [ExplainedLine("held", f"{count} by {name}") for name, count in known.holders]


def _trouble_lines(known: NodeSummary) -> list[ExplainedLine]:
    return [ExplainedLine(incident.id, f"{incident.severity}: {incident.title}") for incident, _ in known.incidents]


def _change_lines(known: NodeSummary) -> list[ExplainedLine]:
    return [ExplainedLine("changed", change) for change in known.changes]
