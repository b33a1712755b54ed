"""The reader process reads the fake driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import MakeFake
from tests.agent.reading import reader
from tests.support.fake_nvml import driver
from tests.support.fake_nvml.driver import UUID
from watchkeeper.readers.nvml import choice
from watchkeeper.readers.nvml.calls import CALLS


def test_values_have_dcgms_names_and_units(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, Temperature=61, PowerUsage=692500, TotalEnergyConsumption=2406305)
    fake.tell(0, "MemoryInfo.used", 644939776)
    fake.tell(0, "RemappedRows.uncorrectable", 3)
    fake.tell(0, "Field.82", 71)
    with reader(fake) as child:
        values = child.ask()["values"]
    assert values["DCGM_FI_DEV_GPU_TEMP"] == 61
    assert values["DCGM_FI_DEV_POWER_USAGE"] == pytest.approx(692.5)
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == 2406305
    assert values["DCGM_FI_DEV_FB_USED"] == 615
    assert values["DCGM_FI_DEV_FB_TOTAL"] == 143771
    assert values["DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS"] == 3
    assert values["DCGM_FI_DEV_MEMORY_TEMP"] == 71
    assert values["DCGM_FI_DEV_MEM_CLOCK"] == 3201


def test_watchkeepers_families_have_one_series_for_each_part(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, CurrentClocksEventReasons=0x44, CurrPcieLinkWidth=8, ComputeProcesses=2, MarginTemperature=10)
    fake.tell(0, "NvLink.17.0", 5)
    fake.tell(0, "NvLink.0.2", 1)
    fake.tell(0, "GpuFabricInfo.state", 3)
    with reader(fake) as child:
        values = child.ask()["values"]
    reasons = values["watchkeeper_gpu_clocks_event_reason"]
    assert [reason for reason, is_on in reasons.items() if is_on] == ["power_cap", "hw_thermal"]
    assert values["watchkeeper_gpu_pcie_link_width"] == {"now": 8, "max": 16}
    assert values["watchkeeper_gpu_nvlink_errors_total"] == {"0.crc_flit": 1, "17.replay": 5}
    assert values["watchkeeper_gpu_processes"] == 2
    assert values["watchkeeper_gpu_fabric_state"] == 3
    # 10 degrees to the highest operating temperature, and slowdown lies 2 beyond it.
    assert values["watchkeeper_gpu_slowdown_margin_celsius"] == 12


@pytest.mark.parametrize(
    ("state", "status", "shown"), [(1, 0, 1), (2, 0, 2), (3, 0, 3), (3, 10, 4), (1, 10, 1), (27, 0, 5)]
)
def test_a_fabric_probe_that_ended_with_an_error_is_a_failure_in_dcgm_words(
    machine: MakeFake, state: int, status: int, shown: int
) -> None:
    fake = machine(1)
    fake.tell(0, "GpuFabricInfo.state", state)
    fake.tell(0, "GpuFabricInfo.status", status)
    with reader(fake) as child:
        values = child.ask()["values"]
    assert values["DCGM_FI_DEV_FABRIC_MANAGER_STATUS"] == shown
    assert values["watchkeeper_gpu_fabric_state"] == state


def test_limits_of_the_shipped_rules_are_read_by_default(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, MigMode=1, PowerManagementDefaultLimit=650000)
    fake.tell(0, "TemperatureThreshold.2", 95)
    with reader(fake) as child:
        values = child.ask()["values"]
    assert values["DCGM_FI_DEV_MIG_MODE"] == 1
    assert values["DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF"] == pytest.approx(650)
    assert values["DCGM_FI_DEV_MEM_MAX_OP_TEMP"] == 95


def test_limits_that_a_gpu_does_not_have_are_absent_and_not_zero(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, MigMode=driver.NOT_SUPPORTED, PowerManagementDefaultLimit=driver.NOT_SUPPORTED)
    with reader(fake) as child:
        values = child.ask()["values"]
    absent = ("MIG_MODE", "POWER_MGMT_LIMIT_DEF", "MEM_MAX_OP_TEMP", "FABRIC_MANAGER_STATUS")
    assert not [name for name in absent if f"DCGM_FI_DEV_{name}" in values]
    assert values["DCGM_FI_DEV_ENFORCED_POWER_LIMIT"] == pytest.approx(700)


def test_an_unsupported_value_is_absent_and_not_read_again_by_this_reader(machine: MakeFake) -> None:
    fake = machine(1)
    names = ["DCGM_FI_DEV_FAN_SPEED", "DCGM_FI_DEV_RETIRED_DBE", "DCGM_FI_DEV_SLOWDOWN_TEMP", "DCGM_FI_DEV_GPU_TEMP"]
    with reader(fake, names) as child:
        assert child.ask()["values"] == {"DCGM_FI_DEV_GPU_TEMP": 37}
        fake.tell(0, FanSpeed=30)
        fake.tell(0, "Field.30", 1)
        assert child.ask()["values"] == {"DCGM_FI_DEV_GPU_TEMP": 37}
    with reader(fake, names) as child:
        assert set(child.ask()["values"]) == {
            "DCGM_FI_DEV_FAN_SPEED",
            "DCGM_FI_DEV_RETIRED_DBE",
            "DCGM_FI_DEV_GPU_TEMP",
        }


def test_gpm_percent_becomes_a_share_and_mebibytes_become_bytes(machine: MakeFake) -> None:
    fake = machine(1)
    for metric, value in {5: 61.2, 2: 100, 20: 9.5, 60: 2, 61: 3, 11: driver.NOT_SUPPORTED}.items():
        fake.tell(0, f"Gpm.{metric}", value)
    with reader(fake) as child:
        first = child.ask(0, "fast", "profile")
        assert not [name for name in first["values"] if name.startswith("DCGM_FI_PROF_")]
        second = child.ask(0, "fast", "profile")
    assert "is_profiled" not in first
    assert second["is_profiled"]
    values = second["values"]
    assert values["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.612)
    assert values["DCGM_FI_PROF_SM_ACTIVE"] == pytest.approx(1.0)
    assert values["DCGM_FI_PROF_PCIE_TX_BYTES"] == 9961472
    assert values["DCGM_FI_PROF_NVLINK_RX_BYTES"] == 2 * 1048576
    assert values["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"] == 5
    assert values["DCGM_FI_PROF_DRAM_ACTIVE"] == 0
    assert "DCGM_FI_PROF_PIPE_FP64_ACTIVE" not in values


def test_a_gpu_without_gpm_has_no_profiling_metrics(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, gpm=0)
    with reader(fake) as child:
        child.ask()
        assert not [name for name in child.ask()["values"] if name.startswith("DCGM_FI_PROF_")]


def test_an_error_names_its_call_and_affects_only_its_family(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, Temperature=driver.UNKNOWN_ERROR)
    with reader(fake) as child:
        answer = child.ask()
    assert answer["errors"] == {"nvmlDeviceGetTemperature": "UNKNOWN"}
    assert "DCGM_FI_DEV_GPU_TEMP" not in answer["values"]
    assert answer["values"]["DCGM_FI_DEV_SM_CLOCK"] == 1980


def test_the_evidence_of_a_lost_gpu_has_the_failed_call(machine: MakeFake) -> None:
    fake = machine(2)
    with reader(fake) as child:
        child.ask(1)
        fake.tell(1, all=driver.GPU_IS_LOST)
        assert child.ask(1)["lost"].startswith("nvmlDeviceGet")
        assert "lost" not in child.ask(0)
    with reader(fake) as child:
        assert child.ask(1)["lost"] == "nvmlDeviceGetHandleByIndex_v2"


def test_mig_instances_have_their_own_memory_and_the_gpu_then_has_none(machine: MakeFake) -> None:
    fake = machine(1)
    fake.tell(0, MigMode=1, slices=2)
    fake.tell(0, "slice0.profile", "1c.3g.71gb")
    fake.tell(0, "slice0.id", 5)
    fake.tell(0, "slice0.MemoryInfo.used", 1 << 30)
    fake.tell(0, "Gpm.5", 50)
    with reader(fake) as child:
        child.ask()
        answer = child.ask()
    first, second = answer["slices"]
    assert (first["id"], first["profile"]) == (5, "3g.71gb")
    assert (second["id"], second["profile"]) == (2, "1g.18gb")
    assert first["values"]["DCGM_FI_DEV_FB_USED"] == 1024
    assert first["values"]["DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"] == pytest.approx(0.5)
    assert "DCGM_FI_DEV_FB_USED" not in answer["values"]
    assert answer["values"]["DCGM_FI_DEV_GPU_TEMP"] == 37


@pytest.mark.parametrize(
    ("result", "reason"),
    [(driver.VERSION_MISMATCH, "LIB_RM_VERSION_MISMATCH"), (driver.DRIVER_NOT_LOADED, "DRIVER_NOT_LOADED")],
)
def test_a_driver_that_cannot_be_opened_has_a_reason(machine: MakeFake, result: str, reason: str) -> None:
    fake = machine(1)
    fake.tell(driver.EVERY, Init=result)
    with reader(fake) as child:
        assert child.opening["broken"] == reason


def test_a_missing_library_is_an_answer_and_not_a_crash(machine: MakeFake) -> None:
    fake = machine(1)
    elsewhere = {name: text for name, text in fake.environment.items() if name != "LD_LIBRARY_PATH"}
    with reader(fake, environment=elsewhere) as child:
        if "hello" in child.opening:
            pytest.skip("this machine has a real NVML")
        assert child.opening["broken"] == "LIBRARY_NOT_FOUND"


def test_an_xid_event_arrives_between_two_requests(machine: MakeFake) -> None:
    fake = machine(2)
    with reader(fake) as child:
        assert child.ask(1)["events"] is True
        fake.raise_event(1, 8, 31)
        event = child.hear()["event"]
    assert event == {"kind": "xid", "uuid": UUID(1), "detail": 31, "slice_id": None}


def test_requested_labels_come_with_the_identity(machine: MakeFake) -> None:
    with reader(machine(1), ["DCGM_FI_DRIVER_VERSION", "DCGM_FI_DEV_SERIAL", "DCGM_FI_DEV_VBIOS_VERSION"]) as child:
        identity = child.ask()["identity"]
    assert identity["text.driver"] == "580.159.04"
    assert identity["text.serial"] == "1650000000001"
    assert identity["text.vbios"] == "96.00.D9.00.01"


def test_every_row_of_the_tables_leads_to_a_call() -> None:
    asked_otherwise = {"field", "gpm", "text", "event"}
    every = [*(family for family, _ in choice.load_dcgm_families().values()), *choice.load_own_families()]
    assert not [family.name for family in every if family.call not in CALLS and family.call not in asked_otherwise]
    used = {family.call for family in every}
    assert not set(CALLS) - used


def test_the_reader_process_imports_only_what_it_needs() -> None:
    program = (
        "import sys; from watchkeeper.agent.gpus import reader_child; from watchkeeper.readers.nvml import session\n"
        "reader_child.stub_ctypes_util(); session.load(); print(*sys.modules)"
    )
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"asyncio", "ssl", "http", "argparse", "click", "logging", "dataclasses", "inspect", "subprocess", "csv"}
    assert heavy & set(modules) == set()


def test_a_file_in_the_working_directory_is_not_imported(
    machine: MakeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mmap.py").write_text("raise SystemExit('a stranger was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with reader(machine(1), None) as child:
        assert child.opening["hello"]["count"] == 1


def test_a_running_agent_has_not_loaded_what_only_its_other_commands_need() -> None:
    program = "import sys, watchkeeper.cli.node.agent; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = ("client.hub", "agent.orders.orders", "agent.gpus.reader_child", "readers.clusters.slurm_records")
    heavy = {"email", "http.client", "urllib.request", "h2", *(f"watchkeeper.{name}" for name in ours)}
    assert heavy & set(modules) == set()
