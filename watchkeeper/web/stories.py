"""What is told about incidents after the fact: whom they hit, the report of one, and the review of many.

Made from what any hub can be asked, so that a recording tells the same stories as the hub it came from.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from watchkeeper.errors import WatchkeeperError
from watchkeeper.incidents import blast, digest, report
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
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
    return report.Story(
        incident,
        hub.fleet.place_name(incident.place),
        hub.diagnosis(incident.id),
        hub.plan(incident.id),
        await blast_of(hub, incident),
        hub.timeline(incident.id),
        hub.clock.now(),
    )


async def digest_of(hub: HubView, since: datetime, until: datetime) -> digest.Digest:
    def make() -> digest.Digest:
        return digest.make(
            hub.incidents(open_only=False, limit=MOST_INCIDENTS),
            since=since,
            until=until,
            timeline=hub.timeline,
            names=lambda incident: hub.fleet.place_name(incident.place),
        )

    # Thousands of timelines are read; the loop has other things to do.
    return await asyncio.to_thread(make)
