"""GET /api/drills: the faults injected into a simulated fleet, what the hub diagnosed for each, and the score.

The simulator returns each fault with its correct cause, severity and place; the incidents and diagnoses of the hub are
compared with them. GET /api/drills/accuracy counts correct diagnoses by cause. It includes the last `watchkeeper drill
--tell`, which is saved in the data directory and is the only source of drills for a real fleet.
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
from typing import Any, TypedDict

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.catalogue import causes
from watchkeeper.errors import WatchkeeperError, error_reason
from watchkeeper.hub import services
from watchkeeper.kit import files, wire
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet
from watchkeeper.model.incidents import Incident
from watchkeeper.web.endpoint import get, post, read_json_object

log = logging.getLogger(__name__)

MAX_DRILLS = 100
MAX_BODY_BYTES, MAX_SCENARIOS = 1024 * 1024, 1000
MAX_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class DrillVerdict:
    """What the hub reported for a drill; fields are None until it reported something."""

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
    """A fault of the simulator with its correct cause, severity and scope; `ended_at` is None while it is active."""

    id: str
    scenario: str
    node: str
    gpu: int | None
    uuid: str | None
    at: datetime
    cause: str
    severity: str
    scope: str
    # What a correct diagnosis names: a GPU, node, rack, job, model or pod.
    place: fleet.Place
    ended_at: datetime | None = None
    verdict: DrillVerdict = DrillVerdict()


@dataclass(frozen=True, slots=True)
class DrillResult:
    """The result of one drill: the correct cause, whether an incident was opened, and the diagnosed cause."""

    cause: str
    is_detected: bool = wire.json_key("is_found")
    named_cause: str | None = wire.json_key("named")


@dataclass(frozen=True, slots=True)
class GameDay:
    """The results of the last `watchkeeper drill --tell`."""

    at: datetime | None = None
    lines: tuple[DrillResult, ...] = ()


@dataclass(frozen=True, slots=True)
class CauseScore:
    """How often a cause was diagnosed correctly in drills; `instead` lists the wrong causes, most frequent first."""

    cause: str
    drills: int
    right: int
    right_share: float
    detected: int = wire.json_key("found")
    wrong_causes: tuple[str, ...] = wire.json_key("instead")


class DrillScore(TypedDict):
    drills: int
    detected: int
    right: int
    median_seconds: float | None
    slowest_seconds: float | None


class DrillList(TypedDict):
    now: datetime
    drills: list[Drill]
    score: DrillScore


class DrillAccuracy(TypedDict):
    drills: list[CauseScore]
    game_day_at: datetime | None


class DrillsApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._journal, self._simulator = hub.runtime, hub.journal, hub.simulator
        self._drills: OrderedDict[str, Drill] = OrderedDict()
        self._gauge = hub.runtime.metrics.gauge(
            "watchkeeper_drill_causes", "Drills by correct cause and verdict of the diagnosis (right, wrong, missed)"
        )
        self._path = Path(hub.runtime.settings.hub.data) / "drills.json"
        self._game_day = _load_game_day(self._path)
        self._score_causes([])

    @get("/api/drills/accuracy")
    async def get_accuracy(self, _: Request) -> DrillAccuracy:
        """Accuracy of diagnoses in drills for each cause, the lowest first."""
        await self._refresh_drills()
        return await self._accuracy()

    async def _accuracy(self) -> DrillAccuracy:
        return DrillAccuracy(drills=self._score_causes(await self._judge_drills()), game_day_at=self._game_day.at)

    @post("/api/drills/score", body={"scenarios": list[dict[str, Any]]})
    async def submit_score(self, request: Request) -> DrillAccuracy:
        """Save the score of a game day, as `watchkeeper drill --json` prints it."""
        game_day = _parse_game_day(await read_json_object(request, MAX_BODY_BYTES), self._runtime.clock.now())
        try:
            await asyncio.to_thread(files.write_atomically, self._path, orjson.dumps(wire.to_plain(game_day)))
        except OSError as error:
            raise HTTPException(503, f"the score could not be saved: {error_reason(error)}") from error
        self._game_day = game_day
        return await self._accuracy()

    def _score_causes(self, judged_drills: Sequence[tuple[Drill, DrillVerdict]]) -> list[CauseScore]:
        """Score the drills by cause, and update the metric."""
        # Deliberately without active drills that have no diagnosis yet: they are neither right nor wrong.
        results = [
            DrillResult(drill.cause, verdict.incident is not None, verdict.cause)
            for drill, verdict in judged_drills
            if drill.ended_at is not None or verdict.cause is not None
        ]
        scores = score_by_cause([*results, *self._game_day.lines])
        self._gauge.values.clear()
        for score in scores:
            wrong, missed = score.detected - score.right, score.drills - score.detected
            for verdict, count in (("right", score.right), ("wrong", wrong), ("missed", missed)):
                self._gauge.set(count, cause=score.cause, verdict=verdict)
        return scores

    async def _refresh_drills(self) -> None:
        if self._simulator is None:
            return
        status, answer = await self._simulator.request("GET", "/faults", None)
        if status != 200:
            raise HTTPException(503, f"the simulator returned status {status}")
        now, active = self._runtime.clock.now(), {drill.id: drill for drill in _parse_faults(answer)}
        for id, drill in self._drills.items():
            if id not in active and drill.ended_at is None:
                self._drills[id] = replace(drill, ended_at=now)
        for id, drill in active.items():
            self._drills.setdefault(id, drill)
        while len(self._drills) > MAX_DRILLS:
            self._drills.popitem(last=False)

    def judge_drill(self, drill: Drill, incidents: Sequence[Incident]) -> DrillVerdict:
        """Compare a drill with the best matching incident: same cause family, same place, not opened earlier."""
        family = causes.lookup(drill.cause).family
        candidates = [
            incident
            for incident in incidents
            if incident.family == family and incident.opened_at >= drill.at and _is_near(drill, incident)
        ]
        verdicts = (self._compare(drill, incident) for incident in candidates)
        return max(verdicts, key=lambda verdict: (verdict.is_right, bool(verdict.cause_right)), default=DrillVerdict())

    def _compare(self, drill: Drill, incident: Incident) -> DrillVerdict:
        diagnosis = self._journal.diagnosis(incident.id)
        best = None if diagnosis is None else diagnosis.best
        places = [incident.place] if best is None else [incident.place, best.place]
        return DrillVerdict(
            incident.id,
            incident.title,
            (incident.opened_at - drill.at).total_seconds(),
            None if best is None else best.cause,
            None if best is None else best.cause == drill.cause,
            incident.severity.value == drill.severity,
            drill.place in [_of_cluster(place, drill) for place in places],
            incident.resolved_at,
        )

    @get("/api/drills")
    async def list_drills(self, _: Request) -> DrillList:
        """List injected faults with the hub's diagnoses and the score; 404 without a simulated fleet."""
        if self._simulator is None:
            raise HTTPException(404, "this hub has no simulator: faults can only be injected into a simulated fleet")
        await self._refresh_drills()
        judged_drills = await self._judge_drills()
        self._score_causes(judged_drills)
        return DrillList(
            now=self._runtime.clock.now(),
            drills=[replace(drill, verdict=verdict) for drill, verdict in judged_drills],
            score=score_drills([verdict for _, verdict in judged_drills]),
        )

    async def _judge_drills(self) -> list[tuple[Drill, DrillVerdict]]:
        """All drills of the simulator with their verdicts, the newest first."""
        newest_first = list(reversed(self._drills.values()))

        def judge_all() -> list[tuple[Drill, DrillVerdict]]:
            incidents = self._journal.incidents(open_only=False, limit=MAX_INCIDENTS)
            return [(drill, self.judge_drill(drill, incidents)) for drill in newest_first]

        return await self._journal.read(judge_all) if newest_first else []


