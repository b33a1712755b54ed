"""Each shipped scenario has its documented effects, and its repair ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.sim import pages
from watchkeeper.errors import SettingsError
from watchkeeper.model.alerts import Severity
from watchkeeper.sim.fleet import UnknownName
from watchkeeper.sim.simulation import SimSettings, Simulation

UTIL, SM = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"


@pytest.fixture
def fleet() -> Simulation:
    return Simulation(SimSettings(gpus=128, seed=7))


def kernel_texts(fleet: Simulation, node: str) -> list[str]:
    """The driver's log lines of a node."""
    records = fleet.kernel_records_since(0)
    texts = [record.record.split(";", 1)[1] for record in records if record.node == node and "NVRM" in record.record]
    return [text for text in texts if "loading NVIDIA" not in text]


def test_xid_79_takes_the_gpu_off_the_page_and_stalls_its_peers(fleet: Simulation) -> None:
    fault = fleet.inject("xid-79")
    fleet.advance(10)
    assert fault.gpu is not None
    lines = kernel_texts(fleet, fault.node.name)
    assert lines[0] == f"NVRM: GPU at PCI:{fault.gpu.kernel_pci}: {fault.gpu.uuid}"
    assert lines[2].startswith(f"NVRM: Xid (PCI:{fault.gpu.kernel_pci}): 79, ")
    page = fleet.node_page(fault.node.name)
    util, sm = pages.by_gpu(page, UTIL), pages.by_gpu(page, SM)
    assert set(util) == set(range(8)) - {fault.gpu.index}
    assert all(util[gpu] >= 90 and sm[gpu] < 0.2 for gpu in util)
    assert len(fleet.inventory(fault.node.name)["gpus"]) == 8, "the driver still lists the lost GPU"


def test_gpu_missing_writes_nothing_to_the_kernel_log(fleet: Simulation) -> None:
    fault = fleet.inject("gpu-missing", node="gpu-r01-03", gpu=5)
    fleet.advance(5)
    assert set(pages.by_gpu(fleet.node_page("gpu-r01-03"), UTIL)) == set(range(8)) - {5}
    assert kernel_texts(fleet, "gpu-r01-03") == []
    assert {gpu["index"] for gpu in fleet.inventory("gpu-r01-03")["gpus"]} == set(range(8)) - {5}
    fleet.end_fault(fault.id)
    assert len(pages.by_gpu(fleet.node_page("gpu-r01-03"), UTIL)) == 8


