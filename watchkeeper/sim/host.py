"""Render the node_exporter page of a node: CPUs, InfiniBand ports, memory, boot time and services.

With this second exporter, a failed GPU exporter and a failed node look different, as in reality. Each port has the
traffic of one GPU, with the same utilisation as the GPU's NVLink, and none while a collective waits. One CPU represents
all CPUs of a node, because two hundred of them would be most of the page.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from watchkeeper.sim.effects import EffectTotals
from watchkeeper.sim.fleet import FleetLayout, SimNode
from watchkeeper.sim.physics import Physics
from watchkeeper.sim.text_page import MetricsPage, format_labels

# Ports per node and bytes per second of each port, as is usual for these chassis (health_rules 9).
PORTS = {"h200": (8, 50e9), "h100": (8, 50e9), "a100": (1, 25e9)}
# Initial port counters, in bytes per millijoule of the GPU's energy counter.
BYTES_PER_MILLIJOULE = 2.4e4
MEMORY_BYTES = 2 * 1024**4
# With FEC, a good link has a few symbol errors a day.
SYMBOL_ERRORS_PER_SECOND = 2 / 86_400
PORT_COUNTERS = {
    "symbol_error_total": "Number of minor link errors detected",
    "link_downed_total": "Number of times the link failed to recover from an error state and went down",
    "link_error_recovery_total": "Number of times the link successfully recovered from an error state",
    "port_errors_received_total": "Number of packets containing an error that were received on this port",
    "local_link_integrity_errors_total": "Times local physical errors exceeded their limit",
}
# CPU utilisation without work, and the addition by data loaders and collectives of busy GPUs.
IDLE_CPU_SHARE, WORK_CPU_SHARE = 0.02, 0.22
CPU_MODES = ("idle", "user")
# Values that change slowly (free memory, usual symbol errors) are updated this often.
SLOW_SECONDS = 300
FABRIC_MANAGER = "nvidia-fabricmanager.service"
CPU_LABELS = tuple(format_labels({"cpu": "0", "mode": mode}) for mode in CPU_MODES)


class SimHosts:
    def __init__(self, layout: FleetLayout, physics: Physics, now: int) -> None:
        self._physics = physics
        port_rates = np.array([PORTS.get(node.pool.name, (0, 0.0))[1] for node in layout.nodes])
        self._bytes_per_second: NDArray[np.float64] = port_rates[layout.node_of_gpu]
        self._port_bytes: NDArray[np.float64] = physics.energy_mj * BYTES_PER_MILLIJOULE
        # Of the first port of each node: a faulty cable affects only that one.
        self._port_errors = {name: np.zeros(len(layout.nodes)) for name in PORT_COUNTERS}
        self._ports_down: set[int] = set()
        # Nodes have been up for days to weeks.
        self.booted_at = np.array([now - 86_400 * (3 + node.row % 40) for node in layout.nodes])
        self._first_rows = np.array([node.first_row for node in layout.nodes])
        self._gpu_counts = np.array([len(node.gpus) for node in layout.nodes])
        # Seconds for each of CPU_MODES; before the simulation the nodes were without work.
        up_seconds = (now - self.booted_at).astype(np.float64)
        self._cpu_seconds = np.outer([1 - IDLE_CPU_SHARE, IDLE_CPU_SHARE], up_seconds)
        self._cached_parts: dict[int, tuple[tuple[object, ...], bytes]] = {}

    def boot(self, node: SimNode, now: int) -> None:
        self.booted_at[node.row] = now
        self._cpu_seconds[:, node.row] = 0.0

    def step(self, total: EffectTotals) -> None:
        port_bytes = self._bytes_per_second * self._physics.activity[8] * self._physics.clock_share
        port_bytes[self._first_rows[list(total.ib_ports_down)]] = 0
        self._port_bytes += port_bytes
        utilisation = np.add.reduceat(self._physics.activity[5], self._first_rows) / self._gpu_counts
        busy = IDLE_CPU_SHARE + WORK_CPU_SHARE * utilisation
        for row, share in total.cpu_busy.items():
            busy[row] = max(busy[row], share)
        self._cpu_seconds[0] += 1 - busy
        self._cpu_seconds[1] += busy
        for row, rate in total.ib_errors.items():
            self._port_errors["symbol_error_total"][row] += rate
            self._port_errors["port_errors_received_total"][row] += rate / 10
        for row, rate in total.ib_recoveries.items():
            self._port_errors["link_error_recovery_total"][row] += rate
        for row in total.ib_ports_down - self._ports_down:
            self._port_errors["link_downed_total"][row] += 1
        self._ports_down = set(total.ib_ports_down)

    def page(self, node: SimNode, total: EffectTotals, *, now: int) -> bytes:
        errors = (int(counts[node.row]) for counts in self._port_errors.values())
        down = node.row in total.fabric_down, node.row in total.ib_ports_down
        key = (*errors, *down, int(self.booted_at[node.row]), now // SLOW_SECONDS)
        cached = self._cached_parts.get(node.row)
        if cached is None or cached[0] != key:
            page = MetricsPage()
            self._write_errors(page, node, now=now)
            self._write_node(page, node, total)
            cached = self._cached_parts[node.row] = (key, page.content())
        page, ports = MetricsPage(), _port_labels(node.pool.name)
        port_bytes = self._port_bytes[node.rows][: len(ports)]
        for direction in ("received", "transmitted") if ports else ():
            name = f"node_infiniband_port_data_{direction}_bytes_total"
            page.begin(name, "counter", f"Number of data octets {direction} on all links")
            for labels, value in zip(ports, port_bytes.tolist(), strict=False):
                page.add(labels, float(int(value)))
        page.begin("node_cpu_seconds_total", "counter", "Seconds the CPUs spent in each mode.")
        for labels, seconds in zip(CPU_LABELS, self._cpu_seconds[:, node.row].tolist(), strict=True):
            page.add(labels, round(seconds, 2))
        return page.content() + cached[1]

    def _write_node(self, page: MetricsPage, node: SimNode, total: EffectTotals) -> None:
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

    def _write_errors(self, page: MetricsPage, node: SimNode, *, now: int) -> None:
        ports = _port_labels(node.pool.name)
        if not ports:
            return
        usual_errors = int((now - int(self.booted_at[node.row])) * SYMBOL_ERRORS_PER_SECOND)
        for name, help in PORT_COUNTERS.items():
            page.begin(f"node_infiniband_{name}", "counter", help)
            usual = usual_errors if name == "symbol_error_total" else 0
            for port, labels in enumerate(ports):
                page.add(labels, usual + (int(self._port_errors[name][node.row]) if port == 0 else 0))
        is_down, rate = node.row in self._ports_down, PORTS[node.pool.name][1]
        for name, help, value, first in (
            ("state_id", "State of the port (4: ACTIVE)", 4, 1 if is_down else 4),
            ("physical_state_id", "Physical state of the port (5: LinkUp)", 5, 2 if is_down else 5),
            ("rate_bytes_per_second", "Maximum signal transfer rate", rate, rate),
        ):
            page.begin(f"node_infiniband_{name}", "gauge", help)
            for port, labels in enumerate(ports):
                page.add(labels, first if port == 0 else value)


@cache
def _port_labels(pool: str) -> tuple[str, ...]:
    ports, _ = PORTS.get(pool, (0, 0.0))
    return tuple(format_labels({"device": f"mlx5_{port}", "port": "1"}) for port in range(ports))
