"""One node's own page, as node_exporter writes it: CPUs, InfiniBand ports, memory, boot time, services.

The machine has a second exporter beside the GPUs' one, so that "the exporter is gone" and "the node is
gone" look different, as they do in life. Each port carries the traffic of one GPU: as large a share of what it can as
the GPU's NVLink, and nothing while a collective waits. One CPU stands for all of a machine: node_exporter writes a line
for each and mode, and two hundred of them would be most of the page.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from watchkeeper.sim.effects import EffectTotals
from watchkeeper.sim.fleet import FleetLayout, SimNode
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.text_page import MetricsPage, format_labels

# Ports per node and bytes per second of each, as these chassis are usually wired (health_rules 9).
PORTS = {"h200": (8, 50e9), "h100": (8, 50e9), "a100": (1, 25e9)}
# Bytes that ports have carried before, per millijoule that their GPUs have used: lifetime counters begin somewhere.
BYTES_PER_MILLIJOULE = 2.4e4
MEMORY_BYTES = 2 * 1024**4
# On a link with FEC what is left over is counted; a good one shows a few in a day.
SYMBOL_ERRORS_PER_SECOND = 2 / 86_400
PORT_COUNTERS = (
    ("link_downed_total", "Number of times the link failed to recover from an error state and went down"),
    ("link_error_recovery_total", "Number of times the link successfully recovered from an error state"),
    ("port_errors_received_total", "Number of packets containing an error that were received on this port"),
    ("local_link_integrity_errors_total", "Times local physical errors exceeded their limit"),
)
# Shares of a machine's CPUs: what it does without work, and what loaders and collectives of busy GPUs add to it.
QUIET_CPU_SHARE, WORK_CPU_SHARE = 0.02, 0.22
CPU_MODES = ("idle", "user")
# What changes slowly (free memory, ordinary symbol errors) is looked at this often.
SLOW_SECONDS = 300
FABRIC_MANAGER = "nvidia-fabricmanager.service"
CPU_LABELS = tuple(format_labels({"cpu": "0", "mode": mode}) for mode in CPU_MODES)


class Hosts:
    """The machines around the GPUs; owns their InfiniBand error counters and boot times."""

    def __init__(self, layout: FleetLayout, physics: Physics, now: int) -> None:
        self._physics = physics
        rates = np.array([PORTS.get(node.pool.name, (0, 0.0))[1] for node in layout.nodes])
        self._port_bytes: NDArray[np.float64] = rates[layout.node_of_gpu]
        self._moved: NDArray[np.float64] = physics.energy_mj * BYTES_PER_MILLIJOULE
        self._symbol_errors: NDArray[np.float64] = np.zeros(len(layout.nodes))
        self._receive_errors: NDArray[np.float64] = np.zeros(len(layout.nodes))
        # Machines run for weeks; the number must not be the simulation's own start.
        self.booted_at = np.array([now - 86_400 * (3 + node.row % 40) for node in layout.nodes])
        self._firsts = np.array([node.first for node in layout.nodes])
        self._gpus = np.array([len(node.gpus) for node in layout.nodes])
        # Seconds by CPU_MODES: one row each. Machines were as busy before as they are without work.
        up_seconds = (now - self.booted_at).astype(np.float64)
        self._cpu_seconds = np.outer([1 - QUIET_CPU_SHARE, QUIET_CPU_SHARE], up_seconds)
        self._slow: dict[int, tuple[tuple[object, ...], bytes]] = {}

    def step(self, total: EffectTotals) -> None:
        """One second of traffic, of the CPUs, and of errors on the struck links."""
        self._moved += self._port_bytes * self._physics.activity[8] * self._physics.clock_share
        utilisation = np.add.reduceat(self._physics.activity[5], self._firsts) / self._gpus
        busy = QUIET_CPU_SHARE + WORK_CPU_SHARE * utilisation
        for row, share in total.cpu_busy.items():
            busy[row] = max(busy[row], share)
        self._cpu_seconds[0] += 1 - busy
        self._cpu_seconds[1] += busy
        for row, rate in total.ib_errors.items():
            self._symbol_errors[row] += rate
            self._receive_errors[row] += rate / 10

    def page(self, node: SimNode, total: EffectTotals, *, now: int) -> bytes:
        """Most of a machine's page never changes: that part is written anew only when it does."""
        errors = int(self._symbol_errors[node.row]), int(self._receive_errors[node.row])
        key = (*errors, node.row in total.fabric_down, int(self.booted_at[node.row]), now // SLOW_SECONDS)
        known = self._slow.get(node.row)
        if known is None or known[0] != key:
            page = MetricsPage()
            self._write_errors(page, node, now=now)
            self._write_machine(page, node, total)
            known = self._slow[node.row] = (key, page.content())
        page = MetricsPage()
        self._write_traffic(page, node)
        page.begin("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.")
        for labels, seconds in zip(CPU_LABELS, self._cpu_seconds[:, node.row].tolist(), strict=True):
            page.add(labels, round(seconds, 2))
        return page.content() + known[1]

    def _write_machine(self, page: MetricsPage, node: SimNode, total: EffectTotals) -> None:
        page.begin("node_boot_time_seconds", "gauge", "Node boot time, in unixtime.")
        page.add("", float(self.booted_at[node.row]))
        page.begin("node_memory_MemTotal_bytes", "gauge", "Memory information field MemTotal_bytes.")
        page.add("", MEMORY_BYTES)
        page.begin("node_memory_MemAvailable_bytes", "gauge", "Memory information field MemAvailable_bytes.")
        busy = float(np.mean(self._physics.activity[5][node.rows]))
        page.add("", round(MEMORY_BYTES * (0.9 - 0.35 * busy)))
        if node.model.nvlink_gb_per_second is not None:
            page.begin("node_systemd_unit_state", "gauge", "Systemd unit")
            is_up = node.row not in total.fabric_down
            for state in ("active", "failed", "inactive"):
                labels = format_labels({"name": FABRIC_MANAGER, "state": state, "type": "simple"})
                page.add(labels, float(state == ("active" if is_up else "failed")))

    def _write_traffic(self, page: MetricsPage, node: SimNode) -> None:
        ports = _port_labels(node)
        moved = self._moved[node.rows][: len(ports)]
        for direction in ("received", "transmitted") if ports else ():
            name = f"node_infiniband_port_data_{direction}_bytes_total"
            page.begin(name, "counter", f"Number of data octets {direction} on all links")
            for text, value in zip(ports, moved.tolist(), strict=False):
                page.add(text, float(int(value)))

    def _write_errors(self, page: MetricsPage, node: SimNode, *, now: int) -> None:
        ports = _port_labels(node)
        if not ports:
            return
        page.begin("node_infiniband_symbol_error_total", "counter", "Number of minor link errors detected")
        ordinary = int((now - int(self.booted_at[node.row])) * SYMBOL_ERRORS_PER_SECOND)
        for port, text in enumerate(ports):
            # A fault is one bad cable: the first port's.
            page.add(text, ordinary + (int(self._symbol_errors[node.row]) if port == 0 else 0))
        for name, help in PORT_COUNTERS:
            page.begin(f"node_infiniband_{name}", "counter", help)
            for port, text in enumerate(ports):
                is_bad = port == 0 and name == "port_errors_received_total"
                page.add(text, float(int(self._receive_errors[node.row])) if is_bad else 0.0)
        page.begin("node_infiniband_state_id", "gauge", "State of the port (4: ACTIVE)")
        for text in ports:
            page.add(text, 4.0)
        page.begin("node_infiniband_rate_bytes_per_second", "gauge", "Maximum signal transfer rate")
        for text in ports:
            page.add(text, PORTS[node.pool.name][1])


def _port_labels(node: SimNode) -> tuple[str, ...]:
    ports, _ = PORTS.get(node.pool.name, (0, 0.0))
    return _labels_of_ports(ports)


@cache
def _labels_of_ports(ports: int) -> tuple[str, ...]:
    return tuple(format_labels({"device": f"mlx5_{port}", "port": "1"}) for port in range(ports))
