"""The fleet as a list of nodes: what each should have, what it has, what its scheduler says, and who holds it.

What disappeared is on the list as well, with the word for it: a node that was never read, one that fell silent, and one
that no list names any more are three different things, and none of them is healthy. `cluster_api` answers with it.
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
from watchkeeper.web.fleet.fleet_layout import natural

NodeKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class NodeListSources:
    """Everything a list is made of."""

    fleet: FleetProtocol
    targets: Sequence[scrape.TargetState]
    views: Sequence[cluster.ClusterView]
    held: holders.GpuHolders
    open_incidents: Sequence[incidents.Incident]


def build_node_list(facts: NodeListSources) -> list[NodeLine]:
    """All nodes, in the order in which people count them; those that are gone last."""
    seen: dict[NodeKey, list[GpuView]] = defaultdict(list)
    for gpu in facts.fleet.gpus():
        seen[gpu.cluster, gpu.node].append(gpu)
    healths: dict[NodeKey, list[scrape.TargetState]] = defaultdict(list)
    for state in facts.targets:
        if state.target.node is not None:
            healths[state.target.cluster, state.target.node].append(state)
    words, placed = _words(facts.views), _placed(facts.views)
    broken: dict[fleet.Place, list[str]] = defaultdict(list)
    for incident in facts.open_incidents:
        broken[incident.place.whole_node].append(incident.id)
    gone = {(node.cluster, node.name): since for node, since in facts.fleet.gone_nodes()}
    listed = [*facts.fleet.nodes(), *(node for node, _ in facts.fleet.gone_nodes())]
    lines = []
    for node in listed:
        key = (node.cluster, node.name)
        about = _Node(node, seen[key], healths[key], gone.get(key), placed.get(key, ()))
        places = (node.place, fleet.Place(signals.UNNAMED_CLUSTER, node=node.name), *node.failure_domains())
        trouble = [id for place in places for id in broken.get(place, ())]
        lines.append(_line(about, words.get(key, ()), held=facts.held, broken=list(dict.fromkeys(trouble))))
    return sorted(lines, key=lambda line: (line.state is NodeState.GONE, natural(line.name), line.cluster))


@dataclass(frozen=True, slots=True)
class _Node:
    node: fleet.Node
    seen: Sequence[GpuView]
    targets: Sequence[scrape.TargetState]
    gone_since_ms: int | None
    placed: Sequence[str] = ()


def _line(
    about: _Node, words: tuple[SchedulerStatus, ...], *, held: holders.GpuHolders, broken: Sequence[str]
) -> NodeLine:
    node = about.node
    present = [gpu for gpu in about.seen if gpu.gone_since_ms is None]
    state, why = judge_node(about)
    last = max((gpu.last_seen_ms for gpu in about.seen), default=None)
    names = {holder.called: None for gpu in present for holder in held.by_gpu.get(gpu.gpu.uuid, ())}
    names |= dict.fromkeys(about.placed)
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
        scheduler=words,
        holders=tuple(names),
        incidents=tuple(broken),
        last_seen=None if last is None else clock.from_ms(last),
        sources=node.source,
    )


def judge_node(about: _Node) -> tuple[NodeState, str]:
    """Our own word about a node, and a sentence for it."""
    node, present = about.node, [gpu for gpu in about.seen if gpu.gone_since_ms is None]
    if about.gone_since_ms is not None:
        return NodeState.GONE, f"no source names it since {clock.from_ms(about.gone_since_ms):%Y-%m-%d %H:%M:%S}Z"
    tried = [state for state in about.targets if state.health is not target_loop.TargetHealth.UNKNOWN]
    if tried and not any(state.health is target_loop.TargetHealth.UP for state in tried):
        error = next((state.error for state in tried if state.error), "no answer")
        return (NodeState.SILENT if about.seen else NodeState.NEVER_SEEN), error
    if not about.seen:
        if not about.targets:
            return NodeState.NOT_READ, "it is expected, and no target or agent of it is known"
        if node.expected_gpus == 0:
            return NodeState.UP, "it has no GPUs, as expected"
        return NodeState.NEVER_SEEN, "it is read, and has not shown a GPU yet"
    if node.expected_gpus is not None and len(present) < node.expected_gpus:
        return NodeState.SHORT, f"{len(present)} of {node.expected_gpus} GPUs report"
    return NodeState.UP, "" if node.expected_gpus is not None else "nobody says how many GPUs it should have"


def _placed(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, list[str]]:
    """What the schedulers have put on each node: known also where no page of the node names it."""
    found: dict[NodeKey, list[str]] = defaultdict(list)
    for view in views:
        for one in view.workloads:
            for name in one.nodes:
                found[one.cluster, name].append(str(one.workload))
    return found


def _words(views: Iterable[cluster.ClusterView]) -> Mapping[NodeKey, tuple[SchedulerStatus, ...]]:
    found: dict[NodeKey, tuple[SchedulerStatus, ...]] = {}
    for view in views:
        for node in view.nodes:
            word = SchedulerStatus(
                node.source,
                node.state,
                node.reason,
                by=node.unschedulable_by,
                is_ready=node.is_ready,
                is_schedulable=node.is_schedulable,
            )
            found[node.cluster, node.name] = (*found.get((node.cluster, node.name), ()), word)
    return found
