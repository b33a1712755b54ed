"""Compose notification messages: the text for people, and the JSON for programs.

`delivery` composes one message for each batch of the outbox. The first line must be enough on a phone: severity, what,
where.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.incidents import gpu_claims
from watchkeeper.incidents.correlate import leading_member
from watchkeeper.kit import durations, wire
from watchkeeper.model import actions, diagnosis
from watchkeeper.model.alerts import Severity
from watchkeeper.model.incidents import Incident
from watchkeeper.model.notices import Notice, Occasion
from watchkeeper.notify.outbox import NoticeBatch

# Services truncate longer messages; the console has the rest.
MAX_NAMED_WORKLOADS = 5
MAX_FULL_INCIDENTS = 5
MAX_SIGNAL_LENGTH = 200
PAYLOAD_VERSION = "1"
SEVERITY_TEXT = {Severity.CRITICAL: "CRITICAL", Severity.WARNING: "WARNING", Severity.INFO: "INFO"}
TITLE_PREFIX = {
    Occasion.OPENED: "",
    Occasion.WORSE: "severity raised: ",
    Occasion.WIDER: "scope widened: ",
    Occasion.REPEATED: "still open: ",
    Occasion.ESCALATED: "not acknowledged: ",
    Occasion.RESOLVED: "",
}


@dataclass(frozen=True, slots=True)
class MessageContext:
    diagnosis: Callable[[str], diagnosis.Diagnosis | None] = lambda _: None
    plan: Callable[[str], actions.Plan | None] = lambda _: None
    # Without a URL, messages have no links.
    console_url: str | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a receiver; `key` is the same for every attempt to deliver the same notices."""

    key: str
    title: str
    body: str
    payload: dict[str, Any]


def compose_message(batch: NoticeBatch, context: MessageContext) -> Message:
    pairs = sorted(zip(batch.notices, batch.incidents, strict=True), key=lambda pair: _sort_key(*pair))
    title = headline(*pairs[0]) if len(pairs) == 1 else _batch_title(pairs, batch.more)
    full = ["\n".join(notice_lines(*pair, context, now=batch.at)) for pair in pairs[:MAX_FULL_INCIDENTS]]
    rest = "\n".join(headline(*pair) for pair in pairs[MAX_FULL_INCIDENTS:])
    body = "\n\n".join([*full, rest] if rest else full)
    payload = {
        "version": PAYLOAD_VERSION,
        "receiver": batch.receiver,
        "title": title,
        "notices": [notice_payload(notice, incident, context) for notice, incident in pairs],
    }
    return Message(batch.key, title, body, payload)


def headline(notice: Notice, incident: Incident) -> str:
    if notice.occasion is Occasion.RESOLVED and incident.part_of is not None:
        return f"[PART OF {incident.part_of}] {incident.title} ({incident.id})"
    if notice.occasion is Occasion.RESOLVED:
        return f"[RESOLVED] {'open again: ' if incident.is_open else ''}{incident.title} ({incident.id})"
    prefix = TITLE_PREFIX[notice.occasion] if incident.is_open else "resolved meanwhile: "
    return f"[{SEVERITY_TEXT[incident.severity]}] {prefix}{incident.title} ({incident.id})"


def notice_lines(notice: Notice, incident: Incident, context: MessageContext, *, now: datetime) -> list[str]:
    """The lines about an incident: headline, start, signal, cause, impact, next step, link."""
    lines = [headline(notice, incident)]
    if notice.occasion is Occasion.RESOLVED and incident.part_of is not None:
        lines.append(f"Not resolved: merged into {incident.part_of}")
    elif notice.occasion is Occasion.RESOLVED and incident.resolved_at is not None:
        duration_seconds = (incident.resolved_at - incident.opened_at).total_seconds()
        lines.append(f"Duration: {durations.format_seconds(round(duration_seconds))}")
    else:
        best, plan, row = _best_finding(incident, context), context.plan(incident.id), causes.lookup(incident.cause)
        seconds = round((now - incident.opened_at).total_seconds() / 60) * 60
        shows_duration = notice.occasion is not Occasion.OPENED and incident.is_open and seconds > 0
        duration = f", for {durations.format_seconds(seconds)}" if shows_duration else ""
        lines.append(f"Since {incident.opened_at:%Y-%m-%d %H:%M} UTC{duration}")
        if incident.members:
            signal_text = leading_member(incident.members).text
            lines.append(f"Signal: {textwrap.shorten(signal_text, MAX_SIGNAL_LENGTH, placeholder=' …')}")
        lines.append(f"Cause: {row.why if best is None else best.why}")
        if incident.workloads:
            rest = len(incident.workloads) - MAX_NAMED_WORKLOADS
            more = f" and {rest} more" if rest > 0 else ""
            impact = "Impact" if gpu_claims.has_impact(incident) else "May affect"
            lines.append(f"{impact}: {', '.join(incident.workloads[:MAX_NAMED_WORKLOADS])}{more}")
        place = incident.place.node or (incident.place.domain or incident.place.cluster).replace("=", " ")
        lines.append(f"Next: {(incident.advice or row.advice(place)) if plan is None else plan.next_step}")
        if incident.assignee is not None:
            lines.append(f"Assigned to {incident.assignee}")
    if context.console_url is not None:
        lines.append(console_link(incident, context.console_url))
    return lines


def notice_payload(notice: Notice, incident: Incident, context: MessageContext) -> dict[str, Any]:
    """The JSON of a notice; docs/howto/notifications.md lists the keys."""
    best, plan = _best_finding(incident, context), context.plan(incident.id)
    plain: dict[str, Any] = wire.to_plain(incident)
    members = plain.pop("members")
    return {
        "id": notice.id,
        "occasion": notice.occasion.value,
        "incident": plain,
        "place": str(incident.place),
        "why": best.why if best is not None else None,
        "confidence": best.confidence if best is not None else None,
        "next_step": plan.next_step if plan is not None else incident.advice or None,
        "alerts": sorted({member["alert"] for member in members} - {""}),
        "runbook": runbook_path(incident.cause),
        "url": console_link(incident, context.console_url) if context.console_url is not None else None,
    }


def console_link(incident: Incident, console: str) -> str:
    return f"{console.rstrip('/')}/incidents/{incident.id}"


def runbook_path(cause: str) -> str:
    return f"docs/runbooks/{causes.lookup(cause).runbook}.md"


def _best_finding(incident: Incident, context: MessageContext) -> diagnosis.Finding | None:
    incident_diagnosis = context.diagnosis(incident.id)
    return None if incident_diagnosis is None else incident_diagnosis.best


def _batch_title(pairs: Sequence[tuple[Notice, Incident]], more: int) -> str:
    resolved_count = sum(notice.occasion is Occasion.RESOLVED for notice, _ in pairs)
    parts = [
        f"{len(pairs) - resolved_count} incidents" if len(pairs) > resolved_count else "",
        f"{resolved_count} resolved" if resolved_count else "",
    ]
    pending = f" ({more} more pending)" if more else ""
    return f"{', '.join(part for part in parts if part)}{pending}: {headline(*pairs[0])}"


def _sort_key(notice: Notice, incident: Incident) -> tuple[bool, int, str]:
    return notice.occasion is Occasion.RESOLVED, -incident.severity.rank, incident.id
