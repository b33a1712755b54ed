"""GET /api/nodes lists nodes with states and holders; GET /api/who finds the holders of a GPU or the GPUs of a holder.

Nodes that do not report are listed too, with different states: never seen, silent, or gone from the inventory. None of
them counts as healthy.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.clusters import inventory
from watchkeeper.clusters.inventory import UNMAPPED
from watchkeeper.hub import holders, services
from watchkeeper.hub.fleet_gpus import FleetGpus, FleetGpuStates
from watchkeeper.hub.fleet_layout import natural_sort_key
from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.incidents import signals
from watchkeeper.kit import clock, wire
from watchkeeper.model import cluster, fleet, incidents
from watchkeeper.model.fleet import Place
from watchkeeper.model.gpu_states import GpuCounts
from watchkeeper.model.incidents import Incident
from watchkeeper.model.node_list import NodeLine, NodeService, NodeState, ServiceState
from watchkeeper.model.node_list import SchedulerStatus as NodeStatus
from watchkeeper.scrape import scrape, target_loop
from watchkeeper.web.endpoint import QueryParam, get
from watchkeeper.web.fleet import who

MAX_NAME_CHARACTERS = 300
MAX_INCIDENTS = 1000
NodeKey = tuple[str, str]


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
    gpus: GpuCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Who:
    name: str = wire.json_key("asked")
    gpus: Sequence[who.GpuAndHolders]
    nodes: Sequence[who.NodeAndGpus]
    workloads: Sequence[who.WorkloadAndGpus]
    omitted: int = wire.json_key("left_out")


class ClusterApi:
    def __init__(self, hub: services.Services, gpus: FleetGpus) -> None:
        self._runtime, self._journal, self._fleet, self._gpus = hub.runtime, hub.journal, hub.fleet, gpus
        self._targets, self._clusters, self._views = hub.targets, hub.clusters, hub.cluster_views
        self._services = hub.node_services

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
        gpu_states = await self._gpus.load()
        lines = await self._build_lines(gpu_states)
        states = {status.state for line in lines for status in line.scheduler} | set(NodeState) | set(ServiceState)
        if state is not None and state not in states:
            raise HTTPException(400, f"unknown state `{state[:40]}`; the states are {', '.join(sorted(states))}")
        pools = {line.pool or UNMAPPED for line in lines} | {UNMAPPED}
        if pool is not None and pool not in pools:
            raise HTTPException(404, f"unknown pool `{pool[:40]}`; the pools are {', '.join(sorted(pools))}")
        matches = [
            line
            for line in lines
            if (state is None or state in _states_of(line)) and (pool is None or (line.pool or UNMAPPED) == pool)
        ]
        return NodeList(
            now=self._runtime.clock.now(),
            nodes=matches,
            total=len(lines),
            schedulers=[
                SchedulerStatus(source=view.source, at_ms=view.at_ms, problem=view.problem) for view in self._views()
            ],
            unmapped=dict(sorted(Counter(chain.from_iterable(line.unmapped for line in lines)).items())),
            problem=gpu_states.gpu_holders.problem,
            gpus=gpu_states.count(),
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
        gpu_states = await self._gpus.load()
        lines = await self._build_lines(gpu_states)
        mapping = None if self._clusters is None else self._clusters.inventory
        open_incidents = await self._open_incidents()
        sources = who.HolderSources(self._fleet, lines, gpu_states, self._views(), open_incidents, mapping)
        matches = await asyncio.to_thread(who.find_holders, name, sources)
        if not (matches.gpus or matches.nodes or matches.workloads):
            raise HTTPException(404, f"no GPU, node, pod, job, user or team has the name `{name[:60]}`")
        return Who(
            name=name, gpus=matches.gpus, nodes=matches.nodes, workloads=matches.workloads, omitted=matches.omitted
        )

    async def _build_lines(self, gpu_states: FleetGpuStates) -> list[NodeLine]:
        targets, open_incidents = self._targets.targets(), await self._open_incidents()
        sources = NodeListSources(self._fleet, targets, self._views(), gpu_states, open_incidents, self._services())
        # In a thread: a large fleet would block the event loop.
        return await asyncio.to_thread(build_node_list, sources)

    async def _open_incidents(self) -> list[Incident]:
        return await self._journal.read(lambda: self._journal.incidents(open_only=True, limit=MAX_INCIDENTS))


def _states_of(line: NodeLine) -> set[str]:
    service = () if line.service is None else (line.service.state,)
    return {line.state, *service, *(status.state for status in line.scheduler)}


@dataclass(frozen=True, slots=True)
class NodeListSources:
    """The input of the node list."""

    fleet: FleetProtocol
    targets: Sequence[scrape.TargetState]
    views: Sequence[cluster.ClusterView]
    gpu_states: FleetGpuStates
    open_incidents: Sequence[incidents.Incident]
    services: Mapping[Place, NodeService] = field(default_factory=dict)


def build_node_list(sources: NodeListSources) -> list[NodeLine]:
    """List all nodes in natural order; gone nodes last."""
    gpus_by_node: dict[NodeKey, list[GpuView]] = defaultdict(list)
    for gpu in sources.fleet.gpus():
        gpus_by_node[gpu.cluster, gpu.node].append(gpu)
    targets_by_node: dict[NodeKey, list[scrape.TargetState]] = defaultdict(list)
    for target_state in sources.targets:
        if target_state.target.node is not None:
            targets_by_node[target_state.target.cluster, target_state.target.node].append(target_state)
    statuses_by_node, workloads_by_node = _scheduler_statuses(sources.views), _scheduled_workloads(sources.views)
    incidents_by_place: dict[fleet.Place, list[str]] = defaultdict(list)
    for incident in sources.open_incidents:
        for place in dict.fromkeys(place.whole_node for place in incident.places):
            incidents_by_place[place].append(incident.id)
    gone = {(node.cluster, node.name): (node, since) for node, since in sources.fleet.gone_nodes()}
    lines = []
    for node in (*sources.fleet.nodes(), *(node for node, _ in gone.values())):
        key = (node.cluster, node.name)
        places = signals.places_of_node(node)
        node_facts = _NodeFacts(
            node,
            gpus_by_node[key],
            targets_by_node[key],
            sources.gpu_states.count_node(key),
            gone_since_ms=gone[key][1] if key in gone else None,
            workloads=workloads_by_node.get(key, ()),
            statuses=statuses_by_node.get(key, ()),
            service=sources.services.get(node.place),
            incident_ids=tuple(dict.fromkeys(id for place in places for id in incidents_by_place.get(place, ()))),
        )
        lines.append(_build_line(node_facts, sources.gpu_states.gpu_holders))
    return sorted(lines, key=lambda line: (line.state is NodeState.GONE, natural_sort_key(line.name), line.cluster))


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    node: fleet.Node
    gpus: Sequence[GpuView]
    targets: Sequence[scrape.TargetState]
    counts: GpuCounts
    gone_since_ms: int | None
    workloads: Sequence[str] = ()
    statuses: tuple[NodeStatus, ...] = ()
    service: NodeService | None = None
    incident_ids: tuple[str, ...] = ()


def _build_line(node_facts: _NodeFacts, gpu_holders: holders.GpuHolders) -> NodeLine:
    node = node_facts.node
    present = [gpu for gpu in node_facts.gpus if gpu.gone_since_ms is None]
    state, why = judge_node(node_facts)
    last_seen_ms = max((gpu.last_seen_ms for gpu in node_facts.gpus), default=None)
    present_holders = (holder for gpu in present for holder in gpu_holders.by_gpu.get(gpu.gpu.uuid, ()))
    workload_names = dict.fromkeys([*(holder.workload_name for holder in present_holders), *node_facts.workloads])
    return NodeLine(
        node.cluster,
        node.name,
        state,
        why,
        pool=node.pool,
        rack=node.domains.get("rack", ""),
        leaf=node.domains.get("leaf", ""),
        nvlink_domain=node.domains.get("nvlink", ""),
        unmapped=tuple(inventory.missing_facts(node)),
        gpus_seen=node_facts.counts.reporting,
        gpus_expected=node.expected_gpus,
        scheduler=node_facts.statuses,
        holders=tuple(workload_names),
        incidents=node_facts.incident_ids,
        last_seen=None if last_seen_ms is None else clock.from_ms(last_seen_ms),
        sources=node.source,
        service=node_facts.service,
        gpus=node_facts.counts,
    )


def judge_node(node_facts: _NodeFacts) -> tuple[NodeState, str]:
    """The state of a node and its reason."""
    node, reporting = node_facts.node, node_facts.counts.reporting
    if node_facts.gone_since_ms is not None:
        gone_since = clock.from_ms(node_facts.gone_since_ms)
        return NodeState.GONE, f"not in the inventory since {gone_since:%Y-%m-%d %H:%M:%S}Z"
    scraped = [state for state in node_facts.targets if state.health is not target_loop.TargetHealth.UNKNOWN]
    if scraped and not any(state.health is target_loop.TargetHealth.UP for state in scraped):
        error = next((state.error for state in scraped if state.error), "no answer")
        return (NodeState.SILENT if node_facts.gpus else NodeState.NEVER_SEEN), error
    if not node_facts.gpus:
        if not node_facts.targets:
            return NodeState.NOT_READ, "expected, but it has no target and no agent"
        if node.expected_gpus == 0:
            return NodeState.UP, "no GPUs, as expected"
        return NodeState.NEVER_SEEN, "scraped, but it has not reported a GPU yet"
    if reporting < node_facts.counts.gpus:
        return NodeState.SHORT, f"{reporting} of {node_facts.counts.gpus} GPUs report"
    return NodeState.UP, "" if node.expected_gpus is not None else "the expected number of GPUs is unknown"


def _scheduled_workloads(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, list[str]]:
    """The workloads that schedulers placed on each node, which the metrics of the node may not show."""
    workloads_by_node: dict[NodeKey, list[str]] = defaultdict(list)
    for view in views:
        for workload in view.workloads:
            for name in workload.nodes:
                workloads_by_node[workload.cluster, name].append(str(workload.workload))
    return workloads_by_node


def _scheduler_statuses(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, tuple[NodeStatus, ...]]:
    statuses_by_node: dict[NodeKey, tuple[NodeStatus, ...]] = {}
    for view in views:
        for node in view.nodes:
            status = NodeStatus(
                node.source,
                node.state,
                node.reason,
                by=node.unschedulable_by,
                is_ready=node.is_ready,
                is_schedulable=node.is_schedulable,
            )
            statuses_by_node[node.cluster, node.name] = (*statuses_by_node.get((node.cluster, node.name), ()), status)
    return statuses_by_node
