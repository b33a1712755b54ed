"""GET /api/drills: the faults of a simulated fleet, each with what this hub has made of it so far, and the score.

The simulator says what is broken and what the right answer is; incidents and diagnoses of the hub are held against
that, newest drill first. Drills that have ended stay in the list while the hub runs, up to a bound. The console's page
Drills asks again and again while someone watches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.catalogue import causes
from watchkeeper.kit import wire
from watchkeeper.model.incidents import Incident
from watchkeeper.web.answers import Endpoint, ok
from watchkeeper.web.auth import Role
from watchkeeper.web.view import HubView

MOST_KEPT = 100
MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault of the simulator and the truth about it; `ended_at` None while it lasts."""

    id: str
    scenario: str
    node: str
    gpu: int | None
    uuid: str | None
    at: datetime
    cause: str
    severity: str
    scope: str
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hub has made of a drill: None where it has made nothing yet."""

    incident: str | None = None
    title: str | None = None
    detected_seconds: float | None = None
    cause: str | None = None
    cause_right: bool | None = None
    severity_right: bool | None = None
    place_right: bool | None = None
    resolved_at: datetime | None = None

    @property
    def is_right(self) -> bool:
        return bool(self.cause_right and self.severity_right and self.place_right)


class DrillsApi:
    def __init__(self, hub: HubView) -> None:
        self._hub = hub
        self._known: OrderedDict[str, Drill] = OrderedDict()

    async def drills(self, _: Request) -> Response:
        if self._hub.simulator_url is None:
            raise HTTPException(404, "this fleet is real: there is no simulator behind this hub, and nothing to break")
        await self._look()
        found = self._hub.incidents(open_only=False, limit=MOST_INCIDENTS)
        judged = [(drill, self.judge(drill, found)) for drill in reversed(self._known.values())]
        return ok(
            now=self._hub.clock.now(),
            drills=[{**wire.to_plain(drill), "verdict": wire.to_plain(told)} for drill, told in judged],
            score=score([told for _, told in judged]),
        )

    async def _look(self) -> None:
        status, answer = await self._hub.simulator_request("GET", "/faults", None)
        if status != 200:
            raise HTTPException(503, f"the simulator answered {status}")
        now, active = self._hub.clock.now(), {drill.id: drill for drill in map(_drill, orjson.loads(answer))}
        for id, drill in self._known.items():
            if id not in active and drill.ended_at is None:
                self._known[id] = replace(drill, ended_at=now)
        for id, drill in active.items():
            self._known.setdefault(id, drill)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)

    def judge(self, drill: Drill, found: Sequence[Incident]) -> Verdict:
        """The incident that fits best: same family of causes, on the struck node or around it, not from before."""
        family = causes.lookup(drill.cause).family
        fitting = [one for one in found if one.family == family and one.opened_at >= drill.at and _is_near(drill, one)]
        verdicts = [self._verdict(drill, one) for one in fitting]
        return max(verdicts, key=lambda one: (one.is_right, one.cause_right is True), default=Verdict())

    def _verdict(self, drill: Drill, incident: Incident) -> Verdict:
        told = self._hub.diagnosis(incident.id)
        best = None if told is None else told.best
        is_gpu = drill.scope == "gpu"
        return Verdict(
            incident.id,
            incident.title,
            (incident.opened_at - drill.at).total_seconds(),
            None if best is None else best.cause,
            None if best is None else best.cause == drill.cause,
            incident.severity.value == drill.severity,
            incident.place.gpu == drill.uuid if is_gpu and drill.uuid else incident.place.node in (drill.node, None),
            incident.resolved_at,
        )


def _is_near(drill: Drill, incident: Incident) -> bool:
    place = incident.place
    if place.gpu is not None and drill.uuid is not None and drill.scope == "gpu":
        return place.gpu == drill.uuid
    return place.node == drill.node or place.node is None or drill.scope == "job"


def _drill(plain: dict[str, Any]) -> Drill:
    truth = plain["truth"]
    return Drill(
        plain["id"],
        plain["scenario"],
        plain["node"],
        plain.get("gpu"),
        plain.get("uuid"),
        wire.parse_time(plain["at"]),
        truth["cause"],
        truth["severity"],
        truth["place"],
    )


def score(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    seconds = [one.detected_seconds for one in verdicts if one.detected_seconds is not None]
    return {
        "drills": len(verdicts),
        "detected": len(seconds),
        "right": sum(one.is_right for one in verdicts),
        "median_seconds": median(seconds) if seconds else None,
        "slowest_seconds": max(seconds, default=None),
    }


def endpoints(hub: HubView) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/drills",
            Role.VIEWER,
            DrillsApi(hub).drills,
            words="Faults put into a simulated fleet, what this hub made of each, and the score; 404 on a real fleet",
            gives={"now": datetime, "drills": list[dict[str, Any]], "score": dict[str, Any]},
        )
    ]
