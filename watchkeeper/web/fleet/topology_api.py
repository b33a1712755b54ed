"""GET /api/topology: the fleet as a tree with states. POST /api/fabric: a sweep that another host made.

`watchkeeper topology` asks the first; `watchkeeper fabric sweep --push`, on a host with an InfiniBand adapter, brings
the second, because the hub need not have one. What the tree says is decided in `topology`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters.fabric.fabric_watch import FabricWatch
from watchkeeper.errors import WatchkeeperError, WireError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.kit import clock, wire
from watchkeeper.model import fabric
from watchkeeper.scrape import target_loop
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, check_node, read_body
from watchkeeper.web.fleet import fleet_layout, topology

STATE_EXPR = "node_infiniband_state_id"
RATE_EXPR = "node_infiniband_rate_bytes_per_second"
# A port is about 400 bytes of JSON: room for 80,000 of them.
SWEEP_LIMIT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Topology:
    cluster: str
    now: datetime
    fabric: shapes.SweepStatus | None
    racks: list[topology.TopologyRack]
    switches: list[topology.TopologySwitch]
    unmapped: dict[str, int]


@dataclass(frozen=True, slots=True)
class SweepAccepted:
    changes: int
    problem: str


class TopologyApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        journal: services.JournalProtocol,
        incidents: services.IncidentsProtocol,
        fleet: services.FleetProtocol,
        targets: services.TargetsProtocol,
        fabric: FabricWatch | None,
    ) -> None:
        self._runtime, self._queries, self._journal = runtime, queries, journal
        self._incidents, self._fleet, self._targets = incidents, fleet, targets
        self._fabric = fabric

    async def tree(self, request: Request) -> Topology:
        asked = {name: request.query_params.get(name) or None for name in ("rack", "leaf", "node")}
        chosen = topology.TopologyFilter(**asked)
        stock = fleet_layout.current_layout(self._fleet)
        facts = topology.TopologySources(
            stock,
            await self._journal.read(lambda: self._journal.incidents(open_only=True)),
            silent=self._silent_nodes(),
            gone=frozenset(seen.gpu.uuid for seen in self._fleet.gpus() if seen.gone_since_ms is not None),
            watched=self._fabric if self._is_fresh() else None,
            told=await self._told(frozenset(node.name for node in stock.nodes)),
        )
        # A large fleet takes a moment; the loop has others to serve.
        racks = await asyncio.to_thread(topology.build_topology, facts, chosen)
        if any(asked.values()) and not racks:
            named = ", ".join(f"{name} {value[:60]}" for name, value in asked.items() if value)
            raise HTTPException(404, f"no node is in {named}")
        return Topology(
            cluster=self._runtime.settings.fleet.cluster,
            now=self._runtime.clock.now(),
            fabric=self._drawn(frozenset(node.name for node in stock.nodes)),
            racks=racks,
            switches=topology.switches(self._fabric, is_fresh=self._is_fresh()),
            unmapped=topology.unmapped(stock, racks),
        )

    def _is_fresh(self) -> bool:
        return self._fabric is not None and self._fabric.is_fresh(clock.to_ms(self._runtime.clock.now()))

    def _silent_nodes(self) -> frozenset[tuple[str, str]]:
        """Nodes, by cluster and name, of which every target that was tried did not answer."""
        answers: dict[tuple[str, str], list[bool]] = {}
        for state in self._targets.targets():
            cluster, name = state.target.cluster, state.target.node
            if name is not None and state.health is not target_loop.TargetHealth.UNKNOWN:
                answers.setdefault((cluster, name), []).append(state.health is target_loop.TargetHealth.UP)
        return frozenset(name for name, were_up in answers.items() if not any(were_up))

    async def _told(self, nodes: frozenset[str]) -> dict[str, list[topology.TopologyLink]]:
        """What nodes say about their own ports; an engine that cannot answer costs the links and not the tree."""
        at_ms = clock.to_ms(self._runtime.clock.now())
        try:
            states, rates = (
                await self._queries.instant(STATE_EXPR, at_ms),
                await self._queries.instant(RATE_EXPR, at_ms),
            )
        except WatchkeeperError:
            return {}
        return topology.links_from_hosts(states.latest().items(), rates.latest().items(), nodes)

    def _drawn(self, nodes: frozenset[str]) -> shapes.SweepStatus | None:
        watched = self._fabric
        if watched is None or (watched.fabric is None and not watched.problem):
            return None
        found = watched.fabric
        links = watched.known_fabric.links
        age = "" if found is None or self._is_fresh() else "the last sweep is too old to speak for now"
        return {
            "source": None if found is None else found.source,
            "at": None if found is None else clock.from_ms(found.at_ms),
            "seconds": None if found is None else found.seconds,
            "problem": "; ".join(filter(None, (age, watched.problem, *(() if found is None else found.unread)))),
            "links": len(links),
            "links_down": sum(link.down_since_ms is not None for link in links),
            "unlisted_hosts": sorted(watched.leaf_by_node().keys() - nodes, key=fleet_layout.natural),
            "unnamed_hosts": 0 if watched.layout is None else len(watched.layout.unnamed_hosts()),
        }

    async def accept_sweep(self, request: Request) -> SweepAccepted:
        """Take a sweep of another host; 200 means that what changed with it is on disk."""
        check_node(request.state.caller, None)
        watched = self._fabric
        if watched is None:
            raise HTTPException(409, "this is a recording: it takes no sweeps")
        if watched.settings.is_watched:
            raise HTTPException(409, "this hub looks at the fabric itself; unset `fabric.sweep` and `fabric.ufm_url`")
        try:
            found = wire.loads(fabric.Fabric, await read_body(request, SWEEP_LIMIT_BYTES))
        except WireError as error:
            raise HTTPException(400, f"this is no sweep: {error.problems[0]}") from error
        changed = await asyncio.to_thread(watched.accept_sweep, found, self._runtime.clock.now())
        if changed:
            await self._incidents.ingest_events(changed)
        return SweepAccepted(changes=len(changed), problem=watched.problem)


def endpoints(api: TopologyApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/topology",
            Role.VIEWER,
            api.tree,
            summary="Racks, leaves, nodes, GPUs and links with their states",
            params=tuple(QueryParam(name, f"only this {name}") for name in ("rack", "leaf", "node")),
        ),
        Endpoint(
            ("POST",),
            "/api/fabric",
            Role.AGENT,
            api.accept_sweep,
            changes=True,
            summary="Take a sweep of the InfiniBand fabric that another host made",
            body=fabric.Fabric,
        ),
    ]
