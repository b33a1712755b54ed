"""The machine's part of the fabric on the agent's page: InfiniBand and RoCE ports, GIDs, pauses, PCIe errors.

Names are node_exporter's where it has them, so that the same rules and dashboards read either page; the rest begins
with `watchkeeper_`. The agent calls `refresh` every few seconds, which reads counters each time and facts now and then;
`page` is the text. Numbers that are too old are left out: missing is never healthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from watchkeeper.agent import port_counters
from watchkeeper.agent.node_facts import Roots
from watchkeeper.catalogue import infiniband
from watchkeeper.kit import commands, own_metrics
from watchkeeper.readers.fabric import infiniband_sysfs
from watchkeeper.readers.node import pcie_aer

REFRESH_SECONDS = 5.0
FACTS_SECONDS = 30.0
# Older numbers are not shown; the agent reads six times in this time, and facts three times in theirs.
STALE_SECONDS = 30.0
FACTS_STALE_SECONDS = 90.0
# GIDs of one port that are shown; RoCE has two for each address of its interface.
MAX_GIDS_SHOWN = 32
MAX_ROCE_NETDEVS = 32

# Family: type, help.
FAMILIES = {
    "node_infiniband_info": ("gauge", "1; adapter type, board and firmware are labels"),
    "node_infiniband_state_id": ("gauge", "State of the port: 1 down, 2 init, 3 armed, 4 active, 5 act defer"),
    "node_infiniband_physical_state_id": ("gauge", "Physical state: 1 sleep, 2 polling, 3 disabled, 5 link up"),
    "node_infiniband_rate_bytes_per_second": ("gauge", "Rate at which the port runs"),
    **{family.name: ("counter", family.help) for family in infiniband.counter_families().values()},
    "watchkeeper_infiniband_counter_at_maximum": ("gauge", "1 for a counter that stopped at its maximum"),
    "watchkeeper_infiniband_counter_wraps_total": ("counter", "32-bit counters that wrapped and were continued"),
    "watchkeeper_infiniband_counter_resets_total": ("counter", "Counters that somebody or something set back"),
    "watchkeeper_infiniband_read_stalled": ("gauge", "1 for an adapter whose files do not answer"),
    "watchkeeper_infiniband_port_info": ("gauge", "1; link layer, GUID, PCI address and interface are labels"),
    "watchkeeper_infiniband_gid_info": ("gauge", "1 for each GID that is set; index, type and interface are labels"),
    "watchkeeper_infiniband_netdev_mtu_bytes": ("gauge", "MTU of an adapter's network interface"),
    "watchkeeper_infiniband_netdev_carrier_changes_total": ("counter", "Times the interface's link went up or down"),
    "watchkeeper_infiniband_pause_frames_total": ("counter", "Priority flow control: pause frames by priority"),
    "watchkeeper_infiniband_pause_microseconds_total": ("counter", "Priority flow control: time paused by priority"),
    "watchkeeper_pcie_aer_errors_total": ("counter", "PCIe errors of a GPU, NVSwitch or network adapter by severity"),
    "watchkeeper_pcie_aer_kind_errors_total": ("counter", "The same errors by kind, from the first of a kind on"),
}

Row = tuple[str, dict[str, str], float]


@dataclass(slots=True)
class FabricPage:
    """One machine's page; `read_*` belong to one thread at a time each."""

    roots: Roots
    hostname: str
    ask: commands.CommandRunner = field(default_factory=commands.CommandRunner)
    # How long the adapters may take to answer, all together.
    seconds: float = 2.0
    _counters: port_counters.PortCounters = field(init=False)
    _facts_within: port_counters.DeadlineReader[infiniband_sysfs.Adapter] = field(init=False)
    _ports: tuple[Row, ...] = ()
    _facts: tuple[Row, ...] = ()
    _ports_at: float = float("-inf")
    _facts_at: float = float("-inf")

    def __post_init__(self) -> None:
        self._counters = port_counters.PortCounters(self.roots.sysfs, self.seconds)
        self._facts_within = port_counters.DeadlineReader(self.seconds)

    async def refresh(self) -> None:
        await asyncio.to_thread(self.read_counters, monotonic())
        if monotonic() - self._facts_at >= FACTS_SECONDS:
            await asyncio.to_thread(self.read_facts, monotonic())

    def page(self) -> bytes:
        return self.text(monotonic())

    def read_counters(self, now: float) -> None:
        """A few seconds at most, whatever the adapters do; `now` is a clock that never goes back."""
        ports, stalled = self._counters.read(now)
        rows = [row for port in ports for row in _port_rows(port)]
        rows += [("watchkeeper_infiniband_read_stalled", {"device": device}, 1.0) for device in stalled]
        if ports:
            growing = self._counters.growing
            rows.append(("watchkeeper_infiniband_counter_wraps_total", {}, growing.wraps))
            rows.append(("watchkeeper_infiniband_counter_resets_total", {}, growing.resets))
        self._ports, self._ports_at = tuple(rows), now

    def read_facts(self, now: float) -> None:
        """What changes when somebody changes it; a failure leaves the last facts on the page until they are too old."""
        sysfs = self.roots.sysfs
        found, _ = self._facts_within.read(
            infiniband_sysfs.device_names(sysfs), lambda name: infiniband_sysfs.read_adapter(sysfs, name)
        )
        adapters = [found[name] for name in sorted(found)]
        rows = [row for adapter in adapters for row in _adapter_rows(adapter)]
        rows += self._pause_rows(adapters)
        self._facts, self._facts_at = (*rows, *_aer_rows(pcie_aer.read(sysfs))), now

    def _pause_rows(self, adapters: list[infiniband_sysfs.Adapter]) -> Iterator[Row]:
        """Only RoCE pauses by priority, and only ethtool knows the counts."""
        roce = [(adapter, netdev.name) for adapter in adapters if adapter.is_roce for netdev in adapter.netdevs]
        for adapter, netdev in roce[:MAX_ROCE_NETDEVS]:
            answer = self.ask.run(["ethtool", "-S", netdev])
            if answer.outcome is commands.CommandOutcome.NOT_FOUND:
                return
            for pause in infiniband_sysfs.read_pauses(answer.text):
                where = {"device": adapter.name, "netdev": netdev, "priority": str(pause.priority)}
                unit = "frames" if pause.kind == "pause" else "microseconds"
                name = f"watchkeeper_infiniband_pause_{unit}_total"
                yield name, {**where, "direction": pause.direction}, pause.value

    def text(self, now: float) -> bytes:
        lines: dict[str, list[str]] = {}
        ports = self._ports if now - self._ports_at <= STALE_SECONDS else ()
        facts = self._facts if now - self._facts_at <= FACTS_STALE_SECONDS else ()
        for name, named, value in (*ports, *facts):
            pairs = {**named, "Hostname": self.hostname}
            inside = ",".join(f'{label}="{own_metrics.escape(text)}"' for label, text in pairs.items())
            lines.setdefault(name, []).append(f"{name}{{{inside}}} {_number(value)}\n")
        parts = []
        for name, (kind, help) in FAMILIES.items():
            if name in lines:
                parts += [f"# HELP {name} {help}.\n# TYPE {name} {kind}\n", *lines[name]]
        return "".join(parts).encode()


