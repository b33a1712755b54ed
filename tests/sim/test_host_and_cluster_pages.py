"""The pages of nodes, of the cluster and of workloads."""

from __future__ import annotations

import math

import pytest

from watchkeeper.errors import CollectError
from watchkeeper.model import fleet as fleet_model
from watchkeeper.readers.exposition import ExpositionParser
from watchkeeper.sim.simulation import SimSettings, Simulation


@pytest.fixture
def fleet() -> Simulation:
    return Simulation(SimSettings(gpus=128, seed=7))


def read(page: bytes, metric: str, **matchers: str) -> list[float]:
    """Values of a metric with these labels."""
    parser = ExpositionParser()
    page_samples = parser.parse(page)
    assert page_samples.bad_lines == 0
    return [
        value
        for handle, value in zip(page_samples.handles, page_samples.values, strict=True)
        if (labels := parser.labels[handle]).name == metric
        and all(labels.get(name, "") == text for name, text in matchers.items())
    ]


def test_every_listed_page_can_be_read_and_other_pages_cannot(fleet: Simulation) -> None:
    paths = [group["labels"]["__metrics_path__"] for group in fleet.service_discovery("127.0.0.1:1")]
    assert len(paths) == 2 * 16 + 2 + len(fleet.serving())
    for path in paths:
        assert ExpositionParser().parse(fleet.page_at(path)).handles
    with pytest.raises(Exception, match="no page at /nowhere"):
        fleet.page_at("/nowhere")


def test_a_bad_cable_counts_on_one_port_of_its_node_only(fleet: Simulation) -> None:
    fault = fleet.inject("ib-symbol-errors")
    before = read(fleet.page_at(f"/nodes/{fault.node.name}/host/metrics"), "node_infiniband_symbol_error_total")
    fleet.advance(100)
    after = read(fleet.page_at(f"/nodes/{fault.node.name}/host/metrics"), "node_infiniband_symbol_error_total")
    assert [late - early for early, late in zip(before, after, strict=True)] == [2500.0, *[0.0] * (len(before) - 1)]


def cpu_seconds(fleet: Simulation, node: str, mode: str) -> float:
    [seconds] = read(fleet.page_at(f"/nodes/{node}/host/metrics"), "node_cpu_seconds_total", mode=mode)
    return seconds


def test_cpu_use_follows_gpu_use_and_adds_up_to_the_time(fleet: Simulation) -> None:
    before = {mode: cpu_seconds(fleet, "gpu-r01-01", mode) for mode in ("idle", "user")}
    fleet.advance(100)
    spent = {mode: cpu_seconds(fleet, "gpu-r01-01", mode) - seconds for mode, seconds in before.items()}
    assert sum(spent.values()) == pytest.approx(100, abs=0.1)
    assert 2 <= spent["user"] <= 25


def test_a_starved_rank_is_slow_only_on_the_node_with_busy_cpus(fleet: Simulation) -> None:
    fault = fleet.inject("cpu-starved-rank")
    assert fault.job is not None
    names = [fleet.layout.nodes[row].name for row in fault.job.pod_names]
    assert len(names) > 1
    before = {name: cpu_seconds(fleet, name, "idle") for name in names}
    fleet.advance(60)
    idle = {name: (cpu_seconds(fleet, name, "idle") - seconds) / 60 for name, seconds in before.items()}
    assert [name for name, share in idle.items() if share < 0.1] == [names[-1]]
    compute = read(fleet.page_at("/workloads/metrics"), "training_step_compute_seconds", job_name=fault.job.name)
    assert compute[-1] > 1.3 * max(compute[:-1])
    fleet.end_fault(fault.id)
    before[names[-1]] = cpu_seconds(fleet, names[-1], "idle")
    fleet.advance(60)
    assert cpu_seconds(fleet, names[-1], "idle") - before[names[-1]] > 40


def test_a_node_without_power_has_no_pages_and_is_unknown_in_kubernetes(fleet: Simulation) -> None:
    fault = fleet.inject("node-down", node="gpu-r01-01")
    for path in ("metrics", "host/metrics"):
        with pytest.raises(CollectError):
            fleet.page_at(f"/nodes/gpu-r01-01/{path}")
    ready = {"condition": "Ready", "status": "true"}
    page = fleet.page_at("/cluster/metrics")
    assert read(page, "kube_node_status_condition", node="gpu-r01-01", **ready) == [0.0]
    assert read(page, "kube_node_status_condition", node="gpu-r01-02", **ready) == [1.0]
    fleet.end_fault(fault.id)
    assert fleet.page_at("/nodes/gpu-r01-01/metrics")


def test_an_exporter_can_be_down_or_empty_while_the_node_answers(fleet: Simulation) -> None:
    fleet.inject("agent-gone", node="gpu-r01-01")
    fleet.inject("driver-mismatch", node="gpu-r01-02")
    with pytest.raises(CollectError, match="the exporter does not answer"):
        fleet.node_page("gpu-r01-01")
    assert fleet.page_at("/nodes/gpu-r01-01/host/metrics")
    words = read(fleet.node_page("gpu-r01-02"), "watchkeeper_gpu_fault", cause="driver_library_mismatch")
    assert words == [1.0]
    assert read(fleet.node_page("gpu-r01-02"), "DCGM_FI_DEV_GPU_TEMP") == []


