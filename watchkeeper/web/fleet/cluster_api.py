"""GET /api/nodes lists nodes with states and holders; GET /api/who finds the holders of a GPU or the GPUs of a holder.

`watchkeeper nodes` and `watchkeeper who` call them. `node_list` and `who` build the responses.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters.inventory import UNMAPPED
from watchkeeper.hub import services
from watchkeeper.kit import wire
from watchkeeper.model.incidents import Incident
from watchkeeper.model.node_list import NodeLine, NodeState
from watchkeeper.web.endpoint import QueryParam, get
from watchkeeper.web.fleet import holders, node_list, who

MAX_NAME_CHARACTERS = 300
MAX_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """When a scheduler was last read, and its problem if it cannot be read."""

    source: str
    at_ms: int | None
    problem: str


class NodeList(TypedDict):
    now: datetime
    nodes: list[NodeLine]
    total: int
    schedulers: list[SchedulerStatus]
    unmapped: dict[str, int]
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    name: str = wire.json_key("asked")
    gpus: Sequence[who.GpuAndHolders]
    nodes: Sequence[who.NodeAndGpus]
    workloads: Sequence[who.WorkloadAndGpus]
    omitted: int = wire.json_key("left_out")


class ClusterApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal, self._fleet = hub.runtime, hub.queries, hub.journal, hub.fleet
        self._targets, self._clusters, self._views = hub.targets, hub.clusters, hub.cluster_views

    @get(
        "/api/nodes",
        QueryParam("state", "Return only nodes in this state of Watchkeeper or of the scheduler."),
        QueryParam("pool", "Return only nodes of this pool."),
    )
    async def list_nodes(self, request: Request) -> NodeList:
        """List all nodes with their states, GPUs and holders."""
        pool = request.query_params.get("pool")
        # The table shows `never seen` for `never_seen`; both are accepted.
        state = request.query_params.get("state", "").strip().replace(" ", "_") or None
        gpu_holders = await holders.load_holders(self._queries)
        lines = await self._build_lines(gpu_holders)
        states = {status.state for line in lines for status in line.scheduler} | set(NodeState)
        if state is not None and state not in states:
            raise HTTPException(400, f"unknown state `{state[:40]}`; the states are {', '.join(sorted(states))}")
        pools = {line.pool or UNMAPPED for line in lines} | {UNMAPPED}
        if pool is not None and pool not in pools:
            raise HTTPException(404, f"unknown pool `{pool[:40]}`; the pools are {', '.join(sorted(pools))}")
        matches = [
            line
            for line in lines
            if (state is None or line.state == state or any(status.state == state for status in line.scheduler))
            and (pool is None or (line.pool or UNMAPPED) == pool)
        ]
        return NodeList(
            now=self._runtime.clock.now(),
            nodes=matches,
            total=len(lines),
            schedulers=[
                SchedulerStatus(source=view.source, at_ms=view.at_ms, problem=view.problem) for view in self._views()
            ],
            unmapped=dict(sorted(Counter(chain.from_iterable(line.unmapped for line in lines)).items())),
            problem=gpu_holders.problem,
        )

    @get(
        "/api/who", QueryParam("name", "A GPU (UUID or `node/index`), node, pod, job, user or team.", is_required=True)
    )
    async def find_holders(self, request: Request) -> Who:
        """Find the holders of a GPU or node, or the GPUs of a job, pod, user or team."""
        name = request.query_params.get("name", "").strip()
        if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
            raise HTTPException(
                400,
                f"`name` must be a GPU, node, pod, job, user or team, with at most {MAX_NAME_CHARACTERS} "
                "printable characters",
            )
        gpu_holders = await holders.load_holders(self._queries)
        lines = await self._build_lines(gpu_holders)
        mapping = None if self._clusters is None else self._clusters.inventory
        open_incidents = await self._open_incidents()
        sources = who.HolderSources(self._fleet, lines, gpu_holders, self._views(), open_incidents, mapping)
        matches = await asyncio.to_thread(who.find_holders, name, sources)
        if not (matches.gpus or matches.nodes or matches.workloads):
            raise HTTPException(404, f"no GPU, node, pod, job, user or team has the name `{name[:60]}`")
        return Who(
            name=name, gpus=matches.gpus, nodes=matches.nodes, workloads=matches.workloads, omitted=matches.omitted
        )

    async def _build_lines(self, gpu_holders: holders.GpuHolders) -> list[NodeLine]:
        sources = node_list.NodeListSources(
            self._fleet, self._targets.targets(), self._views(), gpu_holders, await self._open_incidents()
        )
        # In a thread: a large fleet would block the event loop.
        return await asyncio.to_thread(node_list.build_node_list, sources)

    async def _open_incidents(self) -> list[Incident]:
        return await self._journal.read(lambda: self._journal.incidents(open_only=True, limit=MAX_INCIDENTS))
