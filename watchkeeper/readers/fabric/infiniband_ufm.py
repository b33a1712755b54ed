"""UFM's answers about the fabric into devices, ports and counters: three lists of its REST API, and its telemetry.

The shapes are those of NVIDIA's "UFM Enterprise REST API Guide" (6.11 to 6.22) and of answers that NVIDIA's UFM SDK has
recorded (github.com/Mellanox/ufm_sdk_3.0: UFM_NDT_Plugin's `topoparse/data/ufm_samples`, the telemetry of the fluentd
and PDR plugins; read 2026-11), compared with clients that others have published. Telemetry comes as a Prometheus page
or as CSV (`csv/metrics`, `csv/xcset/low_freq_debug`). UFM writes `N/A`, `NULL` or nothing where it does not know; so do
we. `collect/ufm` asks for them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from watchkeeper.catalogue import tables
from watchkeeper.errors import CollectError, quote
from watchkeeper.model.fabric import ACTIVE, DOWN, FabricDevice, FabricDeviceKind, FabricPort, PortKey
from watchkeeper.readers.fabric.infiniband_fabric import MAX_NAME, MAX_PORTS, full_guid

NOTHING = frozenset({"", "n/a", "null", "none"})
# UFM says Active, Down, Initialize, Armed; and `Link Up`, `Polling` or `Link Down` of the physical side.
STATES = {"active": ACTIVE, "down": DOWN, "inactive": DOWN, "init": "Initialize", "initialize": "Initialize"}
PORT_NAME = re.compile(r"^(?P<guid>(?:0x)?[0-9a-fA-F]{1,16})_(?P<number>\d+)$")
HEX = re.compile(r"^(?:0x)?[0-9a-fA-F]{1,16}$")
LAST_NUMBER = re.compile(r"\d{1,4}$")
WIDTH = re.compile(r"(\d+)\s*x", re.IGNORECASE)
# PortXmitDataExtended{source="0x…", node_guid="2c90300f172a0", port_guid="2c90300f172a2", port_num="2"} 85 1628683905
SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>[\d.eE+]+)")
LABEL = re.compile(r'(?P<name>\w+)="(?P<value>[^"]*)"')
# The telemetry's names end differently from perfquery's for the same counter.
ENDINGS = re.compile(r"(_e|E)xt(ended)?$")
# Its other sets of counters have names of their own: the monitoring attributes of UFM, and the slower set.
OTHER_NAMES = {
    "Infiniband_SymbolErrors": "SymbolErrorCounter",
    "Infiniband_LinkRecovers": "LinkErrorRecoveryCounter",
    "Infiniband_LinkDowned": "LinkDownedCounter",
    "Infiniband_RcvErrors": "PortRcvErrors",
    "Infiniband_RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "Infiniband_RcvSwRelayErrors": "PortRcvSwitchRelayErrors",
    "Infiniband_XmtDiscards": "PortXmitDiscards",
    "Infiniband_XmtConstraintErrors": "PortXmitConstraintErrors",
    "Infiniband_RcvConstraintErrors": "PortRcvConstraintErrors",
    "Infiniband_LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "Infiniband_ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
    "Infiniband_VL15Dropped": "VL15Dropped",
    "Infiniband_XmitWait": "PortXmitWait",
    "Infiniband_MBOut": "PortXmitData",
    "Infiniband_MBIn": "PortRcvData",
    "Infiniband_PckOut": "PortXmitPkts",
    "Infiniband_PckIn": "PortRcvPkts",
    "Link_Down": "LinkDownedCounter",
}
# Infiniband_LinkDowned_u_Errors: the unit is a part of the name where telemetry is streamed.
UNIT = re.compile(r"_u_\w+$")
# UFM counts bytes where perfquery counts words of four: 14190 packets of management, 288 bytes each, are 4086720 in the
# recorded telemetry, and its manual says bytes.
IN_BYTES = frozenset({"PortXmitData", "PortRcvData"})
BYTES_A_WORD = 4
# Counters are of 64 bits; what is larger, or no number, is no reading.
MOST, DIGITS = 2**64, 20


def read_list(body: bytes, where: str) -> list[Mapping[str, Any]]:
    """A list of objects, as every resource of UFM is; CollectError for anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CollectError(f"not JSON: {quote(body[:80])}", where=where) from error
    if isinstance(found, dict) and len(found) == 1:
        # A proxy or plugin before UFM may wrap the list: {"ports": […]}.
        found = next(iter(found.values()))
    if not isinstance(found, list):
        raise CollectError(f"expected a list, found {quote(found)}", where=where)
    return [row for row in found if isinstance(row, dict)]


def read_devices(ports: Iterable[Mapping[str, Any]], systems: Iterable[Mapping[str, Any]]) -> list[FabricDevice]:
    """A switch for each system of that type, and a host's adapter for each GUID that its ports name."""
    switches = {full_guid(_text(row, "guid")): row for row in systems if _text(row, "type").lower() == "switch"}
    found: dict[str, FabricDevice] = {}
    for guid, row in switches.items():
        name = _text(row, "system_name") or _text(row, "name")
        found[guid] = FabricDevice(guid, FabricDeviceKind.SWITCH, name[:MAX_NAME], len(row.get("ports") or ()))
    for row in ports:
        key = _key(row)
        if key is None or key[0] in found or full_guid(_text(row, "systemID")) in switches:
            continue
        described = _text(row, "node_description") or f"{_text(row, 'system_name')} {_text(row, 'dname')}".strip()
        found[key[0]] = FabricDevice(key[0], FabricDeviceKind.HOST, described[:MAX_NAME], 1, _whole(row, "lid"))
    return list(found.values())