def test_a_dead_rank_has_no_metrics_and_the_others_finish_no_step(fleet: Simulation) -> None:
    fault = fleet.inject("nccl-dead-rank")
    assert fault.job is not None
    fleet.advance(120)
    page, job = fleet.page_at("/workloads/metrics"), fault.job.name
    steps = read(page, "training_last_step_timestamp_seconds", job_name=job)
    assert len(steps) == read(page, "training_world_size", job_name=job)[0] - 1
    assert max(steps) < fleet.second - 60
    assert fleet.fault_place(fault) == fleet_model.Place("sim", domain=f"job={job}")


@pytest.mark.slow
def test_a_drained_job_continues_from_its_checkpoint_at_the_same_speed(fleet: Simulation) -> None:
    def workload_values(metric: str) -> list[float]:
        return read(fleet.page_at("/workloads/metrics"), metric, job_name=job.name)

    fleet.advance(3600)
    job = next(job for job in fleet.machines.jobs.running.values() if job.template.base_name == "llm-8b-sft")
    steps, speed = workload_values("training_iterations_total"), workload_values("training_samples_per_second")
    assert workload_values("training_checkpoint_writes_total") > [0]
    fleet.cluster.drain(fleet.layout.nodes[int(fleet.layout.node_of_gpu[job.rows[0]])], "watchkeeper:i1/a1")
    fleet.advance(5)
    assert workload_values("training_iterations_total") == []
    while not workload_values("training_iterations_total"):
        fleet.advance(5)
    assert [0] < workload_values("training_iterations_total") < steps
    assert workload_values("training_samples_per_second") == pytest.approx(speed, rel=0.2)


def test_a_nan_loss_is_exported_as_nan(fleet: Simulation) -> None:
    fault = fleet.inject("loss-diverged")
    assert fault.job is not None
    loss = read(fleet.page_at("/workloads/metrics"), "training_loss", job_name=fault.job.name)
    assert [math.isnan(value) for value in loss] == [True]


def test_an_overloaded_service_queues_and_rejects_requests(fleet: Simulation) -> None:
    fault = fleet.inject("inference-overload")
    assert fault.job is not None
    fleet.advance(120)
    server = next(server for server in fleet.serving() if server.job is fault.job)
    assert server.kind == "vllm"
    page, model = fleet.page_at(f"/serving/{fault.job.name}/metrics"), fault.job.name
    assert read(page, "vllm:num_requests_waiting", model_name=model) == [400.0]
    assert read(page, "vllm:request_success_total", model_name=model, finished_reason="abort")[0] > 100


def test_pods_of_faults_exist_until_the_fault_ends(fleet: Simulation) -> None:
    fault = fleet.inject("pod-pending-taint")
    about = {"namespace": "vision", "pod": fault.pod}
    page = fleet.page_at("/cluster/metrics")
    assert read(page, "kube_pod_status_phase", phase="Pending", **about) == [1.0]
    assert read(page, "kube_pod_tolerations", **about) == []
    fleet.end_fault(fault.id)
    assert read(fleet.page_at("/cluster/metrics"), "kube_pod_status_phase", **about) == []


def test_only_the_rack_with_the_fault_heats_up(fleet: Simulation) -> None:
    fault = fleet.inject("rack-cooling", node="gpu-r01-04")
    fleet.advance(300)
    physics, rows = fleet.machines.physics, slice(0, 64)
    assert (physics.temperature[rows] > 80).mean() > 0.5
    assert (physics.temperature[64:] < 80).all()
    assert fleet.fault_place(fault).domain == "rack=r01"


def test_every_training_job_with_a_rank_on_a_node_without_power_stalls_until_the_power_is_back(
    fleet: Simulation,
) -> None:
    def last_steps(*, in_rack: bool) -> list[float]:
        jobs, layout = fleet.machines.jobs, fleet.layout
        racks = {
            job.name: {layout.nodes[layout.node_of_gpu[row]].rack for row in job.rows} for job in jobs.running.values()
        }
        page = fleet.page_at("/workloads/metrics")
        names = [name for name in racks if (rack in racks[name]) is in_rack]
        return [max(read(page, "training_last_step_timestamp_seconds", job_name=name), default=0) for name in names]

    rack = fleet.layout.nodes[-1].rack
    fault = fleet.inject("rack-power", node=fleet.layout.nodes[-1].name)
    struck = fleet.second
    fleet.advance(120)
    assert 0 < max(last_steps(in_rack=True)) <= struck + 5
    assert max(last_steps(in_rack=False)) > struck + 60
    fleet.end_fault(fault.id)
    fleet.advance(60)
    assert max(last_steps(in_rack=True)) > struck + 120
