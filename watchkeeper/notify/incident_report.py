"""Write the report of an incident: place, cause, timeline, actions, impact and cost.

`as_markdown` is for a ticket or a post-mortem, `as_plain` for programs. Both have the same facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from watchkeeper.incidents.blast_radius import BlastRadius
from watchkeeper.kit import durations, wire
from watchkeeper.model import actions, diagnosis, fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.notify.message import runbook_path

MAX_NAMED = 10


class TimelineEntry(Protocol):
    @property
    def at(self) -> datetime: ...
    @property
    def actor(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class IncidentReport:
    incident: Incident
    place_name: str
    diagnosis: diagnosis.Diagnosis | None
    plan: actions.Plan | None
    blast: BlastRadius | None
    timeline: Sequence[TimelineEntry]
    at: datetime
    # Team, rack and pool from the inventory; `unmapped` if it has no entry.
    belongs_to: Mapping[str, frozenset[str]] = field(default_factory=dict)


def as_plain(report: IncidentReport) -> dict[str, Any]:
    return {
        "made_at": wire.format_time(report.at),
        "incident": wire.to_plain(report.incident),
        "place_name": report.place_name,
        "lasted_seconds": round(_duration_seconds(report)),
        "runbook": runbook_path(report.incident.cause),
        "diagnosis": wire.to_plain(report.diagnosis),
        "plan": wire.to_plain(report.plan),
        "blast": wire.to_plain(report.blast),
        "belongs_to": {name: sorted(values) for name, values in report.belongs_to.items()},
        "unmapped": list(_unmapped(report)),
        "timeline": [
            {"at": wire.format_time(entry.at), "actor": entry.actor, "kind": entry.kind, "text": _entry_text(entry)}
            for entry in report.timeline
        ],
    }


def as_markdown(report: IncidentReport) -> str:
    incident = report.incident
    ended = f"resolved {_format_time(incident.resolved_at)}" if incident.resolved_at else incident.state.value
    duration = durations.format_seconds(round(_duration_seconds(report)))
    owners = ", ".join(f"{name} {'/'.join(sorted(values))}" for name, values in report.belongs_to.items())
    missing = "; ".join(_unmapped(report))
    parts = [
        f"# {incident.id}: {_escape(incident.title)}",
        "",
        f"- **Severity:** {incident.severity}",
        f"- **Where:** {_escape(report.place_name)}",
        f"- **When:** opened {_format_time(incident.opened_at)}, {ended}, duration {duration}",
        f"- **Cause:** `{incident.cause}` ([runbook]({runbook_path(incident.cause)}))",
        f"- **Assigned to:** {_escape(incident.assignee or 'unassigned')}",
        *([f"- **Part of:** {incident.part_of} (merged)"] if incident.part_of else []),
        *([f"- **Belongs to:** {_escape(owners)}"] if owners else []),
        *([f"- **Unmapped:** {_escape(missing)}"] if missing else []),
        *_impact_lines(report),
        *_diagnosis_lines(report),
        *_action_lines(report),
        "",
        "## Timeline",
        "",
        "| Time (UTC) | Actor | Event |",
        "|---|---|---|",
        *(
            f"| {entry.at:%Y-%m-%d %H:%M:%S} | {_escape_cell(entry.actor)} | {_escape_cell(_entry_text(entry))} |"
            for entry in report.timeline
        ),
        "",
        f"Created by Watchkeeper at {_format_time(report.at)}.",
        "",
    ]
    return "\n".join(parts)


def _unmapped(report: IncidentReport) -> Iterator[str]:
    for name in ("rack", "pool"):
        if fleet.UNMAPPED in report.belongs_to.get(name, ()):
            yield f"the {name} of {report.place_name}"
    unmapped_workloads = report.blast.unmapped if report.blast is not None else ()
    if unmapped_workloads:
        more = " …" if len(unmapped_workloads) > MAX_NAMED else ""
        yield f"the team of {', '.join(unmapped_workloads[:MAX_NAMED])}{more}"


def _impact_lines(report: IncidentReport) -> list[str]:
    blast = report.blast
    if blast is None:
        return ["- **Blast radius:** unknown (query engine unavailable)"]
    hits = ", ".join(
        f"{hit.workload} ({_format_gpus(hit.gpus)}{', stopped' if hit.is_stopped else ''})"
        for hit in blast.affected_workloads
    )
    teams = f", team {_escape(', '.join(blast.teams))}" if blast.teams else ""
    cost = f"{_format_gpus(blast.gpus)} without work, {blast.gpu_hours:g} GPU-hours, {blast.hourly_text}"
    return [f"- **Impact:** {_escape(hits) or 'no workload'}{teams}", f"- **Cost:** {cost}"]


def _format_gpus(count: int | None) -> str:
    return "GPUs unknown" if count is None else f"{count} GPU{'' if count == 1 else 's'}"


def _diagnosis_lines(report: IncidentReport) -> list[str]:
    findings = report.diagnosis.findings if report.diagnosis is not None else ()
    lines = ["", "## Diagnosis", ""] + (["No diagnosis yet."] if not findings else [])
    for finding in findings:
        confidence = f"confidence {finding.confidence:.0%}"
        lines += [f"**{_escape(finding.title)}** (`{finding.cause}`, {confidence}). {_escape(finding.why)}", ""]
        lines += [f"- evidence: {_escape(item.text)}" for item in finding.evidence]
        lines += [f"- ruled out {item.cause}: {_escape(item.why)}" for item in finding.ruled_out]
        lines.append("")
    return lines


def _action_lines(report: IncidentReport) -> list[str]:
    if report.plan is None:
        return ["## Actions", "", "No plan."]
    receipts = enumerate(report.plan.receipts, 1)
    steps = [f"{at}. {receipt.action.kind}: {_escape(receipt.text)}" for at, receipt in receipts]
    return ["## Actions", "", f"Mode `{report.plan.mode}`: {_escape(report.plan.next_step)}", "", *steps]


def _duration_seconds(report: IncidentReport) -> float:
    return max(((report.incident.resolved_at or report.at) - report.incident.opened_at).total_seconds(), 0.0)


def _entry_text(entry: TimelineEntry) -> str:
    body = entry.body if isinstance(entry.body, Mapping) else {}
    return str(body.get("text", entry.kind))


def _format_time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _escape(text: str) -> str:
    """Escape text for Markdown: one line, without tags or links."""
    return " ".join(text.replace("<", "&lt;").replace("[", "\\[").split())


def _escape_cell(text: str) -> str:
    return _escape(text).replace("|", "\\|")
