"""Incidents and the outbox of their notifications on one journal."""

from __future__ import annotations

from tests.support.incident_stories import Room, later
from watchkeeper.incidents import incident_labels
from watchkeeper.notify import outbox, routing, silence_store

HOOK = routing.Receiver("hook", webhook="http://127.0.0.1:1/")
LEAD = routing.Receiver("lead", webhook="http://127.0.0.1:1/")
ROUTE = routing.Route(("hook",), wait="10s", repeat="1h", escalate_after="15m", escalate_to=("lead",))
ROUTING = routing.Routing((HOOK, LEAD), (ROUTE,))


class Mail:
    """Incidents and their outbox on one journal; what `deliver` hands out counts as taken."""

    def __init__(self, room: Room, table: routing.Routing = ROUTING) -> None:
        self.room, self.table = room, table
        self.silences = silence_store.SilenceStore(room.journal, now=later(0))
        self.box = self._open(0)

    def _open(self, at: float) -> outbox.Outbox:
        about = lambda incident: incident_labels.collect_labels(incident, incident_labels.InventoryLookup())  # noqa: E731
        return outbox.Outbox(self.room.journal, self.table, subject=about, silences=self.silences, now=later(at))

    def restart(self, at: float) -> None:
        self.room.restart(at)
        self.silences = silence_store.SilenceStore(self.room.journal, now=later(at))
        self.box = self._open(at)

    def look(self, at: float) -> None:
        self.room.tick(at)
        self.box.update(self.room.incidents.recent(), later(at))

    def take(self, at: float, receiver: str = "hook") -> outbox.NoticeBatch | None:
        self.look(at)
        return self.box.next_batch(receiver, later(at), incident=self.room.journal.incident)

    def deliver(self, at: float, receiver: str = "hook") -> list[tuple[str, str]]:
        batch = self.take(at, receiver)
        if batch is None:
            return []
        self.box.mark_sent(batch, "200", later(at))
        return [(notice.incident, notice.occasion.value) for notice in batch.notices]
