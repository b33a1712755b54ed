"""The fleet as a tree: racks, leaves, nodes, GPUs and links, each with its state and why it is so.

Racks and leaves come from the inventory, states from open incidents and scrapes, links from the newest sweep of the
fabric, else from what the nodes say about their ports. Everything is decided here in plain values; `topology_api`
answers with them and `watchkeeper topology` prints them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watchkeeper.clusters import inventory
from watchkeeper.clusters.fabric import fabric_changes, fabric_watch
from watchkeeper.incidents import signals
from watchkeeper.model import alerts, fabric, fleet, incidents
from watchkeeper.model.labels import Labels
from watchkeeper.web.fleet.fleet_layout import FleetLayout, natural

# node_exporter's number of a port that works.
ACTIVE_ID = 4
STATE_NAMES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "act defer"}
GBPS_PER_BYTE = 8e-9


class HealthState(StrEnum):
    """From best to worst. `gone` was there and is no longer, `missing` is expected and was never there."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    WARNING = "warning"
    SLOW = "slow"
    SILENT = "silent"
    MISSING = "missing"
    GONE = "gone"
    DOWN = "down"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        return list(HealthState).index(self)


def worst_state(states: Iterable[HealthState]) -> HealthState:
    return max(states, key=lambda state: state.rank, default=HealthState.HEALTHY)


@dataclass(frozen=True, slots=True)
class TopologyGpu:
    index: int | None
    uuid: str | None
    state: HealthState
    why: str = ""


@dataclass(frozen=True, slots=True)
class TopologyLink:
    """A host's port; `switch` None where only the host itself is known to have it."""

    device: str
    port: int
    state: HealthState
    gbps: float | None = None
    switch: str | None = None
    switch_port: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class TopologyNode:
    name: str
    pool: str
    state: HealthState
    expected_gpus: int | None
    gpus: tuple[TopologyGpu, ...]
    links: tuple[TopologyLink, ...]
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyLeaf:
    """Nodes of one rack on one leaf; `name` None where nobody has said which leaf it is."""

    name: str | None
    state: HealthState
    nodes: tuple[TopologyNode, ...]
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyRack:
    name: str | None
    state: HealthState
    leaves: tuple[TopologyLeaf, ...]
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologySwitch:
    name: str
    role: str
    state: HealthState
    links: int
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopologyFilter:
    """What is asked for; None is everything."""

    rack: str | None = None
    leaf: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class TopologySources:
    """What the tree is made of: inventory, open incidents, what does not answer, the fabric, ports as nodes tell."""

    stock: FleetLayout
    open_incidents: Sequence[incidents.Incident]
    silent: frozenset[tuple[str, str]] = frozenset()
    gone: frozenset[str] = frozenset()
    # None also where its last sweep is too old.
    watched: fabric_watch.FabricWatch | None = None
    told: Mapping[str, Sequence[TopologyLink]] = field(default_factory=dict)


def build_topology(facts: TopologySources, chosen: TopologyFilter = TopologyFilter()) -> list[TopologyRack]:  # noqa: B008 - frozen and empty
    """Racks in the order people count, with those nodes that were chosen; what has no rack comes last."""
    by_gpu, by_node, by_domain = _sort_incidents(facts.open_incidents)
    leaf_of = {} if facts.watched is None else facts.watched.leaf_by_node()
    links = fabric_links(facts.watched)
    racks: dict[str | None, dict[str | None, list[TopologyNode]]] = defaultdict(lambda: defaultdict(list))
    for node in facts.stock.nodes:
        rack = node.domains.get("rack")
        leaf = node.domains.get("leaf") or leaf_of.get(node.name)
        if _is_chosen(chosen, rack=rack, leaf=leaf, node=node.name):
            own = links.get(node.name) or facts.told.get(node.name, ())
            racks[rack][leaf].append(_node(node, facts, troubles=(by_gpu, by_node), links=own))
    return [_rack(name, leaves, by_domain) for name, leaves in sorted(racks.items(), key=_last_if_none)]


def unmapped(stock: FleetLayout, racks: Iterable[TopologyRack]) -> dict[str, int]:
    """Of how many of the shown nodes nobody says each fact."""
    shown = {node.name for rack in racks for leaf in rack.leaves for node in leaf.nodes}
    return inventory.count_missing_facts(node for node in stock.nodes if node.name in shown)


