"""What people say about causes, how often we were right, and which nodes break again and again.

POST /api/incidents/{id}/cause corrects or confirms a cause; GET /api/accuracy counts; GET /api/lemons ranks nodes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.catalogue import causes
from watchkeeper.clusters import inventory
from watchkeeper.diagnose import corrections, lemons
from watchkeeper.diagnose.lemons import Lemon
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, ok_response, parse_whole_number, read_json_object
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.cards import IncidentCards

MOST_INCIDENTS = 100_000
MOST_DAYS = 366
MOST_LEMONS = 100


@dataclass(frozen=True, slots=True)
class CauseCorrected(shapes.IncidentDetail):
    correction: corrections.Correction


@dataclass(frozen=True, slots=True)
class CauseAccuracy:
    accuracy: list[corrections.Accuracy]


@dataclass(frozen=True, slots=True)
class LemonList:
    since: datetime
    lemons: list[Lemon]
    left_out: int
    unmapped: dict[str, int]
    unseen: list[str]


class CausesApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        incidents: services.IncidentsProtocol,
        fleet: services.FleetProtocol,
        cards: IncidentCards,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._incidents, self._fleet, self._cards = incidents, fleet, cards
        self._judged = runtime.metrics.counter(
            "watchkeeper_diagnose_judged_total", "Causes that a person confirmed or corrected, by cause and verdict"
        )
        for said in incidents.corrections():
            self._count(said)

    async def correct(self, request: Request) -> Response:
        incident = await incident_request.load_incident(self._journal, request)
        body = await read_json_object(request, incident_request.BODY_BYTES)
        cause, why = str(body.get("cause", "")), " ".join(str(body.get("why", "")).split())
        if causes.lookup(cause).cause != cause:
            near = ", ".join(row.cause for row in causes.all_causes() if row.family == incident.family)
            raise HTTPException(400, f"`{cause[:60]}` is no cause; of the family {incident.family} there are {near}")
        if len(why) > incident_request.TEXT_LIMIT:
            raise HTTPException(400, f"why has {len(why):,} characters, the limit is {incident_request.TEXT_LIMIT:,}")
        said = await self._incidents.correct(incident.id, request.state.caller.name, cause, why)
        self._count(said)
        return ok_response(correction=said, **await self._cards.load_detail(incident))

    async def accuracy(self, _: Request) -> CauseAccuracy:
        return CauseAccuracy(accuracy=await self._journal.read(self._accuracy, is_long=True))

    async def lemon_nodes(self, request: Request) -> LemonList:
        days = parse_whole_number(request.query_params.get("days", "90"))
        if days is None or not 1 <= days <= MOST_DAYS:
            raise HTTPException(400, f"days must be a number from 1 to {MOST_DAYS}")
        since, found, unseen = await self._journal.read(lambda: self._lemons(days), is_long=True)
        return LemonList(
            since=since,
            lemons=found[:MOST_LEMONS],
            left_out=max(0, len(found) - MOST_LEMONS),
            unmapped=inventory.count_missing_facts(self._fleet.nodes()),
            unseen=unseen,
        )

    def _accuracy(self) -> list[corrections.Accuracy]:
        said = self._incidents.corrections()
        first = {one.incident: one.was for one in said}
        named: Counter[str] = Counter()
        for incident in self._journal.incidents(open_only=False, limit=MOST_INCIDENTS):
            found = self._journal.diagnosis(incident.id) if incident.id not in first else None
            best = found.best if found is not None else None
            named[first.get(incident.id) or (best.cause if best is not None else incident.cause)] += 1
        return corrections.measure_accuracy(named, said)

    def _since(self, days: int) -> datetime:
        """The journal of a hub that is younger than the window knows nothing of the time before its first incident."""
        now = self._runtime.clock.now()
        return max(now - timedelta(days=days), self._journal.first_opened_at() or now)

    def _lemons(self, days: int) -> tuple[datetime, list[Lemon], list[str]]:
        now, since = self._runtime.clock.now(), self._since(days)
        nodes = [node.place for node in self._fleet.nodes()]
        happened = self._journal.incidents(open_only=False, limit=MOST_INCIDENTS, opened_since=since)
        units = lemons.histories(happened, nodes, since=since, now=now)
        trends, unseen = [], []
        for metric, expr in lemons.trend_queries().items():
            try:
                answer = self._queries.engine.instant(expr, clock.to_ms(now)).latest()
            except WatchkeeperError as error:
                unseen.append(f"{metric}: {error}")
                continue
            trends += [lemons.make_trend(labels.get("Hostname", ""), metric, value) for labels, value in answer.items()]
        return since, lemons.rank_lemons(units, trends), unseen

    def _count(self, said: corrections.Correction) -> None:
        self._judged.add(cause=said.was, verdict="right" if said.is_confirmation else "wrong")


def endpoints(api: CausesApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("POST",),
            "/api/incidents/{id}/cause",
            Role.OPERATOR,
            api.correct,
            changes=True,
            summary="Correct a cause, or confirm it with the same one",
            body={"cause": str, "why": str},
            response=CauseCorrected,
        ),
        Endpoint(
            ("GET",),
            "/api/accuracy",
            Role.VIEWER,
            api.accuracy,
            summary="For each cause how often it was named, judged by a person, and right",
        ),
        Endpoint(
            ("GET",),
            "/api/lemons",
            Role.VIEWER,
            api.lemon_nodes,
            summary="Nodes by how often they break against the fleet, the most hazardous first",
            params=(QueryParam("days", f"of the last so many days, at most {MOST_DAYS}; 90 unless given", int),),
        ),
    ]
