"""Level 1 over facts: faults of the software around GPUs, and tests that do not apply to a node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from watchkeeper.model.diag import DiagVerdict, TestResult
from watchkeeper.probe.diag import software_facts
from watchkeeper.probe.diag.software_checks import run_checks
from watchkeeper.probe.diag.software_facts import CudaStatus, DeviceFile, GpuReading, NvmlStatus, SoftwareFacts
from watchkeeper.readers.node import host, pci_sysfs, systemd_units
from watchkeeper.readers.node.node import NodeFacts

WORKING = NvmlStatus("580.95.05", "13.580.95.05")
GPU = pci_sysfs.PciDevice("0000:01:00.0", pci_sysfs.DeviceKind.GPU)
SWITCH = pci_sysfs.PciDevice("0000:05:00.0", pci_sysfs.DeviceKind.SWITCH)


def gpu(**values: Any) -> GpuReading:
    return GpuReading("GPU-1", 0, "0000:01:00.0", "NVIDIA H200", "0", values)


def facts(**changes: Any) -> SoftwareFacts:
    usual: dict[str, Any] = {"driver": WORKING, "cuda": CudaStatus(13000, 0, "CUDA_SUCCESS", 1), "gpus": (gpu(),)}
    return SoftwareFacts(**(usual | changes))


def about(given: SoftwareFacts, test: str) -> TestResult | None:
    return next((result for result in run_checks(given) if result.test == test), None)


def verdict(given: SoftwareFacts, test: str) -> DiagVerdict | None:
    result = about(given, test)
    return None if result is None else result.verdict


def test_a_library_version_that_differs_from_the_kernel_driver_fails() -> None:
    result = about(facts(node=NodeFacts(driver="570.1.2")), "driver_versions")
    assert result is not None
    assert (result.verdict, "570.1.2" in result.why, "580.95.05" in result.why) == (DiagVerdict.FAIL, True, True)
    assert verdict(facts(node=NodeFacts(driver="580.95.05")), "driver_versions") is DiagVerdict.PASS


def test_a_broken_nvml_is_a_failure_only_on_a_node_with_a_gpu() -> None:
    broken = NvmlStatus(error_name="DRIVER_NOT_LOADED", error_text="Driver Not Loaded")
    assert verdict(facts(driver=broken, gpus=(), node=NodeFacts(pci=(GPU,))), "nvml") is DiagVerdict.FAIL
    assert verdict(facts(driver=broken, gpus=(), node=NodeFacts()), "nvml") is DiagVerdict.SKIP


def test_a_lost_gpu_fails_with_its_name() -> None:
    row = {"index": 3, "identity": {"uuid": "GPU-3"}, "lost": "nvmlDeviceGetUUID"}
    readings, lost = software_facts.read_gpus([row])
    assert (readings, lost) == ((), ("GPU-3 is lost: nvmlDeviceGetUUID returned GPU_IS_LOST",))
    assert verdict(facts(lost=lost), "gpus_answer") is DiagVerdict.FAIL


@pytest.mark.parametrize(
    ("expected", "answer"), [(None, DiagVerdict.PASS), (1, DiagVerdict.PASS), (8, DiagVerdict.FAIL)]
)
def test_fewer_gpus_than_expected_fail_with_both_numbers(expected: int | None, answer: DiagVerdict) -> None:
    assert verdict(facts(expected_gpus=expected), "gpu_count") is answer
    assert verdict(facts(node=NodeFacts(pci=(GPU, GPU))), "gpu_count") is DiagVerdict.FAIL


@pytest.mark.parametrize(
    ("cuda", "words"),
    [
        (
            CudaStatus(None, error_text="libcuda.so.1: cannot open"),
            "libcuda.so.1 cannot be loaded: libcuda.so.1: cannot open",
        ),
        (CudaStatus(13000, 802, "CUDA_ERROR_SYSTEM_NOT_READY"), "check nvidia-fabricmanager"),
        (
            CudaStatus(13000, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
            "libcuda does not match the loaded kernel driver",
        ),
        (CudaStatus(0, -1, "no answer"), "does not start: no answer"),
    ],
)
def test_a_cuda_that_does_not_start_has_a_next_step(cuda: CudaStatus, words: str) -> None:
    result = about(facts(cuda=cuda), "cuda")
    assert result is not None
    assert (result.verdict, words in result.why) == (DiagVerdict.FAIL, True)


def test_gpus_hidden_by_a_variable_are_a_warning() -> None:
    result = about(facts(cuda=CudaStatus(13000, 0, "", 0), environment={"CUDA_VISIBLE_DEVICES": ""}), "cuda")
    assert result is not None
    assert (result.verdict, result.why) == (DiagVerdict.WARN, "CUDA 13.0 sees 0 of 1 GPUs, CUDA_VISIBLE_DEVICES is ''")


def test_missing_and_inaccessible_device_files_are_named() -> None:
    files = (DeviceFile("/dev/nvidia0", True, False), DeviceFile("/dev/nvidia-uvm", False, False))
    result = about(facts(device_files=files), "device_files")
    assert result is not None
    assert result.why == "/dev/nvidia-uvm missing; no access to /dev/nvidia0"


def test_fabric_manager_is_checked_only_with_nvswitches() -> None:
    assert about(facts(node=NodeFacts(pci=(GPU,))), "fabric_manager") is None
    assert verdict(facts(node=NodeFacts(pci=(GPU, SWITCH))), "fabric_manager") is DiagVerdict.SKIP
    unit = systemd_units.Unit("nvidia-fabricmanager.service", "loaded", "failed", "failed")
    assert verdict(facts(node=NodeFacts(pci=(SWITCH,), units=(unit,))), "fabric_manager") is DiagVerdict.FAIL
    assert verdict(facts(node=NodeFacts(pci=(SWITCH,), units=())), "fabric_manager") is DiagVerdict.FAIL


def test_a_container_with_little_shared_memory_warns() -> None:
    small = host.Space("/dev/shm", 64 << 20, 64 << 20)
    assert verdict(facts(node=NodeFacts(shared_memory=small)), "shared_memory") is DiagVerdict.WARN


@pytest.mark.parametrize(
    ("values", "test", "answer"),
    [
        ({"DCGM_FI_DEV_PERSISTENCE_MODE": 0}, "persistence_mode", DiagVerdict.WARN),
        ({"DCGM_FI_DEV_PERSISTENCE_MODE": 1}, "persistence_mode", DiagVerdict.PASS),
        ({"DCGM_FI_DEV_ECC_CURRENT": 1, "DCGM_FI_DEV_ECC_PENDING": 1}, "ecc_mode", DiagVerdict.PASS),
        ({"DCGM_FI_DEV_ECC_CURRENT": 1, "DCGM_FI_DEV_ECC_PENDING": 0}, "ecc_mode", DiagVerdict.WARN),
        ({"DCGM_FI_DEV_ECC_CURRENT": 0}, "ecc_mode", DiagVerdict.WARN),
        ({"DCGM_FI_DEV_COMPUTE_MODE": 2}, "compute_mode", DiagVerdict.FAIL),
        ({"DCGM_FI_DEV_MIG_MODE": 1}, "mig_mode", DiagVerdict.PASS),
        ({"DCGM_FI_DEV_ROW_REMAP_PENDING": 1}, "memory_repairs", DiagVerdict.WARN),
        ({"DCGM_FI_DEV_ROW_REMAP_FAILURE": 1, "DCGM_FI_DEV_ROW_REMAP_PENDING": 1}, "memory_repairs", DiagVerdict.FAIL),
        ({"DCGM_FI_DEV_ROW_REMAP_PENDING": 0}, "memory_repairs", DiagVerdict.PASS),
        ({"DCGM_FI_DEV_INFOROM_CONFIG_VALID": 0}, "inforom", DiagVerdict.WARN),
        ({"watchkeeper_gpu_recovery_action": 1}, "recovery_action", DiagVerdict.FAIL),
        ({"DCGM_FI_DEV_PCIE_LINK_WIDTH": 8, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16}, "pcie_link", DiagVerdict.FAIL),
        ({"watchkeeper_gpu_nvlink_up": {"0": 1, "1": 0}}, "nvlink", DiagVerdict.FAIL),
        ({"watchkeeper_gpu_nvlink_up": {"0": 1, "1": 1}}, "nvlink", DiagVerdict.PASS),
        ({"watchkeeper_gpu_nvlink_up": {"0": 0, "1": 0}}, "nvlink", None),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 2}, "fabric", DiagVerdict.FAIL),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 3}, "fabric", DiagVerdict.PASS),
        ({"DCGM_FI_DEV_FABRIC_MANAGER_STATUS": 4}, "fabric", DiagVerdict.FAIL),
    ],
)
def test_readings_of_a_gpu_are_judged(values: dict[str, Any], test: str, answer: DiagVerdict | None) -> None:
    assert verdict(facts(gpus=(gpu(**values),)), test) is answer


def test_a_missing_reading_gets_no_verdict() -> None:
    assert not [result for result in run_checks(facts()) if result.gpu is not None]


def test_a_cpuset_far_from_the_gpu_warns(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "local_cpulist").write_text("0-3,8\n")
    near = software_facts.local_cpus([gpu()], tmp_path)
    assert near == {"0000:01:00.0": frozenset({0, 1, 2, 3, 8})}
    assert verdict(facts(local_cpus=near, allowed_cpus=frozenset({2, 9})), "numa") is DiagVerdict.PASS
    assert verdict(facts(local_cpus=near, allowed_cpus=frozenset({9})), "numa") is DiagVerdict.WARN