def _is_chosen(chosen: TopologyFilter, *, rack: str | None, leaf: str | None, node: str) -> bool:
    return chosen.rack in (None, rack) and chosen.leaf in (None, leaf) and chosen.node in (None, node)


Trouble = Mapping[str, Sequence[incidents.Incident]]


def _sort_incidents(found: Iterable[incidents.Incident]) -> tuple[Trouble, Trouble, Trouble]:
    """By GPU, by `cluster/node` and by domain; what is only to be kept in mind makes nothing unhealthy."""
    by_gpu: dict[str, list[incidents.Incident]] = defaultdict(list)
    by_node: dict[str, list[incidents.Incident]] = defaultdict(list)
    by_domain: dict[str, list[incidents.Incident]] = defaultdict(list)
    for incident in found:
        place = incident.place
        if incident.severity is alerts.Severity.INFO:
            continue
        if place.gpu is not None:
            by_gpu[place.gpu].append(incident)
        elif place.node is not None:
            by_node[f"{place.cluster}/{place.node}"].append(incident)
        elif place.domain is not None:
            by_domain[place.domain].append(incident)
    return by_gpu, by_node, by_domain


def _state_of(found: Iterable[incidents.Incident]) -> HealthState:
    return worst_state(HealthState(incident.severity.value) for incident in found)


def _node(
    node: fleet.Node, facts: TopologySources, *, troubles: tuple[Trouble, Trouble], links: Sequence[TopologyLink]
) -> TopologyNode:
    by_gpu, by_node = troubles
    is_silent = (node.cluster, node.name) in facts.silent
    gpus = tuple(_gpu(facts, at, by_gpu, is_silent=is_silent) for at in facts.stock.by_node[node.cluster, node.name])
    places = (f"{node.cluster}/{node.name}", f"{signals.UNNAMED_CLUSTER}/{node.name}")
    own = [incident for place in dict.fromkeys(places) for incident in by_node.get(place, ())]
    is_unread = not gpus and node.expected_gpus != 0
    state = worst_state(
        [
            _state_of(own),
            HealthState.UNKNOWN if is_unread else HealthState.HEALTHY,
            HealthState.SILENT if is_silent else HealthState.HEALTHY,
            *(gpu.state for gpu in gpus),
            *(link.state for link in links if link.state is not HealthState.UNKNOWN),
        ]
    )
    why = [incident.title for incident in own] + (["its exporters do not answer"] if is_silent else [])
    why += ["no GPU of it has been seen, and nobody says how many it should have"] if is_unread else []
    return TopologyNode(node.name, node.pool, state, node.expected_gpus, gpus, tuple(links), tuple(why))


def _gpu(facts: TopologySources, at: int, by_gpu: Trouble, *, is_silent: bool) -> TopologyGpu:
    gpu = facts.stock.slots[at].gpu
    if gpu is None:
        return TopologyGpu(None, None, HealthState.MISSING, "expected, and has never reported")
    own = by_gpu.get(gpu.uuid, ())
    state = worst_state([_state_of(own), HealthState.SILENT if is_silent else HealthState.HEALTHY])
    why = "; ".join(incident.title for incident in own)
    if gpu.uuid in facts.gone and not own:
        state, why = HealthState.GONE, "was there, and its node no longer reports it"
    return TopologyGpu(gpu.index, gpu.uuid, state, why)


def _rack(name: str | None, leaves: Mapping[str | None, list[TopologyNode]], by_domain: Trouble) -> TopologyRack:
    views = []
    for leaf, nodes in sorted(leaves.items(), key=_last_if_none):
        own = by_domain.get(f"leaf={leaf}", ())
        state = worst_state([_state_of(own), *(node.state for node in nodes)])
        views.append(TopologyLeaf(leaf, state, tuple(nodes), tuple(incident.title for incident in own)))
    own = by_domain.get(f"rack={name}", ())
    state = worst_state([_state_of(own), *(view.state for view in views)])
    return TopologyRack(name, state, tuple(views), tuple(incident.title for incident in own))


def _last_if_none(item: tuple[str | None, object]) -> tuple[bool, tuple[tuple[int, str], ...]]:
    return item[0] is None, natural(item[0] or "")


# Links


