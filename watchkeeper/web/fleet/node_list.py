"""Build the list of nodes: expected and present GPUs, scheduler states, holders and incidents of each node.

Nodes that do not report are listed too, with different states: never seen, silent, or gone from the inventory. None of
them counts as healthy. `cluster_api` returns the list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from watchkeeper.clusters import inventory
from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.incidents import signals
from watchkeeper.kit import clock
from watchkeeper.model import cluster, fleet, incidents
from watchkeeper.model.node_list import NodeLine, NodeState, SchedulerStatus
from watchkeeper.scrape import scrape, target_loop
from watchkeeper.web.fleet import holders
from watchkeeper.web.fleet.fleet_layout import natural_sort_key

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class NodeListSources:
    """The input of the node list."""

    fleet: FleetProtocol
    targets: Sequence[scrape.TargetState]
    views: Sequence[cluster.ClusterView]
    gpu_holders: holders.GpuHolders
    open_incidents: Sequence[incidents.Incident]


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
        incidents_by_place[incident.place.whole_node].append(incident.id)
    gone = {(node.cluster, node.name): (node, since) for node, since in sources.fleet.gone_nodes()}
    lines = []
    for node in (*sources.fleet.nodes(), *(node for node, _ in gone.values())):
        key = (node.cluster, node.name)
        places = (node.place, fleet.Place(signals.UNNAMED_CLUSTER, node=node.name), *node.failure_domains())
        node_facts = _NodeFacts(
            node,
            gpus_by_node[key],
            targets_by_node[key],
            gone_since_ms=gone[key][1] if key in gone else None,
            workloads=workloads_by_node.get(key, ()),
            statuses=statuses_by_node.get(key, ()),
            incident_ids=tuple(dict.fromkeys(id for place in places for id in incidents_by_place.get(place, ()))),
        )
        lines.append(_build_line(node_facts, sources.gpu_holders))
    return sorted(lines, key=lambda line: (line.state is NodeState.GONE, natural_sort_key(line.name), line.cluster))


@dataclass(frozen=True, slots=True)
class _NodeFacts:
    node: fleet.Node
    gpus: Sequence[GpuView]
    targets: Sequence[scrape.TargetState]
    gone_since_ms: int | None
    workloads: Sequence[str] = ()
    statuses: tuple[SchedulerStatus, ...] = ()
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
        gpus_seen=len(present),
        gpus_expected=node.expected_gpus,
        scheduler=node_facts.statuses,
        holders=tuple(workload_names),
        incidents=node_facts.incident_ids,
        last_seen=None if last_seen_ms is None else clock.from_ms(last_seen_ms),
        sources=node.source,
    )


def judge_node(node_facts: _NodeFacts) -> tuple[NodeState, str]:
    """The state of a node and its reason."""
    node, present = node_facts.node, [gpu for gpu in node_facts.gpus if gpu.gone_since_ms is None]
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
    if node.expected_gpus is not None and len(present) < node.expected_gpus:
        return NodeState.SHORT, f"{len(present)} of {node.expected_gpus} GPUs report"
    return NodeState.UP, "" if node.expected_gpus is not None else "the expected number of GPUs is unknown"


def _scheduled_workloads(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, list[str]]:
    """The workloads that schedulers placed on each node, which the metrics of the node may not show."""
    workloads_by_node: dict[NodeKey, list[str]] = defaultdict(list)
    for view in views:
        for workload in view.workloads:
            for name in workload.nodes:
                workloads_by_node[workload.cluster, name].append(str(workload.workload))
    return workloads_by_node


def _scheduler_statuses(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, tuple[SchedulerStatus, ...]]:
    statuses_by_node: dict[NodeKey, tuple[SchedulerStatus, ...]] = {}
    for view in views:
        for node in view.nodes:
            status = SchedulerStatus(
                node.source,
                node.state,
                node.reason,
                by=node.unschedulable_by,
                is_ready=node.is_ready,
                is_schedulable=node.is_schedulable,
            )
            statuses_by_node[node.cluster, node.name] = (*statuses_by_node.get((node.cluster, node.name), ()), status)
    return statuses_by_node
