"""What a node says about itself apart from its GPUs' numbers, all sources together.

`agent.node_facts` fills it; the agent's page shows it and `watchkeeper scan` judges it.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, nfs_stats, pci_sysfs, systemd_units


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What could be read; None is unknown, and an empty list means that there is nothing of the kind.

    `unread` says in words what could not be asked.
    """

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
    unread: tuple[str, ...] = ()
