"""The record of a node's values apart from its GPUs, from all sources.

`agent.node_facts` fills it; the agent exports it as metrics and `watchkeeper scan` checks it.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, nfs_stats, pci_sysfs, systemd_units


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The values of a node; None is unknown, an empty tuple means that the node has none."""

    cpus: int | None = None
    load: tuple[float, float, float] | None = None
    memory: host.Memory | None = None
    shared_memory: host.Space | None = None
    disks: tuple[host.Space, ...] = ()
    remote_mounts: tuple[host.Mount, ...] = ()
    stalled_mounts: tuple[host.Mount, ...] = ()
    nfs: tuple[nfs_stats.NfsMount, ...] = ()
    kernel: str | None = None
    boot: str | None = None
    uptime_seconds: float | None = None
    driver: str | None = None
    next_boot: kernel_modules.NextBoot | None = None
    units: tuple[systemd_units.Unit, ...] | None = None
    sensors: tuple[hwmon.Sensor, ...] = ()
    pci: tuple[pci_sysfs.PciDevice, ...] = ()
    clock: clock_offset.ClockState | None = None
    # Which values could not be read, and why.
    unread: tuple[str, ...] = ()
