"""Renders the node's fabric for the agent's page: InfiniBand and RoCE ports, GIDs, pauses and PCIe errors.

Names are node_exporter's where it has them, so that rules and dashboards work with both; other names start with
`watchkeeper_`. `refresh` reads counters every few seconds and facts less often; stale values are omitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

from watchkeeper.agent import page_text, port_counters
from watchkeeper.agent.node_facts import Roots
from watchkeeper.agent.page_text import Row
from watchkeeper.catalogue import tables
from watchkeeper.kit import commands
from watchkeeper.readers.fabric import infiniband_sysfs
from watchkeeper.readers.node import pcie_aer

REFRESH_SECONDS = 5.0
FACTS_SECONDS = 30.0
# Older values are omitted; counters are read six times in this time, facts three times.
STALE_SECONDS = 30.0
FACTS_STALE_SECONDS = 90.0
# Limit of GIDs per port; RoCE has two for each address of its interface.
MAX_GIDS_SHOWN = 32
MAX_ROCE_NETDEVS = 32

# Family: help.
FAMILIES = {
    "node_infiniband_info": "1; labels have the adapter's type, board and firmware",
    "node_infiniband_state_id": "State of the port: 1 down, 2 init, 3 armed, 4 active, 5 act defer",
    "node_infiniband_physical_state_id": "Physical state of the port: 1 sleep, 2 polling, 3 disabled, 5 link up",
    "node_infiniband_rate_bytes_per_second": "Data rate of the port",
    **{family.name: family.help for family in tables.counter_families().values()},
    "watchkeeper_infiniband_counter_at_maximum": "1 for a counter that stopped at its maximum",
    "watchkeeper_infiniband_counter_wraps_total": "Wraps of 32-bit counters, which the totals include",
    "watchkeeper_infiniband_counter_resets_total": "Resets of counters",
    "watchkeeper_infiniband_read_stalled": "1 for an adapter whose sysfs files do not answer",
    "watchkeeper_infiniband_port_info": "1; labels have the port's link layer, GUID, PCI address and interface",
    "watchkeeper_infiniband_gid_info": "1 for each GID that is set; labels have its index, type and interface",
    "watchkeeper_infiniband_netdev_mtu_bytes": "MTU of an adapter's network interface",
    "watchkeeper_infiniband_netdev_carrier_changes_total": "Times the interface's link went up or down",
    "watchkeeper_infiniband_pause_frames_total": "Pause frames of priority flow control, by priority",
    "watchkeeper_infiniband_pause_microseconds_total": "Time paused by priority flow control, by priority",
    "watchkeeper_pcie_aer_errors_total": "PCIe errors of a GPU, NVSwitch or network adapter, by severity",
    "watchkeeper_pcie_aer_kind_errors_total": "PCIe errors by kind; a kind appears with its first error",
}


@dataclass(slots=True)
class FabricPage:
    """The fabric page of one node; call `read_counters` and `read_facts` from one thread at a time each."""

    roots: Roots
    hostname: str
    runner: commands.CommandRunner = field(default_factory=commands.CommandRunner)
    # Time limit for all adapters together.
    timeout_seconds: float = 2.0
    _counters: port_counters.PortCounters = field(init=False)
    _facts_reader: port_counters.DeadlineReader[infiniband_sysfs.Adapter] = field(init=False)
    _ports: tuple[Row, ...] = ()
    _facts: tuple[Row, ...] = ()
    _ports_at: float = float("-inf")
    _facts_at: float = float("-inf")

    def __post_init__(self) -> None:
        self._counters = port_counters.PortCounters(self.roots.sysfs, self.timeout_seconds)
        self._facts_reader = port_counters.DeadlineReader(self.timeout_seconds)

    async def refresh(self) -> None:
        await asyncio.to_thread(self.read_counters, monotonic())
        if monotonic() - self._facts_at >= FACTS_SECONDS:
            await asyncio.to_thread(self.read_facts, monotonic())

    def read_counters(self, now: float) -> None:
        """Read the counters, in a few seconds at most; `now` is monotonic time."""
        ports, stalled = self._counters.read(now)
        rows = [row for port in ports for row in _build_port_rows(port)]
        rows += [("watchkeeper_infiniband_read_stalled", {"device": device}, 1.0) for device in stalled]
        if ports:
            wraps, resets = self._counters.totals.count_wraps_and_resets()
            rows.append(("watchkeeper_infiniband_counter_wraps_total", {}, wraps))
            rows.append(("watchkeeper_infiniband_counter_resets_total", {}, resets))
        self._ports, self._ports_at = tuple(rows), now

    def read_facts(self, now: float) -> None:
        """Read facts that rarely change; after a failure, the last facts are shown until they are stale."""
        sysfs = self.roots.sysfs
        adapters_by_name, _ = self._facts_reader.read(
            infiniband_sysfs.list_devices(sysfs), lambda name: infiniband_sysfs.read_adapter(sysfs, name)
        )
        adapters = [adapters_by_name[name] for name in sorted(adapters_by_name)]
        rows = [row for adapter in adapters for row in _build_adapter_rows(adapter)]
        rows += self._build_pause_rows(adapters)
        self._facts, self._facts_at = (*rows, *_build_aer_rows(pcie_aer.read(sysfs))), now

    def _build_pause_rows(self, adapters: list[infiniband_sysfs.Adapter]) -> Iterator[Row]:
        """Pauses by priority, which only RoCE has and only ethtool reports."""
        roce = [(adapter, netdev.name) for adapter in adapters if adapter.is_roce for netdev in adapter.netdevs]
        for adapter, netdev in roce[:MAX_ROCE_NETDEVS]:
            answer = self.runner.run(["ethtool", "-S", netdev])
            if answer.outcome is commands.CommandOutcome.NOT_FOUND:
                return
            for pause in infiniband_sysfs.read_pause_counters(answer.text):
                labels = {"device": adapter.name, "netdev": netdev, "priority": str(pause.priority)}
                unit = "frames" if pause.kind == "pause" else "microseconds"
                name = f"watchkeeper_infiniband_pause_{unit}_total"
                yield name, {**labels, "direction": pause.direction}, pause.value

    def page(self, now: float | None = None) -> bytes:
        now = monotonic() if now is None else now
        ports = self._ports if now - self._ports_at <= STALE_SECONDS else ()
        facts = self._facts if now - self._facts_at <= FACTS_STALE_SECONDS else ()
        return page_text.render_families((*ports, *facts), FAMILIES, self.hostname).encode()


def _build_port_rows(reading: port_counters.PortReading) -> Iterator[Row]:
    port = reading.port
    labels = {"device": port.device, "port": str(port.number)}
    for name, value in (
        ("state_id", port.state_id),
        ("physical_state_id", port.physical_id),
        ("rate_bytes_per_second", port.bytes_per_second),
    ):
        if value is not None:
            yield f"node_infiniband_{name}", labels, value
    for name, total in reading.values.items():
        yield name, labels, total
    for file in reading.at_maximum:
        yield "watchkeeper_infiniband_counter_at_maximum", {**labels, "counter": file}, 1.0


def _build_adapter_rows(adapter: infiniband_sysfs.Adapter) -> Iterator[Row]:
    info_labels = {"board_id": adapter.board or "", "device": adapter.name}
    info_labels |= {"firmware_version": adapter.firmware or "", "hca_type": adapter.model or ""}
    yield "node_infiniband_info", info_labels, 1.0
    netdevs = ",".join(netdev.name for netdev in adapter.netdevs)
    for number in adapter.gids:
        labels = {"device": adapter.name, "port": str(number)}
        layer = {"link_layer": adapter.layers.get(number, ""), "netdev": netdevs}
        identity = {"node_guid": adapter.node_guid or "", "pci": adapter.pci or ""}
        yield "watchkeeper_infiniband_port_info", {**labels, **layer, **identity}, 1.0
        for gid in adapter.gids[number][:MAX_GIDS_SHOWN]:
            gid_labels = {"index": str(gid.index), "gid": gid.gid, "type": gid.kind or "", "netdev": gid.netdev or ""}
            yield "watchkeeper_infiniband_gid_info", {**labels, **gid_labels}, 1.0
    for netdev in adapter.netdevs:
        labels = {"device": adapter.name, "netdev": netdev.name}
        if netdev.mtu_bytes is not None:
            yield "watchkeeper_infiniband_netdev_mtu_bytes", labels, netdev.mtu_bytes
        if netdev.carrier_changes is not None:
            yield "watchkeeper_infiniband_netdev_carrier_changes_total", labels, netdev.carrier_changes


def _build_aer_rows(counts: list[pcie_aer.AerCounts]) -> Iterator[Row]:
    """The sum of each severity, also if it is 0, and each kind of error from its first error on."""
    for severity_counts in counts:
        labels = {"pci": severity_counts.pci, "kind": severity_counts.kind, "severity": severity_counts.severity}
        yield "watchkeeper_pcie_aer_errors_total", labels, severity_counts.total
        for error, count in severity_counts.errors.items():
            yield "watchkeeper_pcie_aer_kind_errors_total", {**labels, "error": error}, count