def test_xid_48_increments_counters_and_the_gpu_keeps_reporting(fleet: Simulation) -> None:
    fault = fleet.inject("xid-48", node="gpu-r01-01", gpu=3)
    fleet.advance(5)
    page = fleet.node_page("gpu-r01-01")
    assert pages.by_gpu(page, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")[3] == 1
    assert pages.by_gpu(page, "DCGM_FI_DEV_ROW_REMAP_PENDING") == {gpu: float(gpu == 3) for gpu in range(8)}
    assert pages.by_gpu(page, SM)[3] == 0
    codes = [line.split("): ")[1].split(",")[0] for line in kernel_texts(fleet, "gpu-r01-01") if "Xid (" in line]
    assert codes == ["48", "63", "45", "154"]
    node, gpu = fault.node, fault.node.gpus[3]
    fleet.cluster.drain(node, "test")
    fleet.cluster.reset_gpu(node, gpu, "test")
    fleet.advance(1)
    assert pages.by_gpu(fleet.node_page("gpu-r01-01"), "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")[3] == 0
    assert fleet.faults.active == {}


def test_xid_31_crashes_the_program_which_restarts_on_healthy_hardware(fleet: Simulation) -> None:
    fault = fleet.inject("xid-31")
    assert fault.gpu is not None
    fleet.advance(30)
    page = fleet.node_page(fault.node.name)
    assert pages.by_gpu(page, SM)[fault.gpu.index] == 0
    assert pages.by_gpu(page, "DCGM_FI_DEV_FB_USED")[fault.gpu.index] < 10
    assert pages.by_gpu(page, "DCGM_FI_DEV_XID_ERRORS")[fault.gpu.index] == 31
    fleet.advance(150)
    page = fleet.node_page(fault.node.name)
    assert pages.by_gpu(page, "DCGM_FI_DEV_FB_USED")[fault.gpu.index] > 1000
    assert pages.by_gpu(page, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")[fault.gpu.index] == 0
    assert pages.by_gpu(page, "DCGM_FI_DEV_XID_ERRORS")[fault.gpu.index] == 31


@pytest.mark.parametrize("node", ["gpu-r01-01", "gpu-r02-01", "gpu-r02-04", "gpu-r02-08"])
def test_fan_failure_throttles_every_gpu_of_the_node_and_no_other(fleet: Simulation, node: str) -> None:
    fleet.inject("fan-failure", node=node)
    fleet.advance(210)
    page = fleet.node_page(node)
    temperature, reasons = (pages.by_gpu(page, f"DCGM_FI_DEV_{name}") for name in ("GPU_TEMP", "CLOCKS_EVENT_REASONS"))
    assert all(temperature[gpu] >= 85 and int(reasons[gpu]) & 0x60 for gpu in range(8))
    other = pages.by_gpu(fleet.node_page("gpu-r01-05"), "DCGM_FI_DEV_GPU_TEMP")
    assert max(other.values()) < 75


def test_held_idle_keeps_memory_and_does_nothing(fleet: Simulation) -> None:
    fault = fleet.inject("held-idle")
    assert fault.gpu is not None
    fleet.advance(120)
    page, gpu = fleet.node_page(fault.node.name), fault.gpu.index
    assert pages.by_gpu(page, SM)[gpu] == 0
    assert pages.by_gpu(page, "DCGM_FI_DEV_FB_USED")[gpu] > 10_000
    _name, labels, _ = next(sample for sample in pages.samples(page) if sample[1]["gpu"] == str(gpu))
    assert "notebook-reserved" in labels.get("pod", "") or "hpc_job" in labels


def test_a_hanging_job_without_metrics_is_visible_only_on_its_gpus(fleet: Simulation) -> None:
    fault = fleet.inject("job-hung")
    fleet.advance(30)
    page = fleet.node_page(fault.node.name)
    util, sm = pages.by_gpu(page, UTIL), pages.by_gpu(page, SM)
    assert [gpu for gpu in range(8) if util[gpu] >= 95 and sm[gpu] < 0.25] == list(range(7))
    assert (util[7], sm[7]) == (0, 0)
    assert pages.by_gpu(page, "DCGM_FI_DEV_FB_USED")[7] > 10_000
    assert fault.job is not None
    assert fault.job.name not in fleet.page_at("/workloads/metrics").decode()


def test_a_mute_job_runs_from_the_injection_until_it_stalls(fleet: Simulation) -> None:
    fleet.scenarios["job-stalled"] = replace(fleet.scenarios["job-stalled"], after="2m")
    fault = fleet.inject("job-stalled")
    assert fault.job is not None
    assert fault.at == fleet.second + 120
    fleet.advance(90)
    assert min(pages.by_gpu(fleet.node_page(fault.node.name), "DCGM_FI_DEV_FB_USED").values()) > 10_000
    assert max(pages.by_gpu(fleet.node_page(fault.node.name), SM).values()) > 0.5
    fleet.advance(60)
    page = fleet.node_page(fault.node.name)
    assert set(pages.by_gpu(page, SM).values()) == {0}
    assert min(pages.by_gpu(page, "DCGM_FI_DEV_FB_USED").values()) > 10_000
    assert fault.job.name not in fleet.page_at("/workloads/metrics").decode()


def test_wide_training_runs_on_several_nodes(fleet: Simulation) -> None:
    single = next(job for job in fleet.machines.jobs.running.values() if len(job.pod_names) == 1 and len(job.rows) == 8)
    node = fleet.layout.nodes[next(iter(single.pod_names))]
    fault = fleet.inject("cpu-starved-rank", node=node.name)
    assert fault.job is not None
    assert node.row in fault.job.pod_names
    assert len(fault.job.pod_names) > 1


def test_a_fault_with_a_duration_ends_automatically(fleet: Simulation) -> None:
    fleet.inject("xid-31")
    fleet.advance(599)
    assert len(fleet.faults.active) == 1
    fleet.advance(2)
    assert fleet.faults.active == {}


def test_an_unknown_scenario_lists_the_scenarios(fleet: Simulation) -> None:
    with pytest.raises(UnknownName, match=r"xid-9797.*Scenarios: agent-gone, .*, xid-79"):
        fleet.inject("xid-9797")


def test_every_code_of_the_catalogue_is_a_scenario_that_writes_its_line(fleet: Simulation) -> None:
    fault = fleet.inject("xid-109", node="gpu-r01-01", gpu=3)
    assert (fault.scenario.truth.cause, fault.scenario.truth.severity) == ("unknown", Severity.CRITICAL)
    (line,) = [line for line in kernel_texts(fleet, "gpu-r01-01") if "Xid (" in line]
    assert line.startswith(f"NVRM: Xid (PCI:{fault.node.gpus[3].kernel_pci}): 109, pid=")
    assert pages.by_gpu(fleet.node_page("gpu-r01-01"), "DCGM_FI_DEV_XID_ERRORS")[3] == 109


def test_a_port_that_goes_down_counts_once_and_carries_nothing(fleet: Simulation) -> None:
    fleet.inject("ib-port-down", node="gpu-r01-01")

    def port(name: str, device: str = "mlx5_0") -> float:
        page = fleet.page_at("/nodes/gpu-r01-01/host/metrics").decode()
        return float(page.split(f'node_infiniband_{name}{{device="{device}",port="1"}} ')[1].split()[0])

    fleet.advance(599)
    assert (port("state_id"), port("link_downed_total")) == (4, 0)
    assert port("link_error_recovery_total") >= 100
    fleet.advance(60)
    carried = port("port_data_received_bytes_total")
    fleet.advance(60)
    assert (port("state_id"), port("physical_state_id"), port("link_downed_total")) == (1, 2, 1)
    assert (port("state_id", "mlx5_1"), port("port_data_received_bytes_total")) == (4, carried)


def test_checkpoints_that_fail_leave_the_time_of_the_last_good_one(fleet: Simulation) -> None:
    fault = fleet.inject("checkpoint-failing", node="gpu-r01-01")
    assert fault.job is not None
    written = set()
    for _ in range(3):
        page = fleet.page_at("/workloads/metrics").decode()
        rows = [row for row in page.splitlines() if row.startswith("training_checkpoint_last_success")]
        written |= {row for row in rows if f'job_name="{fault.job.name}"' in row}
        fleet.advance(1500)
    assert len(written) == 1


def test_a_place_that_does_not_fit_the_scenario_is_refused(fleet: Simulation) -> None:
    with pytest.raises(SettingsError, match="affects a whole node"):
        fleet.inject("fan-failure", node="gpu-r01-01", gpu=2)
    with pytest.raises(UnknownName, match="GPUs 0 to 7"):
        fleet.inject("xid-79", node="gpu-r01-01", gpu=8)
    with pytest.raises(SettingsError, match="needs a node"):
        fleet.inject("xid-79", gpu=1)


def test_a_planned_fault_starts_at_its_time() -> None:
    fleet = Simulation(SimSettings(gpus=64, seed=1, scenarios=("xid-79",), scenarios_after_seconds=30))
    fleet.advance(29)
    assert not fleet.faults.active
    fleet.advance(1)
    assert [fault.scenario.name for fault in fleet.faults.active.values()] == ["xid-79"]