def _of_cluster(place: fleet.Place, drill: Drill) -> fleet.Place:
    """The place with the simulator's name of the cluster, which exporters may name otherwise."""
    return replace(place, cluster=drill.place.cluster)


def _is_near(drill: Drill, incident: Incident) -> bool:
    """Whether the incident is at the fault's place, inside it, or around it; a rack also has its nodes.

    Never an incident of the whole cluster, which any fault would match, or of another job.
    """
    place = _of_cluster(incident.place, drill)
    if place.parent is None:
        return False
    is_of_rack = drill.scope == "rack" and any(member.place.node == drill.node for member in incident.members)
    return is_of_rack or place.encloses(drill.place) or drill.place.encloses(place)


def _parse_faults(answer: bytes) -> list[Drill]:
    """Parse the simulator's list of faults, or raise 503."""
    try:
        return [
            Drill(
                plain["id"],
                plain["scenario"],
                plain["node"],
                gpu=plain.get("gpu"),
                uuid=plain.get("uuid"),
                at=wire.parse_time(plain["at"]),
                cause=plain["truth"]["cause"],
                severity=plain["truth"]["severity"],
                scope=plain["truth"]["place"],
                place=fleet.Place.parse(plain["place"]),
            )
            for plain in orjson.loads(answer)
        ]
    except (ValueError, KeyError, TypeError, WatchkeeperError) as error:
        reason = f"{type(error).__name__}: {error}"[:200]
        raise HTTPException(503, f"the simulator did not return a list of faults ({reason})") from error


