"""Correct or confirm causes, measure the accuracy of diagnoses, and rank nodes that fail repeatedly.

POST /api/incidents/{id}/cause, GET /api/accuracy and GET /api/lemons.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.catalogue import causes
from watchkeeper.clusters import inventory
from watchkeeper.diagnose import corrections, lemons
from watchkeeper.diagnose.lemons import Lemon
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.kit import clock
from watchkeeper.web import shapes
from watchkeeper.web.endpoint import QueryParam, get, ok_response, post, read_number
from watchkeeper.web.incidents import incident_request
from watchkeeper.web.incidents.incident_reports import IncidentCards

MAX_INCIDENTS = 100_000
MAX_DAYS = 366
MAX_LEMONS = 100


class CauseCorrected(shapes.IncidentDetail):
    correction: corrections.Correction


class CauseAccuracy(TypedDict):
    accuracy: list[corrections.Accuracy]


class LemonList(TypedDict):
    since: datetime
    lemons: list[Lemon]
    left_out: int
    unmapped: dict[str, int]
    unseen: list[str]


class CausesApi:
    def __init__(self, hub: services.Services, cards: IncidentCards) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._incidents, self._fleet, self._cards = hub.incidents, hub.fleet, cards
        self._verdicts = hub.runtime.metrics.counter(
            "watchkeeper_diagnose_judged_total", "Causes that a person confirmed or corrected, by cause and verdict"
        )
        for correction in hub.incidents.corrections():
            self._count_verdict(correction)

    @post("/api/incidents/{id}/cause", body={"cause": str, "why": str}, response=CauseCorrected)
    async def correct_cause(self, request: Request) -> Response:
        """Correct the cause of an incident, or confirm it by sending the same cause."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        cause, why = str(body.get("cause", "")), " ".join(str(body.get("why", "")).split())
        if causes.lookup(cause).cause != cause:
            same_family = ", ".join(row.cause for row in causes.all_causes() if row.family == incident.family)
            problem = f"unknown cause `{cause[:60]}`; causes of the family {incident.family}: {same_family}"
            raise HTTPException(400, problem)
        if len(why) > incident_request.MAX_TEXT_LENGTH:
            problem = f"`why` has {len(why):,} characters, the limit is {incident_request.MAX_TEXT_LENGTH:,}"
            raise HTTPException(400, problem)
        correction = await self._incidents.correct(incident.id, request.state.caller.name, cause, why)
        self._count_verdict(correction)
        return ok_response(correction=correction, **await self._cards.load_detail(incident))

    @get("/api/accuracy")
    async def get_accuracy(self, _: Request) -> CauseAccuracy:
        """For each cause: how often it was diagnosed, reviewed by a person, and correct."""
        return CauseAccuracy(accuracy=await self._journal.read(self._measure_accuracy, is_long=True))

    @get("/api/lemons", QueryParam("days", f"Length of the window in days, at most {MAX_DAYS}. Default: 90.", int))
    async def list_lemons(self, request: Request) -> LemonList:
        """Nodes that fail more often than the fleet, highest failure rate first."""
        days = read_number(request, "days", default=90, limit=MAX_DAYS)
        since, ranked, unmeasured = await self._journal.read(lambda: self._rank_lemons(days), is_long=True)
        return LemonList(
            since=since,
            lemons=ranked[:MAX_LEMONS],
            left_out=max(0, len(ranked) - MAX_LEMONS),
            unmapped=inventory.count_missing_facts(self._fleet.nodes()),
            unseen=unmeasured,
        )

    def _measure_accuracy(self) -> list[corrections.Accuracy]:
        all_corrections = self._incidents.corrections()
        first_causes = {correction.incident: correction.was for correction in all_corrections}
        named_counts: Counter[str] = Counter()
        for incident in self._journal.incidents(open_only=False, limit=MAX_INCIDENTS):
            incident_diagnosis = self._journal.diagnosis(incident.id) if incident.id not in first_causes else None
            best = incident_diagnosis.best if incident_diagnosis is not None else None
            named_counts[first_causes.get(incident.id) or (best.cause if best is not None else incident.cause)] += 1
        return corrections.measure_accuracy(named_counts, all_corrections)

    def _rank_lemons(self, days: int) -> tuple[datetime, list[Lemon], list[str]]:
        now = self._runtime.clock.now()
        since = max(now - timedelta(days=days), self._journal.first_opened_at() or now)
        nodes = [node.place for node in self._fleet.nodes()]
        recent = self._journal.incidents(open_only=False, limit=MAX_INCIDENTS, opened_since=since)
        histories = lemons.fault_histories(recent, nodes, since=since, now=now)
        trends, unmeasured = [], []
        for metric, expr in lemons.trend_queries().items():
            try:
                answer = self._queries.engine.instant(expr, clock.to_ms(now)).latest()
            except WatchkeeperError as error:
                unmeasured.append(f"{metric}: {error}")
                continue
            trends += [lemons.make_trend(labels.get("Hostname", ""), metric, value) for labels, value in answer.items()]
        return since, lemons.rank_lemons(histories, trends), unmeasured

    def _count_verdict(self, correction: corrections.Correction) -> None:
        self._verdicts.add(cause=correction.was, verdict="right" if correction.is_confirmation else "wrong")
