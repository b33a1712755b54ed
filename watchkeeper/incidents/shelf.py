"""The incidents that can still change, in memory: by id, by place, and by when each is to be looked at again.

`core.Incidents` puts every version here after the journal has it. Open ones stay, resolved ones until neither a fault
that returns nor an alert that goes on would belong to them.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from watchkeeper.incidents.conditions import node_of
from watchkeeper.incidents.domains import Domains
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, IncidentId

AT_ONCE = datetime.min.replace(tzinfo=UTC)


class Shelf:
    def __init__(self, domains: Domains, *, remembered: timedelta) -> None:
        self._domains = domains
        self._remembered = remembered
        self._kept: dict[IncidentId, Incident] = {}
        self._by_node: dict[fleet.Place, dict[IncidentId, None]] = {}
        self._due: dict[IncidentId, datetime] = {}

    def clear(self) -> None:
        self._kept.clear()
        self._by_node.clear()
        self._due.clear()

    def __contains__(self, id: IncidentId) -> bool:
        return id in self._kept

    def get(self, id: IncidentId) -> Incident | None:
        return self._kept.get(id)

    def all(self) -> list[Incident]:
        return list(self._kept.values())

    def open(self) -> list[Incident]:
        """Open and acknowledged ones, oldest first."""
        return [incident for incident in self._kept.values() if incident.is_open]

    @property
    def open_count(self) -> int:
        return len(self._due)

    def put(self, incident: Incident) -> None:
        """Take the place of the version before; an open one is to be looked at with the next tick."""
        before, place = self._kept.get(incident.id), node_of(incident.place)
        if before is not None and node_of(before.place) != place:
            self._by_node[node_of(before.place)].pop(incident.id, None)
        self._kept[incident.id] = incident
        if incident.is_open:
            self._due[incident.id] = AT_ONCE
        else:
            self._due.pop(incident.id, None)
        self._by_node.setdefault(place, {})[incident.id] = None

    def near(self, place: fleet.Place) -> list[Incident]:
        """Open and just resolved incidents of the same node and of the domains around it, or inside the same domain."""
        ids = {id for one in self._domains.around(node_of(place)) for id in self._by_node.get(one, ())}
        return sorted((self._kept[id] for id in ids), key=age)

    def by_place(self) -> list[tuple[fleet.Place, list[Incident]]]:
        return [(place, [self._kept[id] for id in ids]) for place, ids in self._by_node.items()]

    def due(self, now: datetime, latest: datetime) -> list[Incident]:
        """Open ones to be looked at; what waits for later than `latest` waits for a clock that was put back."""
        return [self._kept[id] for id, at in self._due.items() if not now < at <= latest]

    def look_again(self, id: IncidentId, at: datetime) -> None:
        self._due[id] = at

    def is_memorable(self, incident: Incident, now: datetime) -> bool:
        return incident.resolved_at is None or now - incident.resolved_at <= self._remembered

    def forget(self, now: datetime) -> list[Incident]:
        """Let go of incidents that can no longer return, and name them."""
        gone = [incident for incident in self._kept.values() if not self.is_memorable(incident, now)]
        for incident in gone:
            del self._kept[incident.id]
            self._by_node[node_of(incident.place)].pop(incident.id)
        self._by_node = {place: ids for place, ids in self._by_node.items() if ids}
        return gone


def age(incident: Incident) -> tuple[datetime, int, str]:
    """Oldest first; of those opened at once, the lower number."""
    return incident.opened_at, len(incident.id), incident.id
