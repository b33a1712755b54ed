"""The node's facts as `watchkeeper_host_*` families, in the text that stands under the GPUs' on the agent's page.

What is unknown is absent. The agent renders it anew whenever it has read the facts.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchkeeper.kit import own_metrics
from watchkeeper.readers.node.node import NodeFacts

# Family, help. What ends in _total is a counter, everything else a gauge.
FAMILIES = {
    "watchkeeper_host_cpus": "Processors of the machine",
    "watchkeeper_host_load": "Load average over a number of minutes",
    "watchkeeper_host_memory_bytes": "Memory of the machine, in all and available",
    "watchkeeper_host_shared_memory_bytes": "Size of /dev/shm, in all and free",
    "watchkeeper_host_disk_bytes": "Size of a local filesystem, in all and free for users",
    "watchkeeper_host_mount_stalled": "1 if a remote filesystem does not answer, 0 if it does",
    "watchkeeper_host_nfs_operations_total": "Operations that were asked of an NFS server",
    "watchkeeper_host_nfs_retransmissions_total": "Operations that were sent to an NFS server more than once",
    "watchkeeper_host_nfs_timeouts_total": "Operations that an NFS server did not answer before the major timeout",
    "watchkeeper_host_nfs_seconds_total": "Time that operations on an NFS server took, all together",
    "watchkeeper_host_uptime_seconds": "Time since the machine started",
    "watchkeeper_host_version_info": "1; the versions of kernel and loaded NVIDIA driver are labels",
    "watchkeeper_host_next_boot_has_driver": "1 if the newest installed kernel has an NVIDIA module, 0 if not",
    "watchkeeper_host_unit_running": "1 if an installed systemd unit for GPUs is active, 0 if not",
    "watchkeeper_host_fan_rpm": "Speed of a fan of the chassis or a power supply",
    "watchkeeper_host_fan_percent": "Speed of a fan as a share of its highest, where the chassis gives no RPM",
    "watchkeeper_host_temperature_celsius": "Temperature that a sensor of the machine reports",
    "watchkeeper_host_power_watts": "Power that a sensor of the machine reports",
    "watchkeeper_host_power_supply_ok": "1 if a power supply says that it works, 0 if not",
    "watchkeeper_host_sensor_alarm": "1 if a sensor raises its own alarm or is at fault, 0 if not",
    "watchkeeper_host_pci_devices": "NVIDIA devices on the PCI bus, whether the driver answers or not",
    "watchkeeper_host_clock_synchronised": "1 if something keeps the clock right, 0 if not",
    "watchkeeper_host_clock_offset_seconds": "Distance of the clock from the time source",
    "watchkeeper_host_clock_bound_seconds": "The clock is not further off than this",
}
SENSOR_FAMILIES = {
    "fan": "watchkeeper_host_fan_rpm",
    "fan_percent": "watchkeeper_host_fan_percent",
    "supply": "watchkeeper_host_power_supply_ok",
    "temperature": "watchkeeper_host_temperature_celsius",
    "power": "watchkeeper_host_power_watts",
}

Row = tuple[str, dict[str, str], float | None]


def render(facts: NodeFacts, hostname: str) -> str:
    lines: dict[str, list[str]] = {}
    for short, named, value in _rows(facts):
        if value is not None:
            pairs = {**named, "Hostname": hostname}
            inside = ",".join(f'{name}="{own_metrics.escape(text)}"' for name, text in pairs.items())
            number = repr(float(value)).removesuffix(".0")
            lines.setdefault(short, []).append(f"{short}{{{inside}}} {number}\n")
    parts = []
    for name, help in FAMILIES.items():
        if name in lines:
            kind = "counter" if name.endswith("_total") else "gauge"
            parts += [f"# HELP {name} {help}.\n# TYPE {name} {kind}\n", *lines[name]]
    return "".join(parts)


def _rows(facts: NodeFacts) -> Iterator[Row]:
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
        is_stalled = mount in facts.stalled_mounts
        yield "watchkeeper_host_mount_stalled", {"path": mount.path, "kind": mount.kind}, is_stalled
    for nfs in facts.nfs:
        yield "watchkeeper_host_nfs_operations_total", {"path": nfs.path}, nfs.operations
        yield "watchkeeper_host_nfs_retransmissions_total", {"path": nfs.path}, nfs.retransmissions
        yield "watchkeeper_host_nfs_timeouts_total", {"path": nfs.path}, nfs.timeouts
        yield "watchkeeper_host_nfs_seconds_total", {"path": nfs.path}, nfs.milliseconds / 1000
    yield "watchkeeper_host_uptime_seconds", {}, facts.uptime_seconds
    versions = {"kernel": facts.kernel or "", "driver": facts.driver or ""}
    yield "watchkeeper_host_version_info", versions, 1 if any(versions.values()) else None
    if facts.next_boot is not None:
        kernel = {"kernel": facts.next_boot.release}
        yield "watchkeeper_host_next_boot_has_driver", kernel, facts.next_boot.has_nvidia
    for unit in facts.units or ():
        yield "watchkeeper_host_unit_running", {"unit": unit.name, "state": unit.active}, unit.is_running
    yield from _sensor_rows(facts)


def _sensor_rows(facts: NodeFacts) -> Iterator[Row]:
    for sensor in facts.sensors:
        where = {"chip": sensor.chip, "sensor": sensor.label}
        yield SENSOR_FAMILIES[sensor.kind], where, sensor.value
        yield "watchkeeper_host_sensor_alarm", where, sensor.is_alarmed
    kinds = [device.kind for device in facts.pci]
    for kind in dict.fromkeys(kinds):
        yield "watchkeeper_host_pci_devices", {"kind": kind}, kinds.count(kind)
    if facts.clock is not None:
        source = {"source": facts.clock.source}
        yield "watchkeeper_host_clock_synchronised", source, facts.clock.is_synchronised
        yield "watchkeeper_host_clock_offset_seconds", source, facts.clock.offset_seconds
        yield "watchkeeper_host_clock_bound_seconds", source, facts.clock.bound_seconds
