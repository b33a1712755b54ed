"""Read ports with state, rate, counters and line numbers from pasted output of InfiniBand tools.

ibstat and ibstatus list the ports of one node, iblinkinfo the ports of the fabric, perfquery and ibqueryerrors
the counters. The doctor compares the counters with packs/ib_counters.csv.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class PrintedPort:
    """One port in a tool's output; `owner` is the adapter, node or switch that the tool names."""

    owner: str
    number: str
    line: int
    state: str | None = None
    physical: str | None = None
    rate: str | None = None
    layer: str | None = None
    counters: dict[str, tuple[int, int]] = field(default_factory=dict)
    grew: bool = False


# CA 'mlx5_8'      then      Port 1:      then      State: Down
CA = re.compile(r"^\s*CA '(?P<name>[^']+)'")
PORT = re.compile(r"^\s*Port (?P<number>\d+):")
# Infiniband device 'mlx5_2' port 1 status:      then      state:  1: DOWN
STATUS = re.compile(r"^\s*Infiniband device '(?P<name>[^']+)' port (?P<number>\d+) status:")
FIELD = re.compile(
    r"^\s*(?P<name>State|Physical state|phys state|state|Rate|rate|Link layer|link_layer|port_state|phys_state)"
    r":\s*(?:\d+: )?(?P<value>.*?)\s*$"
)
# hca_id: mlx5_0
DEVINFO = re.compile(r"^\s*hca_id:\s*(?P<name>\S+)")
# SymbolErrorCounter:..............1234     # Port counters: Lid 4 port 4 (CapMask: 0x1300)
PERF_HEADER = re.compile(r"# Port (?:extended )?counters: Lid (?P<lid>\d+) port (?P<number>\d+)")
PERF_COUNTER = re.compile(r"^(?P<name>[A-Z]\w+):\.+(?P<value>\d{1,20})\s*$")
# Errors for 0xb8cef60300aa0200 "leaf2"      GUID 0x… port 4: [SymbolErrorCounter == 1234] [LinkDownedCounter == 7]
QUERY_NODE = re.compile(r'^Errors for (?:0x\w+ )?"(?P<name>[^"]*)"')
QUERY_PORT = re.compile(r"^\s+GUID 0x\w+ port (?P<number>\w+):(?P<rest>.*)$")
QUERY_COUNTER = re.compile(r"\[(?P<name>[A-Z]\w+) == (?P<value>\d{1,20})\b")
# -E- gpu07/U1/P1 - "symbol_error_counter" increased during the run (difference value=812,difference allowed …
# -W- link: "H-…"/P1<-->"S-…"/P5 - Either gpu07/U1 or spine01/P5 have "SymbolErrors" increased by 142 (threshold=10)
GROWN = re.compile(
    r"^-[WE]- (?:link: .* Either )?(?P<owner>[^\s/]+)(?:/\S+?)??(?:/P(?P<number>\d+))? (?:-|or \S+ have) "
    r'"(?P<name>\w+)" increased (?:during the run \(difference value=|by )(?P<value>\d{1,20})'
)
# -E- lid=0x0008 dev=51000 leaf2/U1/P27      then      symbol_error_counter                : 65535      (overflow)
# Port=1 Lid=0x0004 GUID=0xb8cef60300aa0200 Device=4129 Port Name=gpu07/U1/P1      then      vl15_dropped=0x01ff
DIAG_PORT = re.compile(
    r"^(?:-[WE]- lid=\S+ dev=\S+ (?P<owner>[^\s/]+)\S*?/P(?P<number>\d+)"
    r"|Port=(?P<pm_number>\d+) Lid=\S+ GUID=.*\bPort Name=(?P<pm_owner>[^\s/]+))"
)
DIAG_COUNTER = re.compile(r"^\s*(?P<name>[a-z]\w+)(?:\s+:\s|=)\s*(?P<value>0x[0-9a-fA-F]{1,16}|\d{1,20})\b")
# CA: gpu-node-4 mlx5_1:      0x… 12 1[ ] ==( 4X 53.125 Gbps Active/ LinkUp)==> 4 4[ ] "leaf2" ( )
LINK_OWNER = re.compile(r"^(?P<kind>CA|Switch): (?:0x\w+ )?(?P<name>.+?):\s*$")
LINK = re.compile(
    r'^\s*(?:0x\w+\s+)?(?:"\s*(?P<name>[^"]*)"\s+)?\d*\s+(?P<number>\d+)\[[^\]]*\] '
    r"==\(\s*(?P<speed>.*?)\s*(?P<state>Active|Down|Initialize|Armed)/\s*(?P<physical>\w+)\)==>(?P<rest>.*)$"
)
POSSIBLE_SPEED = re.compile(r"Could be (?P<could>[^)]+?)\s*\)")


