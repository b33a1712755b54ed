"""Level 1 tests of software and configuration: one function for each test, over facts, without a GPU.

A test that does not apply to the node (Fabric Manager without NVSwitches) has no result; a test without facts is
skipped with a reason. Health limits are in packs/health_limits.csv.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
PASS, WARN, FAIL = DiagVerdict.PASS, DiagVerdict.WARN, DiagVerdict.FAIL

NodeTest = Callable[[SoftwareFacts], TestResult | None]
GpuTest = Callable[[SoftwareFacts, GpuReading], TestResult | None]


def run_checks(facts: SoftwareFacts) -> tuple[TestResult, ...]:
    results = [check_nvml(facts), *(TestResult("gpus_answer", None, FAIL, text) for text in facts.lost)]
    results += [test(facts) for test in NODE_TESTS]
    results += [test(facts, gpu) for gpu in facts.gpus for test in GPU_TESTS]
    return tuple(result for result in results if result is not None)


def check_nvml(facts: SoftwareFacts) -> TestResult | None:
    driver = facts.driver
    if driver.error_name is None:
        return TestResult("nvml", None, PASS, f"NVML {driver.library} answers, driver {driver.version}")
    error = f"NVML error {driver.error_name}: {driver.error_text}"
    if facts.gpus_on_bus == 0:
        return TestResult("nvml", None, DiagVerdict.SKIP, f"no GPU on the PCI bus; {error}")
    return TestResult("nvml", None, FAIL, f"{error}; {facts.gpus_on_bus} GPUs on the PCI bus")


def check_driver_versions(facts: SoftwareFacts) -> TestResult | None:
    loaded_version = None if facts.node is None else facts.node.driver
    library_version = facts.driver.library
    if loaded_version is None or facts.driver.version is None or library_version is None:
        return None
    # NVML's own version is CUDA's major version and then the driver's: 13.580.95.05.
    is_same = facts.driver.version == loaded_version and library_version.endswith(loaded_version)
    text = f"kernel driver {loaded_version}, NVML driver {facts.driver.version}, library {library_version}"
    next_step = "" if is_same else "; after an update, reboot or reload the driver"
    return TestResult("driver_versions", None, PASS if is_same else FAIL, text + next_step)


def check_denylist(facts: SoftwareFacts) -> TestResult | None:
    text = "nouveau is loaded and blocks the NVIDIA driver" if facts.has_nouveau else "nouveau is not loaded"
    return TestResult("denylist", None, FAIL if facts.has_nouveau else PASS, text)


def check_device_files(facts: SoftwareFacts) -> TestResult | None:
    if not facts.gpus:
        return None
    unusable = [file for file in facts.device_files if not file.is_usable]
    missing = ", ".join(file.path for file in unusable if not file.exists)
    not_permitted = ", ".join(file.path for file in unusable if file.exists)
    parts = [f"{missing} missing" if missing else "", f"no access to {not_permitted}" if not_permitted else ""]
    text = "; ".join(filter(None, parts)) or f"{len(facts.device_files)} device files are accessible"
    return TestResult("device_files", None, FAIL if unusable else PASS, text)


def check_gpu_count(facts: SoftwareFacts) -> TestResult | None:
    count, expected = len(facts.gpus), max(facts.gpus_on_bus, facts.expected_gpus or 0)
    if expected == 0 and not facts.gpus:
        return None
    expected_text = "" if facts.expected_gpus is None else f", {facts.expected_gpus} expected"
    text = f"{count} GPUs answer, {facts.gpus_on_bus} on the PCI bus{expected_text}"
    verdict = FAIL if count < expected else PASS
    return TestResult("gpu_count", None, verdict, text, measured=count, expected=expected or count)


def check_cuda(facts: SoftwareFacts) -> TestResult | None:
    status = facts.cuda
    if status is None or (facts.driver.error_name is not None and facts.gpus_on_bus == 0):
        return None
    if status.version is None:
        return TestResult("cuda", None, FAIL, f"libcuda.so.1 cannot be loaded: {status.error_text}")
    version = f"CUDA {status.version // 1000}.{status.version % 1000 // 10}"
    if status.error_code != 0:
        remedy = CUDA_REMEDIES.get(status.error_code or 0, "")
        text = f"{version} does not start: {status.error_name} ({status.error_code}){': ' if remedy else ''}{remedy}"
        return TestResult("cuda", None, FAIL, text)
    if status.gpu_count < len(facts.gpus):
        visible_devices = facts.environment.get("CUDA_VISIBLE_DEVICES")
        variable_text = f", CUDA_VISIBLE_DEVICES is {visible_devices!r}" if visible_devices is not None else ""
        text = f"{version} sees {status.gpu_count} of {len(facts.gpus)} GPUs{variable_text}"
        # MIG and CUDA_VISIBLE_DEVICES hide GPUs on purpose.
        return TestResult("cuda", None, WARN, text, measured=status.gpu_count, expected=len(facts.gpus))
    return TestResult("cuda", None, PASS, f"{version} starts and sees {status.gpu_count} GPUs")


def check_fabric_service(facts: SoftwareFacts) -> TestResult | None:
    node = facts.node
    if node is None or not any(device.kind is pci_sysfs.DeviceKind.SWITCH for device in node.pci):
        return None
    if node.units is None:
        why = "NVSwitches found, but systemd could not be queried"
        return TestResult("fabric_manager", None, DiagVerdict.SKIP, why)
    unit = next((unit for unit in node.units if unit.name == FABRIC_MANAGER), None)
    text = f"{FABRIC_MANAGER} is {'not installed' if unit is None else f'{unit.active} ({unit.sub})'}"
    return TestResult("fabric_manager", None, PASS if unit is not None and unit.is_running else FAIL, text)


def check_shared_memory(facts: SoftwareFacts) -> TestResult | None:
    space = None if facts.node is None else facts.node.shared_memory
    if space is None:
        return None
    limit = expectations.health_limits()["shared_memory"]
    text = f"{space.path} has {space.size_bytes / 2**30:.1f} GiB, at least {limit / 2**30:.0f} GiB is recommended"
    return TestResult("shared_memory", None, WARN if space.size_bytes < limit else PASS, text)


@dataclass(frozen=True, slots=True)
class ValueTest:
    """A test of one value of a GPU, with the texts of both results."""

    test: str
    family: str
    is_good: Callable[[float], bool]
    good: str
    bad: str
    bad_verdict: DiagVerdict = FAIL

    def __call__(self, _: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
        value = gpu.number(self.family)
        if value is None:
            return None
        verdict, text = (PASS, self.good) if self.is_good(value) else (self.bad_verdict, self.bad)
        return TestResult(self.test, gpu.uuid, verdict, text.format(value))


PERSISTENCE_MODE = ValueTest(
    "persistence_mode",
    "DCGM_FI_DEV_PERSISTENCE_MODE",
    bool,
    "persistence mode is on",
    "persistence mode is off: the driver initialises the GPU again for the next process; start nvidia-persistenced",
    WARN,
)
COMPUTE_MODE = ValueTest(
    "compute_mode",
    "DCGM_FI_DEV_COMPUTE_MODE",
    lambda mode: mode != PROHIBITED,
    "compute mode {:g}",
    "compute mode is prohibited: no process may use the GPU",
)
RECOVERY_ACTION = ValueTest(
    "recovery_action",
    "watchkeeper_gpu_recovery_action",
    lambda action: not action,
    "no recovery action requested",
    "the driver requests recovery action {:g}",
)
MIG_MODE = ValueTest("mig_mode", "DCGM_FI_DEV_MIG_MODE", bool, "MIG is on", "MIG is off", PASS)
INFOROM = ValueTest(
    "inforom", "DCGM_FI_DEV_INFOROM_CONFIG_VALID", bool, "the InfoROM is valid", "the InfoROM is corrupted", WARN
)


def check_ecc_mode(_: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    current, pending = gpu.number("DCGM_FI_DEV_ECC_CURRENT"), gpu.number("DCGM_FI_DEV_ECC_PENDING")
    if current is None:
        return None
    mode_names = {True: "on", False: "off"}
    if pending is not None and pending != current:
        text = f"ECC is {mode_names[bool(current)]}, {mode_names[bool(pending)]} after the next reset"
        return TestResult("ecc_mode", gpu.uuid, WARN, text)
    text = "ECC is on" if current else "ECC is off: memory errors are not detected"
    return TestResult("ecc_mode", gpu.uuid, PASS if current else WARN, text)


# Rows and pages that need a reset, or can no longer be repaired: limit, family, verdict, text.
MEMORY_REPAIRS = (
    ("remap_failed", "DCGM_FI_DEV_ROW_REMAP_FAILURE", FAIL, "row remapping has failed"),
    ("unrepairable_memory", "DCGM_FI_DEV_MEMORY_UNREPAIRABLE_FLAG", FAIL, "memory cannot be repaired"),
    ("volatile_dbe", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", FAIL, "uncorrectable errors since the last reset"),
    ("remap_pending", "DCGM_FI_DEV_ROW_REMAP_PENDING", WARN, "a row remap needs a reset"),
    ("pages_pending", "DCGM_FI_DEV_RETIRED_PENDING", WARN, "a page retirement needs a reset"),
)


def check_memory_repairs(_: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    limits, counters_read = expectations.health_limits(), 0
    for check, family, verdict, text in MEMORY_REPAIRS:
        value = gpu.number(family)
        if value is not None and value >= limits[check]:
            reason = f"{text}: {value:g}, the limit is {limits[check]:g}"
            return TestResult("memory_repairs", gpu.uuid, verdict, reason)
        counters_read += value is not None
    if not counters_read:
        return None
    return TestResult("memory_repairs", gpu.uuid, PASS, "no pending or failed memory repair")


def check_pcie_link(_: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    """PCIe lanes only: the generation drops when idle, and level 2 measures the bandwidth under load."""
    lanes, max_lanes = gpu.number("DCGM_FI_DEV_PCIE_LINK_WIDTH"), gpu.number("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH")
    if lanes is None or not max_lanes:
        return None
    generation = gpu.number("DCGM_FI_DEV_PCIE_LINK_GEN")
    text = f"{lanes:g} of {max_lanes:g} PCIe lanes" + ("" if generation is None else f", generation {generation:g} now")
    verdict = FAIL if lanes / max_lanes < expectations.health_limits()["link_width"] else PASS
    return TestResult("pcie_link", gpu.uuid, verdict, text, measured=lanes, expected=max_lanes, unit="lanes")


def check_nvlink(_: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    links = gpu.parts("watchkeeper_gpu_nvlink_up")
    up = sum(bool(state) for state in links.values())
    # The NVLinks of a GPU without peers are all down, which is not a fault.
    if not links or up == 0:
        return None
    down = ", ".join(link for link, state in links.items() if not state)
    text = f"{up} of {len(links)} NVLinks are up" + (f"; down: {down}" if down else "")
    verdict = FAIL if down else PASS
    return TestResult("nvlink", gpu.uuid, verdict, text, measured=up, expected=len(links), unit="links")


def check_fabric(_: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    state = gpu.number("DCGM_FI_DEV_FABRIC_MANAGER_STATUS")
    if state is None:
        return None
    completed = expectations.health_limits()[FABRIC_COMPLETED]
    text = f"NVLink fabric status {state:g}, expected {completed:g} (completed)"
    return TestResult("fabric", gpu.uuid, PASS if state == completed else FAIL, text)


def check_numa(facts: SoftwareFacts, gpu: GpuReading) -> TestResult | None:
    local_cpus = facts.local_cpus.get(gpu.pci)
    if not local_cpus or not facts.allowed_cpus:
        return None
    usable_cpus = local_cpus & facts.allowed_cpus
    text = f"this process may use {len(usable_cpus)} of the {len(local_cpus)} CPUs near the GPU"
    reason = text if usable_cpus else f"{text}: every copy crosses to another socket; check cpusets and taskset"
    return TestResult("numa", gpu.uuid, PASS if usable_cpus else WARN, reason)


NODE_TESTS: tuple[NodeTest, ...] = (
    check_driver_versions,
    check_denylist,
    check_device_files,
    check_gpu_count,
    check_cuda,
    check_fabric_service,
    check_shared_memory,
)
GPU_TESTS: tuple[GpuTest, ...] = (
    PERSISTENCE_MODE,
    check_ecc_mode,
    MIG_MODE,
    COMPUTE_MODE,
    check_memory_repairs,
    INFOROM,
    RECOVERY_ACTION,
    check_pcie_link,
    check_nvlink,
    check_fabric,
    check_numa,
)
