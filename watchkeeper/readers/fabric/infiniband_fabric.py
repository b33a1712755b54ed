"""Printouts of infiniband-diags about a whole fabric, put together into one `model.fabric.Fabric`.

`ibnetdiscover` names the devices, `iblinkinfo -l` has every port with its state, rate and peer, and `ibqueryerrors`
the counters. Lines that are not understood are stepped over; a listing in which nothing was understood is a problem.
`collect/fabric_sweep` runs the programs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from watchkeeper.model.fabric import FabricDevice, FabricDeviceKind, FabricPort, PortKey

KINDS = {"Switch": FabricDeviceKind.SWITCH, "Ca": FabricDeviceKind.HOST, "Rt": FabricDeviceKind.ROUTER}
# switchguid=0xb8cef60300aa0200(b8cef60300aa0200)      caguid=0xb8cef60300000410
GUID = re.compile(r"^(?:switchguid|caguid|rtguid)=0x(?P<guid>[0-9a-f]+)(?:\((?P<port>[0-9a-f]+)\))?")
# Switch	8 "S-b8cef60300aa0200"		# "leaf2" base port 0 lid 4 lmc 0
# Ca	1 "H-b8cef60300000410"		# "gpu-node-4 mlx5_1"
OWNER = re.compile(r'^(?P<kind>Switch|Ca|Rt)\s+(?P<ports>\d+) "\w-(?P<guid>[0-9a-f]+)"\s+# "(?P<name>.*)"(?P<rest>.*)$')
LID = re.compile(r"\blid (\d+)")
# [1](b8cef60300000411) 	"S-b8cef60300aa0200"[4]		# lid 12 lmc 0 "leaf2" lid 4 4xHDR
OWN_PORT = re.compile(r'^\[(?P<number>\d+)\](?:\[\w+\])?\((?P<guid>[0-9a-f]+)\)\s+"')
# 0xb8cef60300000411 "node-4 mlx5_1" 12 1[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==>  0xb8cef60300aa0200 4 4[  ] "leaf2"
# 0xb8cef60300aa0200 "         leaf2" 4 5[  ] ==(                Down/ Polling)==>             [  ] "" ( )
LINE = re.compile(
    r'^0x(?P<guid>[0-9a-f]+) "\s*(?P<name>.*?)"\s+(?P<lid>\d+)\s+(?P<number>\d+)\[[^\]]*\] '
    r"==\(\s*(?:(?P<lanes>\d+)X\s+(?P<speed>[\d.]+) Gbps(?:\s*\([^)]*\))?)?\s*"
    r"(?P<state>\w+)\s*/\s*(?P<physical>[\w ]+?)\s*\)==>"
    r"\s*(?:0x(?P<peer>[0-9a-f]+)\s+\d+\s+(?P<peer_port>\d+)\[)?"
)
# Gb/s on the wire of one lane, as iblinkinfo prints them, and the name of that speed.
WIRE_SPEEDS = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "10.3125": "FDR10",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
#    GUID 0xb8cef60300aa0200 port 4: [SymbolErrorCounter == 1234] [LinkDownedCounter == 7]
#    GUID 0xb8cef60300aa0200 port 1: [PortXmitData == 2736 (10.688KB)] [PortRcvData == 2736 (10.688KB)]
COUNTED = re.compile(r"^\s+GUID 0x(?P<guid>[0-9a-f]+) port (?P<number>\d+):(?P<rest>.*)$")
COUNTER = re.compile(r"\[(?P<name>[A-Z]\w+) == (?P<value>\d+)")
# ##          40 ports checked, 2 ports have errors beyond threshold
CHECKED = re.compile(r"^##\s+(?P<ports>\d+) ports checked")
# A large fabric has some 50,000 ports; this is far above it.
MAX_PORTS = 500_000
# A node's text may hold anything; what is longer is cut, as the specification cuts it.
MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class DiscoveredDevices:
    """What ibnetdiscover says; `owner_of` finds a device by the GUID of any of its ports."""

    devices: tuple[FabricDevice, ...]
    owner_of: Mapping[str, str]


def read_devices(lines: Iterable[str]) -> DiscoveredDevices:
    devices: dict[str, FabricDevice] = {}
    owner_of: dict[str, str] = {}
    port_guid, owner = "", ""
    for line in lines:
        if (match := OWNER.match(line)) is not None:
            owner = full_guid(match["guid"])
            lid = LID.search(match["rest"])
            name = match["name"].strip()[:MAX_NAME]
            devices[owner] = FabricDevice(
                owner, KINDS[match["kind"]], name, int(match["ports"]), int(lid[1]) if lid is not None else None
            )
            owner_of[owner] = owner_of[port_guid or owner] = owner
            port_guid = ""
        elif (match := GUID.match(line)) is not None:
            port_guid = full_guid(match["port"] or match["guid"])
        elif owner and (match := OWN_PORT.match(line)) is not None:
            owner_of[full_guid(match["guid"])] = owner
    return DiscoveredDevices(tuple(devices.values()), owner_of)


def read_ports(lines: Iterable[str], owner_of: Mapping[str, str]) -> list[FabricPort]:
    """The ports of `iblinkinfo -l`; a port whose device nobody named is left out."""
    ports: dict[PortKey, FabricPort] = {}
    for line in lines:
        match = LINE.match(line)
        owner = None if match is None else owner_of.get(full_guid(match["guid"]))
        if match is None or owner is None or len(ports) >= MAX_PORTS:
            continue
        peer = owner_of.get(full_guid(match["peer"])) if match["peer"] else None
        port = FabricPort(
            owner,
            int(match["number"]),
            match["state"],
            match["physical"],
            lanes=int(match["lanes"]) if match["lanes"] else None,
            speed=None if match["speed"] is None else WIRE_SPEEDS.get(match["speed"], match["speed"]),
            peer_guid=peer,
            peer_port=int(match["peer_port"]) if peer is not None else None,
        )
        ports[port.key] = port
    return list(ports.values())


def read_counters(lines: Iterable[str], owner_of: Mapping[str, str]) -> tuple[dict[PortKey, dict[str, int]], int]:
    """Counters by port, and how many ports ibqueryerrors says it has asked."""
    found: dict[PortKey, dict[str, int]] = defaultdict(dict)
    checked = 0
    for line in lines:
        if (match := COUNTED.match(line)) is not None:
            owner = owner_of.get(full_guid(match["guid"]))
            if owner is not None and len(found) < MAX_PORTS:
                found[owner, int(match["number"])].update(_counters(match["rest"]))
        elif (match := CHECKED.match(line)) is not None:
            checked = int(match["ports"])
    return dict(found), checked


def _counters(text: str) -> Iterator[tuple[str, int]]:
    return ((found["name"], int(found["value"])) for found in COUNTER.finditer(text))


def with_counters(ports: Iterable[FabricPort], found: Mapping[PortKey, Mapping[str, int]]) -> list[FabricPort]:
    """The ports with what was found of each; a port that is in no listing did not answer, which is no zero."""
    return [replace(port, counters=found.get(port.key)) for port in ports]


def full_guid(guid: str) -> str:
    """One spelling of a GUID: 16 digits; UFM's telemetry and some tools leave leading zeros out."""
    return guid.lower().removeprefix("0x").rjust(16, "0")
