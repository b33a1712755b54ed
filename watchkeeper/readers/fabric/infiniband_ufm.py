"""Read devices, ports and counters from UFM: three lists of its REST API, and its telemetry.

The formats follow NVIDIA's "UFM Enterprise REST API Guide" (6.11 to 6.22) and recorded answers in NVIDIA's UFM SDK
(github.com/Mellanox/ufm_sdk_3.0: UFM_NDT_Plugin's `topoparse/data/ufm_samples`, the telemetry of the fluentd and PDR
plugins; read 2026-11). Telemetry is Prometheus text or CSV (`csv/metrics`, `csv/xcset/low_freq_debug`); UFM writes
`N/A`, `NULL` or nothing for unknown values.
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

EMPTY_VALUES = frozenset({"", "n/a", "null", "none"})
# Logical states are Active, Down, Initialize and Armed; physical states `Link Up`, `Polling` and `Link Down`.
STATES = {"active": ACTIVE, "down": DOWN, "inactive": DOWN, "init": "Initialize", "initialize": "Initialize"}
PORT_NAME = re.compile(r"^(?P<guid>(?:0x)?[0-9a-fA-F]{1,16})_(?P<number>\d+)$")
HEX = re.compile(r"^(?:0x)?[0-9a-fA-F]{1,16}$")
LAST_NUMBER = re.compile(r"\d{1,4}$")
WIDTH = re.compile(r"(\d+)\s*x", re.IGNORECASE)
# PortXmitDataExtended{source="0x…", node_guid="2c90300f172a0", port_guid="2c90300f172a2", port_num="2"} 85 1628683905
SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)\{(?P<labels>[^}]*)\}\s+(?P<value>[\d.eE+]+)")
LABEL = re.compile(r'(?P<name>\w+)="(?P<value>[^"]*)"')
# Telemetry adds a suffix to perfquery's name of the same counter.
EXTENDED_SUFFIX = re.compile(r"(_e|E)xt(ended)?$")
# UFM's monitoring attributes and low-frequency counters have different names for the same counters.
PERFQUERY_NAMES = {
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
# Infiniband_LinkDowned_u_Errors: streamed telemetry adds the unit to the name.
UNIT = re.compile(r"_u_\w+$")
# UFM counts bytes where perfquery counts words of 4 bytes: in the recorded telemetry 14190 management packets of 288
# bytes are 4086720, and the manual says bytes.
IN_BYTES = frozenset({"PortXmitData", "PortRcvData"})
BYTES_PER_WORD = 4
# Counters have 64 bits; other values are ignored.
COUNTER_LIMIT, MAX_DIGITS = 2**64, 20


def read_list(body: bytes, where: str) -> list[Mapping[str, Any]]:
    """Parse the list of objects that every UFM resource returns; CollectError for anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise CollectError(f"not JSON: {quote(body[:80])}", where=where) from error
    if isinstance(document, dict) and len(document) == 1:
        # A proxy or plugin in front of UFM may wrap the list: {"ports": […]}.
        document = next(iter(document.values()))
    if not isinstance(document, list):
        raise CollectError(f"expected a list, found {quote(document)}", where=where)
    return [row for row in document if isinstance(row, dict)]


def read_devices(ports: Iterable[Mapping[str, Any]], systems: Iterable[Mapping[str, Any]]) -> list[FabricDevice]:
    """One switch for each system of type switch, and one host adapter for each other GUID that ports name."""
    switches = {full_guid(_text(row, "guid")): row for row in systems if _text(row, "type").lower() == "switch"}
    devices: dict[str, FabricDevice] = {}
    for guid, row in switches.items():
        name = _text(row, "system_name") or _text(row, "name")
        devices[guid] = FabricDevice(guid, FabricDeviceKind.SWITCH, name[:MAX_NAME], len(row.get("ports") or ()))
    for row in ports:
        key = _key(row)
        if key is None or key[0] in devices or full_guid(_text(row, "systemID")) in switches:
            continue
        description = _text(row, "node_description") or f"{_text(row, 'system_name')} {_text(row, 'dname')}".strip()
        devices[key[0]] = FabricDevice(
            key[0], FabricDeviceKind.HOST, description[:MAX_NAME], 1, _read_number(row, "lid")
        )
    return list(devices.values())


