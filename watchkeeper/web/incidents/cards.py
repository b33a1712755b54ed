"""An incident as the console lists it: the finding in words, why, how sure, and the next step.

`fleet_api` answers with cards and details, `live` pushes cards; both come from here so that a page
never shows two different stories.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watchkeeper.kit import wire
from watchkeeper.model import diagnosis, incidents, silences
from watchkeeper.notify import message
from watchkeeper.web.view import HubView

# A panel shows what one screen holds; the list page pages through the rest.
OPEN_LIMIT = 200
CLOSED_SHOWN = 5


def card(hub: HubView, incident: incidents.Incident) -> dict[str, Any]:
    """The incident without its members, with the best finding and the plan's next step."""
    found, plan = hub.diagnosis(incident.id), hub.plan(incident.id)
    best = found.best if found is not None else None
    plain: dict[str, Any] = wire.to_plain(named(incident, found))
    members = plain.pop("members")
    return plain | {
        "place_name": hub.fleet.place_name(incident.place),
        "signals": len(members),
        "gpus": list(dict.fromkeys(one["place"]["gpu"] for one in members if one["place"]["gpu"])),
        "why": best.why if best else None,
        "confidence": best.confidence if best else None,
        "next_step": plan.next_step if plan else (best.actions[0].do if best and best.actions else None),
        "plan": [receipt.action.kind.value for receipt in plan.receipts] if plan else [],
        "silenced_by": _silence(hub, incident),
    }


def named(incident: incidents.Incident, found: diagnosis.Diagnosis | None) -> incidents.Incident:
    """The incident under the name of its diagnosis, which has seen more than the signal that opened it."""
    best = None if found is None else found.best
    if best is None or best.cause in (incident.cause, diagnosis.UNKNOWN_CAUSE):
        return incident
    # What a job suffers from may lie elsewhere, and then has an incident of its own.
    is_elsewhere = incident.place.domain is not None and best.place != incident.place
    title = f"{incident.title}: {best.title}" if is_elsewhere else best.title
    return replace(incident, cause=best.cause, title=title)


async def told(hub: HubView, incident: incidents.Incident) -> dict[str, Any]:
    """Everything known about one incident, as it is now."""
    return await hub.read(lambda: detail(hub, hub.incident(incident.id) or incident))


def detail(hub: HubView, incident: incidents.Incident) -> dict[str, Any]:
    found = hub.diagnosis(incident.id)
    called = named(incident, found)
    return {
        "incident": {**wire.to_plain(called), "place_name": hub.fleet.place_name(incident.place)},
        "diagnosis": wire.to_plain(found),
        "plan": wire.to_plain(hub.plan(incident.id)),
        "silenced_by": _silence(hub, incident),
        "runbook": message.runbook(called.cause),
        "timeline": [
            {
                "at": wire.format_time(entry.at),
                "actor": entry.actor,
                "kind": entry.kind,
                "body": wire.to_plain(entry.body),
            }
            for entry in hub.timeline(incident.id)
        ],
    }


def _silence(hub: HubView, incident: incidents.Incident) -> dict[str, Any] | None:
    """Why nobody is told about it, in the words of whoever silenced it."""
    silence = hub.silenced_by(incident) if incident.is_open else None
    if silence is None:
        return None
    author = silence.author if silence.keeper == silences.OURS else f"{silence.author} (in {silence.keeper})"
    return {
        "id": silence.id,
        "author": author,
        "reason": silence.reason,
        "ends_at": silence.ends_at,
        "keeper": silence.keeper,
    }


def panel(hub: HubView) -> dict[str, Any]:
    """Open incidents, gravest and newest first, and the few that closed last."""
    opened = sorted(
        hub.incidents(open_only=True, limit=OPEN_LIMIT),
        key=lambda incident: (-incident.severity.rank, -incident.opened_at.timestamp()),
    )
    closed = [incident for incident in hub.incidents(open_only=False, limit=OPEN_LIMIT) if not incident.is_open]
    closed.sort(key=lambda incident: incident.resolved_at or incident.opened_at, reverse=True)
    return {
        "open": [card(hub, incident) for incident in opened],
        "closed": [card(hub, incident) for incident in closed[:CLOSED_SHOWN]],
    }
