"""The InfiniBand fabric in one sweep: devices, ports, cables and counters.

`readers.fabric` builds a `Fabric`, `clusters.fabric.fabric_watch` compares one sweep with the previous. A GUID
identifies a device, because two switches may share a name.
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
# Data rate of one lane in Gb/s by speed name; the signalling rate is higher because of the encoding.
LANE_GBPS = {
    "SDR": 2.0, "DDR": 4.0, "QDR": 8.0, "FDR10": 10.0, "FDR": 13.64, "EDR": 25.0, "HDR": 50.0, "NDR": 100.0,
    "XDR": 200.0,
}  # fmt: skip
# The description of an adapter that has not been given the name of its host: MT4129 ConnectX7   Mellanox Technologies
UNNAMED = re.compile(r"^MT\d+ |Mellanox Technologies|^$")
# With fewer comparable ports on a switch, the slow one cannot be identified.
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
        """The host of an adapter, from a description such as `gpu-node-1 mlx5_0`; None without a host name."""
        if self.kind is not FabricDeviceKind.HOST or UNNAMED.search(self.name):
            return None
        return self.name.rpartition(" ")[0].strip() or self.name

    @property
    def adapter(self) -> str:
        return self.name.rpartition(" ")[2]


@dataclass(frozen=True, slots=True)
class FabricPort:
    """One port; `counters` None: none were read. Otherwise an error counter that is missing is 0."""

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
    """One sweep. With `problems` it is incomplete: a missing device may exist. `unread` affects counters only."""

    at_ms: int
    source: str
    devices: tuple[FabricDevice, ...] = ()
    ports: tuple[FabricPort, ...] = ()
    problems: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HostLink:
    """A host's port and the switch port it is connected to; `switch` None: unknown, or connected to another host."""

    node: str
    adapter: str
    port: FabricPort
    switch: str | None = None
    switch_port: int | None = None
    is_slow: bool = False


class FabricTopology:
    """The connections of one sweep; each answer is computed once."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.devices = {device.guid: device for device in fabric.devices}
        self.ports = {port.key: port for port in fabric.ports}
        self._names = Counter(device.name for device in fabric.devices if device.kind is FabricDeviceKind.SWITCH)

    def switches(self) -> list[FabricDevice]:
        return [device for device in self.fabric.devices if device.kind is FabricDeviceKind.SWITCH]

    def device_name(self, guid: str) -> str:
        """A device's name; a switch without a unique name gets its GUID appended."""
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
        return guid in self._leaf_guids

    @cached_property
    def _leaf_guids(self) -> frozenset[str]:
        """Switches with a host attached."""
        return frozenset(port.guid for port in self.fabric.ports if self._link_type(port) == "host link")

    def _link_type(self, port: FabricPort) -> str:
        device, peer = self.devices.get(port.guid), self.devices.get(port.peer_guid or "")
        if device is None or peer is None or device.kind is not FabricDeviceKind.SWITCH:
            return ""
        return "host link" if peer.kind is FabricDeviceKind.HOST else "trunk"

    @cached_property
    def slow_ports(self) -> frozenset[PortKey]:
        """Switch ports below the rate that most ports of the same switch with the same use have."""
        groups: dict[tuple[str, str], list[FabricPort]] = defaultdict(list)
        for port in self.fabric.ports:
            if port.gbps is not None and port.is_up and self._link_type(port):
                groups[port.guid, self._link_type(port)].append(port)
        slow: set[PortKey] = set()
        for group in groups.values():
            usual_gbps, port_count = Counter(port.gbps or 0.0 for port in group).most_common(1)[0]
            if port_count >= MIN_PEERS:
                slow.update(port.key for port in group if (port.gbps or 0.0) < usual_gbps)
        return frozenset(slow)

    def links(self) -> Iterator[tuple[FabricPort, FabricPort]]:
        """Each cable once, the end with the smaller key first."""
        for port in self.fabric.ports:
            peer = self.ports.get(port.peer) if port.peer is not None else None
            if peer is not None and port.key < peer.key:
                yield port, peer

    def host_links(self) -> list[HostLink]:
        """The ports of all hosts that have a name, in the order of node, adapter and port."""
        host_links = []
        for port in self.fabric.ports:
            device = self.devices.get(port.guid)
            if device is None or device.node is None:
                continue
            peer = self.devices.get(port.peer_guid or "")
            is_switch = peer is not None and peer.kind is FabricDeviceKind.SWITCH
            switch = self.device_name(port.peer_guid or "") if is_switch else None
            is_slow = port.peer in self.slow_ports
            host_links.append(HostLink(device.node, device.adapter, port, switch, port.peer_port, is_slow))
        return sorted(host_links, key=lambda link: (link.node, natural_sort_key(link.adapter), link.port.number))

    def leaf_by_node(self) -> dict[str, str]:
        """The leaf of each node, taken from its first adapter, so that nodes of one rail group have the same leaf."""
        leaves: dict[str, str] = {}
        for link in self.host_links():
            if link.switch is not None:
                leaves.setdefault(link.node, link.switch)
        return leaves

    def unnamed_hosts(self) -> list[FabricDevice]:
        hosts = (device for device in self.fabric.devices if device.kind is FabricDeviceKind.HOST)
        return [host for host in hosts if host.node is None]


def natural_sort_key(text: str) -> list[tuple[int, str]]:
    """A sort key that counts digits as numbers: mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
