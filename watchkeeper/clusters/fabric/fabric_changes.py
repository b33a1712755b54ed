"""What changed in the fabric between two sweeps: links that went down and came back, switches that are gone.

`Known` is what was seen so far. It outlives a restart of the hub in a file, because a cable that went dark while the
hub was away is as broken as any other. `step` is pure: `fabric_watch` makes events of the changes it names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from watchkeeper.model.fabric import DOWN, FabricDevice, FabricDeviceKind, FabricPort, FabricTopology, PortKey

# What has been gone for so long was taken away on purpose.
FORGET_MS = 30 * 86_400_000
# More than any fabric has; beyond it new links are swept, but not remembered.
MAX_LINKS = 500_000


@dataclass(frozen=True, slots=True)
class KnownLink:
    """A cable that was seen: its switch end, and what is at the other end. `adapter` is empty for a switch there."""

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
        there = f"{self.peer} {self.adapter}" if self.adapter else f"{self.peer} port {self.peer_port}"
        return f"{self.switch} port {self.port} to {there}"


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
    """A link or a whole switch that went or came back; exactly one of `link` and `switch` is set."""

    is_up: bool
    text: str
    link: KnownLink | None = None
    switch: KnownSwitch | None = None


def compare_sweep(known: KnownFabric, layout: FabricTopology, now_ms: int) -> tuple[KnownFabric, list[FabricChange]]:
    """What is known after this sweep, and what changed with it."""
    switches, changed = _switches(known, layout, now_ms)
    gone = {switch.guid for switch in switches if switch.gone_since_ms is not None}
    back = {change.switch.guid for change in changed if change.switch is not None and change.is_up}
    seen = {link.key: link for link in _seen(layout)}
    taken = {end: link.key for link in seen.values() for end in link.ends}
    links = dict(seen)
    for link in known.links:
        if link.key in seen and seen[link.key].ends == link.ends:
            # What a whole switch took along comes back with it, and needs no word of its own either time.
            if link.down_since_ms is not None and not back & {link.guid, link.peer_guid}:
                changed.append(FabricChange(True, f"{link} is up again", link=seen[link.key]))
        elif not any(end in taken for end in link.ends):
            # A cable that was plugged elsewhere has an end that is taken; it is no longer this link.
            since = link.down_since_ms
            if since is None and not gone & {link.guid, link.peer_guid}:
                changed.append(FabricChange(False, _why_down(link, layout), link=link))
            if since is None or now_ms - since < FORGET_MS:
                links[link.key] = replace(link, down_since_ms=now_ms if since is None else since)
    return KnownFabric(tuple(list(links.values())[:MAX_LINKS]), switches), changed


def _switches(
    known: KnownFabric, layout: FabricTopology, now_ms: int
) -> tuple[tuple[KnownSwitch, ...], list[FabricChange]]:
    there = {
        one.guid: KnownSwitch(one.guid, layout.device_name(one.guid), layout.is_leaf(one.guid))
        for one in layout.switches()
    }
    changed: list[FabricChange] = []
    kept = dict(there)
    for switch in known.switches:
        since = switch.gone_since_ms
        if switch.guid in there:
            # A leaf whose hosts are all dark for a moment is a leaf all the same.
            kept[switch.guid] = replace(there[switch.guid], is_leaf=switch.is_leaf or there[switch.guid].is_leaf)
            if since is not None:
                changed.append(FabricChange(True, f"switch {switch.name} is back", switch=kept[switch.guid]))
        elif since is None or now_ms - since < FORGET_MS:
            kept[switch.guid] = replace(switch, gone_since_ms=now_ms if since is None else since)
            if since is None:
                links = sum(switch.guid in (link.guid, link.peer_guid) for link in known.links)
                text = f"switch {switch.name} is gone from the fabric, with its {links} links"
                changed.append(FabricChange(False, text, switch=kept[switch.guid]))
    return tuple(kept.values()), changed


def _seen(layout: FabricTopology) -> Iterable[KnownLink]:
    for one, other in layout.links():
        here, there = (one, other) if _rank(layout, one) <= _rank(layout, other) else (other, one)
        device = layout.devices[there.guid]
        if layout.devices[here.guid].kind is FabricDeviceKind.SWITCH:
            named = device.node or device.name or device.guid
            peer, adapter = (
                (layout.device_name(there.guid), "")
                if device.kind is FabricDeviceKind.SWITCH
                else (named, device.adapter)
            )
            yield KnownLink(here.guid, here.number, layout.device_name(here.guid), *there.key, peer, adapter)


def _rank(layout: FabricTopology, port: FabricPort) -> tuple[bool, bool, PortKey]:
    """A link is named from its switch, and a trunk from its leaf."""
    device: FabricDevice = layout.devices[port.guid]
    return device.kind is not FabricDeviceKind.SWITCH, not layout.is_leaf(port.guid), port.key


def _why_down(link: KnownLink, layout: FabricTopology) -> str:
    port = layout.ports.get(link.key)
    if port is None:
        return f"{link} is down: the port is no longer listed"
    said = f"{port.state}/{port.physical}" if port.physical else port.state
    is_dark = port.state == DOWN
    return f"{link} is down: the port is {said}" + ("" if is_dark else ", and nothing is known at its other end")


def down_links(known: KnownFabric) -> Mapping[PortKey, KnownLink]:
    return {link.key: link for link in known.links if link.down_since_ms is not None}
