"""Level 1 tests of software and configuration: one function for each test, over facts, without a GPU.

A test that does not apply to the node (Fabric Manager without NVSwitches) has no result; a test without facts is
skipped with a reason. Health limits are in packs/health_limits.csv.
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
    SYSTEM_NOT_READY: "the NVLink fabric is not ready; check nvidia-fabricmanager",
    DRIVER_MISMATCH: "libcuda does not match the loaded kernel driver; reboot, or reload the driver",
    NO_DEVICE: "CUDA sees no GPU; check CUDA_VISIBLE_DEVICES and the device files",
}
PROHIBITED = 2
FABRIC_COMPLETED = "fabric_in_progress"


def run_checks(facts: SoftwareFacts) -> tuple[TestResult, ...]:
    results = [result for test in NODE_TESTS for result in test(facts)]
    for gpu in facts.gpus:
        results += [result for gpu_test in GPU_TESTS for result in gpu_test(facts, gpu)]
    return tuple(results)


def _node_result(test: str, verdict: DiagVerdict, why: str, **values: float) -> TestResult:
    return TestResult(test, None, verdict, why, **values)  # type: ignore[arg-type]


def check_nvml(facts: SoftwareFacts) -> Iterator[TestResult]:
    driver = facts.driver
    if driver.error_name is None:
        yield _node_result("nvml", DiagVerdict.PASS, f"NVML {driver.library} answers, driver {driver.version}")
    elif facts.gpus_on_bus == 0:
        yield _node_result(
            "nvml", DiagVerdict.SKIP, f"no GPU on the PCI bus; NVML error {driver.error_name}: {driver.error_text}"
        )
    else:
        text = f"NVML error {driver.error_name}: {driver.error_text}; {facts.gpus_on_bus} GPUs on the PCI bus"
        yield _node_result("nvml", DiagVerdict.FAIL, text)
    for text in facts.lost:
        yield _node_result("gpus_answer", DiagVerdict.FAIL, text)


def check_driver_versions(facts: SoftwareFacts) -> Iterator[TestResult]:
    loaded_version = None if facts.node is None else facts.node.driver
    library_version = facts.driver.library
    if loaded_version is None or facts.driver.version is None or library_version is None:
        return
    # NVML's own version is CUDA's major version and then the driver's: 13.580.95.05.
    is_same = facts.driver.version == loaded_version and library_version.endswith(loaded_version)
    text = f"kernel driver {loaded_version}, NVML driver {facts.driver.version}, library {library_version}"
    next_step = "" if is_same else "; after an update, reboot or reload the driver"
    yield _node_result("driver_versions", DiagVerdict.PASS if is_same else DiagVerdict.FAIL, text + next_step)


def check_denylist(facts: SoftwareFacts) -> Iterator[TestResult]:
    text = "nouveau is loaded and blocks the NVIDIA driver" if facts.has_nouveau else "nouveau is not loaded"
    yield _node_result("denylist", DiagVerdict.FAIL if facts.has_nouveau else DiagVerdict.PASS, text)


def check_device_files(facts: SoftwareFacts) -> Iterator[TestResult]:
    if not facts.gpus:
        return
    unusable = [file for file in facts.device_files if not file.is_usable]
    missing = ", ".join(file.path for file in unusable if not file.exists)
    not_permitted = ", ".join(file.path for file in unusable if file.exists)
    parts = [f"{missing} missing" if missing else "", f"no access to {not_permitted}" if not_permitted else ""]
    text = "; ".join(filter(None, parts)) or f"{len(facts.device_files)} device files are accessible"
    yield _node_result("device_files", DiagVerdict.FAIL if unusable else DiagVerdict.PASS, text)


def check_gpu_count(facts: SoftwareFacts) -> Iterator[TestResult]:
    expected = max(facts.gpus_on_bus, facts.expected_gpus or 0)
    if expected == 0 and not facts.gpus:
        return
    count = len(facts.gpus)
    expected_text = "" if facts.expected_gpus is None else f", {facts.expected_gpus} expected"
    text = f"{count} GPUs answer, {facts.gpus_on_bus} on the PCI bus{expected_text}"
    verdict = DiagVerdict.FAIL if count < expected else DiagVerdict.PASS
    yield _node_result("gpu_count", verdict, text, measured=count, expected=expected or count)


def check_cuda(facts: SoftwareFacts) -> Iterator[TestResult]:
    status = facts.cuda
    if status is None or (facts.driver.error_name is not None and facts.gpus_on_bus == 0):
        return
    if status.version is None:
        yield _node_result("cuda", DiagVerdict.FAIL, f"libcuda.so.1 cannot be loaded: {status.error_text}")
        return
    version = f"CUDA {status.version // 1000}.{status.version % 1000 // 10}"
    if status.error_code != 0:
        next_step = CUDA_REMEDIES.get(status.error_code or 0, "")
        text = (
            f"{version} does not start: {status.error_name} ({status.error_code}){': ' if next_step else ''}{next_step}"
        )
        yield _node_result("cuda", DiagVerdict.FAIL, text)
        return
    visible_devices = facts.environment.get("CUDA_VISIBLE_DEVICES")
    if status.gpu_count < len(facts.gpus):
        variable_text = f", CUDA_VISIBLE_DEVICES is {visible_devices!r}" if visible_devices is not None else ""
        text = f"{version} sees {status.gpu_count} of {len(facts.gpus)} GPUs{variable_text}"
        # MIG and CUDA_VISIBLE_DEVICES hide GPUs on purpose.
        yield _node_result("cuda", DiagVerdict.WARN, text, measured=status.gpu_count, expected=len(facts.gpus))
        return
    yield _node_result("cuda", DiagVerdict.PASS, f"{version} starts and sees {status.gpu_count} GPUs")


def check_fabric_service(facts: SoftwareFacts) -> Iterator[TestResult]:
    node = facts.node
    if node is None or not any(device.kind is pci_sysfs.DeviceKind.SWITCH for device in node.pci):
        return
    if node.units is None:
        yield _node_result("fabric_manager", DiagVerdict.SKIP, "NVSwitches found, but systemd could not be queried")
        return
    unit = next((unit for unit in node.units if unit.name == FABRIC_MANAGER), None)
    text = f"{FABRIC_MANAGER} is {'not installed' if unit is None else f'{unit.active} ({unit.sub})'}"
    is_running = unit is not None and unit.is_running
    yield _node_result("fabric_manager", DiagVerdict.PASS if is_running else DiagVerdict.FAIL, text)


def check_shared_memory(facts: SoftwareFacts) -> Iterator[TestResult]:
    space = None if facts.node is None else facts.node.shared_memory
    if space is None:
        return
    limit = expectations.health_limits()["shared_memory"]
    text = f"{space.path} has {space.size_bytes / 2**30:.1f} GiB, at least {limit / 2**30:.0f} GiB is recommended"
    yield _node_result("shared_memory", DiagVerdict.WARN if space.size_bytes < limit else DiagVerdict.PASS, text)


def check_persistence_mode(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    mode = gpu.number("DCGM_FI_DEV_PERSISTENCE_MODE")
    if mode is not None:
        text = (
            "on"
            if mode
            else "off: the driver initialises the GPU again for the next process; start nvidia-persistenced"
        )
        verdict = DiagVerdict.PASS if mode else DiagVerdict.WARN
        yield TestResult("persistence_mode", gpu.uuid, verdict, f"persistence mode is {text}")


def check_ecc_mode(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    current, pending = gpu.number("DCGM_FI_DEV_ECC_CURRENT"), gpu.number("DCGM_FI_DEV_ECC_PENDING")
    if current is None:
        return
    mode_names = {True: "on", False: "off"}
    if pending is not None and pending != current:
        text = f"ECC is {mode_names[bool(current)]}, {mode_names[bool(pending)]} after the next reset"
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.WARN, text)
    elif current:
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.PASS, "ECC is on")
    else:
        yield TestResult("ecc_mode", gpu.uuid, DiagVerdict.WARN, "ECC is off: memory errors are not detected")


def check_modes(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    mig, compute = gpu.number("DCGM_FI_DEV_MIG_MODE"), gpu.number("DCGM_FI_DEV_COMPUTE_MODE")
    if mig is not None:
        yield TestResult("mig_mode", gpu.uuid, DiagVerdict.PASS, f"MIG is {'on' if mig else 'off'}")
    if compute is not None:
        is_prohibited = compute == PROHIBITED
        text = (
            "compute mode is prohibited: no process may use the GPU" if is_prohibited else f"compute mode {compute:g}"
        )
        yield TestResult("compute_mode", gpu.uuid, DiagVerdict.FAIL if is_prohibited else DiagVerdict.PASS, text)


def check_memory_repairs(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    """Rows and pages that need a reset, or can no longer be repaired."""
    flags = {
        "remap_failed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE", DiagVerdict.FAIL, "row remapping has failed"),
        "unrepairable_memory": ("DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", DiagVerdict.FAIL, "memory cannot be repaired"),
        "volatile_dbe": (
            "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
            DiagVerdict.FAIL,
            "uncorrectable errors since the last reset",
        ),
        "remap_pending": ("DCGM_FI_DEV_ROW_REMAP_PENDING", DiagVerdict.WARN, "a row remap needs a reset"),
        "pages_pending": ("DCGM_FI_DEV_RETIRED_PENDING", DiagVerdict.WARN, "a page retirement needs a reset"),
    }
    limits, counters_read = expectations.health_limits(), 0
    for check, (family, verdict, text) in flags.items():
        value = gpu.number(family)
        if value is None:
            continue
        counters_read += 1
        if value >= limits[check]:
            yield TestResult("memory_repairs", gpu.uuid, verdict, f"{text}: {value:g}, the limit is {limits[check]:g}")
            return
    if counters_read:
        yield TestResult("memory_repairs", gpu.uuid, DiagVerdict.PASS, "no pending or failed memory repair")


def check_inforom(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    valid = gpu.number("DCGM_FI_DEV_INFOROM_CONFIG_VALID")
    if valid is not None:
        text = "the InfoROM is valid" if valid else "the InfoROM is corrupted"
        yield TestResult("inforom", gpu.uuid, DiagVerdict.PASS if valid else DiagVerdict.WARN, text)


def check_recovery_action(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    action = gpu.number("watchkeeper_gpu_recovery_action")
    if action is not None:
        text = f"the driver requests recovery action {action:g}" if action else "no recovery action requested"
        yield TestResult("recovery_action", gpu.uuid, DiagVerdict.FAIL if action else DiagVerdict.PASS, text)


def check_pcie_link(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    """PCIe lanes only: the generation drops when idle, and level 2 measures the bandwidth under load."""
    lanes, max_lanes = gpu.number("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.number("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if lanes is None or not max_lanes:
        return
    generation = gpu.number("DCGM_FI_DEV_PCIE_LINK_GEN")
    text = f"{lanes:g} of {max_lanes:g} PCIe lanes" + ("" if generation is None else f", generation {generation:g} now")
    is_narrow = lanes / max_lanes < expectations.health_limits()["link_width"]
    verdict = DiagVerdict.FAIL if is_narrow else DiagVerdict.PASS
    yield TestResult("pcie_link", gpu.uuid, verdict, text, measured=lanes, expected=max_lanes, unit="lanes")


def check_nvlink(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    links = gpu.parts("watchkeeper_gpu_nvlink_up")
    up = sum(bool(state) for state in links.values())
    # The NVLinks of a GPU without peers are all down, which is not a fault.
    if not links or up == 0:
        return
    down = ", ".join(link for link, state in links.items() if not state)
    text = f"{up} of {len(links)} NVLinks are up" + (f"; down: {down}" if down else "")
    verdict = DiagVerdict.FAIL if down else DiagVerdict.PASS
    yield TestResult("nvlink", gpu.uuid, verdict, text, measured=up, expected=len(links), unit="links")


def check_fabric(_: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    state = gpu.number("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if state is not None:
        completed = expectations.health_limits()[FABRIC_COMPLETED]
        text = f"NVLink fabric status {state:g}, expected {completed:g} (completed)"
        yield TestResult("fabric", gpu.uuid, DiagVerdict.PASS if state == completed else DiagVerdict.FAIL, text)


def check_numa(facts: SoftwareFacts, gpu: GpuReading) -> Iterator[TestResult]:
    local_cpus = facts.local_cpus.get(gpu.pci)
    if not local_cpus or not facts.allowed_cpus:
        return
    usable_cpus = local_cpus & facts.allowed_cpus
    text = f"this process may use {len(usable_cpus)} of the {len(local_cpus)} CPUs near the GPU"
    reason = text if usable_cpus else f"{text}: every copy crosses to another socket; check cpusets and taskset"
    yield TestResult("numa", gpu.uuid, DiagVerdict.PASS if usable_cpus else DiagVerdict.WARN, reason)


NODE_TESTS: tuple[Callable[[SoftwareFacts], Iterator[TestResult]], ...] = (
    check_nvml,
    check_driver_versions,
    check_denylist,
    check_device_files,
    check_gpu_count,
    check_cuda,
    check_fabric_service,
    check_shared_memory,
)
GPU_TESTS: tuple[Callable[[SoftwareFacts, GpuReading], Iterator[TestResult]], ...] = (
    check_persistence_mode,
    check_ecc_mode,
    check_modes,
    check_memory_repairs,
    check_inforom,
    check_recovery_action,
    check_pcie_link,
    check_nvlink,
    check_fabric,
    check_numa,
)