def read_ports(
    rows: Iterable[Mapping[str, Any]], links: Iterable[Mapping[str, Any]], known: Iterable[str]
) -> list[FabricPort]:
    """The ports of devices that are known; a peer comes from the port itself, else from the list of links."""
    guids, peers = frozenset(known), dict(_peers(links))
    found: dict[PortKey, FabricPort] = {}
    for row in rows:
        key = _key(row)
        if key is None or key[0] not in guids or len(found) >= MAX_PORTS:
            continue
        peer = _port_name(_text(row, "peer")) or peers.get(key) or _peer(row)
        said = _text(row, "logical_state")
        state = STATES.get(said.lower(), said or DOWN)
        width = WIDTH.search(_text(row, "active_width"))
        found[key] = FabricPort(
            *key,
            state,
            _text(row, "physical_state"),
            lanes=int(width[1]) if width is not None else None,
            speed=_text(row, "active_speed").upper() or None,
            peer_guid=peer[0] if peer is not None else None,
            peer_port=peer[1] if peer is not None else None,
        )
    return list(found.values())


def read_telemetry(text: str) -> dict[PortKey, dict[str, int]]:
    """Counters that the catalogue knows, by port, under perfquery's names and in its units."""
    found: dict[PortKey, dict[str, int]] = {}
    first = text.lstrip().split("\n", 1)[0]
    samples = _csv_samples(text) if "," in first and "{" not in first else _page_samples(text)
    for name, value, labels in samples:
        known = _counter(name)
        number = labels.get("port_num") or labels.get("port_number") or ""
        # A port of an adapter is listed under its own GUID, which need not be the adapter's.
        guids = {labels.get("node_guid", ""), labels.get("port_guid", "")}
        if known is None or not number.isdigit() or len(found) >= MAX_PORTS:
            continue
        whole = value // (BYTES_A_WORD if known in IN_BYTES else 1)
        for guid in filter(HEX.match, guids):
            found.setdefault((full_guid(guid), int(number)), {})[known] = whole
    return found


def _page_samples(text: str) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    for line in text.splitlines():
        if (match := SAMPLE.match(line)) is not None and (value := _number(match["value"])) is not None:
            named = LABEL.finditer(match["labels"])
            yield match["name"], value, {one["name"].lower(): one["value"] for one in named}


def _csv_samples(text: str) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    """timestamp,source_id,tag,node_guid,port_guid,port_num,PortXmitDataExtended,…: a row for each port."""
    rows = csv.reader(text.lstrip().splitlines())
    heads = next(rows, [])
    for row in rows:
        labels = {name.lower(): cell for name, cell in zip(heads, row, strict=False)}
        for name, cell in zip(heads, row, strict=False):
            if (value := _number(cell)) is not None:
                yield name, value, labels


@lru_cache(maxsize=1024)
def _counter(name: str) -> str | None:
    """perfquery's name of a counter of the telemetry; None: the catalogue does not know it."""
    plain = ENDINGS.sub("", UNIT.sub("", name))
    plain = plain.replace("UniCast", "Unicast").replace("MultiCast", "Multicast")
    plain = OTHER_NAMES.get(plain, plain)
    return plain if tables.find_counter(plain) is not None else None


def _number(text: str) -> int | None:
    try:
        # A float would round a counter that sticks at its maximum up to none.
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < MOST else None


def _key(row: Mapping[str, Any]) -> PortKey | None:
    """A port's device and number: its name is `guid_number`."""
    named = _port_name(_text(row, "name"))
    if named is not None:
        return named
    guid, number = _text(row, "guid"), _whole(row, "number")
    return None if not guid or number is None else (full_guid(guid), number)


def _port_name(text: str) -> PortKey | None:
    match = PORT_NAME.match(text)
    return None if match is None else (full_guid(match["guid"]), int(match["number"]))


def _peer(row: Mapping[str, Any]) -> PortKey | None:
    """The other end by its own columns; the name of its port ends with the number, as in `HCA-2/1`."""
    guid = _text(row, "peer_node_guid") or _text(row, "peer_guid")
    number = LAST_NUMBER.search(_text(row, "peer_port_dname"))
    return (full_guid(guid), int(number[0])) if HEX.match(guid) and number is not None else None


def _peers(links: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PortKey, PortKey]]:
    for row in links:
        numbers = _whole(row, "source_port"), _whole(row, "destination_port")
        guids: Sequence[str] = (_text(row, "source_guid"), _text(row, "destination_guid"))
        if all(guids) and numbers[0] is not None and numbers[1] is not None:
            here, there = (full_guid(guids[0]), numbers[0]), (full_guid(guids[1]), numbers[1])
            yield here, there
            yield there, here


def _text(row: Mapping[str, Any], name: str) -> str:
    value = str(row.get(name, "")).strip()
    return "" if value.lower() in NOTHING else value


def _whole(row: Mapping[str, Any], name: str) -> int | None:
    text = _text(row, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
