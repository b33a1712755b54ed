"""In-memory index of the incidents that can still change: by id, by place, and by the time of their next check.

`IncidentTracker` puts each version here after it is in the journal. Open incidents stay; resolved incidents are
removed when neither a returning fault nor a firing alert can reopen them.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from watchkeeper.incidents.domains import Domains
from watchkeeper.incidents.footprint import holders_of, is_workload
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident, IncidentId, age_key

EARLIEST = datetime.min.replace(tzinfo=UTC)


class IncidentIndex:
    def __init__(self, domains: Domains, *, retention: timedelta) -> None:
        self._domains = domains
        self._retention = retention
        self._incidents: dict[IncidentId, Incident] = {}
        self._by_node: dict[fleet.Place, dict[IncidentId, None]] = {}
        self._places_of: dict[IncidentId, frozenset[fleet.Place]] = {}
        self._check_at: dict[IncidentId, datetime] = {}

    def clear(self) -> None:
        self._incidents.clear()
        self._by_node.clear()
        self._places_of.clear()
        self._check_at.clear()

    def __contains__(self, id: IncidentId) -> bool:
        return id in self._incidents

    def get(self, id: IncidentId) -> Incident | None:
        return self._incidents.get(id)

    def all(self) -> list[Incident]:
        return list(self._incidents.values())

    def open(self) -> list[Incident]:
        """Open and acknowledged incidents, oldest first."""
        return [incident for incident in self._incidents.values() if incident.is_open]

    @property
    def open_count(self) -> int:
        return len(self._check_at)

    def put(self, incident: Incident) -> None:
        """Add an incident or replace its previous version; the next tick checks it if it is open."""
        self._incidents[incident.id] = incident
        self._index_places(incident)
        if incident.is_open:
            self._check_at[incident.id] = EARLIEST
        else:
            self._check_at.pop(incident.id, None)

    def _index_places(self, incident: Incident) -> None:
        """Index an incident by its place, by the jobs it affects, and by the nodes that these run on."""
        indexed = self._places_of.get(incident.id, frozenset())
        places = {
            incident.place.whole_node,
            *(
                member.place.whole_node
                for member in incident.members
                if member.until is None or is_workload(member.place)
            ),
            *(_holder_place(incident.place.cluster, job) for job in holders_of(incident)),
            *(
                _family_place(member.place.cluster, member.own_family)
                for member in incident.members
                if member.own_family
            ),
        }
        # The other GPUs, ranks and links of its jobs are near.
        places |= {place.whole_node for place in incident.runs_on if incident.is_open}
        for place in indexed - places:
            self._by_node[place].pop(incident.id, None)
        for place in places - indexed:
            self._by_node.setdefault(place, {})[incident.id] = None
        self._places_of[incident.id] = frozenset(places)

    def incidents_near(self, place: fleet.Place, job: str = "", own_family: str = "") -> list[Incident]:
        """Open and recently resolved incidents of the node and its domains, or of the nodes in the domain.

        With `job` also the incidents of other GPUs that the job holds; with `own_family` those of the same alert.
        """
        places = [*self._domains.places_near(place.whole_node)]
        places += [_holder_place(place.cluster, job)] if job else []
        places += [_family_place(place.cluster, own_family)] if own_family else []
        return self._incidents_at(places)

    def incidents_under_job(self, place: fleet.Place, job: str = "") -> list[Incident]:
        """The incidents of a job or pod and of the nodes that it runs on; this queries its footprint.

        With `job` also those of the other pods of this job.
        """
        places = [*self._domains.places_of_job(place), *([_holder_place(place.cluster, job)] if job else [])]
        return self._incidents_at(places)

    def _incidents_at(self, places: Iterable[fleet.Place]) -> list[Incident]:
        ids = {id for place in places for id in self._by_node.get(place, ())}
        return sorted((self._incidents[id] for id in ids), key=age_key)

    def by_place(self) -> list[tuple[fleet.Place, list[Incident]]]:
        """All incidents, grouped by the node, rack or job of their place."""
        incidents_by_place: dict[fleet.Place, list[Incident]] = {}
        for incident in self._incidents.values():
            incidents_by_place.setdefault(incident.place.whole_node, []).append(incident)
        return list(incidents_by_place.items())

    def due_incidents(self, now: datetime, latest: datetime) -> list[Incident]:
        """Open incidents to check now; also those due after `latest`, because then the clock was set back."""
        return [self._incidents[id] for id, at in self._check_at.items() if not now < at <= latest]

    def schedule_check(self, id: IncidentId, at: datetime) -> None:
        self._check_at[id] = at

    def is_retained(self, incident: Incident, now: datetime) -> bool:
        return incident.resolved_at is None or now - incident.resolved_at <= self._retention

    def remove_expired(self, now: datetime) -> list[Incident]:
        """Remove and return the incidents that can no longer reopen."""
        expired = [incident for incident in self._incidents.values() if not self.is_retained(incident, now)]
        for incident in expired:
            del self._incidents[incident.id]
            for place in self._places_of.pop(incident.id):
                self._by_node[place].pop(incident.id)
        self._by_node = {place: ids for place, ids in self._by_node.items() if ids}
        return expired


def _holder_place(cluster: str, job: str) -> fleet.Place:
    return fleet.Place(cluster, domain=f"holder={job}")


def _family_place(cluster: str, own_family: str) -> fleet.Place:
    return fleet.Place(cluster, domain=f"family={own_family}")
