"""Checks of a scan over facts written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnose.scan.healthy import GPU, HEALTHY_NUMBERS, NODE, SWITCH, kernel
from watchkeeper.agent.gpus import policies
from watchkeeper.catalogue import causes
from watchkeeper.diagnose.scan import gpu_checks, node_checks, verdicts
from watchkeeper.diagnose.scan.examine import ScanReport, check_names, examine
from watchkeeper.diagnose.scan.verdicts import ScanFacts, ScanFault, ScanResult, ScanVerdict
from watchkeeper.readers.node import clock_offset, host, hwmon, kernel_modules, pci_sysfs, systemd_units
from watchkeeper.readers.node.node import NodeFacts

FACTS = ScanFacts(NODE, (GPU,), kernel=(), watched_seconds=2)
ON_BUS = pci_sysfs.PciDevice("0000:10:00", pci_sysfs.DeviceKind.GPU)


def worst(facts: ScanFacts, check: str) -> ScanVerdict:
    results = [result.verdict for result in examine(facts).results if result.check == check]
    return max(results, key=lambda verdict: verdict.rank)


def test_a_node_without_faults_is_healthy() -> None:
    assert examine(FACTS).verdict is ScanVerdict.HEALTHY


@pytest.mark.parametrize(
    ("family", "value", "verdict"),
    [
        ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1, ScanVerdict.UNHEALTHY),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", 1, ScanVerdict.UNHEALTHY),
        ("DCGM_FI_DEV_ROW_REMAP_PENDING", 1, ScanVerdict.DEGRADED),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 511, ScanVerdict.HEALTHY),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 512, ScanVerdict.DEGRADED),
        ("DCGM_FI_DEV_INFOROM_CONFIG_VALID", 0, ScanVerdict.DEGRADED),
        ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 8, ScanVerdict.DEGRADED),
        ("watchkeeper_gpu_slowdown_margin_celsius", 6, ScanVerdict.HEALTHY),
        ("watchkeeper_gpu_slowdown_margin_celsius", 5, ScanVerdict.DEGRADED),
        ("watchkeeper_gpu_recovery_action", 3, ScanVerdict.DEGRADED),
        ("watchkeeper_gpu_recovery_action", 2, ScanVerdict.UNHEALTHY),
        ("watchkeeper_gpu_recovery_action", 0, ScanVerdict.HEALTHY),
    ],
)
def test_a_value_beyond_its_limit_sets_the_verdict(family: str, value: float, verdict: ScanVerdict) -> None:
    gpu = replace(GPU, values={**HEALTHY_NUMBERS, family: value})
    assert examine(replace(FACTS, gpus=(gpu,))).verdict is verdict


def test_one_kind_of_retired_pages_alone_has_no_verdict() -> None:
    pages = {"DCGM_FI_DEV_RETIRED_SBE": 60.0, "DCGM_FI_DEV_RETIRED_DBE": 3.0}
    assert gpu_checks.retired_pages(replace(GPU, values=pages), 0) is not None
    assert worst(replace(FACTS, gpus=(replace(GPU, values=HEALTHY_NUMBERS | pages),)), "retired_pages") == "unhealthy"
    assert gpu_checks.retired_pages(replace(GPU, values={"DCGM_FI_DEV_RETIRED_SBE": 63.0}), 0) is None


@pytest.mark.parametrize(
    ("grown", "seconds", "verdict"), [(31, 2, "healthy"), (32, 2, "degraded"), (60, 120, "healthy")]
)
def test_replays_are_compared_with_the_limit_per_minute(grown: float, seconds: float, verdict: str) -> None:
    result = gpu_checks.pcie_replays(replace(GPU, increases={"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": grown}), seconds)
    assert result is not None
    assert result.verdict == verdict


def test_a_gpu_without_a_temperature_is_unknown_and_never_healthy() -> None:
    assert examine(replace(FACTS, gpus=(replace(GPU, values={}),))).verdict is not ScanVerdict.HEALTHY
    assert gpu_checks.temperature_known(replace(GPU, values={}), 0).verdict is ScanVerdict.UNKNOWN


def test_a_node_without_gpus_and_driver_is_unknown() -> None:
    fault = ScanFault("driver_not_loaded", "NVML reports LIBRARY_NOT_FOUND")
    assert examine(ScanFacts(NODE, faults=(fault,), kernel=())).verdict is ScanVerdict.UNKNOWN
    assert examine(ScanFacts(NODE, kernel=())).verdict is ScanVerdict.UNKNOWN


def test_gpus_on_the_bus_without_a_driver_are_unhealthy() -> None:
    fault = ScanFault("driver_not_loaded", "NVML reports DRIVER_NOT_LOADED")
    facts = ScanFacts(replace(NODE, pci=(ON_BUS,)), faults=(fault,), kernel=())
    assert examine(facts).verdict is ScanVerdict.UNHEALTHY


@pytest.mark.parametrize(("expected", "verdict"), [(None, "healthy"), (1, "healthy"), (2, "unhealthy")])
def test_fewer_gpus_than_expected_are_unhealthy(expected: int | None, verdict: str) -> None:
    facts = replace(FACTS, node=replace(NODE, pci=(ON_BUS,)), expected_gpus=expected)
    assert worst(facts, "gpus_present") == verdict


@pytest.mark.parametrize(("code", "verdict"), [(79, "unhealthy"), (94, "degraded"), (31, "healthy"), (9999, "healthy")])
def test_xids_count_as_dcgm_counts_them_but_an_application_fault_is_no_hardware(code: int, verdict: str) -> None:
    facts = replace(FACTS, kernel=kernel(f"NVRM: Xid (PCI:0000:10:00): {code}, pid=1, x"))
    assert worst(facts, "xids") == verdict


def test_an_unreadable_kernel_log_is_unknown_and_not_healthy() -> None:
    report = examine(replace(FACTS, kernel=None, kernel_problem="Operation not permitted"))
    assert report.verdict is ScanVerdict.UNKNOWN
    assert "Operation not permitted" in report.problems[0].detail


def test_switches_need_a_running_fabric_manager() -> None:
    stopped = systemd_units.Unit("nvidia-fabricmanager.service", "loaded", "failed", "failed")
    node = replace(NODE, pci=(ON_BUS, SWITCH))
    for units, verdict in [(None, "unknown"), ((), "unhealthy"), ((stopped,), "unhealthy")]:
        assert worst(replace(FACTS, node=replace(node, units=units)), "fabric_running") == verdict
    running = replace(stopped, active="active", sub="running")
    assert worst(replace(FACTS, node=replace(node, units=(running,))), "fabric_running") == "healthy"


@pytest.mark.parametrize(
    ("node", "check", "verdict"),
    [
        (replace(NODE, disks=(host.Space("/", 100, 6),)), "disks", "healthy"),
        (replace(NODE, disks=(host.Space("/", 100, 4),)), "disks", "degraded"),
        (replace(NODE, disks=(host.Space("/", 100, 0),)), "disks", "unhealthy"),
        (replace(NODE, memory=host.Memory(100, 1)), "memory", "degraded"),
        (replace(NODE, memory=None), "memory", "unknown"),
        (replace(NODE, shared_memory=host.Space("/shm", 64 << 20, 0)), "shared_memory", "degraded"),
        (replace(NODE, clock=clock_offset.ClockState(True, -0.6, 0.1, "x")), "clock", "degraded"),
        (replace(NODE, sensors=(hwmon.Sensor("c", "fan", "FAN1", 0, is_alarmed=True),)), "sensors", "degraded"),
        (
            replace(NODE, driver="580", next_boot=kernel_modules.NextBoot("6.9", False, False)),
            "next_boot",
            "degraded",
        ),
    ],
)
def test_the_rest_of_the_node_is_checked_too(node: NodeFacts, check: str, verdict: str) -> None:
    assert worst(replace(FACTS, node=node), check) == verdict


def test_a_stalled_mount_is_unhealthy() -> None:
    mount = host.Mount("nas:/x", "/data", "nfs4")
    node = replace(NODE, remote_mounts=(mount,), stalled_mounts=(mount,))
    assert worst(replace(FACTS, node=node), "stalled_mounts") == "unhealthy"


def test_an_unhealthy_result_outranks_an_unknown_one() -> None:
    results = [
        ScanResult("a", "MEM", verdict, "")
        for verdict in (ScanVerdict.UNKNOWN, ScanVerdict.DEGRADED, ScanVerdict.HEALTHY)
    ]
    assert ScanReport(tuple(results)).verdict is ScanVerdict.DEGRADED
    assert ScanReport(()).verdict is ScanVerdict.UNKNOWN


def test_a_disabled_check_does_not_run() -> None:
    assert "disks" in check_names()
    full = replace(FACTS, node=replace(NODE, disks=(host.Space("/", 100, 0),)))
    assert examine(full, disabled={"disks"}).verdict is ScanVerdict.HEALTHY


def test_every_limit_is_used_and_every_cause_of_a_policy_is_known() -> None:
    named = {*check_names(), "recovery_drain_p2p", "disk_used", "disk_full", "memory_available", "fabric_in_progress"}
    named |= {"clock_offset", *(f"replay_gen{generation}" for generation in range(1, 7))}
    assert set(verdicts.limits()) <= named
    assert all(causes.lookup(policy.cause).cause == policy.cause for policy in policies.load_policies())
    assert node_checks.CHECKS