def score_drills(verdicts: Sequence[DrillVerdict]) -> DrillScore:
    seconds = [verdict.detected_seconds for verdict in verdicts if verdict.detected_seconds is not None]
    return DrillScore(
        drills=len(verdicts),
        detected=len(seconds),
        right=sum(verdict.is_right for verdict in verdicts),
        median_seconds=median(seconds) if seconds else None,
        slowest_seconds=max(seconds, default=None),
    )


def score_by_cause(lines: Sequence[DrillResult]) -> list[CauseScore]:
    """Score each cause; the smallest share of correct diagnoses first."""
    scores = []
    for cause in sorted({line.cause for line in lines}):
        results = [line for line in lines if line.cause == cause]
        detected, right = sum(line.is_detected for line in results), sum(line.named_cause == cause for line in results)
        wrong_counts = Counter(line.named_cause for line in results if line.named_cause not in (None, cause))
        wrong_causes = tuple(str(name) for name, _ in wrong_counts.most_common(3))
        scores.append(CauseScore(cause, len(results), right, right / len(results), detected, wrong_causes))
    return sorted(scores, key=lambda score: (score.right_share, -score.drills, score.cause))


def _parse_game_day(body: Mapping[str, Any], now: datetime) -> GameDay:
    """Parse the output of `watchkeeper drill --json`, or raise 400."""
    rows = body.get("scenarios")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise HTTPException(400, "`scenarios` must be a list of objects, as `watchkeeper drill --json` prints it")
    if len(rows) > MAX_SCENARIOS:
        raise HTTPException(400, f"{len(rows):,} scenarios, the limit is {MAX_SCENARIOS:,}")
    # `named` is null where no cause was named.
    names = [row["cause"] for row in rows if "cause" in row] + [row["named"] for row in rows if row.get("named")]
    for name in names:
        if causes.lookup(str(name)).cause != name:
            raise HTTPException(400, f"unknown cause `{str(name)[:60]}`")
    try:
        return GameDay(now, tuple(DrillResult(row["cause"], bool(row["detected"]), row["named"]) for row in rows))
    except KeyError as error:
        raise HTTPException(400, f"a scenario is missing the field {error}") from error


def _load_game_day(path: Path) -> GameDay:
    """Load the saved game day; an empty one if there is none or the file is damaged."""
    try:
        return wire.loads(GameDay, path.read_bytes())
    except FileNotFoundError:
        return GameDay()
    except (OSError, WatchkeeperError) as error:
        log.warning("game day score load failed", extra=fields(path=str(path), error=error))
        return GameDay()
