"""The incidents that can still change, in memory: by id, by place, and by when each is to be looked at again.

`core.Incidents` puts every version here after the journal has it. Open ones stay, resolved ones until neither a fault
that returns nor an alert that goes on would belong to them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from watchkeeper.catalogue import effects
from watchkeeper.incidents.domains import Domains
from watchkeeper.incidents.footprint import holders_of, is_workload
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, IncidentId

AT_ONCE = datetime.min.replace(tzinfo=UTC)


class IncidentIndex:
    def __init__(self, domains: Domains, *, remembered: timedelta) -> None:
        self._domains = domains
        self._remembered = remembered
        self._kept: dict[IncidentId, Incident] = {}
        self._by_node: dict[fleet.Place, dict[IncidentId, None]] = {}
        self._filed: dict[IncidentId, frozenset[fleet.Place]] = {}
        self._due: dict[IncidentId, datetime] = {}

    def clear(self) -> None:
        self._kept.clear()
        self._by_node.clear()
        self._filed.clear()
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
        self._kept[incident.id] = incident
        self._file(incident)
        if incident.is_open:
            self._due[incident.id] = AT_ONCE
        else:
            self._due.pop(incident.id, None)

    def _file(self, incident: Incident) -> None:
        """Under its own place and those of jobs that it has taken in; one of a job also under the job's machines."""
        filed = self._filed.get(incident.id, frozenset())
        places = {
            incident.place.whole_node,
            *(member.place for member in incident.members if is_workload(member.place)),
            *(_of_holder(incident.place.cluster, job) for job in holders_of(incident)),
        }
        if incident.is_open and is_workload(incident.place) and effects.is_job_effect(incident.cause):
            # Where it ran when it began: to ask again at each change would be dear.
            places |= filed if len(filed) > len(places) else self._domains.footprint_of(incident.place).nodes
        for place in filed - places:
            self._by_node[place].pop(incident.id, None)
        for place in places - filed:
            self._by_node.setdefault(place, {})[incident.id] = None
        self._filed[incident.id] = frozenset(places)

    def incidents_near(self, place: fleet.Place, job: str = "") -> list[Incident]:
        """Open and just resolved incidents of the same node and of the domains around it, or inside the same domain.

        With `job` also those of what else it holds.
        """
        return self._at(
            [*self._domains.places_near(place.whole_node), *([_of_holder(place.cluster, job)] if job else [])]
        )

    def incidents_under_job(self, job: fleet.Place) -> list[Incident]:
        """Those of a job and of the machines that it runs on; this asks where that is."""
        return self._at(self._domains.places_of_job(job))

    def _at(self, places: Iterable[fleet.Place]) -> list[Incident]:
        ids = {id for one in places for id in self._by_node.get(one, ())}
        return sorted((self._kept[id] for id in ids), key=age_key)

    def by_place(self) -> list[tuple[fleet.Place, list[Incident]]]:
        """Every incident once, by the node, rack or job that it is about."""
        found: dict[fleet.Place, list[Incident]] = {}
        for incident in self._kept.values():
            found.setdefault(incident.place.whole_node, []).append(incident)
        return list(found.items())

    def due_incidents(self, now: datetime, latest: datetime) -> list[Incident]:
        """Open ones to be looked at; what waits for later than `latest` waits for a clock that was put back."""
        return [self._kept[id] for id, at in self._due.items() if not now < at <= latest]

    def schedule_check(self, id: IncidentId, at: datetime) -> None:
        self._due[id] = at

    def is_retained(self, incident: Incident, now: datetime) -> bool:
        return incident.resolved_at is None or now - incident.resolved_at <= self._remembered

    def forget(self, now: datetime) -> list[Incident]:
        """Let go of incidents that can no longer return, and name them."""
        gone = [incident for incident in self._kept.values() if not self.is_retained(incident, now)]
        for incident in gone:
            del self._kept[incident.id]
            for place in self._filed.pop(incident.id):
                self._by_node[place].pop(incident.id)
        self._by_node = {place: ids for place, ids in self._by_node.items() if ids}
        return gone


def _of_holder(cluster: str, job: str) -> fleet.Place:
    return fleet.Place(cluster, domain=f"holder={job}")


def age_key(incident: Incident) -> tuple[datetime, int, str]:
    """Oldest first; of those opened at once, the lower number."""
    return incident.opened_at, len(incident.id), incident.id
