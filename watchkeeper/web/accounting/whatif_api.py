"""POST /api/capacity/whatif: recorded jobs replayed on the fleet that this hub sees, as it is and as it might be.

The body may have the jobs as text, as a scheduler's accounting wrote them; without, they are those that this hub has
recorded in the last days. The fleet is the hub's own inventory. One replay at a time, in a thread. The console's page
Cost and capacity and `watchkeeper capacity whatif` ask; nothing is changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.capacity import hub_jobs, jobs, replay, simulated_fleet, whatif
from watchkeeper.clusters.clusters import Clusters
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, durations
from watchkeeper.model import fleet
from watchkeeper.query.engine import QueryRange
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, read_json_object
from watchkeeper.web.fleet import fleet_layout
from watchkeeper.web.shedding import ConcurrencyLimit

# A line of sacct is about 120 bytes: room for 60,000 jobs, of which the limit below are replayed.
BODY_BYTES = 8 << 20
MOST_JOBS = 50_000
MOST_NAMES = 1000
USUAL_WINDOW, LONGEST_WINDOW = "1d", "2w"


class WhatIfBody(TypedDict, total=False):
    """What is to be different, and whose jobs: `jobs` as text, or those of the `window` before now."""

    jobs: str
    window: str
    add: int
    remove: int
    remove_racks: list[str]
    remove_nodes: list[str]
    slice_gpus: int
    slices: int
    policy: str


class WhatIfApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        fleet: services.FleetProtocol,
        clusters: Clusters | None,
    ) -> None:
        self._runtime, self._queries, self._fleet = runtime, queries, fleet
        self._clusters = clusters
        self._busy, self._places = asyncio.Lock(), ConcurrencyLimit("replays of jobs")

    async def compare(self, request: Request) -> whatif.WhatIf:
        with self._places:
            return await self._compare(request)

    async def _compare(self, request: Request) -> whatif.WhatIf:
        body = await read_json_object(request, BODY_BYTES)
        change, policy = _change(body), _policy(body)
        text = body.get("jobs")
        if text is not None and (not isinstance(text, str) or not text.strip()):
            raise HTTPException(
                400, "jobs must be text, as sacct --parsable2 or CSV has it; leave it out for this hub's own"
            )
        window = _window(body)
        nodes = self._nodes()
        if not nodes:
            raise HTTPException(409, "this hub has seen no GPU yet: there is no fleet to replay on")
        async with self._busy:
            try:
                seen = None if text is not None else await self._recorded(window)
                return await asyncio.to_thread(_replayed, text, seen, nodes, change=change, policy=policy)
            except WatchkeeperError as error:
                raise HTTPException(400, str(error)) from error

    async def _recorded(self, window: float) -> jobs.JobRecords:
        """What this hub has seen of jobs in the time before now."""
        step = hub_jobs.query_step(window)
        until = clock.to_ms(self._runtime.clock.now()) // (step * 1000) * step
        seen, since = hub_jobs.WorkloadHistory(step), None
        for start, end in hub_jobs.query_chunks(until - window, until):
            span = QueryRange(round(start * 1000), round(end * 1000), step * 1000)
            # A younger hub has not seen an empty fleet before: it has seen nothing.
            since = since or hub_jobs.first_sample_time(await self._queries.range(hub_jobs.LOOKED, span))
            seen.take(await self._queries.range(hub_jobs.EXPRESSION, span))
        views = [] if self._clusters is None else self._clusters.views()
        found = seen.recorded(since or until - window, until, (work for view in views for work in view.workloads))
        if not found.jobs:
            lasting = durations.format_seconds(window)
            raise HTTPException(
                409, f"this hub has recorded no job in the last {lasting}. Give the scheduler's as `jobs`"
            )
        return found

    def _nodes(self) -> list[simulated_fleet.FleetNode]:
        taken = fleet_layout.current_layout(self._fleet)
        found = []
        for node in taken.nodes:
            slots = [taken.slots[at].gpu for at in taken.slots_by_node[node.cluster, node.name]]
            models = {gpu.model for gpu in slots if gpu is not None and gpu.model}
            if slots:
                model = next(iter(models)) if len(models) == 1 else ""
                found.append(simulated_fleet.FleetNode(node.name, len(slots), model, node.domains.get("rack", "")))
        return found


def _replayed(
    text: str | None,
    seen: jobs.JobRecords | None,
    nodes: list[simulated_fleet.FleetNode],
    *,
    change: whatif.FleetChange,
    policy: replay.QueuePolicy,
) -> whatif.WhatIf:
    recorded = seen if seen is not None else jobs.read_jobs(text or "", where="jobs")
    if len(recorded.jobs) > MOST_JOBS:
        raise HTTPException(413, f"{len(recorded.jobs):,} jobs; the most is {MOST_JOBS:,}. Take a shorter time")
    answer = whatif.compare(recorded, nodes, change, policy=policy)
    return answer if seen is None else {**answer, "assumes": [*answer["assumes"], *hub_jobs.ASSUMPTIONS]}


def _window(body: dict[str, Any]) -> float:
    text = body.get("window", USUAL_WINDOW)
    try:
        seconds = durations.parse_seconds(str(text))
    except ValueError as error:
        raise HTTPException(400, f"window: {error}") from error
    if not hub_jobs.LONGEST_GAP_SECONDS <= seconds <= durations.parse_seconds(LONGEST_WINDOW):
        raise HTTPException(400, f"window `{str(text)[:40]}`: from 10m to {LONGEST_WINDOW}")
    return seconds


def _change(body: dict[str, Any]) -> whatif.FleetChange:
    return whatif.FleetChange(
        _gpus(body, "add"),
        _gpus(body, "remove"),
        _names(body, "remove_racks"),
        _names(body, "remove_nodes"),
        _gpus(body, "slice_gpus"),
        _gpus(body, "slices"),
    )


def _gpus(body: dict[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= fleet.MOST_GPUS:
        raise HTTPException(400, f"{name} must be a whole number from 0 to {fleet.MOST_GPUS:,}")
    return value


def _names(body: dict[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > MOST_NAMES or not all(isinstance(one, str) for one in value):
        raise HTTPException(400, f"{name} must be a list of at most {MOST_NAMES:,} names")
    return tuple(value)


def _policy(body: dict[str, Any]) -> replay.QueuePolicy:
    text = body.get("policy", replay.QueuePolicy.BACKFILL)
    try:
        return replay.QueuePolicy(text)
    except ValueError as error:
        raise HTTPException(400, f"policy `{str(text)[:40]}`: there are {', '.join(replay.QueuePolicy)}") from error


def endpoints(api: WhatIfApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("POST",),
            "/api/capacity/whatif",
            Role.VIEWER,
            api.compare,
            changes=True,
            summary="Recorded jobs replayed on this fleet as it is and as it might be: waiting and utilisation of both",
            body=WhatIfBody,
        )
    ]