def fabric_links(watched: fabric_watch.FabricWatch | None) -> dict[str, list[TopologyLink]]:
    """Each node's ports as the newest sweep sees them, and those whose cable was there and is dark now."""
    if watched is None or watched.layout is None:
        return {}
    found: dict[str, list[TopologyLink]] = defaultdict(list)
    dark = fabric_changes.down_links(watched.known_fabric)
    for link in watched.layout.host_links():
        port = link.port
        state = HealthState.HEALTHY if port.is_up else HealthState.DOWN
        why = "" if port.is_up else f"{port.state}/{port.physical}"
        if link.is_slow and port.is_up:
            state, why = HealthState.SLOW, "slower than the other ports of its switch"
        view = TopologyLink(link.adapter, port.number, state, port.gbps, link.switch, link.switch_port, why)
        found[link.node].append(view)
    for known in dark.values():
        shown = {(view.device, view.port) for view in found[known.peer]} if known.adapter else set()
        if known.adapter and (known.adapter, known.peer_port) not in shown:
            why = "no longer seen in the fabric"
            found[known.peer].append(
                TopologyLink(known.adapter, known.peer_port, HealthState.DOWN, None, known.switch, known.port, why)
            )
    return {node: sorted(views, key=lambda view: (natural(view.device), view.port)) for node, views in found.items()}


def links_from_hosts(
    states: Iterable[tuple[Labels, float]], rates: Iterable[tuple[Labels, float]], nodes: frozenset[str]
) -> dict[str, list[TopologyLink]]:
    """Each node's ports from `node_infiniband_state_id` and the rate beside it."""
    speed = {_port_key(labels): value for labels, value in rates}
    found: dict[str, dict[tuple[str, int], TopologyLink]] = defaultdict(dict)
    for labels, value in states:
        node, device, port = _port_key(labels)
        if node not in nodes or not port.isdigit():
            continue
        is_active = value == ACTIVE_ID
        rate = speed.get((node, device, port))
        view = TopologyLink(
            device,
            int(port),
            HealthState.HEALTHY if is_active else HealthState.DOWN,
            None if rate is None else rate * GBPS_PER_BYTE,
            why="" if is_active else f"its state is {STATE_NAMES.get(int(value), int(value))}",
        )
        found[node][device, int(port)] = view
    return {
        node: sorted(views.values(), key=lambda view: (natural(view.device), view.port))
        for node, views in found.items()
    }


def _port_key(labels: Labels) -> tuple[str, str, str]:
    node = labels.get("Hostname") or labels.get("instance", "").rsplit(":", 1)[0]
    return node, labels.get("device", ""), labels.get("port", "")


def switches(watched: fabric_watch.FabricWatch | None, *, is_fresh: bool = True) -> list[TopologySwitch]:
    """Every switch that is or was there, those in trouble first; how they are is unknown when the sweep is old."""
    if watched is None or watched.layout is None:
        return []
    if not is_fresh:
        roles = ((switch.name, "leaf" if switch.is_leaf else "spine") for switch in watched.known_fabric.switches)
        return [TopologySwitch(name, role, HealthState.UNKNOWN, 0) for name, role in roles]
    layout = watched.layout
    trouble: dict[str, list[str]] = defaultdict(list)
    count: dict[str, int] = defaultdict(int)
    gone = {switch.guid for switch in watched.known_fabric.switches if switch.gone_since_ms is not None}
    for link in watched.known_fabric.links:
        for guid in {link.guid, link.peer_guid}:
            count[guid] += 1
        if link.down_since_ms is not None:
            # The links of a switch that is gone are its trouble, and not that of every switch around it.
            for guid in {link.guid, link.peer_guid} if not gone & {link.guid, link.peer_guid} else ():
                trouble[guid].append(f"{link} is down")
        elif link.key in layout.slow_ports:
            trouble[link.guid].append(f"{link} is slow: {_rate(layout.ports.get(link.key))}")
    views = []
    for switch in watched.known_fabric.switches:
        is_gone = switch.guid in gone
        state = HealthState.GONE if is_gone else (HealthState.WARNING if trouble[switch.guid] else HealthState.HEALTHY)
        said = ["no longer in the fabric"] if is_gone else trouble[switch.guid]
        role = "leaf" if switch.is_leaf else "spine"
        views.append(TopologySwitch(switch.name, role, state, count[switch.guid], tuple(said)))
    return sorted(views, key=lambda view: (-view.state.rank, view.role, natural(view.name)))


def _rate(port: fabric.FabricPort | None) -> str:
    return "unknown" if port is None or port.gbps is None else f"{port.gbps:g} Gb/s ({port.lanes}x {port.speed})"
