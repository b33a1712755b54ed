"""What is told about incidents after the fact: whom they hit, the report of one, and the review of many.

Made from what any hub can be asked, so that a recording tells the same stories as the hub it came from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from watchkeeper.clusters.clusters import Clusters
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.incidents import blast, incident_labels
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
from watchkeeper.notify import digest, incident_report

log = logging.getLogger(__name__)

# A year of a large fleet; a digest of more would be read by nobody.
MOST_INCIDENTS = 100_000


class IncidentReports:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        fleet: services.FleetProtocol,
        clusters: Clusters | None,
    ) -> None:
        self._runtime, self._queries = runtime, queries
        self._journal, self._fleet, self._clusters = journal, fleet, clusters

    async def load_blast(self, incident: Incident) -> blast.Blast | None:
        """Whom and how much it hits; None where the engine does not answer."""
        now, asked = self._runtime.clock.now(), blast.holders_query(incident, self._runtime.clock.now())
        try:
            holders = {} if asked is None else (await self._queries.instant(*asked)).latest()
        except WatchkeeperError as error:
            log.warning("The blast radius is unknown", extra=fields(incident=incident.id, error=error))
            return None
        price = self._runtime.settings.cost.dollars_per_gpu_hour
        return blast.compute_blast(
            incident, holders, now=now, gpus_at=self._fleet.expected_gpu_count, dollars_per_gpu_hour=price
        )

    async def load_story(self, incident: Incident) -> incident_report.IncidentReport:
        id = incident.id
        found, plan, timeline = await self._journal.read(
            lambda: (self._journal.diagnosis(id), self._journal.plan(id), self._journal.timeline(id))
        )
        return incident_report.IncidentReport(
            incident,
            self._fleet.place_name(incident.place),
            found,
            plan,
            await self.load_blast(incident),
            timeline,
            self._runtime.clock.now(),
            incident_labels.belongs_to(incident, self.load_inventory()),
        )

    def load_inventory(self) -> incident_labels.InventoryLookup:
        """What the fleet and the schedulers know of nodes and workloads; a recording has no schedulers."""

        nodes = {(node.cluster, node.name): node for node in self._fleet.nodes()}

        def domains(cluster: str, name: str) -> Mapping[str, str]:
            found = nodes.get((cluster, name))
            return {} if found is None else {**found.domains, **({"pool": found.pool} if found.pool else {})}

        return (
            incident_labels.InventoryLookup(domains)
            if self._clusters is None
            else incident_labels.InventoryLookup(domains, self._clusters.team_of)
        )

    async def make_digest(self, since: datetime, until: datetime) -> digest.Digest:
        known = self.load_inventory()

        def make() -> digest.Digest:
            return digest.make_digest(
                self._journal.incidents(open_only=False, limit=MOST_INCIDENTS, opened_since=since),
                since=since,
                until=until,
                timeline=self._journal.timeline,
                names=lambda incident: self._fleet.place_name(incident.place),
                belongs_to=lambda incident: incident_labels.belongs_to(incident, known),
            )

        return await self._journal.read(make, is_long=True)
