"""An incident as the console lists it: the finding in words, why, how sure, and the next step.

`fleet_api` answers with cards and details, `live` pushes cards; both come from here so that a page
never shows two different stories.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watchkeeper.hub import services
from watchkeeper.kit import wire
from watchkeeper.model import diagnosis, incidents, silences
from watchkeeper.notify import message

# A panel shows what one screen holds; the list page pages through the rest.
OPEN_LIMIT = 200
CLOSED_SHOWN = 5


class IncidentCards:
    """Incidents as pages show them."""

    def __init__(
        self, journal: services.JournalProtocol, silences: services.SilencesProtocol, *, fleet: services.FleetProtocol
    ) -> None:
        self._journal, self._silences, self._fleet = journal, silences, fleet

    def make_card(self, incident: incidents.Incident) -> dict[str, Any]:
        """The incident without its members, with the best finding and the plan's next step."""
        found, plan = self._journal.diagnosis(incident.id), self._journal.plan(incident.id)
        best = found.best if found is not None else None
        plain: dict[str, Any] = wire.to_plain(apply_diagnosis(incident, found))
        members = plain.pop("members")
        return plain | {
            "place_name": self._fleet.place_name(incident.place),
            "signals": len(members),
            "gpus": list(dict.fromkeys(one["place"]["gpu"] for one in members if one["place"]["gpu"])),
            "why": best.why if best else None,
            "confidence": best.confidence if best else None,
            "next_step": plan.next_step if plan else (best.actions[0].do if best and best.actions else None),
            "plan": [receipt.action.kind.value for receipt in plan.receipts] if plan else [],
            "silenced_by": self._silence(incident),
        }

    async def load_detail(self, incident: incidents.Incident) -> dict[str, Any]:
        """Everything known about one incident, as it is now."""
        return await self._journal.read(lambda: self.make_detail(self._journal.incident(incident.id) or incident))

    def make_detail(self, incident: incidents.Incident) -> dict[str, Any]:
        found = self._journal.diagnosis(incident.id)
        called = apply_diagnosis(incident, found)
        return {
            "incident": {**wire.to_plain(called), "place_name": self._fleet.place_name(incident.place)},
            "diagnosis": wire.to_plain(found),
            "plan": wire.to_plain(self._journal.plan(incident.id)),
            "silenced_by": self._silence(incident),
            "runbook": message.runbook_path(called.cause),
            "timeline": [
                {
                    "at": wire.format_time(entry.at),
                    "actor": entry.actor,
                    "kind": entry.kind,
                    "body": wire.to_plain(entry.body),
                }
                for entry in self._journal.timeline(incident.id)
            ],
        }

    def _silence(self, incident: incidents.Incident) -> dict[str, Any] | None:
        """Why nobody is told about it, in the words of whoever silenced it."""
        silence = self._silences.silenced_by(incident) if incident.is_open else None
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

    def make_panel(self) -> dict[str, Any]:
        """Open incidents, gravest and newest first, and the few that closed last."""
        opened = sorted(
            self._journal.incidents(open_only=True, limit=OPEN_LIMIT),
            key=lambda incident: (-incident.severity.rank, -incident.opened_at.timestamp()),
        )
        closed = [
            incident for incident in self._journal.incidents(open_only=False, limit=OPEN_LIMIT) if not incident.is_open
        ]
        closed.sort(key=lambda incident: incident.resolved_at or incident.opened_at, reverse=True)
        return {
            "open": [self.make_card(incident) for incident in opened],
            "closed": [self.make_card(incident) for incident in closed[:CLOSED_SHOWN]],
        }


def apply_diagnosis(incident: incidents.Incident, found: diagnosis.Diagnosis | None) -> incidents.Incident:
    """The incident under the name of its diagnosis, which has seen more than the signal that opened it."""
    best = None if found is None else found.best
    if best is None or best.cause in (incident.cause, diagnosis.UNKNOWN_CAUSE):
        return incident
    # What a job suffers from may lie elsewhere, and then has an incident of its own.
    is_elsewhere = incident.place.domain is not None and best.place != incident.place
    title = f"{incident.title}: {best.title}" if is_elsewhere else best.title
    return replace(incident, cause=best.cause, title=title)
