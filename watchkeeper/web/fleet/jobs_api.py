"""GET /api/jobs, /api/jobs/{id} and /api/replicas: every job in one line, one job in full, how many replicas would do.

`/api/jobs?state=&team=&cluster=&limit=` -> {"ok", "jobs": [model.jobs.JobLine], "total", "unmapped": {"jobs", "gpus"},
"problems"}: the gravest state first, then by GPUs; `total` counts what the filters kept, `unmapped` those of them that
have no team, `problems` says what could not be asked.
`/api/jobs/{id}` -> {"ok", **model.jobs.JobReport}: the line is `job`, and an id may hold a slash.
`/api/replicas?model=&cluster=&window=` -> {"ok", "replicas": [workloads.replicas.Advice], "past": Past or null,
"problems"}. `workloads` decides, here is only asking.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.catalogue import prices
from watchkeeper.clusters.clusters import Clusters
from watchkeeper.diagnose import evidence
from watchkeeper.errors import PackError, WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import jobs, workloads
from watchkeeper.model.fleet import UNMAPPED
from watchkeeper.model.jobs import JobLine
from watchkeeper.query.engine import QueryRange
from watchkeeper.render import keda
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, ok_response, parse_whole_number
from watchkeeper.workloads import board, identity, replicas, report
from watchkeeper.workloads.replicas import ReplicasAdvice, ReplicasReplay

DEFAULT_LIMIT, MOST_JOBS, MOST_INCIDENTS, LONGEST_ID = 500, 10_000, 1000, 300
# A list is the same for everybody who looks within some seconds; when jobs began changes only by new ones.
KEPT_SECONDS, FIRST_SEEN_SECONDS = 5.0, 60.0
# Replicas are changed within a minute, so a past that is looked at more rarely would be another one.
DAY_SECONDS, DAY_STEP_MS, LONGEST_WINDOW, WEEK_STEP_MS = 86_400, 15_000, 7 * 86_400, 60_000
LARGEST_BOOK_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobList:
    jobs: list[JobLine]
    total: int
    unmapped: dict[str, int]
    problems: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReplicaList:
    replicas: list[ReplicasAdvice]
    past: ReplicasReplay | None
    problems: list[str]


class JobsApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        rules: services.RulesProtocol,
        fleet: services.FleetProtocol,
        clusters: Clusters | None,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._rules, self._fleet = rules, fleet
        self._clusters = clusters
        self._busy = asyncio.Lock()
        self._board: tuple[float, board.Board] | None = None
        self._first_seen: tuple[float, Mapping[identity.JobKey, float]] | None = None

    async def listing(self, request: Request) -> JobList:
        form = request.query_params
        state, team, cluster = form.get("state"), form.get("team"), form.get("cluster")
        if state is not None and state not in list(jobs.JobState):
            raise HTTPException(400, f"state `{state[:40]}`: there are {', '.join(jobs.JobState)}")
        limit = parse_whole_number(form.get("limit", str(DEFAULT_LIMIT)))
        if limit is None or not 1 <= limit <= MOST_JOBS:
            raise HTTPException(400, f"limit must be from 1 to {MOST_JOBS:,}")
        found = await self._look()
        kept = [
            line
            for line in found.lines
            if state in (None, line.state) and team in (None, _team(line)) and cluster in (None, line.cluster)
        ]
        # Before a minute has passed nobody's team is known, which is nothing to mend.
        is_known = board.NOT_YET not in found.problems
        without = [line for line in kept if is_known and _team(line) == UNMAPPED]
        unmapped = {"jobs": len(without), "gpus": sum(line.gpus for line in without)}
        return JobList(jobs=kept[:limit], total=len(kept), unmapped=unmapped, problems=found.problems)

    async def one(self, request: Request) -> Response:
        id, cluster = request.path_params["id"], request.query_params.get("cluster")
        if len(id) > LONGEST_ID or not id.isprintable():
            raise HTTPException(400, f"an id has at most {LONGEST_ID} visible characters")
        made = await self.report(id, cluster)
        if made is None:
            raise HTTPException(404, f"no job {id} is known here: no scheduler, rank or GPU names it")
        return ok_response(**wire.fields_of(made))

    async def report(self, id: str, cluster: str | None = None) -> jobs.JobReport | None:
        """All about one job; None where nobody names it. `explain job` shows it too."""
        found = await self._look()
        keys = [key for key in found.keys if key.answers_to(id, cluster) or found.keys[key] == id]
        if not keys:
            return None
        # A whole id before a name that several have.
        key = min(keys, key=lambda one: (one.id != id, one))
        line, now = found.find_line(key), self._runtime.clock.now()
        first_seen = (self._first_seen or (0.0, {}))[1].get(key)
        since = report.window_start(line, first_seen, now)
        happened = await self._journal.read(lambda: self._journal.events_between(since, now), is_long=True)
        asked = report.JobReportInputs(
            line,
            key,
            found.keys[key],
            found.facts[key],
            key in found.suspects,
            found.parts.get(key, ()),
            happened,
            self._fleet.place_name,
            evidence.cause_of,
            first_seen,
        )
        return await asyncio.to_thread(report.make_report, self._queries.engine, now, asked)

    async def replicas(self, request: Request) -> ReplicaList:
        form = request.query_params
        budgets = {one.name: one.budget for one in self._rules.slos if keda.is_latency(one)}
        now = clock.to_ms(self._runtime.clock.now())
        advised, problems = await asyncio.to_thread(replicas.advise_now, self._queries.engine, now, budgets)
        model, cluster = form.get("model"), form.get("cluster")
        kept = [one for one in advised if model in (None, one.model) and cluster in (None, one.cluster)]
        if model is None:
            return ReplicaList(replicas=kept, past=None, problems=problems)
        if not kept:
            raise HTTPException(404, f"no replica of {model[:100]} tells of its requests")
        span = _span(form.get("window", "1d"), now)
        try:
            past = await asyncio.to_thread(
                replicas.replay_model, self._queries.engine, span, budgets, cluster=kept[0].cluster, model=kept[0].model
            )
        except WatchkeeperError as error:
            raise HTTPException(400, str(error)) from error
        return ReplicaList(replicas=kept, past=past, problems=problems)

    async def _look(self) -> board.Board:
        now = self._runtime.clock.now()
        async with self._busy:
            if self._board is None or not 0 <= now.timestamp() - self._board[0] < KEPT_SECONDS:
                troubles = await self._journal.read(self._incidents)
                self._board = now.timestamp(), await asyncio.to_thread(self._make, troubles)
            return self._board[1]

    def _make(self, troubles: Mapping[str, tuple[str, ...]]) -> board.Board:
        now = self._runtime.clock.now()
        problems: list[str] = []
        if self._first_seen is None or not 0 <= now.timestamp() - self._first_seen[0] < FIRST_SEEN_SECONDS:
            try:
                self._first_seen = now.timestamp(), board.first_seen(self._queries.engine, now)
            except WatchkeeperError as error:
                problems.append(f"when jobs began could not be asked: {error}")
        book = None
        try:
            book = self._book()
        except (WatchkeeperError, OSError, UnicodeDecodeError) as error:
            problems.append(f"there are no prices: {error}")
        seen = self._first_seen[1] if self._first_seen is not None else {}
        around = board.BoardInputs(self._scheduled(), book, troubles, seen)
        made = board.make_board(self._queries.engine, now, around)
        return replace(made, problems=(*made.problems, *problems))

    def _scheduled(self) -> list[workloads.ScheduledWorkload]:
        views = [] if self._clusters is None else self._clusters.views()
        return [workload for view in views for workload in view.workloads]

    def _incidents(self) -> dict[str, tuple[str, ...]]:
        """Open incidents by the name of the job that they are about or hit."""
        found: dict[str, set[str]] = {}
        for incident in self._journal.incidents(open_only=True, limit=MOST_INCIDENTS):
            kind, _, name = (incident.place.domain or "").partition("=")
            if kind == "job":
                found.setdefault(name, set()).add(incident.id)
            for called in (*incident.workloads, *([name] if kind == "pod" else [])):
                namespace, slash, pod = called.rpartition("/")
                job = f"{namespace}/{identity.job_name(pod)}" if slash else called
                found.setdefault(job, set()).add(incident.id)
        return {name: tuple(sorted(ids)) for name, ids in found.items()}

    def _book(self) -> prices.PriceBook:
        settings = self._runtime.settings.cost
        if settings.prices is None:
            return replace(prices.shipped_book(), fallback=settings.dollars_per_gpu_hour)
        path = Path(settings.prices)
        size = path.stat().st_size
        if size > LARGEST_BOOK_BYTES:
            raise PackError(f"{size:,} bytes; the most is {LARGEST_BOOK_BYTES:,}", where=str(path))
        return prices.read_book(path.read_text(encoding="utf-8-sig"), where=path.name)


def _team(line: jobs.JobLine) -> str:
    return line.team or UNMAPPED


def _span(text: str, now_ms: int) -> QueryRange:
    try:
        seconds = durations.parse_seconds(text)
    except (WatchkeeperError, ValueError) as error:
        raise HTTPException(400, f"window `{text[:40]}`: write it like 6h or 1d") from error
    if not 300 <= seconds <= LONGEST_WINDOW:
        raise HTTPException(400, f"a window of {seconds:g} s; it may be from 300 to {LONGEST_WINDOW:,} s")
    step = DAY_STEP_MS if seconds <= DAY_SECONDS else WEEK_STEP_MS
    return QueryRange(now_ms - round(seconds * 1000), now_ms, step)


def endpoints(api: JobsApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/jobs",
            Role.VIEWER,
            api.listing,
            summary="Jobs in one line each: the gravest state first, then by GPUs",
            params=(
                QueryParam("state", "only jobs in this state", jobs.JobState),
                QueryParam("team", f"only of this team; `{UNMAPPED}` for jobs without one"),
                shapes.CLUSTER,
                QueryParam("limit", f"at most {MOST_JOBS:,}; {DEFAULT_LIMIT} unless given", int),
            ),
        ),
        Endpoint(
            ("GET",),
            "/api/jobs/{id:path}",
            Role.VIEWER,
            api.one,
            summary="One job in full: efficiency, goodput, ranks, hardware events; the id may contain a slash",
            params=(shapes.CLUSTER,),
            response=jobs.JobReport,
        ),
        Endpoint(
            ("GET",),
            "/api/replicas",
            Role.VIEWER,
            api.replicas,
            summary="How many replicas of each model would do",
            params=(
                QueryParam("model", "only this one, and how it would have gone in `window`"),
                shapes.CLUSTER,
                QueryParam("window", "with `model`: how far back, at most 7d; 1d unless given"),
            ),
        ),
    ]