def read_ports(lines: Sequence[str]) -> list[PrintedPort]:
    """Read ibstat, ibstatus and ibv_devinfo; an excerpt without a header is one port of an unknown adapter."""
    ports: list[PrintedPort] = []
    owner = ""
    for number, line in enumerate(lines, 1):
        if (match := CA.match(line) or DEVINFO.match(line)) is not None:
            owner = match["name"]
        elif (match := STATUS.match(line)) is not None:
            ports.append(PrintedPort(match["name"], match["number"], number))
        elif (match := PORT.match(line)) is not None or re.match(r"^\s*port:\s+\d+\s*$", line):
            ports.append(PrintedPort(owner, match["number"] if match else line.split()[-1], number))
        elif (match := FIELD.match(line)) is not None:
            if not ports:
                ports.append(PrintedPort(owner, "", number))
            _set_field(ports[-1], match["name"].lower(), match["value"], number)
    return [port for port in ports if port.state is not None]


def _set_field(port: PrintedPort, name: str, value: str, line: int) -> None:
    if name in ("state", "portstate", "port_state"):
        port.state, port.line = value.removeprefix("PORT_").split(" (")[0], line
    elif name in ("physical state", "phys state", "phys_state"):
        port.physical = value
    elif name == "rate":
        port.rate = value
    else:
        port.layer = value


def read_counters(lines: Sequence[str]) -> list[PrintedPort]:
    ports: list[PrintedPort] = []
    owner = ""
    for number, line in enumerate(lines, 1):
        if (match := PERF_HEADER.search(line)) is not None:
            ports.append(PrintedPort(f"lid {match['lid']}", match["number"], number))
        elif (match := QUERY_NODE.match(line)) is not None:
            owner = match["name"]
        elif (match := QUERY_PORT.match(line)) is not None:
            ports.append(PrintedPort(owner, match["number"], number))
            ports[-1].counters = {
                counter["name"]: (int(counter["value"]), number) for counter in QUERY_COUNTER.finditer(match["rest"])
            }
        elif ports and (match := PERF_COUNTER.match(line)) is not None:
            ports[-1].counters[match["name"]] = (int(match["value"]), number)
    return ports


def read_diag_counters(lines: Sequence[str]) -> list[PrintedPort]:
    """Read ibdiagnet's log and its file of counters; `grew` is set for counters that rose while it ran."""
    ports: list[PrintedPort] = []
    port: PrintedPort | None = None
    for number, line in enumerate(lines, 1):
        if (match := GROWN.match(line)) is not None:
            counters = {match["name"]: (int(match["value"]), number)}
            ports.append(PrintedPort(match["owner"], match["number"] or "", number, counters=counters, grew=True))
        elif (match := DIAG_PORT.match(line)) is not None:
            owner, of_owner = match["owner"] or match["pm_owner"], match["number"] or match["pm_number"]
            port = PrintedPort(owner, of_owner, number)
            ports.append(port)
        elif port is not None and (match := DIAG_COUNTER.match(line)) is not None:
            port.counters[match["name"]] = (int(match["value"], 0), number)
    return ports


def read_links(lines: Sequence[str]) -> Iterator[tuple[int, str, str, str, str, str]]:
    """Read iblinkinfo: line, kind of owner, owner, port, state, and the higher speed or width that is possible."""
    kind, owner = "", ""
    for number, line in enumerate(lines, 1):
        if (match := LINK_OWNER.match(line)) is not None:
            kind, owner = match["kind"], match["name"]
        elif (match := LINK.match(line)) is not None:
            possible = POSSIBLE_SPEED.search(match["rest"])
            name = (match["name"] or owner).strip()
            yield number, kind, name, match["number"], match["state"], possible["could"] if possible else ""
