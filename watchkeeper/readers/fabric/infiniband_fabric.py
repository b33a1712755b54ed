"""Read devices, ports and counters of a whole fabric from the output of infiniband-diags.

`ibnetdiscover` lists the devices, `iblinkinfo -l` the ports and links, `ibqueryerrors` the counters; unknown lines are
skipped. `clusters.fabric.fabric_sweep` runs the programs, and reports output without any known line as a problem.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from watchkeeper.model.fabric import FabricDevice, FabricDeviceKind, FabricPort, PortKey

KINDS = {"Switch": FabricDeviceKind.SWITCH, "Ca": FabricDeviceKind.HOST, "Rt": FabricDeviceKind.ROUTER}
# switchguid=0xb8cef60300aa0200(b8cef60300aa0200)      caguid=0xb8cef60300000410
GUID = re.compile(r"^(?:switchguid|caguid|rtguid)=0x(?P<guid>[0-9a-f]+)(?:\((?P<port>[0-9a-f]+)\))?")
# Switch	8 "S-b8cef60300aa0200"		# "leaf2" base port 0 lid 4 lmc 0
# Ca	1 "H-b8cef60300000410"		# "gpu-node-4 mlx5_1"
DEVICE = re.compile(
    r'^(?P<kind>Switch|Ca|Rt)\s+(?P<ports>\d+) "\w-(?P<guid>[0-9a-f]+)"\s+# "(?P<name>.*)"(?P<rest>.*)$'
)
LID = re.compile(r"\blid (\d+)")
# [1](b8cef60300000411) 	"S-b8cef60300aa0200"[4]		# lid 12 lmc 0 "leaf2" lid 4 4xHDR
DEVICE_PORT = re.compile(r'^\[(?P<number>\d+)\](?:\[\w+\])?\((?P<guid>[0-9a-f]+)\)\s+"')
# 0xb8cef60300000411 "node-4 mlx5_1" 12 1[  ] ==( 4X 53.125 Gbps Active/  LinkUp)==>  0xb8cef60300aa0200 4 4[  ] "leaf2"
# 0xb8cef60300aa0200 "         leaf2" 4 5[  ] ==(                Down/ Polling)==>             [  ] "" ( )
LINK = re.compile(
    r'^0x(?P<guid>[0-9a-f]+) "\s*(?P<name>.*?)"\s+(?P<lid>\d+)\s+(?P<number>\d+)\[[^\]]*\] '
    r"==\(\s*(?:(?P<lanes>\d+)X\s+(?P<speed>[\d.]+) Gbps(?:\s*\([^)]*\))?)?\s*"
    r"(?P<state>\w+)\s*/\s*(?P<physical>[\w ]+?)\s*\)==>"
    r"\s*(?:0x(?P<peer>[0-9a-f]+)\s+\d+\s+(?P<peer_port>\d+)\[)?"
)
# Signalling rate of one lane in Gb/s, as iblinkinfo prints it, and the name of that speed.
WIRE_SPEEDS = {"2.5": "SDR", "5.0": "DDR", "10.0": "QDR", "10.3125": "FDR10", "14.0625": "FDR", "25.78125": "EDR"}
WIRE_SPEEDS |= {"53.125": "HDR", "106.25": "NDR", "212.5": "XDR"}
#    GUID 0xb8cef60300aa0200 port 4: [SymbolErrorCounter == 1234] [LinkDownedCounter == 7]
#    GUID 0xb8cef60300aa0200 port 1: [PortXmitData == 2736 (10.688KB)] [PortRcvData == 2736 (10.688KB)]
PORT_COUNTERS = re.compile(r"^\s+GUID 0x(?P<guid>[0-9a-f]+) port (?P<number>\d+):(?P<rest>.*)$")
COUNTER = re.compile(r"\[(?P<name>[A-Z]\w+) == (?P<value>\d+)")
# ##          40 ports checked, 2 ports have errors beyond threshold
PORTS_CHECKED = re.compile(r"^##\s+(?P<ports>\d+) ports checked")
# A large fabric has about 50,000 ports.
MAX_PORTS = 500_000
# The specification limits a node description to 64 bytes; longer text is truncated.
MAX_NAME = 64


def read_devices(lines: Iterable[str]) -> tuple[tuple[FabricDevice, ...], Mapping[str, str]]:
    """Read the devices of ibnetdiscover, and the GUID of the device of each port by the GUID of the port."""
    devices: dict[str, FabricDevice] = {}
    device_of_port: dict[str, str] = {}
    port_guid, device_guid = "", ""
    for line in lines:
        if (match := DEVICE.match(line)) is not None:
            device_guid = full_guid(match["guid"])
            lid = LID.search(match["rest"])
            name = match["name"].strip()[:MAX_NAME]
            devices[device_guid] = FabricDevice(
                device_guid, KINDS[match["kind"]], name, int(match["ports"]), int(lid[1]) if lid is not None else None
            )
            device_of_port[device_guid] = device_of_port[port_guid or device_guid] = device_guid
            port_guid = ""
        elif (match := GUID.match(line)) is not None:
            port_guid = full_guid(match["port"] or match["guid"])
        elif device_guid and (match := DEVICE_PORT.match(line)) is not None:
            device_of_port[full_guid(match["guid"])] = device_guid
    return tuple(devices.values()), device_of_port


def read_ports(lines: Iterable[str], device_of_port: Mapping[str, str]) -> list[FabricPort]:
    """Read the ports of `iblinkinfo -l`; a port of an unknown device is dropped."""
    ports: dict[PortKey, FabricPort] = {}
    for line in lines:
        match = LINK.match(line)
        device_guid = None if match is None else device_of_port.get(full_guid(match["guid"]))
        if match is None or device_guid is None or len(ports) >= MAX_PORTS:
            continue
        peer = device_of_port.get(full_guid(match["peer"])) if match["peer"] else None
        port = FabricPort(
            device_guid,
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


def read_counters(lines: Iterable[str], device_of_port: Mapping[str, str]) -> tuple[dict[PortKey, dict[str, int]], int]:
    """Read the counters of each port from ibqueryerrors, and the number of ports that it checked."""
    counters_by_port: dict[PortKey, dict[str, int]] = defaultdict(dict)
    ports_checked = 0
    for line in lines:
        if (match := PORT_COUNTERS.match(line)) is not None:
            device_guid = device_of_port.get(full_guid(match["guid"]))
            if device_guid is not None and len(counters_by_port) < MAX_PORTS:
                counters = {counter["name"]: int(counter["value"]) for counter in COUNTER.finditer(match["rest"])}
                counters_by_port[device_guid, int(match["number"])].update(counters)
        elif (match := PORTS_CHECKED.match(line)) is not None:
            ports_checked = int(match["ports"])
    return dict(counters_by_port), ports_checked


def add_counters(
    ports: Iterable[FabricPort], counters_by_port: Mapping[PortKey, Mapping[str, int]]
) -> list[FabricPort]:
    """The ports with their counters; None for a port that ibqueryerrors does not list, because it did not answer."""
    return [replace(port, counters=counters_by_port.get(port.key)) for port in ports]


def full_guid(guid: str) -> str:
    """The GUID with 16 lower-case digits; UFM's telemetry and some tools omit leading zeros."""
    return guid.lower().removeprefix("0x").rjust(16, "0")
