"""Renders the node's facts as `watchkeeper_host_*` families for the agent's page.

Unknown values are omitted. The agent renders the text each time it has read the facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.agent import page_text
from watchkeeper.readers.node.node import NodeFacts

# Family: help.
FAMILIES = {
    "watchkeeper_host_cpus": "CPUs of the node",
    "watchkeeper_host_load": "Load average over 1, 5 and 15 minutes",
    "watchkeeper_host_memory_bytes": "Memory of the node, total and available",
    "watchkeeper_host_shared_memory_bytes": "Size of /dev/shm, total and free",
    "watchkeeper_host_disk_bytes": "Size of a local filesystem, total and free for users",
    "watchkeeper_host_mount_stalled": "1 if a remote filesystem does not answer, 0 if it does",
    "watchkeeper_host_nfs_operations_total": "Operations that were requested from an NFS server",
    "watchkeeper_host_nfs_retransmissions_total": "Operations that were retransmitted to an NFS server",
    "watchkeeper_host_nfs_timeouts_total": "Operations that an NFS server did not answer before the major timeout",
    "watchkeeper_host_nfs_seconds_total": "Total time of the operations on an NFS server",
    "watchkeeper_host_uptime_seconds": "Time since the node booted",
    "watchkeeper_host_version_info": "1; labels have the versions of the kernel and the loaded NVIDIA driver",
    "watchkeeper_host_next_boot_has_driver": "1 if the newest installed kernel has an NVIDIA driver module, 0 if not",
    "watchkeeper_host_unit_running": "1 if an installed systemd unit for GPUs is active, 0 if not",
    "watchkeeper_host_fan_rpm": "Speed of a fan of the chassis or a power supply",
    "watchkeeper_host_fan_percent": "Speed of a fan in percent of its maximum, if the chassis reports no RPM",
    "watchkeeper_host_temperature_celsius": "Temperature that a sensor of the node reports",
    "watchkeeper_host_power_watts": "Power that a sensor of the node reports",
    "watchkeeper_host_power_supply_ok": "1 if a power supply reports that it works, 0 if not",
    "watchkeeper_host_sensor_alarm": "1 if a sensor reports an alarm or a fault, 0 if not",
    "watchkeeper_host_pci_devices": "NVIDIA devices on the PCI bus, whether or not the driver answers",
    "watchkeeper_host_clock_synchronised": "1 if the clock is synchronised, 0 if not",
    "watchkeeper_host_clock_offset_seconds": "Difference between the clock and its time source",
    "watchkeeper_host_clock_bound_seconds": "Upper bound of the clock's error",
}
SENSOR_FAMILIES = {
    "fan": "watchkeeper_host_fan_rpm",
    "fan_percent": "watchkeeper_host_fan_percent",
    "supply": "watchkeeper_host_power_supply_ok",
    "temperature": "watchkeeper_host_temperature_celsius",
    "power": "watchkeeper_host_power_watts",
}

OptionalRow = tuple[str, dict[str, str], float | None]


def render(facts: NodeFacts, hostname: str) -> str:
    rows = ((name, labels, value) for name, labels, value in _build_rows(facts) if value is not None)
    return page_text.render_families(rows, FAMILIES, hostname)


def _build_rows(facts: NodeFacts) -> Iterator[OptionalRow]:
    yield "watchkeeper_host_cpus", {}, facts.cpus
    for minutes, value in zip(("1", "5", "15"), facts.load or (), strict=False):
        yield "watchkeeper_host_load", {"minutes": minutes}, value
    if facts.memory is not None:
        yield "watchkeeper_host_memory_bytes", {"part": "total"}, facts.memory.total_bytes
        yield "watchkeeper_host_memory_bytes", {"part": "available"}, facts.memory.available_bytes
    if facts.shared_memory is not None:
        yield "watchkeeper_host_shared_memory_bytes", {"part": "total"}, facts.shared_memory.size_bytes
        yield "watchkeeper_host_shared_memory_bytes", {"part": "free"}, facts.shared_memory.free_bytes
    for disk in facts.disks:
        yield "watchkeeper_host_disk_bytes", {"path": disk.path, "part": "total"}, disk.size_bytes
        yield "watchkeeper_host_disk_bytes", {"path": disk.path, "part": "free"}, disk.free_bytes
    for mount in facts.remote_mounts:
        yield "watchkeeper_host_mount_stalled", {"path": mount.path, "kind": mount.kind}, mount in facts.stalled_mounts
    for nfs in facts.nfs:
        yield "watchkeeper_host_nfs_operations_total", {"path": nfs.path}, nfs.operations
        yield "watchkeeper_host_nfs_retransmissions_total", {"path": nfs.path}, nfs.retransmissions
        yield "watchkeeper_host_nfs_timeouts_total", {"path": nfs.path}, nfs.timeouts
        yield "watchkeeper_host_nfs_seconds_total", {"path": nfs.path}, nfs.milliseconds / 1000
    yield "watchkeeper_host_uptime_seconds", {}, facts.uptime_seconds
    versions = {"kernel": facts.kernel or "", "driver": facts.driver or ""}
    yield "watchkeeper_host_version_info", versions, 1 if any(versions.values()) else None
    if facts.next_boot is not None:
        yield "watchkeeper_host_next_boot_has_driver", {"kernel": facts.next_boot.release}, facts.next_boot.has_nvidia
    for unit in facts.units or ():
        yield "watchkeeper_host_unit_running", {"unit": unit.name, "state": unit.active}, unit.is_running
    yield from _build_sensor_rows(facts)


def _build_sensor_rows(facts: NodeFacts) -> Iterator[OptionalRow]:
    for sensor in facts.sensors:
        labels = {"chip": sensor.chip, "sensor": sensor.label}
        yield SENSOR_FAMILIES[sensor.kind], labels, sensor.value
        yield "watchkeeper_host_sensor_alarm", labels, sensor.is_alarmed
    kinds = [device.kind for device in facts.pci]
    for kind in dict.fromkeys(kinds):
        yield "watchkeeper_host_pci_devices", {"kind": kind}, kinds.count(kind)
    if facts.clock is not None:
        clock_labels = {"source": facts.clock.source}
        yield "watchkeeper_host_clock_synchronised", clock_labels, facts.clock.is_synchronised
        yield "watchkeeper_host_clock_offset_seconds", clock_labels, facts.clock.offset_seconds
        yield "watchkeeper_host_clock_bound_seconds", clock_labels, facts.clock.bound_seconds
