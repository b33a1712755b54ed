"""Build what people read about incidents: cards, details, reports and digests.

Lists, the console's live panel and details use the same cards, so that they always agree. Reports use only services
that a replayed recording has too, so that they equal those of the hub that made it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from watchkeeper.catalogue import causes
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.fleet_prices import FleetPrices
from watchkeeper.incidents import blast_radius, gpu_claims, incident_labels
from watchkeeper.kit import wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import diagnosis, incidents, silences
from watchkeeper.model.incidents import Incident
from watchkeeper.notify import digest, incident_report, message

# The panel fits one screen; the list of incidents shows the rest page by page.
MAX_OPEN_INCIDENTS = 200
# More open ones are counted as at least this many.
MAX_COUNTED_INCIDENTS = 1000
MAX_RESOLVED_INCIDENTS = 5
log = logging.getLogger(__name__)
# About a year of a large fleet; no reader needs a longer digest.
MAX_INCIDENTS = 100_000


class IncidentCards:
    def __init__(self, hub: services.Services) -> None:
        self._journal, self._silences, self._fleet = hub.journal, hub.silences, hub.fleet
        self._repairs = hub.repairs

    def make_card(self, incident: incidents.Incident) -> dict[str, Any]:
        """The incident without its members, with its best finding and the next step of its plan."""
        incident_diagnosis, plan = self._journal.diagnosis(incident.id), self._journal.plan(incident.id)
        best = incident_diagnosis.best if incident_diagnosis is not None else None
        plain: dict[str, Any] = wire.to_plain(with_diagnosed_title(incident, incident_diagnosis))
        members, _ = plain.pop("members"), plain.pop("runs_on")
        return plain | {
            "place_name": self._fleet.place_name(incident.place),
            "signals": len(members),
            "gpus": list(dict.fromkeys(member["place"]["gpu"] for member in members if member["place"]["gpu"])),
            "why": best.why if best else None,
            "confidence": best.confidence if best else None,
            "next_step": plan.next_step if plan else (best.actions[0].do if best and best.actions else None),
            "plan": [receipt.action.kind.value for receipt in plan.receipts] if plan else [],
            "silenced_by": self._silence_view(incident),
            "repair": self._repair_brief(incident),
        }

    def _repair_brief(self, incident: incidents.Incident) -> dict[str, str] | None:
        repair = None if self._repairs is None else self._repairs.repairs.active_repair(incident.id)
        return None if repair is None else {"id": repair.id, "state": repair.state, "activity": repair.activity}

    async def load_detail(self, incident: incidents.Incident) -> dict[str, Any]:
        """The newest detail of an incident, read away from the event loop."""
        return await self._journal.read(lambda: self.make_detail(self._journal.incident(incident.id) or incident))

    def make_detail(self, incident: incidents.Incident) -> dict[str, Any]:
        incident_diagnosis = self._journal.diagnosis(incident.id)
        titled = with_diagnosed_title(incident, incident_diagnosis)
        return {
            "incident": {**wire.to_plain(titled), "place_name": self._fleet.place_name(incident.place)},
            "diagnosis": wire.to_plain(incident_diagnosis),
            "plan": wire.to_plain(self._journal.plan(incident.id)),
            "silenced_by": self._silence_view(incident),
            "runbook": message.runbook_path(titled.cause),
            "timeline": [
                wire.to_plain(incidents.TimelineEntry(entry.at, entry.actor, entry.kind, entry.body))
                for entry in self._journal.timeline(incident.id)
            ],
        }

    def _silence_view(self, incident: incidents.Incident) -> dict[str, Any] | None:
        """The silence that mutes the notifications of an open incident, if any."""
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
        """Open incidents, most severe and newest first, and the most recently resolved ones."""
        open_incidents = sorted(
            self._journal.incidents(open_only=True, limit=MAX_COUNTED_INCIDENTS),
            key=lambda incident: (-incident.severity.rank, -incident.opened_at.timestamp()),
        )
        resolved = [
            incident
            for incident in self._journal.incidents(open_only=False, limit=MAX_OPEN_INCIDENTS)
            if not incident.is_open
        ]
        resolved.sort(key=lambda incident: incident.resolved_at or incident.opened_at, reverse=True)
        return {
            "open": [self.make_card(incident) for incident in open_incidents[:MAX_OPEN_INCIDENTS]],
            "open_total": len(open_incidents),
            "has_more": len(open_incidents) == MAX_COUNTED_INCIDENTS,
            "closed": [self.make_card(incident) for incident in resolved[:MAX_RESOLVED_INCIDENTS]],
        }


def with_diagnosed_title(
    incident: incidents.Incident, incident_diagnosis: diagnosis.Diagnosis | None
) -> incidents.Incident:
    """The incident with the cause and title of its best finding, which rests on more than the opening signal."""
    best = None if incident_diagnosis is None else incident_diagnosis.best
    if best is None or best.cause in (incident.cause, diagnosis.UNKNOWN_CAUSE):
        return incident
    # The cause of a job's problem may be at another place, which then has its own incident.
    is_elsewhere = incident.place.domain is not None and best.place != incident.place
    title = f"{incident.title}: {best.title}" if is_elsewhere else best.title
    return replace(incident, cause=best.cause, title=title)


class IncidentReports:
    def __init__(self, hub: services.Services, fleet_prices: FleetPrices) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._fleet, self._clusters, self._prices = hub.fleet, hub.clusters, fleet_prices

    async def load_blast_radius(self, incident: Incident) -> blast_radius.BlastRadius | None:
        """The workloads, teams and cost that an incident affects; None if the query fails."""
        now = self._runtime.clock.now()
        # Most incidents count no GPUs: then the others are not read.
        counts_gpus = incident.is_open and any(causes.gpu_effect(member.cause) for member in incident.members)
        older = await self._journal.read(lambda: self._older_incidents(incident), is_long=True) if counts_gpus else []
        query = blast_radius.holders_query(incident, now, older)
        try:
            holders = () if query is None else (await self._queries.instant(*query)).frame.labels
        except WatchkeeperError as error:
            log.warning("blast radius query failed", extra=fields(incident=incident.id, error=error))
            return None
        gpus_of = blast_radius.gpus_of_workloads(holders)
        gpus = gpu_claims.claimed_gpus(gpu_claims.find_claims(incident, self._fleet.gpu_ids_at, gpus_of))
        nodes = {view.node for view in self._fleet.gpus() if view.gpu.uuid in gpus}
        of_members = {member.place.node for member in incident.members if member.place.node}
        price = await self._prices.mean_price(nodes or of_members)
        return blast_radius.compute_blast_radius(
            incident,
            holders,
            now=now,
            gpus_at=self._fleet.gpu_ids_at,
            price_per_gpu_hour=price.per_gpu_hour,
            currency=price.currency,
            older=older,
        )

    def _older_incidents(self, incident: Incident) -> list[Incident]:
        """Open incidents that count the GPUs that they share with this one."""
        opened = self._journal.incidents(open_only=True, limit=MAX_INCIDENTS)
        return [other for other in opened if incidents.age_key(other) < incidents.age_key(incident)]

    async def load_report(self, incident: Incident) -> incident_report.IncidentReport:
        id = incident.id
        incident_diagnosis, plan, timeline = await self._journal.read(
            lambda: (self._journal.diagnosis(id), self._journal.plan(id), self._journal.timeline(id))
        )
        return incident_report.IncidentReport(
            incident,
            self._fleet.place_name(incident.place),
            incident_diagnosis,
            plan,
            await self.load_blast_radius(incident),
            timeline,
            self._runtime.clock.now(),
            incident_labels.report_labels(incident, self.inventory_lookup()),
        )

    def inventory_lookup(self) -> incident_labels.InventoryLookup:
        """The failure domains of nodes and the teams of workloads; a recording has no teams."""
        nodes = {(node.cluster, node.name): node for node in self._fleet.nodes()}

        def failure_domains(cluster: str, name: str) -> Mapping[str, str]:
            node = nodes.get((cluster, name))
            return {} if node is None else {**node.domains, **({"pool": node.pool} if node.pool else {})}

        if self._clusters is None:
            return incident_labels.InventoryLookup(failure_domains)
        return incident_labels.InventoryLookup(failure_domains, self._clusters.team_of)

    async def make_digest(self, since: datetime, until: datetime) -> digest.Digest:
        inventory = self.inventory_lookup()

        def make() -> digest.Digest:
            return digest.make_digest(
                self._journal.incidents(open_only=False, limit=MAX_INCIDENTS, opened_since=since),
                since=since,
                until=until,
                timeline=self._journal.timeline,
                names=lambda incident: self._fleet.place_name(incident.place),
                belongs_to=lambda incident: incident_labels.report_labels(incident, inventory),
            )

        return await self._journal.read(make, is_long=True)
