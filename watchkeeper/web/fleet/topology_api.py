"""GET /api/topology returns the fleet as a tree with states; POST /api/fabric accepts a fabric sweep of another host.

`watchkeeper fabric sweep --push` runs on a host with an InfiniBand adapter, because the hub may not have one.
`topology` builds the tree.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.errors import WatchkeeperError, WireError
from watchkeeper.hub import fleet_layout, services
from watchkeeper.kit import clock, wire
from watchkeeper.model import fabric
from watchkeeper.scrape import target_loop
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import QueryParam, check_node, get, post, read_body
from watchkeeper.web.fleet import topology

STATE_EXPR = "node_infiniband_state_id"
RATE_EXPR = "node_infiniband_rate_bytes_per_second"
# A port takes about 400 bytes of JSON: this is enough for 80,000 ports.
SWEEP_LIMIT_BYTES = 32 << 20


class Topology(TypedDict):
    cluster: str
    now: datetime
    fabric: shapes.SweepStatus | None
    racks: list[topology.TopologyRack]
    switches: list[topology.TopologySwitch]
    unmapped: dict[str, int]


class SweepAccepted(TypedDict):
    changes: int
    problem: str


class TopologyApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal = hub.runtime, hub.queries, hub.journal
        self._incidents, self._fleet, self._targets, self._fabric = hub.incidents, hub.fleet, hub.targets, hub.fabric

    @get("/api/topology", *(QueryParam(name, f"Return only this {name}.") for name in ("rack", "leaf", "node")))
    async def get_topology(self, request: Request) -> Topology:
        """Racks, leaves, nodes, GPUs and links with their states."""
        filters = {name: request.query_params.get(name) or None for name in ("rack", "leaf", "node")}
        layout = fleet_layout.current_layout(self._fleet)
        sources = topology.TopologySources(
            layout,
            await self._journal.read(lambda: self._journal.incidents(open_only=True)),
            silent=self._silent_nodes(),
            gone=frozenset(gpu.gpu.uuid for gpu in self._fleet.gpus() if gpu.gone_since_ms is not None),
            watch=self._fabric if self._is_fresh() else None,
            host_links=await self._load_host_links(frozenset(node.name for node in layout.nodes)),
        )
        # In a thread: a large fleet would block the event loop.
        racks = await asyncio.to_thread(topology.build_topology, sources, filters)
        if any(filters.values()) and not racks:
            selected = ", ".join(f"{name} {value[:60]}" for name, value in filters.items() if value)
            raise HTTPException(404, f"no node is in {selected}")
        return Topology(
            cluster=self._runtime.settings.fleet.cluster,
            now=self._runtime.clock.now(),
            fabric=self._sweep_status(frozenset(node.name for node in layout.nodes)),
            racks=racks,
            switches=topology.list_switches(self._fabric, is_fresh=self._is_fresh()),
            unmapped=topology.count_unmapped(layout, racks),
        )

    def _is_fresh(self) -> bool:
        return self._fabric is not None and self._fabric.is_fresh(self._queries.now_ms)

    def _silent_nodes(self) -> frozenset[tuple[str, str]]:
        """Nodes, by cluster and name, whose targets are all down."""
        answers: dict[tuple[str, str], list[bool]] = {}
        for state in self._targets.targets():
            cluster, name = state.target.cluster, state.target.node
            if name is not None and state.health is not target_loop.TargetHealth.UNKNOWN:
                answers.setdefault((cluster, name), []).append(state.health is target_loop.TargetHealth.UP)
        return frozenset(name for name, results in answers.items() if not any(results))

    async def _load_host_links(self, nodes: frozenset[str]) -> dict[str, list[topology.TopologyLink]]:
        """The ports from the metrics of nodes; none if the queries fail, so that the rest of the tree is returned."""
        at_ms = self._queries.now_ms
        try:
            states = await self._queries.instant(STATE_EXPR, at_ms)
            rates = await self._queries.instant(RATE_EXPR, at_ms)
        except WatchkeeperError:
            return {}
        return topology.list_host_links(states.latest().items(), rates.latest().items(), nodes)

    def _sweep_status(self, nodes: frozenset[str]) -> shapes.SweepStatus | None:
        watch = self._fabric
        if watch is None or (watch.fabric is None and not watch.problem):
            return None
        sweep = watch.fabric
        links = watch.known_fabric.links
        age = "" if sweep is None or self._is_fresh() else "the newest sweep is too old"
        return {
            "source": None if sweep is None else sweep.source,
            "at": None if sweep is None else clock.from_ms(sweep.at_ms),
            "seconds": None if sweep is None else sweep.seconds,
            "problem": "; ".join(filter(None, (age, watch.problem, *(() if sweep is None else sweep.unread)))),
            "links": len(links),
            "links_down": sum(link.down_since_ms is not None for link in links),
            "unlisted_hosts": sorted(watch.leaf_by_node().keys() - nodes, key=fleet_layout.natural_sort_key),
            "unnamed_hosts": 0 if watch.topology is None else len(watch.topology.unnamed_hosts()),
        }

    @post("/api/fabric", role=Role.AGENT, body=fabric.Fabric)
    async def accept_sweep(self, request: Request) -> SweepAccepted:
        """Store a sweep of the InfiniBand fabric that another host made."""
        check_node(request.state.caller, None)
        watch = self._fabric
        if watch is None:
            raise HTTPException(409, "this is a recording, which is read-only: it accepts no sweeps")
        if watch.settings.is_watched:
            problem = "this hub sweeps the fabric itself. To push sweeps, unset `fabric.sweep` and `fabric.ufm_url`"
            raise HTTPException(409, problem)
        try:
            sweep = wire.loads(fabric.Fabric, await read_body(request, SWEEP_LIMIT_BYTES))
        except WireError as error:
            raise HTTPException(400, f"the body is not a fabric sweep: {error.problems[0]}") from error
        changes = await asyncio.to_thread(watch.accept_sweep, sweep, self._runtime.clock.now())
        if changes:
            await self._incidents.ingest_events(changes)
        return SweepAccepted(changes=len(changes), problem=watch.problem)
