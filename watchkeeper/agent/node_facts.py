"""Everything a node says about itself apart from its GPUs' numbers: host, mounts, units, sensors, PCI bus, clock.

`NodeReader.read` blocks for a few seconds at most, whatever the machine's state: what may hang is asked in a child
with a deadline. The agent calls it from a thread and shows the facts on its page (`host_page`); `watchkeeper scan`
judges them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from watchkeeper.kit import commands
from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, nfs_stats, pci_sysfs, systemd_units
from watchkeeper.readers.node.node import NodeFacts

# Remote mounts are asked one after the other, and each that stalls costs a whole deadline.
MAX_REMOTE_MOUNTS = 32
MAX_STALLED = 3
SHARED_MEMORY = "/dev/shm"  # noqa: S108


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the trees of this machine lie; a container has them mounted elsewhere, a test makes its own."""

    proc: Path = Path("/proc")
    sysfs: Path = Path("/sys")
    root: Path = Path("/")


@dataclass(slots=True)
class NodeReader:
    """Reads one machine, again and again; one thread at a time."""

    roots: Roots = field(default_factory=Roots)
    ask: commands.CommandRunner = field(default_factory=commands.CommandRunner)

    def read(self) -> NodeFacts:
        proc, sysfs = self.roots.proc, self.roots.sysfs
        unread: list[str] = []
        mounts = host.mounts(proc)
        remote = [mount for mount in mounts if mount.is_remote]
        kernel = host.kernel_release(proc)
        return NodeFacts(
            cpus=host.cpu_count(proc),
            load=host.load_average(proc),
            memory=host.memory(proc),
            shared_memory=next((host.space(mount) for mount in mounts if mount.path == SHARED_MEMORY), None),
            disks=self._disks(mounts),
            remote_mounts=tuple(remote),
            stalled_mounts=self._stalled(remote, unread),
            nfs=tuple(nfs_stats.read(proc)),
            kernel=kernel,
            boot=host.boot_id(proc),
            uptime_seconds=host.uptime_seconds(proc),
            driver=host.driver_version(proc, sysfs),
            next_boot=kernel_modules.next_kernel(self.roots.root, kernel),
            units=self._units(unread),
            sensors=tuple(hwmon.read(sysfs)),
            pci=tuple(pci_sysfs.read(sysfs)),
            clock=self._clock(),
            unread=tuple(unread),
        )

    def _disks(self, mounts: Sequence[host.Mount]) -> tuple[host.Space, ...]:
        """Each device once: a container runtime mounts the same disk at many places."""
        by_device: dict[str, host.Mount] = {}
        for mount in mounts:
            if not mount.is_remote and mount.path != SHARED_MEMORY:
                known = by_device.get(mount.device)
                if known is None or len(mount.path) < len(known.path):
                    by_device[mount.device] = mount
        chosen = sorted(by_device.values(), key=lambda mount: mount.path)
        return tuple(space for mount in chosen if (space := host.space(mount)) is not None)

    def _stalled(self, remote: Sequence[host.Mount], unread: list[str]) -> tuple[host.Mount, ...]:
        """Remote mounts that do not answer a statfs in time."""
        if len(remote) > MAX_REMOTE_MOUNTS:
            unread.append(f"{len(remote)} remote mounts, the limit is {MAX_REMOTE_MOUNTS}: the rest is not asked")
        stalled = []
        for mount in remote[:MAX_REMOTE_MOUNTS]:
            answer = self.ask.run(["stat", "-f", "-c", "%b", "--", mount.root + mount.path])
            if answer.outcome is commands.CommandOutcome.TIMED_OUT:
                stalled.append(mount)
                if len(stalled) >= MAX_STALLED:
                    unread.append(f"remote mounts: {len(stalled)} do not answer, the rest is not asked")
                    break
            elif answer.outcome is commands.CommandOutcome.NOT_FOUND:
                unread.append(f"remote mounts: {answer.text}")
                break
        return tuple(stalled)

    def _units(self, unread: list[str]) -> tuple[systemd_units.Unit, ...] | None:
        answer = self.ask.run(systemd_units.arguments())
        if answer.outcome is commands.CommandOutcome.ANSWERED:
            return tuple(systemd_units.read(answer.text))
        first_line = answer.text.strip().splitlines()[:1]
        unread.append(f"systemd units: {first_line[0] if first_line else answer.outcome}")
        return None

    def _clock(self) -> clock_offset.ClockState | None:
        answer = self.ask.run(clock_offset.CHRONY)
        found = clock_offset.read_chrony(answer.text) if answer.outcome is commands.CommandOutcome.ANSWERED else None
        return found or clock_offset.read_kernel_clock()
