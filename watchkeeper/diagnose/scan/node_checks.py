"""The checks of the whole node: `ScanFacts → results`, empty if the node does not have the feature."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.catalogue import causes
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanResult, ScanVerdict, limits, xid_verdicts
from watchkeeper.model import events
from watchkeeper.readers.node import pci_sysfs

Check = Callable[[ScanFacts], list[ScanResult]]
FABRIC_MANAGER = "nvidia-fabricmanager.service"
# Without a driver and without a GPU on the bus, the health of GPUs is unknown.
UNKNOWN_CAUSES = frozenset({"driver_not_loaded", "unknown"})


def gpus_readable(facts: ScanFacts) -> list[ScanResult]:
    """Faults that occurred while GPUs were read, and whether there are GPUs."""
    on_bus = sum(device.kind is pci_sysfs.DeviceKind.GPU for device in facts.node.pci)
    results = []
    for fault in facts.faults:
        is_unknown = fault.cause in UNKNOWN_CAUSES and on_bus == 0 and fault.gpu is None
        verdict = ScanVerdict.UNKNOWN if is_unknown else ScanVerdict.UNHEALTHY
        detail = f"{fault.evidence} ({causes.lookup(fault.cause).cause})"
        results.append(ScanResult("gpus_readable", "DRIVER", verdict, detail, gpu=fault.gpu))
    if not results and not facts.gpus:
        results.append(ScanResult("gpus_readable", "DRIVER", ScanVerdict.UNKNOWN, "no GPU found"))
    return results or [ScanResult("gpus_readable", "DRIVER", ScanVerdict.HEALTHY, f"{len(facts.gpus)} GPUs answer")]


def gpus_present(facts: ScanFacts) -> list[ScanResult]:
    """Compare the GPUs that answer with those on the PCI bus and the expected number."""
    count = len(facts.gpus)
    on_bus = sum(device.kind is pci_sysfs.DeviceKind.GPU for device in facts.node.pci)
    expected = max(on_bus, facts.expected_gpus or 0)
    if expected == 0:
        return []
    expected_text = "" if facts.expected_gpus is None else f", {facts.expected_gpus} expected"
    detail = f"{count} GPUs answer, {on_bus} on the PCI bus{expected_text}"
    verdict = ScanVerdict.HEALTHY if count >= expected else ScanVerdict.UNHEALTHY
    return [ScanResult("gpus_present", "PCIE", verdict, detail)]


def xids(facts: ScanFacts) -> list[ScanResult]:
    """Xids that DCGM's health check watches, since the last reset of each GPU."""
    if facts.kernel is None:
        detail = f"the kernel log could not be read: {facts.kernel_problem}"
        return [ScanResult("xids", "DRIVER", ScanVerdict.UNKNOWN, detail)]
    latest: dict[tuple[str | None, int], str] = {}
    for fact in facts.kernel:
        if fact.kind is events.EventKind.GPU_RESET:
            latest = {key: text for key, text in latest.items() if fact.pci is not None and key[0] != fact.pci}
        elif fact.kind is events.EventKind.XID and fact.code is not None and fact.code in xid_verdicts():
            latest[fact.pci, fact.code] = fact.text
    uuid_at = {gpu.pci: gpu.uuid for gpu in facts.gpus}
    results = []
    for (pci, code), text in latest.items():
        system, verdict = xid_verdicts()[code]
        results.append(ScanResult("xids", system, verdict, text, gpu=uuid_at.get(pci)))
    detail = f"{len(facts.kernel)} hardware messages in the kernel log, none is an Xid that DCGM watches"
    return results or [ScanResult("xids", "DRIVER", ScanVerdict.HEALTHY, detail)]


def switch_errors(facts: ScanFacts) -> list[ScanResult]:
    """SXids of NVSwitches: fatal ones are unhealthy, others degraded, as in DCGM."""
    sxids = [fact for fact in facts.kernel or () if fact.kind is events.EventKind.SXID]
    results = []
    for fact in sxids[-10:]:
        fatal = fact.fields.get("severity", "").lower() == "fatal"
        verdict = ScanVerdict.UNHEALTHY if fatal else ScanVerdict.DEGRADED
        results.append(ScanResult("switch_errors", "NVSWITCH", verdict, fact.text))
    return results


