"""GET /api/jobs lists jobs, and /api/replicas recommends the number of model replicas.

`workloads` makes all decisions; this module reads and caches, also for `job_page_api`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.diagnose import evidence
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.fleet_gpus import FleetGpus
from watchkeeper.hub.fleet_prices import FleetPrices
from watchkeeper.kit import durations
from watchkeeper.model import jobs
from watchkeeper.model.fleet import UNMAPPED
from watchkeeper.model.gpu_states import GpuCounts
from watchkeeper.model.jobs import JobLine
from watchkeeper.query.engine import QueryRange
from watchkeeper.render import keda
from watchkeeper.web import shapes
from watchkeeper.web.endpoint import QueryParam, get, read_number
from watchkeeper.workloads import board, identity, replicas, report
from watchkeeper.workloads.replicas import ReplicasAdvice, ReplicasReplay

DEFAULT_LIMIT, MAX_JOBS, MAX_INCIDENTS = 500, 10_000, 1000
# All viewers share a cached list; the start times of jobs change only when jobs are added.
CACHE_SECONDS, FIRST_SEEN_CACHE_SECONDS = 5.0, 60.0
# Replicas change within a minute, so a larger step would replay another history.
DAY_SECONDS, DAY_STEP_MS, MAX_WINDOW_SECONDS, WEEK_STEP_MS = 86_400, 15_000, 7 * 86_400, 60_000
MAX_PRICE_BOOK_BYTES = 16 * 1024 * 1024


class JobList(TypedDict):
    jobs: list[JobLine]
    total: int
    # Of all `total` jobs, also of those above the limit.
    states: dict[str, int]
    unmapped: dict[str, int]
    problems: Sequence[str]
    # Of the whole fleet, now; the lines are as old as the last run of their rules.
    gpus: GpuCounts


class ReplicaList(TypedDict):
    replicas: list[ReplicasAdvice]
    past: ReplicasReplay | None
    problems: list[str]


class JobsApi:
    def __init__(self, hub: services.Services, fleet_prices: FleetPrices, gpus: FleetGpus) -> None:
        self._gpus = gpus
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._rules, self._fleet, self._views = hub.rules, hub.fleet, hub.cluster_views
        self._prices, self._lock = fleet_prices, asyncio.Lock()
        self._board: tuple[float, board.JobBoard] | None = None
        self._first_seen: tuple[float, Mapping[identity.JobKey, float]] | None = None

    @get(
        "/api/jobs",
        QueryParam("state", "Return only jobs in this state.", jobs.JobState),
        QueryParam("team", f"Return only jobs of this team; `{UNMAPPED}`: jobs without a team."),
        shapes.CLUSTER,
        shapes.limit_param(DEFAULT_LIMIT, MAX_JOBS),
    )
    async def list_jobs(self, request: Request) -> JobList:
        """List jobs, the most severe state first, then by number of GPUs."""
        params = request.query_params
        state, team, cluster = params.get("state"), params.get("team"), params.get("cluster")
        if state is not None and state not in list(jobs.JobState):
            raise HTTPException(400, f"unknown state `{state[:40]}`; the states are {', '.join(jobs.JobState)}")
        limit = read_number(request, "limit", default=DEFAULT_LIMIT, limit=MAX_JOBS)
        job_board = await self._load_board()
        matches = [
            line
            for line in job_board.lines
            if state in (None, line.state)
            and team in (None, _team_or_unmapped(line))
            and cluster in (None, line.cluster)
        ]
        # In the first minute no owners are loaded, so jobs without a team are not counted as unmapped.
        has_owners = board.NO_HOLDERS_YET not in job_board.problems
        unmapped_jobs = [line for line in matches if has_owners and _team_or_unmapped(line) == UNMAPPED]
        unmapped = {"jobs": len(unmapped_jobs), "gpus": sum(line.gpus for line in unmapped_jobs)}
        return JobList(
            jobs=matches[:limit],
            total=len(matches),
            states=Counter(line.state.value for line in matches),
            unmapped=unmapped,
            problems=job_board.problems,
            gpus=(await self._gpus.load()).count(cluster),
        )

    async def load_report(self, id: str, cluster: str | None = None) -> jobs.JobReport | None:
        """The report of a job, or None if no scheduler, rank or GPU reports it."""
        job_board = await self._load_board()
        names = job_board.training_names
        keys = [key for key in names if key.matches(id, cluster) or names[key] == id]
        if not keys:
            return None
        # An exact id is preferred to a name that several jobs share.
        key = min(keys, key=lambda candidate: (candidate.id != id, candidate))
        line, now = job_board.find_line(key), self._runtime.clock.now()
        first_seen = (self._first_seen or (0.0, {}))[1].get(key)
        since = report.window_start(line, first_seen, now)
        events = await self._journal.read(lambda: self._journal.events_between(since, now), is_long=True)
        inputs = report.JobReportInputs(
            line,
            key,
            names[key],
            job_board.facts[key],
            key in job_board.suspects,
            job_board.parts.get(key, ()),
            events,
            self._fleet.place_name,
            evidence.cause_of,
            first_seen,
        )
        return await asyncio.to_thread(report.make_report, self._queries.engine, now, inputs)

    @get(
        "/api/replicas",
        QueryParam("model", "Return only this model, and replay its requests over `window`."),
        shapes.CLUSTER,
        QueryParam("window", "With `model`: the time to replay, 5m to 7d. Default: 1d."),
    )
    async def advise_replicas(self, request: Request) -> ReplicaList:
        """Recommended number of replicas of each model."""
        params = request.query_params
        budgets = {slo.name: slo.budget for slo in self._rules.slos if keda.is_latency(slo)}
        now = self._queries.now_ms
        advice, problems = await asyncio.to_thread(replicas.advise_now, self._queries.engine, now, budgets)
        model, cluster = params.get("model"), params.get("cluster")
        matches = [row for row in advice if model in (None, row.model) and cluster in (None, row.cluster)]
        if model is None:
            return ReplicaList(replicas=matches, past=None, problems=problems)
        if not matches:
            raise HTTPException(404, f"no replica of {model[:100]} reports request metrics")
        window = _parse_window(params.get("window", "1d"), now)
        try:
            replay = partial(replicas.replay_model, cluster=matches[0].cluster, model=matches[0].model)
            past = await asyncio.to_thread(replay, self._queries.engine, window, budgets)
        except WatchkeeperError as error:
            raise HTTPException(400, str(error)) from error
        return ReplicaList(replicas=matches, past=past, problems=problems)

    async def _load_board(self) -> board.JobBoard:
        now = self._runtime.clock.now()
        async with self._lock:
            if self._board is None or not 0 <= now.timestamp() - self._board[0] < CACHE_SECONDS:
                incidents_by_job = await self._journal.read(self._incidents_by_job)
                self._board = now.timestamp(), await asyncio.to_thread(self._build_board, incidents_by_job)
            return self._board[1]

    def _build_board(self, incidents_by_job: Mapping[str, tuple[str, ...]]) -> board.JobBoard:
        now = self._runtime.clock.now()
        problems: list[str] = []
        if self._first_seen is None or not 0 <= now.timestamp() - self._first_seen[0] < FIRST_SEEN_CACHE_SECONDS:
            try:
                self._first_seen = now.timestamp(), board.find_first_seen(self._queries.engine, now)
            except WatchkeeperError as error:
                problems.append(f"the start times of jobs could not be queried: {error}")
        price_book = None
        try:
            price_book = self._prices.book()
        except WatchkeeperError as error:
            problems.append(f"the price book could not be read: {error}")
        first_seen = self._first_seen[1] if self._first_seen is not None else {}
        scheduled = [workload for view in self._views() for workload in view.workloads]
        inputs = board.BoardInputs(scheduled, price_book, incidents_by_job, first_seen)
        job_board = board.make_board(self._queries.engine, now, inputs)
        return replace(job_board, problems=(*job_board.problems, *problems))

    def _incidents_by_job(self) -> dict[str, tuple[str, ...]]:
        """Ids of open incidents by the name of the job that they affect."""
        ids_by_job: dict[str, set[str]] = {}
        for incident in self._journal.incidents(open_only=True, limit=MAX_INCIDENTS):
            kind, _, name = (incident.place.domain or "").partition("=")
            if kind == "job":
                ids_by_job.setdefault(name, set()).add(incident.id)
            for workload_name in (*incident.workloads, *([name] if kind == "pod" else [])):
                namespace, slash, pod = workload_name.rpartition("/")
                job = f"{namespace}/{identity.job_name(pod)}" if slash else workload_name
                ids_by_job.setdefault(job, set()).add(incident.id)
        return {name: tuple(sorted(ids)) for name, ids in ids_by_job.items()}


def _team_or_unmapped(line: jobs.JobLine) -> str:
    return line.team or UNMAPPED


def _parse_window(text: str, now_ms: int) -> QueryRange:
    try:
        seconds = durations.parse_seconds(text)
    except (WatchkeeperError, ValueError) as error:
        raise HTTPException(400, f"window `{text[:40]}` is not a duration such as 6h or 1d") from error
    if not 300 <= seconds <= MAX_WINDOW_SECONDS:
        raise HTTPException(400, f"the window is {seconds:g} s; it must be from 300 to {MAX_WINDOW_SECONDS:,} s")
    step = DAY_STEP_MS if seconds <= DAY_SECONDS else WEEK_STEP_MS
    return QueryRange(now_ms - round(seconds * 1000), now_ms, step)
