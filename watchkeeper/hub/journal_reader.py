"""Read the journal for pages in separate threads, so that the event loop never waits for a disk.

Every result comes from the journal that the stages use now. `read` runs a function away from the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import chain as chain_events
from typing import TypeVar

from watchkeeper.hub.stages import CurrentStages
from watchkeeper.model import actions, diagnosis, events, notices
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.scrape import fleet
from watchkeeper.store.journal import chain, journal, journal_readers

T = TypeVar("T")

# Enough for every open incident; a fleet with more has one large fault.
MAX_INCIDENTS = 10_000


class JournalReader:
    def __init__(self, current: CurrentStages, inventory: fleet.ScrapedInventory, *, cluster: str) -> None:
        self._current, self._fleet, self._cluster = current, inventory, cluster
        self._threads = journal_readers.JournalReaders()

    @property
    def _journal(self) -> journal.Journal:
        return self._current.stages.journal

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T:
        return await self._threads.read(work, is_long=is_long)

    def close(self) -> None:
        self._threads.close()

    def incidents(
        self, *, open_only: bool = True, limit: int = MAX_INCIDENTS, opened_since: datetime | None = None
    ) -> list[Incident]:
        return self._journal.incidents(open_only=open_only, limit=limit, opened_since=opened_since)

    def first_opened_at(self) -> datetime | None:
        return self._journal.first_opened_at()

    def first_entry_at(self) -> datetime | None:
        return self._journal.first_entry_at()

    def incident(self, id: str) -> Incident | None:
        return self._journal.incident(id)

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        return self._journal.diagnosis(id)

    def plan(self, id: str) -> actions.Plan | None:
        return self._journal.plan(id)

    def timeline(self, id: str) -> list[chain.JournalEntry]:
        return self._journal.timeline(id)

    def notices(self, id: str) -> list[notices.Notice]:
        return self._journal.notices_of(id)

    def events_at(self, place: fleet_model.Place, since: datetime, until: datetime) -> list[events.Event]:
        return self._journal.events_at(place, since=since, until=until)

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        """Events of all clusters of this hub, oldest first."""
        clusters = sorted({self._cluster, *(node.cluster for node in self._fleet.nodes())})
        by_cluster = (self.events_at(fleet_model.Place(cluster), since, until) for cluster in clusters)
        return sorted(chain_events.from_iterable(by_cluster), key=lambda event: event.at)
