"""Build the tree of racks, leaves, nodes, GPUs and links, each with its state and the reason for it.

Racks and leaves come from the inventory, states from open incidents and scrapes, links from the newest sweep of the
fabric, else from the metrics of the nodes. `topology_api` returns the tree and `watchkeeper topology` prints it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from watchkeeper.clusters import inventory
from watchkeeper.clusters.fabric import fabric_changes, fabric_watch
from watchkeeper.hub.fleet_layout import FleetLayout, natural_sort_key
from watchkeeper.incidents import signals
from watchkeeper.kit import wire
from watchkeeper.model import alerts, fabric, fleet, incidents
from watchkeeper.model.labels import Labels

# node_exporter's state id of a port that works.
ACTIVE_ID = 4
STATE_NAMES = {1: "down", 2: "init", 3: "armed", 4: "active", 5: "act defer"}
GBPS_PER_BYTE = 8e-9
NO_FILTERS: Mapping[str, str | None] = {}


class HealthState(StrEnum):
    """States from best to worst. `gone` was present before, `missing` is expected but was never reported."""

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
    """A port of a node; `switch` is None if only the node reports the port."""

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
    """Nodes of one rack on one leaf; `name` is None if the leaf is unknown."""

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
    problems: tuple[str, ...] = wire.json_key("trouble", default=())


@dataclass(frozen=True, slots=True)
class TopologySources:
    """The input of the tree: layout, open incidents, silent nodes, gone GPUs, fabric, and links that nodes report."""

    layout: FleetLayout
    open_incidents: Sequence[incidents.Incident]
    silent: frozenset[tuple[str, str]] = frozenset()
    gone: frozenset[str] = frozenset()
    # None if there is no sweep, or the newest is too old.
    watch: fabric_watch.FabricWatch | None = None
    host_links: Mapping[str, Sequence[TopologyLink]] = field(default_factory=dict)


def build_topology(sources: TopologySources, filters: Mapping[str, str | None] = NO_FILTERS) -> list[TopologyRack]:
    """Build the racks in natural order, those without a name last; `filters` may name a rack, a leaf and a node."""
    by_place = _group_incidents(sources.open_incidents)
    leaf_of = {} if sources.watch is None else sources.watch.leaf_by_node()
    links = list_fabric_links(sources.watch)
    racks: dict[str | None, dict[str | None, list[TopologyNode]]] = defaultdict(lambda: defaultdict(list))
    for node in sources.layout.nodes:
        rack = node.domains.get("rack")
        leaf = node.domains.get("leaf") or leaf_of.get(node.name)
        names = {"rack": rack, "leaf": leaf, "node": node.name}
        if all(filters.get(kind) in (None, name) for kind, name in names.items()):
            node_links = links.get(node.name) or sources.host_links.get(node.name, ())
            racks[rack][leaf].append(_build_node(node, sources, by_place=by_place, links=node_links))
    return [_build_rack(name, leaves, by_place) for name, leaves in sorted(racks.items(), key=_named_first)]


def count_unmapped(layout: FleetLayout, racks: Iterable[TopologyRack]) -> dict[str, int]:
    """For each fact of the inventory, how many of the nodes in these racks do not have it."""
    node_names = {node.name for rack in racks for leaf in rack.leaves for node in leaf.nodes}
    return inventory.count_missing_facts(node for node in layout.nodes if node.name in node_names)


IncidentsByPlace = Mapping[str, Sequence[incidents.Incident]]


def _group_incidents(open_incidents: Iterable[incidents.Incident]) -> IncidentsByPlace:
    """Group incidents by GPU, `cluster/node` or failure domain; info incidents do not change a state."""
    by_place: dict[str, list[incidents.Incident]] = defaultdict(list)
    for incident in open_incidents:
        place = incident.place
        if incident.severity is not alerts.Severity.INFO:
            node_or_domain = place.domain or "" if place.node is None else f"{place.cluster}/{place.node}"
            by_place[node_or_domain if place.gpu is None else place.gpu].append(incident)
    return by_place


def _incident_state(place_incidents: Iterable[incidents.Incident]) -> HealthState:
    # The fault of a recovering incident has ended; its repair still has the node.
    return worst_state(
        HealthState.WARNING if incident.recovering_since else HealthState(incident.severity.value)
        for incident in place_incidents
    )


def _build_node(
    node: fleet.Node, sources: TopologySources, *, by_place: IncidentsByPlace, links: Sequence[TopologyLink]
) -> TopologyNode:
    is_silent = (node.cluster, node.name) in sources.silent
    slots = sources.layout.slots_by_node[node.cluster, node.name]
    gpus = tuple(_build_gpu(sources, slot, by_place, is_silent=is_silent) for slot in slots)
    places = (f"{node.cluster}/{node.name}", f"{signals.UNNAMED_CLUSTER}/{node.name}")
    node_incidents = [incident for place in dict.fromkeys(places) for incident in by_place.get(place, ())]
    has_unknown_gpus = not gpus and node.expected_gpus != 0
    state = worst_state(
        [
            _incident_state(node_incidents),
            HealthState.UNKNOWN if has_unknown_gpus else HealthState.HEALTHY,
            HealthState.SILENT if is_silent else HealthState.HEALTHY,
            *(gpu.state for gpu in gpus),
            *(link.state for link in links if link.state is not HealthState.UNKNOWN),
        ]
    )
    why = [incident.title for incident in node_incidents] + (["no target of the node answers"] if is_silent else [])
    why += ["no GPU reported, and the expected number is unknown"] if has_unknown_gpus else []
    return TopologyNode(node.name, node.pool, state, node.expected_gpus, gpus, tuple(links), tuple(why))


def _build_gpu(sources: TopologySources, slot: int, by_place: IncidentsByPlace, *, is_silent: bool) -> TopologyGpu:
    gpu = sources.layout.slots[slot].gpu
    if gpu is None:
        return TopologyGpu(None, None, HealthState.MISSING, "expected, but never reported")
    gpu_incidents = by_place.get(gpu.uuid, ())
    state = worst_state([_incident_state(gpu_incidents), HealthState.SILENT if is_silent else HealthState.HEALTHY])
    why = "; ".join(incident.title for incident in gpu_incidents)
    if gpu.uuid in sources.gone and not gpu_incidents:
        state, why = HealthState.GONE, "was present before, but its node no longer reports it"
    return TopologyGpu(gpu.index, gpu.uuid, state, why)


def _build_rack(
    name: str | None, leaves: Mapping[str | None, list[TopologyNode]], by_place: IncidentsByPlace
) -> TopologyRack:
    views = []
    for leaf, nodes in sorted(leaves.items(), key=_named_first):
        leaf_incidents = by_place.get(f"leaf={leaf}", ())
        state = worst_state([_incident_state(leaf_incidents), *(node.state for node in nodes)])
        views.append(TopologyLeaf(leaf, state, tuple(nodes), tuple(incident.title for incident in leaf_incidents)))
    rack_incidents = by_place.get(f"rack={name}", ())
    state = worst_state([_incident_state(rack_incidents), *(view.state for view in views)])
    return TopologyRack(name, state, tuple(views), tuple(incident.title for incident in rack_incidents))


def _named_first(item: tuple[str | None, object]) -> tuple[bool, tuple[tuple[int, str], ...]]:
    return item[0] is None, natural_sort_key(item[0] or "")


def list_fabric_links(watch: fabric_watch.FabricWatch | None) -> dict[str, list[TopologyLink]]:
    """Each node's ports from the newest sweep, and ports that were up in an earlier sweep and are down now."""
    if watch is None or watch.topology is None:
        return {}
    links_by_node: dict[str, list[TopologyLink]] = defaultdict(list)
    down_links = fabric_changes.down_links(watch.known_fabric)
    for link in watch.topology.host_links():
        port = link.port
        state = HealthState.HEALTHY if port.is_up else HealthState.DOWN
        why = "" if port.is_up else f"{port.state}/{port.physical}"
        if link.is_slow and port.is_up:
            state, why = HealthState.SLOW, "slower than the other ports of its switch"
        view = TopologyLink(link.adapter, port.number, state, port.gbps, link.switch, link.switch_port, why)
        links_by_node[link.node].append(view)
    for down in down_links.values():
        listed = {(view.device, view.port) for view in links_by_node[down.peer]} if down.adapter else set()
        if down.adapter and (down.adapter, down.peer_port) not in listed:
            why = "missing in the newest sweep"
            links_by_node[down.peer].append(
                TopologyLink(down.adapter, down.peer_port, HealthState.DOWN, None, down.switch, down.port, why)
            )
    return {node: _sort_links(views) for node, views in links_by_node.items()}


