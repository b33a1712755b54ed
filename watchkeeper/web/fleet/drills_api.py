"""GET /api/drills: the faults of a simulated fleet, each with what this hub has made of it so far, and the score.

The simulator says what is broken and what the right answer is; incidents and diagnoses of the hub are held against
that, newest drill first. Drills that have ended stay in the list while the hub runs, up to a bound. The console's page
Drills asks again and again while someone watches. GET /api/drills/accuracy counts right answers by cause, also those of
the last `watchkeeper drill --tell`, which is kept in the hub's directory: a real fleet has no other drills.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import causes
from watchkeeper.errors import WatchkeeperError, error_reason
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.simulator import SimulatorProxy
from watchkeeper.kit import files, wire
from watchkeeper.kit.logs import fields
from watchkeeper.model.incidents import Incident
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, read_json_object

log = logging.getLogger(__name__)

MOST_KEPT = 100
BODY_BYTES, MOST_LINES = 1024 * 1024, 1000
MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class DrillVerdict:
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
    verdict: DrillVerdict = DrillVerdict()


@dataclass(frozen=True, slots=True)
class DrillResult:
    """One drill that is over: the right cause, whether an incident was opened, and the cause that was named."""

    cause: str
    is_found: bool
    named: str | None


@dataclass(frozen=True, slots=True)
class GameDay:
    """What the last `watchkeeper drill --tell` came to."""

    at: datetime | None = None
    lines: tuple[DrillResult, ...] = ()


@dataclass(frozen=True, slots=True)
class CauseScore:
    """How often a cause was named rightly in drills; `instead` are what was named, the most frequent first."""

    cause: str
    drills: int
    found: int
    right: int
    right_share: float
    instead: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DrillScore:
    drills: int
    detected: int
    right: int
    median_seconds: float | None
    slowest_seconds: float | None


@dataclass(frozen=True, slots=True)
class DrillList:
    now: datetime
    drills: list[Drill]
    score: DrillScore


@dataclass(frozen=True, slots=True)
class DrillAccuracy:
    drills: list[CauseScore]
    game_day_at: datetime | None


class DrillsApi:
    def __init__(
        self, runtime: Runtime, journal: services.JournalProtocol, *, simulator: SimulatorProxy | None
    ) -> None:
        self._runtime, self._journal, self._simulator = runtime, journal, simulator
        self._known: OrderedDict[str, Drill] = OrderedDict()
        self._gauge = runtime.metrics.gauge(
            "watchkeeper_drill_causes", "Drills by the right cause and whether it was named (right, wrong, missed)"
        )
        self._path = Path(runtime.settings.hub.data) / "drills.json"
        self._game_day = _kept(self._path)
        self._count([])

    async def drills(self, _: Request) -> DrillList:
        if self._simulator is None:
            raise HTTPException(404, "this fleet is real: there is no simulator behind this hub, and nothing to break")
        await self._look()
        judged = await self._judged()
        self._count(judged)
        return DrillList(
            now=self._runtime.clock.now(),
            drills=[replace(drill, verdict=told) for drill, told in judged],
            score=score([told for _, told in judged]),
        )

    async def _judged(self) -> list[tuple[Drill, DrillVerdict]]:
        """Every drill of the simulator with what the hub made of it, the newest first."""
        known = list(reversed(self._known.values()))

        def judge() -> list[tuple[Drill, DrillVerdict]]:
            found = self._journal.incidents(open_only=False, limit=MOST_INCIDENTS)
            return [(drill, self.judge(drill, found)) for drill in known]

        return await self._journal.read(judge) if known else []

    async def accuracy(self, _: Request) -> DrillAccuracy:
        await self._look()
        return DrillAccuracy(self._count(await self._judged()), self._game_day.at)

    async def submit_score(self, request: Request) -> DrillAccuracy:
        """Keep the score of a game day; it takes the place of the one before."""
        told = _game_day(await read_json_object(request, BODY_BYTES), self._runtime.clock.now())
        try:
            await asyncio.to_thread(files.write_atomically, self._path, orjson.dumps(wire.to_plain(told)))
        except OSError as error:
            raise HTTPException(503, f"the score cannot be kept: {error_reason(error)}") from error
        self._game_day = told
        return DrillAccuracy(self._count(await self._judged()), told.at)

    def _count(self, judged: Sequence[tuple[Drill, DrillVerdict]]) -> list[CauseScore]:
        """By cause, for pages and as a metric."""
        # What has just been put in is neither right nor wrong yet.
        settled = [(drill, told) for drill, told in judged if drill.ended_at is not None or told.cause is not None]
        lines = [DrillResult(drill.cause, told.incident is not None, told.cause) for drill, told in settled]
        counted = by_cause([*lines, *self._game_day.lines])
        self._gauge.values.clear()
        for one in counted:
            counts = {"right": one.right, "wrong": one.found - one.right, "missed": one.drills - one.found}
            for verdict, count in counts.items():
                self._gauge.set(count, cause=one.cause, verdict=verdict)
        return counted

    async def _look(self) -> None:
        if self._simulator is None:
            return
        status, answer = await self._simulator.request("GET", "/faults", None)
        if status != 200:
            raise HTTPException(503, f"the simulator answered {status}")
        now, active = self._runtime.clock.now(), {drill.id: drill for drill in _drills(answer)}
        for id, drill in self._known.items():
            if id not in active and drill.ended_at is None:
                self._known[id] = replace(drill, ended_at=now)
        for id, drill in active.items():
            self._known.setdefault(id, drill)
        while len(self._known) > MOST_KEPT:
            self._known.popitem(last=False)

    def judge(self, drill: Drill, found: Sequence[Incident]) -> DrillVerdict:
        """The incident that fits best: same family of causes, on the struck node or around it, not from before."""
        family = causes.lookup(drill.cause).family
        fitting = [one for one in found if one.family == family and one.opened_at >= drill.at and _is_near(drill, one)]
        verdicts = [self._verdict(drill, one) for one in fitting]
        return max(verdicts, key=lambda one: (one.is_right, one.cause_right is True), default=DrillVerdict())

    def _verdict(self, drill: Drill, incident: Incident) -> DrillVerdict:
        told = self._journal.diagnosis(incident.id)
        best = None if told is None else told.best
        is_gpu = drill.scope == "gpu"
        return DrillVerdict(
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


def _drills(answer: bytes) -> list[Drill]:
    """What the simulator says is broken; a simulator of another version, or something else, is told from a fault."""
    try:
        return [_drill(plain) for plain in orjson.loads(answer)]
    except (ValueError, KeyError, TypeError, WatchkeeperError) as error:
        said = f"{type(error).__name__}: {error}"[:200]
        raise HTTPException(503, f"what the simulator answers is no list of faults ({said})") from error


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


def score(verdicts: Sequence[DrillVerdict]) -> DrillScore:
    seconds = [one.detected_seconds for one in verdicts if one.detected_seconds is not None]
    return DrillScore(
        drills=len(verdicts),
        detected=len(seconds),
        right=sum(one.is_right for one in verdicts),
        median_seconds=median(seconds) if seconds else None,
        slowest_seconds=max(seconds, default=None),
    )


def by_cause(lines: Sequence[DrillResult]) -> list[CauseScore]:
    """The worst share first."""
    counted = []
    for cause in sorted({line.cause for line in lines}):
        mine = [line for line in lines if line.cause == cause]
        found, right = sum(line.is_found for line in mine), sum(line.named == cause for line in mine)
        others = Counter(line.named for line in mine if line.named not in (None, cause))
        instead = tuple(str(name) for name, _ in others.most_common(3))
        counted.append(CauseScore(cause, len(mine), found, right, right / len(mine), instead))
    return sorted(counted, key=lambda one: (one.right_share, -one.drills, one.cause))


def _game_day(body: Mapping[str, Any], now: datetime) -> GameDay:
    """What `watchkeeper drill --json` prints; 400 says what is wrong with it."""
    told = body.get("scenarios")
    if not isinstance(told, list) or not told or not all(isinstance(one, dict) for one in told):
        raise HTTPException(
            400, "the body is not a score: `scenarios` must be a list as `watchkeeper drill --json` has"
        )
    if len(told) > MOST_LINES:
        raise HTTPException(400, f"{len(told):,} scenarios, the limit is {MOST_LINES:,}")
    for name in (name for one in told for name in (one.get("cause"), one.get("named")) if name is not None):
        if causes.lookup(str(name)).cause != name:
            raise HTTPException(400, f"`{str(name)[:60]}` is no cause")
    try:
        return GameDay(now, tuple(DrillResult(one["cause"], bool(one["detected"]), one["named"]) for one in told))
    except KeyError as error:
        raise HTTPException(400, f"a scenario has no {error}") from error


def _kept(path: Path) -> GameDay:
    """The game day that was told before; none where there is none or the file is damaged."""
    try:
        plain = orjson.loads(path.read_bytes())
        return GameDay(wire.parse_time(plain["at"]), tuple(DrillResult(**line) for line in plain["lines"]))
    except FileNotFoundError:
        return GameDay()
    except (OSError, ValueError, KeyError, TypeError, WatchkeeperError) as error:
        log.warning("The score of the last game day cannot be read", extra=fields(path=str(path), error=error))
        return GameDay()


def endpoints(api: DrillsApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/drills/accuracy",
            Role.VIEWER,
            api.accuracy,
            summary="For each cause how often it was named rightly in drills, the worst first",
        ),
        Endpoint(
            ("POST",),
            "/api/drills/score",
            Role.OPERATOR,
            api.submit_score,
            changes=True,
            summary="Keep the score of a game day, as `watchkeeper drill --json` prints it",
            body={"scenarios": list[dict[str, Any]]},
        ),
        Endpoint(
            ("GET",),
            "/api/drills",
            Role.VIEWER,
            api.drills,
            summary="Faults put into a simulated fleet, what this hub made of each, and the score; 404 on a real fleet",
        ),
    ]