def read_ports(
    rows: Iterable[Mapping[str, Any]], links: Iterable[Mapping[str, Any]], device_guids: Iterable[str]
) -> list[FabricPort]:
    """The ports of known devices; the peer is read from the port, or else from the list of links."""
    known_guids, peers = frozenset(device_guids), dict(_peers(links))
    ports: dict[PortKey, FabricPort] = {}
    for row in rows:
        key = _key(row)
        if key is None or key[0] not in known_guids or len(ports) >= MAX_PORTS:
            continue
        peer = _port_name(_text(row, "peer")) or peers.get(key) or _peer(row)
        logical_state = _text(row, "logical_state")
        state = STATES.get(logical_state.lower(), logical_state or DOWN)
        width = WIDTH.search(_text(row, "active_width"))
        ports[key] = FabricPort(
            *key,
            state,
            _text(row, "physical_state"),
            lanes=int(width[1]) if width is not None else None,
            speed=_text(row, "active_speed").upper() or None,
            peer_guid=peer[0] if peer is not None else None,
            peer_port=peer[1] if peer is not None else None,
        )
    return list(ports.values())


def read_telemetry(text: str) -> dict[PortKey, dict[str, int]]:
    """The counters of each port that are in the catalogue, with perfquery's names and units."""
    counters_by_port: dict[PortKey, dict[str, int]] = {}
    first_line = text.lstrip().split("\n", 1)[0]
    samples = _csv_samples(text) if "," in first_line and "{" not in first_line else _page_samples(text)
    for name, value, labels in samples:
        counter = _perfquery_name(name)
        number = labels.get("port_num") or labels.get("port_number") or ""
        # An adapter's port may have its own GUID, different from the adapter's.
        guids = {labels.get("node_guid", ""), labels.get("port_guid", "")}
        if counter is None or not number.isdigit() or len(counters_by_port) >= MAX_PORTS:
            continue
        count = value // (BYTES_PER_WORD if counter in IN_BYTES else 1)
        for guid in filter(HEX.match, guids):
            counters_by_port.setdefault((full_guid(guid), int(number)), {})[counter] = count
    return counters_by_port


def _page_samples(text: str) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    for line in text.splitlines():
        if (match := SAMPLE.match(line)) is not None and (value := _number(match["value"])) is not None:
            label_matches = LABEL.finditer(match["labels"])
            yield match["name"], value, {label["name"].lower(): label["value"] for label in label_matches}


def _csv_samples(text: str) -> Iterator[tuple[str, int, Mapping[str, str]]]:
    """Read CSV telemetry: timestamp,source_id,tag,node_guid,port_guid,port_num,PortXmitDataExtended,…"""
    rows = csv.reader(text.lstrip().splitlines())
    columns = next(rows, [])
    for row in rows:
        labels = {name.lower(): cell for name, cell in zip(columns, row, strict=False)}
        for name, cell in zip(columns, row, strict=False):
            if (value := _number(cell)) is not None:
                yield name, value, labels


@lru_cache(maxsize=1024)
def _perfquery_name(name: str) -> str | None:
    """perfquery's name of a telemetry counter; None if it is not in the catalogue."""
    plain = EXTENDED_SUFFIX.sub("", UNIT.sub("", name))
    plain = plain.replace("UniCast", "Unicast").replace("MultiCast", "Multicast")
    plain = PERFQUERY_NAMES.get(plain, plain)
    return plain if tables.find_counter(plain) is not None else None


def _number(text: str) -> int | None:
    try:
        # As a float, a counter at its 64-bit maximum would be rounded beyond the limit.
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value < COUNTER_LIMIT else None


def _key(row: Mapping[str, Any]) -> PortKey | None:
    """A port's device and number, from its name `guid_number` or from its own columns."""
    port_key = _port_name(_text(row, "name"))
    if port_key is not None:
        return port_key
    guid, number = _text(row, "guid"), _read_number(row, "number")
    return None if not guid or number is None else (full_guid(guid), number)


def _port_name(text: str) -> PortKey | None:
    match = PORT_NAME.match(text)
    return None if match is None else (full_guid(match["guid"]), int(match["number"]))


def _peer(row: Mapping[str, Any]) -> PortKey | None:
    """The peer from its own columns; the name of its port ends with the number, as in `HCA-2/1`."""
    guid = _text(row, "peer_node_guid") or _text(row, "peer_guid")
    number = LAST_NUMBER.search(_text(row, "peer_port_dname"))
    return (full_guid(guid), int(number[0])) if HEX.match(guid) and number is not None else None


def _peers(links: Iterable[Mapping[str, Any]]) -> Iterator[tuple[PortKey, PortKey]]:
    for row in links:
        numbers = _read_number(row, "source_port"), _read_number(row, "destination_port")
        guids: Sequence[str] = (_text(row, "source_guid"), _text(row, "destination_guid"))
        if all(guids) and numbers[0] is not None and numbers[1] is not None:
            source, destination = (full_guid(guids[0]), numbers[0]), (full_guid(guids[1]), numbers[1])
            yield source, destination
            yield destination, source


def _text(row: Mapping[str, Any], name: str) -> str:
    value = str(row.get(name, "")).strip()
    return "" if value.lower() in EMPTY_VALUES else value


def _read_number(row: Mapping[str, Any], name: str) -> int | None:
    text = _text(row, name)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else None