def _sort_links(links: Iterable[TopologyLink]) -> list[TopologyLink]:
    return sorted(links, key=lambda link: (natural_sort_key(link.device), link.port))


def list_host_links(
    states: Iterable[tuple[Labels, float]], rates: Iterable[tuple[Labels, float]], nodes: frozenset[str]
) -> dict[str, list[TopologyLink]]:
    """Each node's ports from `node_infiniband_state_id` and `node_infiniband_rate_bytes_per_second`."""
    rates_by_port = {port_key(labels): value for labels, value in rates}
    links_by_node: dict[str, dict[tuple[str, int], TopologyLink]] = defaultdict(dict)
    for labels, value in states:
        node, device, port = port_key(labels)
        if node not in nodes or not port.isdigit():
            continue
        is_active = value == ACTIVE_ID
        rate = rates_by_port.get((node, device, port))
        view = TopologyLink(
            device,
            int(port),
            HealthState.HEALTHY if is_active else HealthState.DOWN,
            None if rate is None else rate * GBPS_PER_BYTE,
            why="" if is_active else f"port state {STATE_NAMES.get(int(value), int(value))}",
        )
        links_by_node[node][device, int(port)] = view
    return {node: _sort_links(views.values()) for node, views in links_by_node.items()}


def port_key(labels: Labels) -> tuple[str, str, str]:
    node = labels.get("Hostname") or labels.get("instance", "").rsplit(":", 1)[0]
    return node, labels.get("device", ""), labels.get("port", "")


