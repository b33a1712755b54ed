"""Build incident reports: the blast radius and the report of an incident, and the digest of many.

Uses only services that a replayed recording has too, so that its reports equal those of the hub that made it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.incidents import blast_radius, incident_labels
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
from watchkeeper.notify import digest, incident_report

log = logging.getLogger(__name__)

# About a year of a large fleet; no reader needs a longer digest.
MAX_INCIDENTS = 100_000


class IncidentReports:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._fleet, self._clusters = hub.fleet, hub.clusters

    async def load_blast_radius(self, incident: Incident) -> blast_radius.BlastRadius | None:
        """The workloads, teams and cost that an incident affects; None if the query fails."""
        now, query = self._runtime.clock.now(), blast_radius.holders_query(incident, self._runtime.clock.now())
        try:
            holders = {} if query is None else (await self._queries.instant(*query)).latest()
        except WatchkeeperError as error:
            log.warning("blast radius query failed", extra=fields(incident=incident.id, error=error))
            return None
        price = self._runtime.settings.cost.dollars_per_gpu_hour
        return blast_radius.compute_blast_radius(
            incident, holders, now=now, gpus_at=self._fleet.expected_gpu_count, dollars_per_gpu_hour=price
        )

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

        return (
            incident_labels.InventoryLookup(failure_domains)
            if self._clusters is None
            else incident_labels.InventoryLookup(failure_domains, self._clusters.team_of)
        )

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
