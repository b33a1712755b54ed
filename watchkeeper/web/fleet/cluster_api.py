"""GET /api/nodes: every node with its states and holders. GET /api/who: who holds this, or what does this hold.

`watchkeeper nodes` and `watchkeeper who` ask them; what they say is decided in `node_list` and `who`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters.clusters import Clusters
from watchkeeper.clusters.inventory import UNMAPPED
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.model import cluster
from watchkeeper.model.incidents import Incident
from watchkeeper.model.node_list import NodeLine, NodeState
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam
from watchkeeper.web.fleet import holders, node_list, who

LONGEST_NAME = 300
MOST_INCIDENTS = 1000


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """When it was last heard, and why it is not."""

    source: str
    at_ms: int | None
    problem: str


@dataclass(frozen=True, slots=True)
class NodeList:
    now: datetime
    nodes: list[NodeLine]
    total: int
    schedulers: list[SchedulerStatus]
    unmapped: dict[str, int]
    problem: str | None


@dataclass(frozen=True, slots=True)
class Who:
    asked: str
    gpus: Sequence[who.GpuAndHolders]
    nodes: Sequence[who.NodeAndGpus]
    workloads: Sequence[who.WorkloadAndGpus]
    left_out: int


class ClusterApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        fleet: services.FleetProtocol,
        targets: services.TargetsProtocol,
        clusters: Clusters | None,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._fleet, self._targets, self._clusters = fleet, targets, clusters

    async def nodes(self, request: Request) -> NodeList:
        pool = request.query_params.get("pool")
        # `never seen`, as the table shows it, is `never_seen`.
        state = request.query_params.get("state", "").strip().replace(" ", "_") or None
        held = await holders.load_holders(self._queries)
        lines = await self._lines(held)
        known = {word.state for line in lines for word in line.scheduler} | set(NodeState)
        if state is not None and state not in known:
            raise HTTPException(400, f"no node can be `{state[:40]}`; there are {', '.join(sorted(known))}")
        pools = {line.pool or UNMAPPED for line in lines} | {UNMAPPED}
        if pool is not None and pool not in pools:
            raise HTTPException(404, f"no node is in the pool `{pool[:40]}`; there are {', '.join(sorted(pools))}")
        shown = [
            line
            for line in lines
            if (state is None or line.state == state or any(word.state == state for word in line.scheduler))
            and (pool is None or (line.pool or UNMAPPED) == pool)
        ]
        return NodeList(
            now=self._runtime.clock.now(),
            nodes=shown,
            total=len(lines),
            schedulers=[
                SchedulerStatus(source=view.source, at_ms=view.at_ms, problem=view.problem) for view in self._views()
            ],
            unmapped={fact: sum(fact in line.unmapped for line in lines) for fact in sorted(_facts(lines))},
            problem=held.problem,
        )

    async def who(self, request: Request) -> Who:
        asked = request.query_params.get("name", "").strip()
        if not asked or len(asked) > LONGEST_NAME or not asked.isprintable():
            raise HTTPException(400, f"name a GPU, node, pod or job, in at most {LONGEST_NAME} visible characters")
        held = await holders.load_holders(self._queries)
        lines = await self._lines(held)
        mapping = None if self._clusters is None else self._clusters.inventory
        open_incidents = await self._open_incidents()
        facts = who.HolderSources(self._fleet, lines, held, self._views(), open_incidents, mapping)
        found = await asyncio.to_thread(who.find_holders, asked, facts)
        if not (found.gpus or found.nodes or found.workloads):
            raise HTTPException(404, f"nothing here is called `{asked[:60]}`: no GPU, node, pod, job, user or team")
        return Who(asked=asked, gpus=found.gpus, nodes=found.nodes, workloads=found.workloads, left_out=found.left_out)

    async def _lines(self, held: holders.GpuHolders) -> list[NodeLine]:
        facts = node_list.NodeListSources(
            self._fleet, self._targets.targets(), self._views(), held, await self._open_incidents()
        )
        # A large fleet takes a moment; the loop has others to serve.
        return await asyncio.to_thread(node_list.build_node_list, facts)

    async def _open_incidents(self) -> list[Incident]:
        return await self._journal.read(lambda: self._journal.incidents(open_only=True, limit=MOST_INCIDENTS))

    def _views(self) -> list[cluster.ClusterView]:
        return [] if self._clusters is None else self._clusters.views()


def _facts(lines: list[NodeLine]) -> set[str]:
    return {fact for line in lines for fact in line.unmapped}


def endpoints(api: ClusterApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/nodes",
            Role.VIEWER,
            api.nodes,
            summary="Every node with its states, GPUs and holders",
            params=(
                QueryParam("state", "only nodes in this state, ours or the scheduler's"),
                QueryParam("pool", "only nodes of this pool"),
            ),
        ),
        Endpoint(
            ("GET",),
            "/api/who",
            Role.VIEWER,
            api.who,
            summary="Who holds a GPU or node, and what a job, pod, user or team holds",
            params=(
                QueryParam("name", "a GPU's UUID or node/3, a node, a pod, a job, a user, a team", is_required=True),
            ),
        ),
    ]
