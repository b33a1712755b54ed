"""Compare two sweeps of the fabric: links that went down or came up, switches that went missing or returned.

`KnownFabric` holds all links and switches so far. `fabric_watch` stores it in a file, so that a link that goes down
while the hub is stopped is reported after the restart, and turns each `FabricChange` into an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from watchkeeper.model.fabric import DOWN, FabricDeviceKind, FabricPort, FabricTopology, PortKey

# After this long, a missing link or switch counts as removed on purpose.
FORGET_MS = 30 * 86_400_000
# More than any fabric has. Links above the limit are not remembered, so their changes are not detected.
MAX_LINKS = 500_000


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A link, with the port of its switch and its peer. `adapter` is empty if the peer is a switch."""

    guid: str
    port: int
    switch: str
    peer_guid: str
    peer_port: int
    peer: str
    adapter: str = ""
    down_since_ms: int | None = None

    @property
    def key(self) -> PortKey:
        return self.guid, self.port

    @property
    def ends(self) -> tuple[PortKey, PortKey]:
        return (self.guid, self.port), (self.peer_guid, self.peer_port)

    def __str__(self) -> str:
        far_end = f"{self.peer} {self.adapter}" if self.adapter else f"{self.peer} port {self.peer_port}"
        return f"{self.switch} port {self.port} to {far_end}"


@dataclass(frozen=True, slots=True)
class KnownSwitch:
    guid: str
    name: str
    is_leaf: bool
    gone_since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class KnownFabric:
    links: tuple[KnownLink, ...] = ()
    switches: tuple[KnownSwitch, ...] = ()


@dataclass(frozen=True, slots=True)
class FabricChange:
    """A link or switch that went down or came up; exactly one of `link` and `switch` is set."""

    is_up: bool
    text: str
    link: KnownLink | None = None
    switch: KnownSwitch | None = None


def compare_sweep(previous: KnownFabric, layout: FabricTopology, now_ms: int) -> tuple[KnownFabric, list[FabricChange]]:
    """The known fabric after this sweep, and the changes."""
    switches, changes = _compare_switches(previous, layout, now_ms)
    missing_guids = {switch.guid for switch in switches if switch.gone_since_ms is not None}
    returned_guids = {change.switch.guid for change in changes if change.switch is not None and change.is_up}
    current_links = {link.key: link for link in _read_links(layout)}
    used_ends = {end: link.key for link in current_links.values() for end in link.ends}
    links = dict(current_links)
    for link in previous.links:
        if link.key in current_links and current_links[link.key].ends == link.ends:
            # Links that went down and came up with their switch get no event: the event of the switch covers them.
            if link.down_since_ms is not None and not returned_guids & {link.guid, link.peer_guid}:
                changes.append(FabricChange(True, f"{link} is up again", link=current_links[link.key]))
        elif not any(end in used_ends for end in link.ends):
            # If another link uses one of its ends, the cable was moved: this link no longer exists.
            since_ms = link.down_since_ms
            if since_ms is None and not missing_guids & {link.guid, link.peer_guid}:
                changes.append(FabricChange(False, _describe_down_link(link, layout), link=link))
            if since_ms is None or now_ms - since_ms < FORGET_MS:
                links[link.key] = replace(link, down_since_ms=now_ms if since_ms is None else since_ms)
    return KnownFabric(tuple(list(links.values())[:MAX_LINKS]), switches), changes


def _compare_switches(
    previous: KnownFabric, layout: FabricTopology, now_ms: int
) -> tuple[tuple[KnownSwitch, ...], list[FabricChange]]:
    current = {
        switch.guid: KnownSwitch(switch.guid, layout.device_name(switch.guid), layout.is_leaf(switch.guid))
        for switch in layout.switches()
    }
    changes: list[FabricChange] = []
    switches = dict(current)
    for switch in previous.switches:
        since_ms = switch.gone_since_ms
        if switch.guid in current:
            # A leaf stays a leaf while the links of all its nodes are down.
            is_leaf = switch.is_leaf or current[switch.guid].is_leaf
            switches[switch.guid] = replace(current[switch.guid], is_leaf=is_leaf)
            if since_ms is not None:
                changes.append(FabricChange(True, f"switch {switch.name} is up again", switch=switches[switch.guid]))
        elif since_ms is None or now_ms - since_ms < FORGET_MS:
            switches[switch.guid] = replace(switch, gone_since_ms=now_ms if since_ms is None else since_ms)
            if since_ms is None:
                links = sum(switch.guid in (link.guid, link.peer_guid) for link in previous.links)
                text = f"switch {switch.name} is no longer in the fabric, nor are its {links} links"
                changes.append(FabricChange(False, text, switch=switches[switch.guid]))
    return tuple(switches.values()), changes


def _read_links(layout: FabricTopology) -> Iterable[KnownLink]:
    for first, second in layout.links():
        near, far = sorted((first, second), key=lambda port: _naming_order(layout, port))
        device = layout.devices[far.guid]
        if layout.devices[near.guid].kind is FabricDeviceKind.SWITCH:
            peer, adapter = device.node or device.name or device.guid, device.adapter
            if device.kind is FabricDeviceKind.SWITCH:
                peer, adapter = layout.device_name(far.guid), ""
            yield KnownLink(near.guid, near.number, layout.device_name(near.guid), *far.key, peer, adapter)


def _naming_order(layout: FabricTopology, port: FabricPort) -> tuple[bool, bool, PortKey]:
    """Sort key of a link's ends: a link is named after its switch, a link between switches after its leaf."""
    is_switch = layout.devices[port.guid].kind is FabricDeviceKind.SWITCH
    return not is_switch, not layout.is_leaf(port.guid), port.key


def _describe_down_link(link: KnownLink, layout: FabricTopology) -> str:
    port = layout.ports.get(link.key)
    if port is None:
        return f"{link} is down: the port is no longer listed"
    state = f"{port.state}/{port.physical}" if port.physical else port.state
    return f"{link} is down: the port is {state}" + ("" if port.state == DOWN else ", its peer is unknown")


def down_links(known_fabric: KnownFabric) -> Mapping[PortKey, KnownLink]:
    return {link.key: link for link in known_fabric.links if link.down_since_ms is not None}
