"""What is told about incidents after the fact: whom they hit, the report of one, and the review of many.

Made from what any hub can be asked, so that a recording tells the same stories as the hub it came from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from watchkeeper.errors import WatchkeeperError
from watchkeeper.incidents import blast, subject
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
from watchkeeper.notify import digest, report
from watchkeeper.web.view import HubView

log = logging.getLogger(__name__)

# A year of a large fleet; a digest of more would be read by nobody.
MOST_INCIDENTS = 100_000


async def blast_of(hub: HubView, incident: Incident) -> blast.Blast | None:
    """Whom and how much it hits; None where the engine does not answer."""
    now, asked = hub.clock.now(), blast.question(incident, hub.clock.now())
    try:
        holders = {} if asked is None else (await hub.ask(*asked)).latest()
    except WatchkeeperError as error:
        log.warning("The blast radius is unknown", extra=fields(incident=incident.id, error=error))
        return None
    price = hub.settings.cost.dollars_per_gpu_hour
    return blast.of(incident, holders, now=now, gpus_at=hub.fleet.gpus_at, dollars_per_gpu_hour=price)


async def story_of(hub: HubView, incident: Incident) -> report.Story:
    id = incident.id
    found, plan, timeline = await hub.read(lambda: (hub.diagnosis(id), hub.plan(id), hub.timeline(id)))
    return report.Story(
        incident,
        hub.fleet.place_name(incident.place),
        found,
        plan,
        await blast_of(hub, incident),
        timeline,
        hub.clock.now(),
        subject.belongs_to(incident, inventory_of(hub)),
    )


def inventory_of(hub: HubView) -> subject.Inventory:
    """What the fleet and the schedulers know of nodes and workloads; a recording has no schedulers."""

    nodes = {(node.cluster, node.name): node for node in hub.fleet.nodes()}

    def domains(cluster: str, name: str) -> Mapping[str, str]:
        found = nodes.get((cluster, name))
        return {} if found is None else {**found.domains, **({"pool": found.pool} if found.pool else {})}

    return subject.Inventory(domains) if hub.clusters is None else subject.Inventory(domains, hub.clusters.team_of)


async def digest_of(hub: HubView, since: datetime, until: datetime) -> digest.Digest:
    known = inventory_of(hub)

    def make() -> digest.Digest:
        return digest.make(
            hub.incidents(open_only=False, limit=MOST_INCIDENTS, opened_since=since),
            since=since,
            until=until,
            timeline=hub.timeline,
            names=lambda incident: hub.fleet.place_name(incident.place),
            belongs_to=lambda incident: subject.belongs_to(incident, known),
        )

    return await hub.read(make, is_long=True)
