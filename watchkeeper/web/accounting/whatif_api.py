"""POST /api/capacity/whatif: replay recorded jobs on the hub's fleet, and on the fleet with changes.

The body can have the jobs as text, exported from a scheduler's accounting; without it, the replay uses the jobs that
this hub recorded. One replay runs at a time, in a thread; it changes nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.capacity import hub_jobs, jobs, replay, simulated_fleet, whatif
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import fleet_layout, services
from watchkeeper.kit import clock, durations
from watchkeeper.model import fleet
from watchkeeper.query.engine import QueryRange
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import check_choice, post, read_json_object
from watchkeeper.web.shedding import replay_limit

# A line of sacct has about 120 bytes: enough for 60,000 jobs.
MAX_BODY_BYTES = 8 << 20
MAX_JOBS = 50_000
MAX_NAMES = 1000
DEFAULT_WINDOW, MAX_WINDOW = "1d", "2w"


class WhatIfBody(TypedDict, total=False):
    """The changes of the fleet, and the jobs: as text in `jobs`, or those recorded in the last `window`."""

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
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._fleet, self._views = hub.runtime, hub.queries, hub.fleet, hub.cluster_views
        self._replay_lock, self._limit = asyncio.Lock(), replay_limit("job replays")

    @post("/api/capacity/whatif", role=Role.VIEWER, body=WhatIfBody)
    async def compare(self, request: Request) -> whatif.WhatIf:
        """Replay recorded jobs on this fleet with and without changes: queue waits and utilisation of both."""
        with self._limit:
            body = await read_json_object(request, MAX_BODY_BYTES)
            change = _read_change(body)
            policy_text = check_choice("policy", body.get("policy", replay.QueuePolicy.BACKFILL), replay.QueuePolicy)
            policy = replay.QueuePolicy(policy_text)
            text = body.get("jobs")
            if text is not None and (not isinstance(text, str) or not text.strip()):
                raise HTTPException(
                    400,
                    "`jobs` must be text from sacct --parsable2 or CSV; omit it to use the jobs that this hub recorded",
                )
            window = _read_window(body)
            nodes = self._fleet_nodes()
            if not nodes:
                raise HTTPException(409, "no GPU has reported to this hub yet, so there is no fleet to replay on")
            async with self._replay_lock:
                try:
                    recorded = None if text is not None else await self._load_recorded(window)
                    return await asyncio.to_thread(
                        _replay, text, recorded, nodes, change=change, policy=replay.QueuePolicy(policy)
                    )
                except WatchkeeperError as error:
                    raise HTTPException(400, str(error)) from error

    async def _load_recorded(self, window: float) -> jobs.JobRecords:
        """The jobs that this hub recorded in the window before now."""
        step = hub_jobs.query_step(window)
        until = clock.to_ms(self._runtime.clock.now()) // (step * 1000) * step
        history, since = hub_jobs.WorkloadHistory(step), None
        for start, end in hub_jobs.query_chunks(until - window, until):
            query_range = QueryRange(round(start * 1000), round(end * 1000), step * 1000)
            # Before its first sample a hub did not see an empty fleet: it saw nothing.
            since = since or hub_jobs.first_sample_time(
                await self._queries.range(hub_jobs.RECORDED_EXPRESSION, query_range)
            )
            history.add_result(await self._queries.range(hub_jobs.EXPRESSION, query_range))
        scheduled = (work for view in self._views() for work in view.workloads)
        records = history.build_records(since or until - window, until, scheduled)
        if not records.jobs:
            window_text = durations.format_seconds(window)
            problem = f"this hub has recorded no job in the last {window_text}; send jobs of the scheduler in `jobs`"
            raise HTTPException(409, problem)
        return records

    def _fleet_nodes(self) -> list[simulated_fleet.FleetNode]:
        layout = fleet_layout.current_layout(self._fleet)
        fleet_nodes = []
        for node in layout.nodes:
            slots = [layout.slots[at].gpu for at in layout.slots_by_node[node.cluster, node.name]]
            models = {gpu.model for gpu in slots if gpu is not None and gpu.model}
            if slots:
                model, rack = next(iter(models)) if len(models) == 1 else "", node.domains.get("rack", "")
                fleet_nodes.append(simulated_fleet.FleetNode(node.name, len(slots), model, rack))
        return fleet_nodes


def _replay(
    text: str | None,
    hub_records: jobs.JobRecords | None,
    nodes: list[simulated_fleet.FleetNode],
    *,
    change: whatif.FleetChange,
    policy: replay.QueuePolicy,
) -> whatif.WhatIf:
    records = hub_records if hub_records is not None else jobs.read_jobs(text or "", where="jobs")
    if len(records.jobs) > MAX_JOBS:
        raise HTTPException(413, f"{len(records.jobs):,} jobs, the limit is {MAX_JOBS:,}; use a shorter window")
    answer = whatif.compare(records, nodes, change, policy=policy)
    return answer if hub_records is None else {**answer, "assumes": [*answer["assumes"], *hub_jobs.ASSUMPTIONS]}


def _read_window(body: dict[str, Any]) -> float:
    text = body.get("window", DEFAULT_WINDOW)
    try:
        seconds = durations.parse_seconds(str(text))
    except ValueError as error:
        raise HTTPException(400, f"`window`: {error}") from error
    if not hub_jobs.LONGEST_GAP_SECONDS <= seconds <= durations.parse_seconds(MAX_WINDOW):
        raise HTTPException(400, f"`window` is `{str(text)[:40]}`; expected 10m to {MAX_WINDOW}")
    return seconds


def _read_change(body: dict[str, Any]) -> whatif.FleetChange:
    return whatif.FleetChange(
        _read_gpu_count(body, "add"),
        _read_gpu_count(body, "remove"),
        _read_names(body, "remove_racks"),
        _read_names(body, "remove_nodes"),
        _read_gpu_count(body, "slice_gpus"),
        _read_gpu_count(body, "slices"),
    )


def _read_gpu_count(body: dict[str, Any], name: str) -> int:
    value = body.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= fleet.MAX_GPUS:
        raise HTTPException(400, f"`{name}` must be a whole number from 0 to {fleet.MAX_GPUS:,}")
    return value


def _read_names(body: dict[str, Any], name: str) -> tuple[str, ...]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > MAX_NAMES or not all(isinstance(item, str) for item in value):
        raise HTTPException(400, f"`{name}` must be a list of at most {MAX_NAMES:,} names")
    return tuple(value)
