"""Reads the facts of a node besides its GPU metrics: host, mounts, units, sensors, PCI bus, clock.

`NodeReader.read` takes a few seconds at most, whatever the state of the node: calls that may hang run in a child
process with a timeout. The agent calls it in a thread and shows the facts on its page (`host_page`);
`watchkeeper scan` checks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.kit import commands
from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, nfs_stats, pci_sysfs, systemd_units
from watchkeeper.readers.node.node import NodeFacts

# Remote mounts are checked one after the other, and each stalled mount costs a whole timeout.
MAX_REMOTE_MOUNTS = 32
MAX_STALLED = 3
SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True)
class Roots:
    """Root directories of this node; a container mounts them elsewhere, and tests create their own."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    root: Path = Path("/")


@dataclass(slots=True)
class NodeReader:
    """Reads one node repeatedly, from one thread at a time."""

    roots: Roots = field(default_factory=Roots)
    runner: commands.CommandRunner = field(default_factory=commands.CommandRunner)

    def read(self) -> NodeFacts:
        proc, sysfs = self.roots.proc, self.roots.sysfs
        problems: list[str] = []
        mounts = host.read_mounts(proc)
        remote_mounts = [mount for mount in mounts if mount.is_remote]
        kernel = host.read_kernel_release(proc)
        return NodeFacts(
            cpus=host.read_cpu_count(proc),
            load=host.read_load_average(proc),
            memory=host.read_memory(proc),
            shared_memory=next((host.read_space(mount) for mount in mounts if mount.path == SHARED_MEMORY), None),
            disks=self._read_disks(mounts),
            remote_mounts=tuple(remote_mounts),
            stalled_mounts=self._find_stalled(remote_mounts, problems),
            nfs=tuple(nfs_stats.read(proc)),
            kernel=kernel,
            boot=host.read_boot_id(proc),
            uptime_seconds=host.read_uptime_seconds(proc),
            driver=host.read_driver_version(proc, sysfs),
            next_boot=kernel_modules.find_next_kernel(self.roots.root, kernel),
            units=self._read_units(problems),
            sensors=tuple(hwmon.read(sysfs)),
            pci=tuple(pci_sysfs.read(sysfs)),
            clock=self._read_clock(),
            unread=tuple(problems),
        )

    def _read_disks(self, mounts: Sequence[host.Mount]) -> tuple[host.Space, ...]:
        """Space of each device, once: a container runtime mounts the same disk at many paths."""
        by_device: dict[str, host.Mount] = {}
        for mount in mounts:
            if not mount.is_remote and mount.path != SHARED_MEMORY:
                shortest = by_device.get(mount.device)
                if shortest is None or len(mount.path) < len(shortest.path):
                    by_device[mount.device] = mount
        disk_mounts = sorted(by_device.values(), key=lambda mount: mount.path)
        return tuple(space for mount in disk_mounts if (space := host.read_space(mount)) is not None)

    def _find_stalled(self, mounts: Sequence[host.Mount], problems: list[str]) -> tuple[host.Mount, ...]:
        """Remote mounts that do not answer statfs in time."""
        if len(mounts) > MAX_REMOTE_MOUNTS:
            problems.append(f"{len(mounts)} remote mounts, the limit is {MAX_REMOTE_MOUNTS}: others were not checked")
        stalled = []
        for mount in mounts[:MAX_REMOTE_MOUNTS]:
            answer = self.runner.run(["stat", "-f", "-c", "%b", "--", mount.root + mount.path])
            if answer.outcome is commands.CommandOutcome.TIMED_OUT:
                stalled.append(mount)
                if len(stalled) >= MAX_STALLED:
                    problems.append(f"remote mounts: {len(stalled)} do not answer, the others were not checked")
                    break
            elif answer.outcome is commands.CommandOutcome.NOT_FOUND:
                problems.append(f"remote mounts: {answer.text}")
                break
        return tuple(stalled)

    def _read_units(self, problems: list[str]) -> tuple[systemd_units.Unit, ...] | None:
        answer = self.runner.run(systemd_units.show_command())
        if answer.outcome is commands.CommandOutcome.ANSWERED:
            return tuple(systemd_units.read(answer.text))
        problems.append(f"systemd units: {next(iter(answer.text.strip().splitlines()), answer.outcome)}")
        return None

    def _read_clock(self) -> clock_offset.ClockState | None:
        answer = self.runner.run(clock_offset.CHRONY)
        has_answered = answer.outcome is commands.CommandOutcome.ANSWERED
        return (clock_offset.read_chrony(answer.text) if has_answered else None) or clock_offset.read_kernel_clock()
