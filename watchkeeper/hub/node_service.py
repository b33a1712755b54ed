"""Decide which nodes are out of service, and why: from the schedulers' views and the hub's own repairs.

The only place that decides this: the node list, `who`, the fleet map and the command line show its text. A repair knows
more than a view about its own node: it observes the node, and a view may be some seconds old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from watchkeeper.clusters import cluster_series
from watchkeeper.kit import clock
from watchkeeper.model import cluster
from watchkeeper.model.fleet import Place
from watchkeeper.model.node_list import NodeService, ServiceState
from watchkeeper.model.repairs import Repair, RepairState
from watchkeeper.remediate.transitions import read_marked_incident

# Words of Slurm, which drains nodes; Kubernetes only cordons them.
SLURM_STATES = {"draining": ServiceState.DRAINING, "drained": ServiceState.DRAINED}
# Nodes that no scheduler is known to refuse.
SCHEDULABLE = frozenset({ServiceState.IN_SERVICE, ServiceState.UNKNOWN})
# A view that was read this shortly after the end of a repair may still show its cordon.
VIEW_DELAY = timedelta(seconds=2)


def services_by_node(
    views: Iterable[cluster.ClusterView],
    repairs: Sequence[Repair],
    ended_at: Mapping[Place, datetime],
    *,
    now: datetime,
) -> dict[Place, NodeService]:
    """The service state of each node that a scheduler or a repair knows.

    `repairs` run, or keep their node cordoned; `ended_at` has the nodes of repairs that ended lately.
    """
    services: dict[Place, NodeService] = {}
    for view in views:
        is_current = cluster_series.is_current(view, now.timestamp())
        for node in view.nodes:
            place = Place(node.cluster, node=node.name)
            service = _describe(node) if is_current else NodeService(ServiceState.UNKNOWN, _unread_text(view))
            if _is_outdated_mark(node, view, ended_at.get(place)):
                service = NodeService(ServiceState.IN_SERVICE, "")
            # Of two schedulers, the one that does not schedule the node decides.
            if place not in services or services[place].state in SCHEDULABLE:
                services[place] = service
    for repair in repairs:
        for place in repair.nodes_out:
            if repair.has_cordon or repair.is_of_domain:
                services[place] = _describe_repair(repair, services.get(place))
    return services


def _describe(node: cluster.ScheduledNode) -> NodeService:
    if node.is_schedulable:
        return NodeService(ServiceState.IN_SERVICE, "")
    is_cordon = "SchedulingDisabled" in node.state
    state = ServiceState.CORDONED if is_cordon else SLURM_STATES.get(node.state, ServiceState.OUT_OF_SERVICE)
    word = "cordoned" if is_cordon else node.state
    mark = next((text for text in (node.unschedulable_by, node.reason) if read_marked_incident(text)), None)
    owner = node.unschedulable_by if mark is None else f"repair {read_marked_incident(mark)}"
    return NodeService(state, " · ".join(filter(None, (word, owner))))


def _describe_repair(repair: Repair, viewed: NodeService | None) -> NodeService:
    """`cordoned · repair INC-1`; while the cordon is not observed yet, the state of the scheduler's view."""
    owner, suffix = f"repair {repair.incident}", " failed" if repair.keeps_cordon else ""
    is_observed = viewed is not None and viewed.state not in SCHEDULABLE
    if repair.state is RepairState.CORDONING and not is_observed and not repair.is_of_domain:
        state = ServiceState.UNKNOWN if viewed is None else viewed.state
        return NodeService(state, f"cordoning · {owner}", repair.incident)
    state = viewed.state if viewed is not None and is_observed else ServiceState.CORDONED
    return NodeService(state, f"{_WORDS.get(state, 'cordoned')} · {owner}{suffix}", repair.incident)


_WORDS = {ServiceState.DRAINING: "draining", ServiceState.DRAINED: "drained"}


def _is_outdated_mark(node: cluster.ScheduledNode, view: cluster.ClusterView, ended_at: datetime | None) -> bool:
    """Whether a view that is older than the end of a repair still shows the repair's cordon."""
    is_ours = any(read_marked_incident(text) for text in (node.unschedulable_by, node.reason))
    if node.is_schedulable or not is_ours or ended_at is None or view.at_ms is None:
        return False
    return clock.from_ms(view.at_ms) < ended_at + VIEW_DELAY


def _unread_text(view: cluster.ClusterView) -> str:
    return f"unknown: {view.source} {'never answered' if view.at_ms is None else 'does not answer'}"