def _number(value: float) -> str:
    """Whole numbers in full: a counter of 64 bits has more digits than a float."""
    return str(value) if isinstance(value, int) else repr(float(value)).removesuffix(".0")


def _port_rows(numbers: port_counters.PortNumbers) -> Iterator[Row]:
    port = numbers.port
    where = {"device": port.device, "port": str(port.number)}
    for name, value in (
        ("state_id", port.state_id),
        ("physical_state_id", port.physical_id),
        ("rate_bytes_per_second", port.bytes_per_second),
    ):
        if value is not None:
            yield f"node_infiniband_{name}", where, value
    for name, total in numbers.values.items():
        yield name, where, total
    for file in numbers.at_maximum:
        yield "watchkeeper_infiniband_counter_at_maximum", {**where, "counter": file}, 1.0


def _adapter_rows(adapter: infiniband_sysfs.Adapter) -> Iterator[Row]:
    about = {
        "board_id": adapter.board or "",
        "device": adapter.name,
        "firmware_version": adapter.firmware or "",
        "hca_type": adapter.model or "",
    }
    yield "node_infiniband_info", about, 1.0
    netdevs = ",".join(netdev.name for netdev in adapter.netdevs)
    for number in adapter.gids:
        where = {"device": adapter.name, "port": str(number)}
        layer = {"link_layer": adapter.layers.get(number, ""), "netdev": netdevs}
        identity = {"node_guid": adapter.node_guid or "", "pci": adapter.pci or ""}
        yield "watchkeeper_infiniband_port_info", {**where, **layer, **identity}, 1.0
        for gid in adapter.gids[number][:MAX_GIDS_SHOWN]:
            named = {"index": str(gid.index), "gid": gid.gid, "type": gid.kind or "", "netdev": gid.netdev or ""}
            yield "watchkeeper_infiniband_gid_info", {**where, **named}, 1.0
    for netdev in adapter.netdevs:
        where = {"device": adapter.name, "netdev": netdev.name}
        if netdev.mtu_bytes is not None:
            yield "watchkeeper_infiniband_netdev_mtu_bytes", where, netdev.mtu_bytes
        if netdev.carrier_changes is not None:
            yield "watchkeeper_infiniband_netdev_carrier_changes_total", where, netdev.carrier_changes


def _aer_rows(counts: list[pcie_aer.AerCounts]) -> Iterator[Row]:
    """The sum of each severity always, from zero on; each kind of error from its first."""
    for one in counts:
        where = {"pci": one.pci, "kind": one.kind, "severity": one.severity}
        yield "watchkeeper_pcie_aer_errors_total", where, one.total
        for error, count in one.errors.items():
            yield "watchkeeper_pcie_aer_kind_errors_total", {**where, "error": error}, count
