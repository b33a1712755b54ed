"""The InfiniBand fabric as one sweep saw it: devices, ports, what is plugged into what, and counters.

`readers/infiniband_fabric` makes a `Fabric` of what infiniband-diags print, `readers/infiniband_ufm` of what UFM
answers; `collect/fabric_watch` compares one sweep with the last, and `Layout` answers who is connected to whom. A GUID
names a device, because two switches may have one name.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

ACTIVE = "Active"
DOWN = "Down"
# Port states as the InfiniBand specification numbers them, and as node_exporter's `state_id` does.
STATE_IDS = {"Down": 1, "Initialize": 2, "Armed": 3, "Active": 4}
# Gb/s that one lane carries, by the name of its speed; what is on the wire is a little more because of the encoding.
LANE_GBPS = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
# What an adapter calls itself while nobody has told it the name of its host: MT4129 ConnectX7   Mellanox Technologies
UNNAMED = re.compile(r"^MT\d+ |Mellanox Technologies|^$")
# With fewer ports alike on a switch, nobody can say which of them is the slow one.
MIN_PEERS = 3

PortKey = tuple[str, int]


class FabricDeviceKind(StrEnum):
    SWITCH = "switch"
    HOST = "host"
    ROUTER = "router"


@dataclass(frozen=True, slots=True)
class FabricDevice:
    """A switch, or one adapter of a host; `guid` is 16 hexadecimal digits."""

    guid: str
    kind: FabricDeviceKind
    name: str
    ports: int
    lid: int | None = None

    @property
    def node(self) -> str | None:
        """The host an adapter sits in, from the description `gpu-node-1 mlx5_0`; None where it has no name yet."""
        if self.kind is not FabricDeviceKind.HOST or UNNAMED.search(self.name):
            return None
        return self.name.rpartition(" ")[0].strip() or self.name

    @property
    def adapter(self) -> str:
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True, slots=True)
class FabricPort:
    """One port; `counters` None means that none came. Where they did, an error that is not among them is 0."""

    guid: str
    number: int
    state: str
    physical: str = ""
    lanes: int | None = None
    speed: str | None = None
    peer_guid: str | None = None
    peer_port: int | None = None
    counters: Mapping[str, int] | None = None

    @property
    def key(self) -> PortKey:
        return self.guid, self.number

    @property
    def peer(self) -> PortKey | None:
        return None if self.peer_guid is None or self.peer_port is None else (self.peer_guid, self.peer_port)

    @property
    def is_up(self) -> bool:
        return self.state == ACTIVE

    @property
    def gbps(self) -> float | None:
        lane = LANE_GBPS.get(self.speed or "")
        return None if lane is None or self.lanes is None else lane * self.lanes


@dataclass(frozen=True, slots=True)
class Fabric:
    """One sweep. With `problems` it is not whole, and what is missing may be there; `unread` costs counters only."""

    at_ms: int
    source: str
    devices: tuple[FabricDevice, ...] = ()
    ports: tuple[FabricPort, ...] = ()
    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HostLink:
    """A host's port and where its cable ends; `switch` None: nobody knows, or the cable ends in another host."""

    node: str
    adapter: str
    port: FabricPort
    switch: str | None = None
    switch_port: int | None = None
    is_slow: bool = False


class FabricTopology:
    """Who is connected to whom in one sweep; each answer is computed once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.devices = {device.guid: device for device in fabric.devices}
        self.ports = {port.key: port for port in fabric.ports}
        self._names = Counter(device.name for device in fabric.devices if device.kind is FabricDeviceKind.SWITCH)

    def switches(self) -> list[FabricDevice]:
        return [device for device in self.fabric.devices if device.kind is FabricDeviceKind.SWITCH]

    def device_name(self, guid: str) -> str:
        """A device as people call it; a switch whose name another one has too, or none, is told apart by its GUID."""
        device = self.devices.get(guid)
        if device is None:
            return guid
        if device.kind is FabricDeviceKind.SWITCH and (not device.name or self._names[device.name] > 1):
            return f"{device.name}@{guid}"
        return device.name

    def shared_names(self) -> list[str]:
        """Names that more than one switch has."""
        return sorted(name for name, count in self._names.items() if count > 1)

    def is_leaf(self, guid: str) -> bool:
        return guid in self._leaves

    @cached_property
    def _leaves(self) -> frozenset[str]:
        """Switches with a host; a host is nearer to its leaf than to any other."""
        return frozenset(port.guid for port in self.fabric.ports if self._class(port) == "host link")

    def _class(self, port: FabricPort) -> str:
        here, there = self.devices.get(port.guid), self.devices.get(port.peer_guid or "")
        if here is None or there is None or here.kind is not FabricDeviceKind.SWITCH:
            return ""
        return "host link" if there.kind is FabricDeviceKind.HOST else "trunk"

    @cached_property
    def slow_ports(self) -> frozenset[PortKey]:
        """Switch ports below the rate that most ports of the same switch with the same use have."""
        groups: dict[tuple[str, str], list[FabricPort]] = defaultdict(list)
        for port in self.fabric.ports:
            if port.gbps is not None and port.is_up and self._class(port):
                groups[port.guid, self._class(port)].append(port)
        found: set[PortKey] = set()
        for group in groups.values():
            rates = Counter(port.gbps or 0.0 for port in group)
            usual, ports = rates.most_common(1)[0]
            if ports >= MIN_PEERS:
                found.update(port.key for port in group if (port.gbps or 0.0) < usual)
        return frozenset(found)

    def links(self) -> Iterator[tuple[FabricPort, FabricPort]]:
        """Each cable once, the end with the smaller key first."""
        for port in self.fabric.ports:
            there = self.ports.get(port.peer) if port.peer is not None else None
            if there is not None and port.key < there.key:
                yield port, there

    def host_links(self) -> list[HostLink]:
        """The ports of all hosts that have a name, in the order of node, adapter and port."""
        found = []
        for port in self.fabric.ports:
            device = self.devices.get(port.guid)
            if device is None or device.node is None:
                continue
            there = self.devices.get(port.peer_guid or "")
            is_switch = there is not None and there.kind is FabricDeviceKind.SWITCH
            switch = self.device_name(port.peer_guid or "") if is_switch else None
            is_slow = port.peer in self.slow_ports
            found.append(HostLink(device.node, device.adapter, port, switch, port.peer_port, is_slow))
        return sorted(found, key=lambda link: (link.node, natural_sort_key(link.adapter), link.port.number))

    def leaf_by_node(self) -> dict[str, str]:
        """The leaf of each node: that of its first adapter, so that nodes of one group of rails have the same."""
        leaves: dict[str, str] = {}
        for link in self.host_links():
            if link.switch is not None:
                leaves.setdefault(link.node, link.switch)
        return leaves

    def unnamed_hosts(self) -> list[FabricDevice]:
        return [
            device for device in self.fabric.devices if device.kind is FabricDeviceKind.HOST and device.node is None
        ]


def leaf_by_node(fabric: Fabric) -> dict[str, str]:
    """Node → leaf switch, for the inventory."""
    return FabricTopology(fabric).leaf_by_node()


def natural_sort_key(text: str) -> list[tuple[int, str]]:
    """A sort key that counts digits as numbers: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