def fabric_running(facts: ScanFacts) -> list[ScanResult]:
    """Nodes with NVSwitches cannot start CUDA without Fabric Manager."""
    if not any(device.kind is pci_sysfs.DeviceKind.SWITCH for device in facts.node.pci):
        return []
    if facts.node.units is None:
        detail = "the node has NVSwitches, but systemd did not report the state of Fabric Manager"
        return [ScanResult("fabric_running", "NVLINK", ScanVerdict.UNKNOWN, detail)]
    unit = next((unit for unit in facts.node.units if unit.name == FABRIC_MANAGER), None)
    if unit is None:
        return [ScanResult("fabric_running", "NVLINK", ScanVerdict.UNHEALTHY, f"{FABRIC_MANAGER} is not installed")]
    verdict = ScanVerdict.HEALTHY if unit.is_running else ScanVerdict.UNHEALTHY
    return [ScanResult("fabric_running", "NVLINK", verdict, f"{unit.name} is {unit.active} ({unit.sub})")]


def units(facts: ScanFacts) -> list[ScanResult]:
    return [
        ScanResult("units", "DRIVER", ScanVerdict.DEGRADED, f"{unit.name} is {unit.active} ({unit.sub})")
        for unit in facts.node.units or ()
        if unit.name != FABRIC_MANAGER and unit.active == "failed"
    ]


def next_boot(facts: ScanFacts) -> list[ScanResult]:
    boot = facts.node.next_boot
    if boot is None or boot.has_nvidia is None or facts.node.driver is None:
        return []
    detail = f"kernel {boot.release}, which the next boot starts, has {'an' if boot.has_nvidia else 'no'} NVIDIA driver"
    return [ScanResult("next_boot", "DRIVER", ScanVerdict.HEALTHY if boot.has_nvidia else ScanVerdict.DEGRADED, detail)]


def disks(facts: ScanFacts) -> list[ScanResult]:
    results = []
    for disk in facts.node.disks:
        if (used := disk.used_ratio) is not None:
            row = limits()["disk_full" if used >= limits()["disk_full"].limit else "disk_used"]
            detail = f"{disk.path} is {used:.0%} full, the limit is {row.limit:.0%}"
            results.append(row.result("disks", detail, is_exceeded=used >= row.limit))
    return results


def stalled_mounts(facts: ScanFacts) -> list[ScanResult]:
    stalled = facts.node.stalled_mounts
    if not facts.node.remote_mounts:
        return []
    names = ", ".join(mount.path for mount in stalled)
    detail = f"no answer from {names}" if stalled else f"{len(facts.node.remote_mounts)} remote filesystems answer"
    return [ScanResult("stalled_mounts", "HOST", ScanVerdict.UNHEALTHY if stalled else ScanVerdict.HEALTHY, detail)]


def memory(facts: ScanFacts) -> list[ScanResult]:
    host_memory = facts.node.memory
    if host_memory is None or host_memory.total_bytes <= 0:
        return [ScanResult("memory", "HOST", ScanVerdict.UNKNOWN, "/proc/meminfo could not be read")]
    row, share = limits()["memory_available"], host_memory.available_bytes / host_memory.total_bytes
    detail = f"{share:.0%} of {host_memory.total_bytes / 2**30:.0f} GiB available, the limit is {row.limit:.0%}"
    return [row.result("memory", detail, is_exceeded=share < row.limit)]


def shared_memory(facts: ScanFacts) -> list[ScanResult]:
    space = facts.node.shared_memory
    if space is None:
        return []
    row = limits()["shared_memory"]
    detail = f"shared memory has {space.size_bytes / 2**30:.1f} GiB, the minimum is {row.limit / 2**30:.0f} GiB"
    return [row.result("shared_memory", detail, is_exceeded=space.size_bytes < row.limit)]


def clock(facts: ScanFacts) -> list[ScanResult]:
    """The clock offset; without a known offset there is no result, because virtual machines follow their host."""
    state = facts.node.clock
    if state is None or state.offset_seconds is None:
        return []
    row, off = limits()["clock_offset"], abs(state.offset_seconds)
    detail = f"the clock is {off:.3f} s off ({state.source}), the limit is {row.limit:g} s"
    return [row.result("clock", detail, is_exceeded=off >= row.limit)]


def sensors(facts: ScanFacts) -> list[ScanResult]:
    """Fans, temperatures and power supplies whose sensor reports an alarm."""
    if not facts.node.sensors:
        return []
    details = [
        f"{sensor.kind} {sensor.label} of {sensor.chip} reports an alarm at {sensor.value:g}"
        for sensor in facts.node.sensors
        if sensor.is_alarmed
    ]
    results = [ScanResult("sensors", "HOST", ScanVerdict.DEGRADED, detail) for detail in details]
    healthy = f"{len(facts.node.sensors)} sensors, no alarm"
    return results or [ScanResult("sensors", "HOST", ScanVerdict.HEALTHY, healthy)]


CHECKS: tuple[Check, ...] = (
    gpus_readable, gpus_present, xids, switch_errors, fabric_running, units, next_boot, disks, stalled_mounts, memory,
    shared_memory, clock, sensors,
)  # fmt: skip
