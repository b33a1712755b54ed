"""One incident as one document: what, where, why, what happened when, what was done, what it cost.

`text` is Markdown for a ticket or a post-mortem, `plain` the same for programs. Both are made from the same facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from watchkeeper.incidents.blast import Blast
from watchkeeper.kit import durations, wire
from watchkeeper.model import actions, diagnosis, fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.notify.message import runbook_path

MOST_NAMED = 10


class TimelineEntry(Protocol):
    """One line of an incident's timeline, of a journal or of a recording."""

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
    """Everything known about an incident, at one time."""

    incident: Incident
    place_name: str
    diagnosis: diagnosis.Diagnosis | None
    plan: actions.Plan | None
    blast: Blast | None
    timeline: Sequence[TimelineEntry]
    at: datetime
    # Team, rack and pool as the inventory has them, `unmapped` where nobody says.
    belongs_to: Mapping[str, frozenset[str]] = field(default_factory=dict)


def as_plain(story: IncidentReport) -> dict[str, Any]:
    """The report for programs."""
    return {
        "made_at": wire.format_time(story.at),
        "incident": wire.to_plain(story.incident),
        "place_name": story.place_name,
        "lasted_seconds": round(_lasted(story)),
        "runbook": runbook_path(story.incident.cause),
        "diagnosis": wire.to_plain(story.diagnosis),
        "plan": wire.to_plain(story.plan),
        "blast": wire.to_plain(story.blast),
        "belongs_to": {name: sorted(values) for name, values in story.belongs_to.items()},
        "unmapped": list(_unmapped(story)),
        "timeline": [
            {"at": wire.format_time(entry.at), "actor": entry.actor, "kind": entry.kind, "text": _said(entry)}
            for entry in story.timeline
        ],
    }


def as_markdown(story: IncidentReport) -> str:
    """The report as Markdown."""
    incident = story.incident
    ended = f"resolved {_time(incident.resolved_at)}" if incident.resolved_at else incident.state.value
    lasted = durations.format_seconds(round(_lasted(story)))
    parts = [
        f"# {incident.id}: {_safe(incident.title)}",
        "",
        f"- **Severity:** {incident.severity}",
        f"- **Where:** {_safe(story.place_name)}",
        f"- **When:** opened {_time(incident.opened_at)}, {ended}, {lasted} long",
        f"- **Cause:** `{incident.cause}` ([runbook]({runbook_path(incident.cause)}))",
        f"- **Assigned to:** {_safe(incident.assignee or 'nobody')}",
        *([f"- **Part of:** {incident.part_of}, where it goes on"] if incident.part_of else []),
        *_belongs(story),
        *_cost(story),
        *_why(story),
        *_actions(story),
        "",
        "## Timeline",
        "",
        "| Time (UTC) | Who | What |",
        "|---|---|---|",
        *(
            f"| {entry.at:%Y-%m-%d %H:%M:%S} | {_cell(entry.actor)} | {_cell(_said(entry))} |"
            for entry in story.timeline
        ),
        "",
        f"Made by Watchkeeper at {_time(story.at)}.",
        "",
    ]
    return "\n".join(parts)


def _belongs(story: IncidentReport) -> list[str]:
    named = ", ".join(f"{name} {'/'.join(sorted(values))}" for name, values in story.belongs_to.items())
    missing = "; ".join(_unmapped(story))
    return [
        *([f"- **Belongs to:** {_safe(named)}"] if named else []),
        *([f"- **Unmapped:** {_safe(missing)}"] if missing else []),
    ]


def _unmapped(story: IncidentReport) -> Iterator[str]:
    """What nobody has said about the place and the workloads that were hit."""
    for name in ("rack", "pool"):
        if fleet.UNMAPPED in story.belongs_to.get(name, ()):
            yield f"the {name} of {story.place_name}"
    without = story.blast.unmapped if story.blast is not None else ()
    if without:
        yield f"the team of {', '.join(without[:MOST_NAMED])}" + (" …" if len(without) > MOST_NAMED else "")


def _cost(story: IncidentReport) -> list[str]:
    blast = story.blast
    if blast is None:
        return ["- **Blast radius:** unknown, the engine did not answer"]
    hits = ", ".join(f"{hit.workload} ({_gpus(hit.gpus)})" for hit in blast.hits)
    teams = f", of {_safe(', '.join(blast.teams))}" if blast.teams else ""
    money = f"{blast.dollars_per_hour:g} dollars an hour"
    return [
        f"- **Hits:** {_safe(hits) or 'no workload'}{teams}",
        f"- **Cost:** {_gpus(blast.gpus)}, {blast.gpu_hours:g} GPU-hours, {money}",
    ]


def _gpus(count: int | None) -> str:
    return "GPUs unknown" if count is None else f"{count} GPU{'' if count == 1 else 's'}"


def _why(story: IncidentReport) -> list[str]:
    found = story.diagnosis.findings if story.diagnosis is not None else ()
    lines = ["", "## Why", ""] + (["No diagnosis yet."] if not found else [])
    for finding in found:
        lines += [
            f"**{_safe(finding.title)}** (`{finding.cause}`, {finding.confidence:.0%} sure). {_safe(finding.why)}",
            "",
        ]
        lines += [f"- saw: {_safe(item.text)}" for item in finding.evidence]
        lines += [f"- not {item.cause}: {_safe(item.why)}" for item in finding.ruled_out]
        lines.append("")
    return lines


def _actions(story: IncidentReport) -> list[str]:
    if story.plan is None:
        return ["## Actions", "", "No plan."]
    steps = [f"{at}. {receipt.action.kind}: {_safe(receipt.text)}" for at, receipt in enumerate(story.plan.receipts, 1)]
    return ["## Actions", "", f"Mode `{story.plan.mode}`: {_safe(story.plan.next_step)}", "", *steps]


def _lasted(story: IncidentReport) -> float:
    return max(((story.incident.resolved_at or story.at) - story.incident.opened_at).total_seconds(), 0.0)


def _said(entry: TimelineEntry) -> str:
    body = entry.body if isinstance(entry.body, Mapping) else {}
    return str(body.get("text", entry.kind))


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}Z"


def _safe(words: str) -> str:
    """Text of machines inside Markdown: one line, and nothing that begins a tag or a link."""
    return " ".join(words.replace("<", "&lt;").replace("[", "\\[").split())


def _cell(words: str) -> str:
    return _safe(words).replace("|", "\\|")