def list_switches(watch: fabric_watch.FabricWatch | None, *, is_fresh: bool = True) -> list[TopologySwitch]:
    """List all switches of this and earlier sweeps, the worst state first; without a fresh sweep states are unknown."""
    if watch is None or watch.topology is None:
        return []
    if not is_fresh:
        roles = ((switch.name, "leaf" if switch.is_leaf else "spine") for switch in watch.known_fabric.switches)
        return [TopologySwitch(name, role, HealthState.UNKNOWN, 0) for name, role in roles]
    layout = watch.topology
    problems_by_guid: dict[str, list[str]] = defaultdict(list)
    link_counts: dict[str, int] = defaultdict(int)
    gone = {switch.guid for switch in watch.known_fabric.switches if switch.gone_since_ms is not None}
    for link in watch.known_fabric.links:
        for guid in {link.guid, link.peer_guid}:
            link_counts[guid] += 1
        if link.down_since_ms is not None:
            # Deliberately not for links of a gone switch: the other end is not the problem.
            for guid in {link.guid, link.peer_guid} if not gone & {link.guid, link.peer_guid} else ():
                problems_by_guid[guid].append(f"{link} is down")
        elif link.key in layout.slow_ports:
            problems_by_guid[link.guid].append(f"{link} is slow: {_format_rate(layout.ports.get(link.key))}")
    views = []
    for switch in watch.known_fabric.switches:
        problems = problems_by_guid[switch.guid]
        state = HealthState.WARNING if problems else HealthState.HEALTHY
        if switch.guid in gone:
            state, problems = HealthState.GONE, ["missing in the newest sweep"]
        role = "leaf" if switch.is_leaf else "spine"
        views.append(TopologySwitch(switch.name, role, state, link_counts[switch.guid], tuple(problems)))
    return sorted(views, key=lambda view: (-view.state.rank, view.role, natural_sort_key(view.name)))


def _format_rate(port: fabric.FabricPort | None) -> str:
    return "unknown" if port is None or port.gbps is None else f"{port.gbps:g} Gb/s ({port.lanes}x {port.speed})"
