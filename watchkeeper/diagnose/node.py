"""Explain a node: its state in schedulers, its GPUs, incidents and changes, and whether it accepts workloads.

`web/explain_api` passes what the hub knows; this module queries nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from watchkeeper.diagnose.explain_result import ExplainLine, ExplainResult, with_cause
from watchkeeper.model import alerts, cluster, diagnosis, incidents


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """What the hub knows about a node; `reporting` and `expected` are counts of GPUs, None if unknown."""

    name: str
    scheduler_nodes: Sequence[cluster.ScheduledNode] = ()
    holders: Sequence[tuple[str, int]] = ()
    reporting: int | None = None
    expected: int | None = None
    incidents: Sequence[tuple[incidents.Incident, diagnosis.Finding | None]] = ()
    changes: tuple[str, ...] = ()
    missing_data: tuple[str, ...] = ()


def explain(summary: NodeSummary) -> ExplainResult:
    """Explain a node by its most severe open incident, otherwise by why it accepts no workloads."""
    lines = []
    for node in summary.scheduler_nodes:
        gpus = "GPUs unknown" if node.gpus is None else f"{node.allocatable_gpus} of {node.gpus} GPUs allocatable"
        taints = f"taints {', '.join(node.taints)}" if node.taints else ""
        lines.append(ExplainLine(node.source, ", ".join(filter(None, [node.state, gpus, taints, node.reason]))))
    if summary.reporting is not None:
        expected = "" if summary.expected is None else f" of {summary.expected}"
        lines.append(ExplainLine("gpus", f"{summary.reporting}{expected} report"))
    lines += [ExplainLine("allocated", f"{count} to {name}") for name, count in summary.holders]
    lines += [ExplainLine(incident.id, f"{incident.severity}: {incident.title}") for incident, _ in summary.incidents]
    lines += [ExplainLine("changed", change) for change in summary.changes]
    base = ExplainResult(summary.name, "", lines=tuple(lines), missing_data=summary.missing_data)
    blocker = _blocker(summary)
    by_severity = sorted(summary.incidents, key=lambda pair: (-pair[0].severity.rank, pair[0].opened_at))
    for incident, finding in by_severity[:1]:
        if incident.severity is not alerts.Severity.INFO:
            headline = f"{incident.title} ({incident.id})" + (f"; {blocker}" if blocker else "")
            return with_cause(replace(base, headline=headline), incident, finding)
    if blocker:
        return replace(base, headline=blocker, change=_return_command(summary))
    if not summary.scheduler_nodes and summary.reporting is None:
        return replace(base, headline="no scheduler or exporter reports this node now")
    return replace(base, headline="no problem detected" + (", accepts workloads" if summary.scheduler_nodes else ""))


def _blocker(summary: NodeSummary) -> str:
    """Why the node accepts no workloads; empty if it does."""
    for node in summary.scheduler_nodes:
        by = f" by {node.unschedulable_by}" if node.unschedulable_by else ""
        reason = f": {node.reason}" if node.reason else ""
        if node.is_ready is False:
            return f"is {node.state} in {node.source}{reason}"
        if not node.is_schedulable:
            return f"accepts no workloads ({node.state}){by}{reason}"
        if node.gpus and node.allocatable_gpus == 0:
            return f"has {node.gpus} GPUs, 0 allocatable: its device plugin is down or reports all GPUs as unhealthy"
    missing = (summary.expected or 0) - (summary.reporting or 0)
    if summary.expected is not None and summary.reporting is not None and missing > 0:
        return f"{missing} of {summary.expected} GPUs do not report"
    return ""


def _return_command(summary: NodeSummary) -> str:
    for node in summary.scheduler_nodes:
        if node.is_ready is not False and not node.is_schedulable:
            if node.source == "kubernetes":
                return f"when the reason is fixed: kubectl uncordon {summary.name}"
            return f"when the reason is fixed: scontrol update NodeName={summary.name} State=RESUME"
    return ""
