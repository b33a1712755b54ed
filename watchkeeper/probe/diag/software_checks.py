"""Level 1: is the software around the GPUs as it has to be? One function for each test, over facts, without a GPU.

`diag_run` calls `examine`. A test that the node has no use for (Fabric Manager without NVSwitches) has no result; one
that could not look says `skip` and why. Limits of health are packs/health_limits.csv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe import expectations
from watchkeeper.probe.diag.software_facts import GpuReading, SoftwareFacts
from watchkeeper.readers.node import pci_sysfs

FABRIC_MANAGER = "nvidia-fabricmanager.service"
# cuda.h: CUDA_ERROR_SYSTEM_NOT_READY, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, and no device.
SYSTEM_NOT_READY, DRIVER_MISMATCH, NO_DEVICE = 802, 803, 100
CUDA_REMEDIES = {
    SYSTEM_NOT_READY: "the NVLink fabric is not ready: look at nvidia-fabricmanager",
    DRIVER_MISMATCH: "libcuda does not fit the loaded kernel module: reboot, or reload the driver",
    NO_DEVICE: "CUDA sees no GPU: look at CUDA_VISIBLE_DEVICES and at device files",
}
PROHIBITED = 2
FABRIC_COMPLETED = "fabric_in_progress"


def examine(facts: SoftwareFacts) -> tuple[TestResult, ...]:
    found = [result for test in NODE_TESTS for result in test(facts)]
    for gpu in facts.gpus:
        found += [result for gpu_test in GPU_TESTS for result in gpu_test(facts, gpu)]
    return tuple(found)


def _node(test: str, verdict: DiagVerdict, why: str, **numbers: float) -> TestResult:
    return TestResult(test, None, verdict, why, **numbers)  # type: ignore[arg-type]


def nvml(facts: SoftwareFacts) -> Iterator[TestResult]:
    driver = facts.driver
    if driver.broken is None:
        yield _node("nvml", DiagVerdict.PASS, f"NVML {driver.library} answers, driver {driver.version}")
    elif facts.on_bus == 0:
        yield _node("nvml", DiagVerdict.SKIP, f"no GPU is on the PCI bus, and NVML says {driver.broken}: {driver.why}")
    else:
        words = f"NVML says {driver.broken}: {driver.why}; {facts.on_bus} GPUs are on the PCI bus"
        yield _node("nvml", DiagVerdict.FAIL, words)
    for sentence in facts.lost:
        yield _node("gpus_answer", DiagVerdict.FAIL, sentence)


def driver_versions(facts: SoftwareFacts) -> Iterator[TestResult]:
    loaded = None if facts.node is None else facts.node.driver
    library = facts.driver.library
    if loaded is None or facts.driver.version is None or library is None:
        return
    # NVML's own version is CUDA's major version and then the driver's: 13.580.95.05.
    is_same = facts.driver.version == loaded and library.endswith(loaded)
    words = f"the loaded module is {loaded}, the driver says {facts.driver.version}, the library is {library}"
    remedy = "" if is_same else "; reboot, or reload the driver, after an update"
    yield _node("driver_versions", DiagVerdict.PASS if is_same else DiagVerdict.FAIL, words + remedy)


def denylist(facts: SoftwareFacts) -> Iterator[TestResult]:
    words = "nouveau is loaded, and NVIDIA's driver cannot have its GPUs" if facts.has_nouveau else "no nouveau"
    yield _node("denylist", DiagVerdict.FAIL if facts.has_nouveau else DiagVerdict.PASS, words)


def device_files(facts: SoftwareFacts) -> Iterator[TestResult]:
    if not facts.gpus:
        return
    bad = [file for file in facts.device_files if not file.is_usable]
    absent = ", ".join(file.path for file in bad if not file.is_there)
    closed = ", ".join(file.path for file in bad if file.is_there)
    sentences = [f"{absent} not there" if absent else "", f"{closed} may not be read and written" if closed else ""]
    words = "; ".join(filter(None, sentences)) or f"{len(facts.device_files)} device files can be used"
    yield _node("device_files", DiagVerdict.FAIL if bad else DiagVerdict.PASS, words)


def gpu_count(facts: SoftwareFacts) -> Iterator[TestResult]:
    wanted = max(facts.on_bus, facts.expected_gpus or 0)
    if wanted == 0 and not facts.gpus:
        return
    count = len(facts.gpus)
    told = "" if facts.expected_gpus is None else f", {facts.expected_gpus} are expected"
    words = f"{count} GPUs answer, {facts.on_bus} are on the PCI bus{told}"
    verdict = DiagVerdict.FAIL if count < wanted else DiagVerdict.PASS
    yield _node("gpu_count", verdict, words, measured=count, expected=wanted or count)


def cuda(facts: SoftwareFacts) -> Iterator[TestResult]:
    found = facts.cuda
    if found is None or (facts.driver.broken is not None and facts.on_bus == 0):
        return
    if found.library is None:
        yield _node("cuda", DiagVerdict.FAIL, f"libcuda.so.1 cannot be loaded: {found.why}")
        return
    version = f"CUDA {found.library // 1000}.{found.library % 1000 // 10}"
    if found.code != 0:
        remedy = CUDA_REMEDIES.get(found.code or 0, "")
        words = f"{version} does not start: {found.name} ({found.code}){': ' if remedy else ''}{remedy}"
        yield _node("cuda", DiagVerdict.FAIL, words)
        return
    hidden = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if found.count < len(facts.gpus):
        why = f", CUDA_VISIBLE_DEVICES is {hidden!r}" if hidden is not None else ""
        words = f"{version} sees {found.count} of {len(facts.gpus)} GPUs{why}"
        # Slices and a variable of the user's hide GPUs on purpose.
        yield _node("cuda", DiagVerdict.WARN, words, measured=found.count, expected=len(facts.gpus))
        return
    yield _node("cuda", DiagVerdict.PASS, f"{version} starts and sees {found.count} GPUs")


def fabric_service(facts: SoftwareFacts) -> Iterator[TestResult]:
    node = facts.node
    if node is None or not any(device.kind is pci_sysfs.DeviceKind.SWITCH for device in node.pci):
        return
    if node.units is None:
        yield _node("fabric_manager", DiagVerdict.SKIP, "there are NVSwitches, and systemd could not be asked")
        return
    unit = next((unit for unit in node.units if unit.name == FABRIC_MANAGER), None)
    words = f"{FABRIC_MANAGER} is {'not installed' if unit is None else f'{unit.active} ({unit.sub})'}"
    is_running = unit is not None and unit.is_running
    yield _node("fabric_manager", DiagVerdict.PASS if is_running else DiagVerdict.FAIL, words)


def shared_memory(facts: SoftwareFacts) -> Iterator[TestResult]:
    space = None if facts.node is None else facts.node.shared_memory
    if space is None:
        return
    limit = expectations.health_limits()["shared_memory"]
    words = f"{space.path} has {space.size_bytes / 2**30:.1f} GiB, at least {limit / 2**30:.0f} GiB is wanted"
    yield _node("shared_memory", DiagVerdict.WARN if space.size_bytes < limit else DiagVerdict.PASS, words)


def persistence_mode(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    mode = gpu.number("DCGM_FI_DEV_PERSISTENCE_MODE")
    if mode is not None:
        words = "on" if mode else "off: each first use of the GPU waits for the driver; start nvidia-persistenced"
        verdict = DiagVerdict.PASS if mode else DiagVerdict.WARN
        yield TestResult("persistence_mode", gpu.uuid, verdict, f"persistence mode is {words}")


def ecc_mode(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    now, then = gpu.number("DCGM_FI_DEV_ECC_CURRENT"), gpu.number("DCGM_FI_DEV_ECC_PENDING")
    if now is None:
        return
    said = {True: "on", False: "off"}
    if then is not None and then != now:
        words = f"ECC is {said[bool(now)]}, and will be {said[bool(then)]} after a reset"
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.WARN, words)
    elif now:
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.PASS, "ECC is on")
    else:
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.WARN, "ECC is off: memory errors stay unseen")


def modes(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    mig, compute = gpu.number("DCGM_FI_DEV_MIG_MODE"), gpu.number("DCGM_FI_DEV_COMPUTE_MODE")
    if mig is not None:
        yield TestResult("mig_mode", gpu.uuid, DiagVerdict.PASS, f"MIG is {'on' if mig else 'off'}")
    if compute is not None:
        is_closed = compute == PROHIBITED
        words = "compute mode is prohibited: no program may use the GPU" if is_closed else f"compute mode {compute:g}"
        yield TestResult("compute_mode", gpu.uuid, DiagVerdict.FAIL if is_closed else DiagVerdict.PASS, words)


def memory_repairs(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    """Rows and pages that wait for a reset, or can no longer be repaired."""
    flags = {
        "remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", DiagVerdict.FAIL, "row remapping has failed"),
        "unrepairable_memory": ("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", DiagVerdict.FAIL, "memory cannot be repaired"),
        "volatile_dbe": (
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            DiagVerdict.FAIL,
            "uncorrectable errors since the last reset",
        ),
        "remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING", DiagVerdict.WARN, "a row remap waits for a reset"),
        "pages_pending": ("DCGM_FI_DEV_RETIRED_PENDING", DiagVerdict.WARN, "a page retirement waits for a reset"),
    }
    limits, seen = expectations.health_limits(), 0
    for check, (family, verdict, words) in flags.items():
        value = gpu.number(family)
        if value is None:
            continue
        seen += 1
        if value >= limits[check]:
            why = f"{words}: {value:g}, the limit is {limits[check]:g}"
            yield TestResult("memory_repairs", gpu.uuid, verdict, why)
            return
    if seen:
        yield TestResult("memory_repairs", gpu.uuid, DiagVerdict.PASS, "no repair is pending or has failed")


def inforom(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    valid = gpu.number("DCGM_FI_DEV_INFOROM_CONFIG_VALID")
    if valid is not None:
        words = "the InfoROM is valid" if valid else "the InfoROM is corrupted"
        yield TestResult("inforom", gpu.uuid, DiagVerdict.PASS if valid else DiagVerdict.WARN, words)


def recovery_action(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    action = gpu.number("watchkeeper_gpu_recovery_action")
    if action is not None:
        words = f"the driver asks for recovery action {action:g}" if action else "the driver asks for no recovery"
        yield TestResult("recovery_action", gpu.uuid, DiagVerdict.FAIL if action else DiagVerdict.PASS, words)


def pcie_link(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    """Lanes; the generation drops at idle, and what it is under load shows in the bandwidth of level 2."""
    now, most = gpu.number("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.number("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if now is None or not most:
        return
    speed = gpu.number("DCGM_FI_DEV_PCIE_LINK_GEN")
    words = f"{now:g} of {most:g} PCIe lanes" + ("" if speed is None else f", generation {speed:g} now")
    is_narrow = now / most < expectations.health_limits()["link_width"]
    verdict = DiagVerdict.FAIL if is_narrow else DiagVerdict.PASS
    yield TestResult("pcie_link", gpu.uuid, verdict, words, measured=now, expected=most, unit="lanes")


def nvlink(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    links = gpu.parts("watchkeeper_gpu_nvlink_up")
    up = sum(bool(state) for state in links.values())
    # A GPU that stands alone has links and nothing at their ends: all down is no fault.
    if not links or up == 0:
        return
    down = ", ".join(link for link, state in links.items() if not state)
    words = f"{up} of {len(links)} NVLinks are up" + (f"; down: {down}" if down else "")
    verdict = DiagVerdict.FAIL if down else DiagVerdict.PASS
    yield TestResult("nvlink", gpu.uuid, verdict, words, measured=up, expected=len(links), unit="links")


def fabric(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    state = gpu.number("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if state is not None:
        wanted = expectations.health_limits()[FABRIC_COMPLETED]
        words = f"the NVLink fabric's status is {state:g}, {wanted:g} is set up"
        yield TestResult("fabric", gpu.uuid, DiagVerdict.PASS if state == wanted else DiagVerdict.FAIL, words)


def numa(facts: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    near = facts.local_cpus.get(gpu.pci)
    if not near or not facts.allowed_cpus:
        return
    both = near & facts.allowed_cpus
    words = f"{len(both)} of the {len(near)} processors near the GPU may be used from here"
    why = words if both else f"{words}: every copy crosses to another socket; look at cpusets and taskset"
    yield TestResult("numa", gpu.uuid, DiagVerdict.PASS if both else DiagVerdict.WARN, why)


NODE_TESTS: tuple[Callable[[SoftwareFacts], Iterator[TestResult]], ...] = (
    nvml,
    driver_versions,
    denylist,
    device_files,
    gpu_count,
    cuda,
    fabric_service,
    shared_memory,
)
GPU_TESTS: tuple[Callable[[SoftwareFacts, GpuReading], Iterator[TestResult]], ...] = (
    persistence_mode,
    ecc_mode,
    modes,
    memory_repairs,
    inforom,
    recovery_action,
    pcie_link,
    nvlink,
    fabric,
    numa,
)
