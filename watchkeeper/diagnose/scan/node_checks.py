"""The checks of the whole node: `ScanFacts → results`, an empty list where the node does not have the thing."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.catalogue import causes
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanResult, ScanVerdict, limits, xid_verdicts
from watchkeeper.model import events
from watchkeeper.readers.node import pci_sysfs

Check = Callable[[ScanFacts], list[ScanResult]]
FABRIC_MANAGER = "nvidia-fabricmanager.service"
# Without a driver or a GPU there is nothing to be sick: nobody can tell, and that is what is said.
CANNOT_TELL = frozenset({"driver_not_loaded", "unknown"})


def gpus_readable(facts: ScanFacts) -> list[ScanResult]:
    """Every named fault of reading, and whether there was anything to read at all."""
    on_bus = sum(device.kind is pci_sysfs.DeviceKind.GPU for device in facts.node.pci)
    found = []
    for fault in facts.faults:
        is_untold = fault.cause in CANNOT_TELL and on_bus == 0 and fault.gpu is None
        verdict = ScanVerdict.UNKNOWN if is_untold else ScanVerdict.UNHEALTHY
        words = f"{fault.evidence} ({causes.lookup(fault.cause).cause})"
        found.append(ScanResult("gpus_readable", "DRIVER", verdict, words, gpu=fault.gpu))
    if not found and not facts.gpus:
        found.append(ScanResult("gpus_readable", "DRIVER", ScanVerdict.UNKNOWN, "no GPU was found"))
    return found or [ScanResult("gpus_readable", "DRIVER", ScanVerdict.HEALTHY, f"{len(facts.gpus)} GPUs answer")]


def gpus_present(facts: ScanFacts) -> list[ScanResult]:
    """GPUs that answer, against those on the PCI bus and those that somebody says there should be."""
    count = len(facts.gpus)
    on_bus = sum(device.kind is pci_sysfs.DeviceKind.GPU for device in facts.node.pci)
    wanted = max(on_bus, facts.expected_gpus or 0)
    if wanted == 0:
        return []
    told = "" if facts.expected_gpus is None else f", {facts.expected_gpus} are expected"
    words = f"{count} GPUs answer, {on_bus} are on the PCI bus{told}"
    return [
        ScanResult("gpus_present", "PCIE", ScanVerdict.HEALTHY if count >= wanted else ScanVerdict.UNHEALTHY, words)
    ]


def xids(facts: ScanFacts) -> list[ScanResult]:
    """Xids that DCGM's health check watches; those before a GPU's last reset are over."""
    if facts.kernel is None:
        words = f"the kernel log could not be read: {facts.kernel_problem}"
        return [ScanResult("xids", "DRIVER", ScanVerdict.UNKNOWN, words)]
    latest: dict[tuple[str | None, int], str] = {}
    for fact in facts.kernel:
        if fact.kind is events.EventKind.GPU_RESET:
            latest = {key: text for key, text in latest.items() if fact.pci is not None and key[0] != fact.pci}
        elif fact.kind is events.EventKind.XID and fact.code is not None and fact.code in xid_verdicts():
            latest[fact.pci, fact.code] = fact.text
    uuid_at = {gpu.pci: gpu.uuid for gpu in facts.gpus}
    found = []
    for (pci, code), text in latest.items():
        system, verdict = xid_verdicts()[code]
        found.append(ScanResult("xids", system, verdict, text, gpu=uuid_at.get(pci)))
    words = f"{len(facts.kernel)} messages about hardware in the kernel log, none of these an Xid that counts"
    return found or [ScanResult("xids", "DRIVER", ScanVerdict.HEALTHY, words)]


def switch_errors(facts: ScanFacts) -> list[ScanResult]:
    """SXids: fatal ones fail, others warn, as in DCGM."""
    sxids = [fact for fact in facts.kernel or () if fact.kind is events.EventKind.SXID]
    found = []
    for fact in sxids[-10:]:
        fatal = fact.fields.get("severity", "").lower() == "fatal"
        verdict = ScanVerdict.UNHEALTHY if fatal else ScanVerdict.DEGRADED
        found.append(ScanResult("switch_errors", "NVSWITCH", verdict, fact.text))
    return found


def fabric_running(facts: ScanFacts) -> list[ScanResult]:
    """Machines with NVSwitches cannot start CUDA without it."""
    if not any(device.kind is pci_sysfs.DeviceKind.SWITCH for device in facts.node.pci):
        return []
    if facts.node.units is None:
        words = "there are NVSwitches, and systemd could not be asked about Fabric Manager"
        return [ScanResult("fabric_running", "NVLINK", ScanVerdict.UNKNOWN, words)]
    unit = next((unit for unit in facts.node.units if unit.name == FABRIC_MANAGER), None)
    if unit is None:
        return [ScanResult("fabric_running", "NVLINK", ScanVerdict.UNHEALTHY, f"{FABRIC_MANAGER} is not installed")]
    verdict = ScanVerdict.HEALTHY if unit.is_running else ScanVerdict.UNHEALTHY
    return [ScanResult("fabric_running", "NVLINK", verdict, f"{unit.name} is {unit.active} ({unit.sub})")]


def units(facts: ScanFacts) -> list[ScanResult]:
    """Enabled units for GPUs that have failed."""
    return [
        ScanResult("units", "DRIVER", ScanVerdict.DEGRADED, f"{unit.name} is {unit.active} ({unit.sub})")
        for unit in facts.node.units or ()
        if unit.name != FABRIC_MANAGER and unit.active == "failed"
    ]


def next_boot(facts: ScanFacts) -> list[ScanResult]:
    boot = facts.node.next_boot
    if boot is None or boot.has_nvidia is None or facts.node.driver is None:
        return []
    words = (
        f"kernel {boot.release}, which the next boot would start, has {'an' if boot.has_nvidia else 'no'} NVIDIA module"
    )
    return [ScanResult("next_boot", "DRIVER", ScanVerdict.HEALTHY if boot.has_nvidia else ScanVerdict.DEGRADED, words)]


def disks(facts: ScanFacts) -> list[ScanResult]:
    found = []
    for disk in facts.node.disks:
        used = disk.used_ratio
        if used is not None:
            row = limits()["disk_full" if used >= limits()["disk_full"].limit else "disk_used"]
            verdict = row.verdict if used >= row.limit else ScanVerdict.HEALTHY
            found.append(
                ScanResult("disks", "HOST", verdict, f"{disk.path} is {used:.0%} full, the limit is {row.limit:.0%}")
            )
    return found


def stalled_mounts(facts: ScanFacts) -> list[ScanResult]:
    stalled = facts.node.stalled_mounts
    if not facts.node.remote_mounts:
        return []
    names = ", ".join(mount.path for mount in stalled)
    words = f"{names} does not answer" if stalled else f"{len(facts.node.remote_mounts)} remote filesystems answer"
    return [ScanResult("stalled_mounts", "HOST", ScanVerdict.UNHEALTHY if stalled else ScanVerdict.HEALTHY, words)]


def memory(facts: ScanFacts) -> list[ScanResult]:
    read = facts.node.memory
    if read is None or read.total_bytes <= 0:
        return [ScanResult("memory", "HOST", ScanVerdict.UNKNOWN, "/proc/meminfo could not be read")]
    row, share = limits()["memory_available"], read.available_bytes / read.total_bytes
    words = f"{share:.0%} of {read.total_bytes / 2**30:.0f} GiB available, the limit is {row.limit:.0%}"
    return [ScanResult("memory", "HOST", row.verdict if share < row.limit else ScanVerdict.HEALTHY, words)]


def shared_memory(facts: ScanFacts) -> list[ScanResult]:
    space = facts.node.shared_memory
    if space is None:
        return []
    row = limits()["shared_memory"]
    words = f"Shared memory has {space.size_bytes / 2**30:.1f} GiB, at least {row.limit / 2**30:.0f} GiB is wanted"
    return [
        ScanResult("shared_memory", "HOST", row.verdict if space.size_bytes < row.limit else ScanVerdict.HEALTHY, words)
    ]


def clock(facts: ScanFacts) -> list[ScanResult]:
    """A clock that nothing keeps right is only noted: virtual machines leave it to their host."""
    state = facts.node.clock
    if state is None or state.offset_seconds is None:
        return []
    row, off = limits()["clock_offset"], abs(state.offset_seconds)
    words = f"the clock is {off:.3f} s off ({state.source}), the limit is {row.limit:g} s"
    return [ScanResult("clock", "HOST", row.verdict if off >= row.limit else ScanVerdict.HEALTHY, words)]


def sensors(facts: ScanFacts) -> list[ScanResult]:
    """Fans, temperatures and power supplies that raise their own alarm."""
    alarmed = [sensor for sensor in facts.node.sensors if sensor.is_alarmed]
    if not facts.node.sensors:
        return []
    if not alarmed:
        return [ScanResult("sensors", "HOST", ScanVerdict.HEALTHY, f"{len(facts.node.sensors)} sensors, none alarmed")]
    return [
        ScanResult(
            "sensors", "HOST", ScanVerdict.DEGRADED, f"{one.kind} {one.label} of {one.chip} is alarmed at {one.value:g}"
        )
        for one in alarmed
    ]


CHECKS: tuple[Check, ...] = (
    gpus_readable,
    gpus_present,
    xids,
    switch_errors,
    fabric_running,
    units,
    next_boot,
    disks,
    stalled_mounts,
    memory,
    shared_memory,
    clock,
    sensors,
)
