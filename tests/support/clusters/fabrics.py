"""Small fabrics written by hand: two leaves, one spine, as many hosts as a test wants."""

from __future__ import annotations

from dataclasses import replace

from watchkeeper.model import fabric

SPINE = "b8cef6bb00000000"


def leaf(at: int) -> str:
    return f"b8cef6aa000000{at}0"


def host(at: int) -> str:
    return f"b8cef603000000{at}0"


def fabric_of(hosts: int = 4, *, leaves: int = 2, names: tuple[str, ...] = ("leaf-0", "leaf-1")) -> fabric.Fabric:
    """Hosts in turn on the leaves, at 400 Gb/s; each leaf has its trunk on port 9."""
    devices = [fabric.FabricDevice(SPINE, fabric.FabricDeviceKind.SWITCH, "spine-0", 16)]
    devices += [fabric.FabricDevice(leaf(at), fabric.FabricDeviceKind.SWITCH, names[at], 16) for at in range(leaves)]
    devices += [fabric.FabricDevice(host(at), fabric.FabricDeviceKind.HOST, f"n{at} mlx5_0", 1) for at in range(hosts)]
    cables = [((leaf(at), 9), (SPINE, at + 1)) for at in range(leaves)]
    cables += [((leaf(at % leaves), at // leaves + 1), (host(at), 1)) for at in range(hosts)]
    ports = [_port(*ends) for end, other in cables for ends in ((end, other), (other, end))]
    return fabric.Fabric(0, "test", tuple(devices), tuple(ports))


def _port(here: fabric.PortKey, there: fabric.PortKey) -> fabric.FabricPort:
    return fabric.FabricPort(*here, fabric.ACTIVE, "LinkUp", 4, "NDR", *there, {})


def without_link(whole_fabric: fabric.Fabric, *keys: fabric.PortKey) -> fabric.Fabric:
    """The same with these switch ports dark; a host at the other end is no longer seen."""
    far = {port.peer for port in whole_fabric.ports if port.key in keys}
    dark = [
        fabric.FabricPort(*port.key, fabric.DOWN, "Polling") if port.key in {*keys, *far} else port
        for port in whole_fabric.ports
    ]
    lost = {peer[0] for peer in far if peer is not None and peer[0].startswith("b8cef603")}
    return replace(
        whole_fabric,
        devices=tuple(device for device in whole_fabric.devices if device.guid not in lost),
        ports=tuple(port for port in dark if port.guid not in lost),
    )


def without_device(whole_fabric: fabric.Fabric, guid: str) -> fabric.Fabric:
    ports = without_link(whole_fabric, *(port.key for port in whole_fabric.ports if port.guid == guid)).ports
    devices = tuple(device for device in whole_fabric.devices if device.guid != guid)
    return replace(whole_fabric, devices=devices, ports=tuple(port for port in ports if port.guid != guid))
