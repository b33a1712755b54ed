"""Read this node's InfiniBand and RoCE adapters from /sys/class/infiniband.

A file may vanish during the read (when a driver reloads) or fail to read (EINVAL for a GID that is not set, EOPNOTSUPP
for a counter that the hardware lacks): the value is then absent, never zero. `agent.port_counters` reads with a
deadline, because a read hangs while the firmware does not answer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.model import fleet
from watchkeeper.readers.node.host import MAX_DIGITS, read_number, read_text

CLASS = "class/infiniband"
# 400 Gb/sec (4X NDR)
RATE = re.compile(r"^(?P<gbps>[\d.]+) Gb/sec(?: \((?P<lanes>\d+)X(?: (?P<speed>\w+))?\))?")
# 4: ACTIVE      5: LinkUp
NUMBERED = re.compile(r"^(?P<id>\d+): (?P<name>\w+)")
# hw_counters/lifespan is the time in ms for which the kernel caches the counters.
NOT_COUNTERS = frozenset({"lifespan"})
ETHERNET = "Ethernet"
# mlx5 has 128 or 256 entries a port, of which a handful are set.
MAX_GIDS = 256
MAX_PORTS = 64
MAX_COUNTERS = 256
UNSET_GID = re.compile(r"^(?:fe80|0000)?[0:]*$")


@dataclass(frozen=True, slots=True)
class Gid:
    """One entry of a port's GID table; `kind` is `IB/RoCE v1` or `RoCE v2`."""

    index: int
    gid: str
    kind: str | None = None
    netdev: str | None = None


@dataclass(frozen=True, slots=True)
class SysfsPort:
    """The current state of one port. Counters are the raw numbers, by folder and file name."""

    device: str
    number: int
    state_id: int | None = None
    physical_id: int | None = None
    bytes_per_second: float | None = None
    counters: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Netdev:
    """The network interface of an adapter; `carrier_changes` counts link up and link down."""

    name: str
    mtu_bytes: int | None = None
    carrier_changes: int | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """The values of an adapter that rarely change: firmware, board, identity, interfaces and GID tables."""

    name: str
    firmware: str | None = None
    board: str | None = None
    model: str | None = None
    node_guid: str | None = None
    pci: str | None = None
    netdevs: tuple[Netdev, ...] = ()
    gids: Mapping[int, tuple[Gid, ...]] = field(default_factory=dict)
    layers: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_roce(self) -> bool:
        return ETHERNET in self.layers.values()


def list_devices(sysfs: Path) -> list[str]:
    return sorted(path.name for path in _list_files(sysfs / CLASS))


def read_ports(sysfs: Path, device: str) -> list[SysfsPort]:
    """Read the ports of one adapter with all their counters."""
    ports = []
    for number, folder in _ports(sysfs / CLASS / device):
        rate = RATE.match(read_text(folder / "rate") or "")
        ports.append(
            SysfsPort(
                device,
                number,
                state_id=_read_state_id(folder / "state"),
                physical_id=_read_state_id(folder / "phys_state"),
                bytes_per_second=float(rate["gbps"]) * 1e9 / 8 if rate is not None else None,
                counters=dict(_counters(folder)),
            )
        )
    return ports


def read_adapter(sysfs: Path, device: str) -> Adapter:
    folder = sysfs / CLASS / device
    ports = _ports(folder)
    netdevs = [path.name for path in _list_files(folder / "device/net")]
    return Adapter(
        device,
        firmware=read_text(folder / "fw_ver"),
        board=read_text(folder / "board_id"),
        model=read_text(folder / "hca_type"),
        node_guid=(read_text(folder / "node_guid") or "").replace(":", "") or None,
        pci=_pci_address(folder / "device"),
        netdevs=tuple(_read_netdev(sysfs, name) for name in sorted(netdevs)),
        gids={number: tuple(_gids(port)) for number, port in ports},
        layers={number: layer for number, port in ports if (layer := read_text(port / "link_layer")) is not None},
    )


def _ports(folder: Path) -> list[tuple[int, Path]]:
    numbered = [(int(path.name), path) for path in _list_files(folder / "ports") if path.name.isdigit()]
    return sorted(numbered)[:MAX_PORTS]


def _counters(folder: Path) -> Iterator[tuple[tuple[str, str], int]]:
    """Deliberately without Path, for speed: ten adapters have 500 counters, read every few seconds on every node."""
    for kind in ("counters", "hw_counters"):
        directory = f"{folder}/{kind}"
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names[:MAX_COUNTERS]:
            value = None if name in NOT_COUNTERS else _counter(f"{directory}/{name}")
            if value is not None:
                yield (kind, name), value


def _counter(path: str) -> int | None:
    """Read a counter; None for `N/A (no PMA)`, which a port without performance management returns."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(file, MAX_DIGITS + 2).strip()
    except OSError:
        return None
    finally:
        os.close(file)
    return int(text) if text.isdigit() and len(text) <= MAX_DIGITS else None


def _gids(port: Path) -> Iterator[Gid]:
    gid_files = (path for path in _list_files(port / "gids") if path.name.isdigit())
    for path in sorted(gid_files, key=lambda path: int(path.name))[:MAX_GIDS]:
        gid = read_text(path)
        if not gid or UNSET_GID.match(gid):
            continue
        attributes = port / "gid_attrs"
        kind, netdev = read_text(attributes / "types" / path.name), read_text(attributes / "ndevs" / path.name)
        yield Gid(int(path.name), gid, kind or None, netdev or None)


def _read_netdev(sysfs: Path, name: str) -> Netdev:
    folder = sysfs / "class/net" / name
    return Netdev(name, read_number(folder / "mtu"), read_number(folder / "carrier_changes"))


def _pci_address(link: Path) -> str | None:
    try:
        return fleet.normalise_pci(link.resolve().name)
    except (OSError, ValueError, RuntimeError):
        return None


def _list_files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _read_state_id(path: Path) -> int | None:
    match = NUMBERED.match(read_text(path) or "")
    return int(match["id"]) if match is not None else None


#      rx_prio3_pause: 1204      tx_prio3_pause: 0      rx_prio3_pause_duration: 88
PAUSE_COUNTER = re.compile(
    r"^\s*(?P<direction>[rt]x)_prio(?P<priority>[0-7])_(?P<kind>pause|pause_duration): (?P<value>\d+)\s*$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class PauseCounter:
    """A counter of priority flow control: pause frames, or pause time in microseconds, by priority and direction."""

    direction: str
    priority: int
    kind: str
    value: int


def read_pause_counters(text: str) -> list[PauseCounter]:
    """Read the PFC counters from `ethtool -S`; sysfs does not have them."""
    directions = {"rx": "received", "tx": "transmitted"}
    return [
        PauseCounter(directions[row["direction"]], int(row["priority"]), row["kind"], int(row["value"]))
        for row in PAUSE_COUNTER.finditer(text)
    ]
