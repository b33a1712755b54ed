"""The cause from the context of the place, where the alert alone suggests another cause."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.diagnose.scenes import JOB, a_cluster, a_job, about_job, about_pod, add_sample
from tests.diagnose.stories import NODE, NOON, an_engine, an_incident, facts_about, gpu, xid
from watchkeeper.catalogue import causes as catalogue
from watchkeeper.diagnose.explain import diagnose
from watchkeeper.model.diagnosis import Diagnosis, Finding
from watchkeeper.model.incidents import MemberKind

REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def best(diagnosis: Diagnosis) -> Finding:
    assert diagnosis.best is not None
    return diagnosis.best


def dropped(diagnosis: Diagnosis) -> set[str]:
    return {ruled.cause for ruled in best(diagnosis).ruled_out}


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"DCGM_FI_DEV_GPU_TEMP": 90.0, REASONS: 64.0}, "thermal_throttle"),
        ({REASONS: 4.0}, "power_cap"),
        ({REASONS: 128.0}, "power_brake"),
    ],
)
def test_clocks_event_reasons_correct_an_alert_about_heat(changed: dict[str, float], cause: str) -> None:
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    diagnosis = diagnose(facts_about(incident, engine=an_engine({1: changed})), NOON)
    assert best(diagnosis).cause == cause
    assert cause not in dropped(diagnosis)


def test_a_diagnosis_names_the_command_that_rules_out_the_next_cause() -> None:
    incident = an_incident("gpu_missing", NODE, family="gpu_lost")
    diagnosis = diagnose(facts_about(incident, engine=an_engine(gone=[2])), NOON)
    assert "gpu_fell_off_bus" in dropped(diagnosis)
    assert (
        diagnosis.distinguishing_check
        == "To rule out driver_not_loaded, run: lsmod | grep nvidia (check whether any GPU of the node reports)"
    )


def test_a_rank_that_stopped_reporting_is_dead_and_named() -> None:
    diagnosis = about_job("training_stalled", a_job({0: 1.0, 1: 1.0, 3: 1.0}, age=90.0))
    assert best(diagnosis).cause == "nccl_rank_died"
    assert best(diagnosis).evidence[0].text.startswith("rank 2 stopped reporting")


def test_a_job_without_rank_metrics_waits_for_its_idle_gpu() -> None:
    engine = an_engine()
    for index in range(8):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 0.0 if index == 5 else 100.0, **named)
        add_sample(engine, "DCGM_FI_PROF_SM_ACTIVE", 0.0 if index == 5 else 0.11, **named)
        add_sample(engine, "DCGM_FI_DEV_POWER_USAGE", 120.0 + index, **named)
    finding = best(about_job("training_stalled", engine))
    assert (finding.cause, finding.place) == ("training_stalled", JOB)
    assert finding.evidence[0].text == "7 of 8 GPUs wait in a collective; GPU 5 on n1 differs with 0 % utilisation"
    assert finding.evidence[1].text == "waiting GPUs draw 120 to 127 W"
    assert "py-spy dump --pid PID" in {step.command for step in finding.actions}


@pytest.mark.parametrize(
    ("percents", "watts", "text"),
    [
        ([100.0] * 7 + [0.0], 150.0, "7 of 8 GPUs wait in a collective; GPU 7 on n1 differs with 0 % utilisation"),
        ([100.0] * 8, 150.0, "all 8 GPUs wait in a collective"),
        ([0.0] * 8, 120.0, "all 8 GPUs are idle"),
        ([0.0] * 7 + [100.0], 120.0, "7 of 8 GPUs are idle; GPU 7 on n1 differs with 100 % utilisation"),
    ],
)
def test_without_profiling_fields_a_job_is_judged_by_utilisation_and_power(
    percents: list[float], watts: float, text: str
) -> None:
    engine = an_engine()
    for index, percent in enumerate(percents):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", percent, **named)
        add_sample(engine, "DCGM_FI_DEV_POWER_USAGE", watts, **named)
        add_sample(engine, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700.0, **named)
    add_sample(engine, "watchkeeper:job_traffic:bytes_per_second", 2e6, job_name="llm", over="nvlink")
    finding = best(about_job("training_stalled", engine))
    assert (finding.cause, finding.evidence[0].text) == ("training_stalled", text)
    assert "no traffic between the GPUs: at most NVLink 2 MB/s" in [item.text for item in finding.evidence]


def test_the_only_node_with_busy_cpus_is_named_when_all_gpus_are_idle() -> None:
    engine = an_engine()
    for node in range(4):
        named = {"UUID": f"GPU-{node}", "gpu": "0", "Hostname": f"n{node}", "pod": f"llm-worker-{node}"}
        add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 0.0, **named)
        idle, share = {"instance": f"n{node}:9100", "mode": "idle", "cpu": "0"}, 0.2 if node == 2 else 0.97
        for at in range(-300, 1, 60):
            add_sample(engine, "node_cpu_seconds_total", 1000 + share * at, at=at, **idle)
    finding = best(about_job("training_stalled", engine))
    assert [item.text for item in finding.evidence if item.source == "node_cpu_seconds_total"] == [
        "n2 keeps 80% of its CPUs busy, the other nodes 3%"
    ]
    assert "Dump the stack of the process on n2" in [step.do for step in finding.actions]


@pytest.mark.parametrize(("clock", "sure"), [(1500.0, 0.88), (1980.0, 0.82)])
def test_the_slow_gpu_of_a_job_without_rank_metrics_is_named_with_its_low_clock(clock: float, sure: float) -> None:
    engine = an_engine()
    for index in range(4):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 99.0, **named)
        add_sample(engine, "DCGM_FI_DEV_SM_CLOCK", clock if index == 3 else 1980.0, **named)
        share = 0.25 if index == 3 else 0.0
        add_sample(
            engine, "watchkeeper:job_gpu_busier:ratio", share, job_name="llm", Hostname="n1", UUID=f"GPU-{index}"
        )
    finding = best(about_job("nccl_timeout_straggler", engine))
    assert (finding.cause, finding.confidence) == ("nccl_timeout_straggler", sure)
    texts = [item.text for item in finding.evidence]
    assert texts[0].endswith("SMs busy 25% longer than on the other GPUs of its node, which wait for it")
    assert any("SM clock 1500 MHz, other GPUs of the node 1980 MHz" in text for text in texts) is (clock < 1980)
    assert [ruled_out.cause for ruled_out in finding.ruled_out] == ["ib_link_degraded"]


def test_samples_of_the_previous_holder_of_a_gpu_are_ignored() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, age=300.0)
    for rank in range(4):
        where = {"UUID": f"GPU-{rank}", "gpu": str(rank), "Hostname": "n1"}
        add_sample(engine, "training_rank_info", 1, job_name="llm", rank=str(rank), **where)
        for field, before, now in (("DCGM_FI_DEV_GPU_UTIL", 0.0, 100.0), ("DCGM_FI_PROF_SM_ACTIVE", 0.0, 0.11)):
            add_sample(engine, field, before, at=-200, pod="zoo-worker-0", **where)
            add_sample(engine, field, now, pod="llm-worker-0", **where)
    finding = best(about_job("training_stalled", engine))
    assert finding.evidence[0].text == "all 4 GPUs wait in a collective"


@pytest.mark.parametrize("source", ["node_cpu_seconds_total", "watchkeeper_host_load"])
def test_a_straggler_on_the_one_node_without_free_cpus_is_short_of_cpu(source: str) -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0})
    for rank in range(4):
        node, taken = f"n{rank}", 0.98 if rank == 2 else 0.24
        at_gpu = {"Hostname": node, "gpu": "0", "UUID": f"GPU-{rank}"}
        add_sample(engine, "training_rank_info", 1, job_name="llm", rank=str(rank), **at_gpu)
        add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 99.0, pod=f"llm-worker-{rank}", **at_gpu)
        if source == "watchkeeper_host_load":
            add_sample(engine, source, taken * 96, Hostname=node, minutes="1")
            add_sample(engine, "watchkeeper_host_cpus", 96, Hostname=node)
            continue
        for at in range(-300, 1, 60):
            add_sample(engine, source, 1000 + (1 - taken) * at, at=at, instance=f"{node}:9100", mode="idle", cpu="0")
    finding = best(about_job("training_slow", engine))
    assert [item.text for item in finding.evidence if item.source == source] == [
        "n2 keeps 98% of its CPUs busy, the other nodes 24%"
    ]
    assert "Late at every collective: rank 2, short of CPU." in finding.why
    assert "List the processes that use the CPUs of n2" in [step.do for step in finding.actions]


def test_a_rank_that_computes_longer_is_a_straggler_and_not_the_fabric() -> None:
    diagnosis = about_job("training_slow", a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0}))
    assert best(diagnosis).cause == "nccl_timeout_straggler"
    assert "rank 2 computes 2.4 s per step" in best(diagnosis).evidence[0].text
    assert {"ib_link_degraded", "data_loader_starved"} <= dropped(diagnosis)


def test_a_straggler_that_reports_its_gpu_shows_the_clock() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0})
    add_sample(engine, "training_rank_info", 1, job_name="llm", rank="2", Hostname="n1", UUID="GPU-2")
    finding = best(about_job("training_slow", engine))
    assert "GPU 2 on n1: SM clock 1900 MHz" in [item.text for item in finding.evidence]


def test_a_port_with_symbol_errors_slows_all_ranks() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    for at in (-120, 0):
        add_sample(
            engine, "node_infiniband_symbol_error_total", 9000 + 75 * at, at=at, instance="n1:9100", device="mlx5_0"
        )
    add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-9", pod="llm-worker-0")
    diagnosis = about_job("training_slow", engine)
    assert (best(diagnosis).cause, best(diagnosis).place) == ("ib_link_degraded", NODE)
    assert "nccl_timeout_straggler" in dropped(diagnosis)


def test_ranks_that_wait_for_input_are_starved() -> None:
    diagnosis = about_job("training_slow", a_job(dict.fromkeys(range(4), 1.0), wait=0.6))
    assert best(diagnosis).cause == "data_loader_starved"
    assert {"nccl_timeout_straggler", "nccl_rank_died"} <= dropped(diagnosis)


def test_a_job_is_as_slow_as_its_hottest_gpu() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    add_sample(engine, REASONS, 64, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    diagnosis = about_job("training_slow", engine)
    assert (best(diagnosis).cause, best(diagnosis).place) == ("thermal_throttle", gpu(2))


@pytest.mark.parametrize(("gpus", "reason", "cause"), [((1, 2), 0x40, "cooling_failure"), ((2,), 0x80, "power_brake")])
def test_heat_of_several_gpus_and_a_brake_are_their_nodes(gpus: tuple[int, ...], reason: int, cause: str) -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    for index in gpus:
        add_sample(engine, REASONS, reason, Hostname="n1", UUID=f"GPU-{index}", pod="llm-worker-0")
    diagnosis = about_job("training_slow", engine)
    assert (best(diagnosis).cause, best(diagnosis).place) == (cause, NODE)


@pytest.mark.parametrize(
    ("free", "gpus", "taint", "cause"),
    [
        ({"a": 0, "b": 1}, 8, False, "insufficient_gpu_capacity"),
        ({"a": 4, "b": 4}, 8, False, "gpu_fragmentation"),
        ({"a": 8, "b": 0}, 8, True, "untolerated_taint"),
        ({"a": 8, "b": 8}, 64, False, "insufficient_gpu_capacity"),
    ],
)
def test_a_pending_pod_gets_the_reason_of_each_node(free: dict[str, int], gpus: int, taint: bool, cause: str) -> None:
    diagnosis = about_pod(a_cluster(free, gpus=gpus, taint=taint, tolerates=not taint))
    assert best(diagnosis).cause == cause
    assert any(step.do.startswith("Smallest change: ") for step in best(diagnosis).actions)


def test_a_node_with_only_its_exporter_down_is_not_down() -> None:
    engine = an_engine()
    add_sample(engine, "up", 1, instance="n1:9100", job="node")
    add_sample(engine, "up", 0, instance="n1:9400", job="dcgm")
    diagnosis = diagnose(facts_about(an_incident("agent_down", NODE, family="monitoring"), engine=engine), NOON)
    assert best(diagnosis).cause == "agent_down"
    assert "node_down" in dropped(diagnosis)


def test_a_new_driver_and_a_boot_are_listed_as_changes() -> None:
    engine = an_engine()
    named = {"Hostname": "n1", "UUID": "GPU-0", "gpu": "0"}
    add_sample(engine, "DCGM_FI_DEV_GPU_TEMP", 60, at=-7200, DCGM_FI_DRIVER_VERSION="550.1", **named)
    add_sample(engine, "DCGM_FI_DEV_GPU_TEMP", 60, DCGM_FI_DRIVER_VERSION="580.2", **named)
    for at, boot in ((-3600, 1.0), (0, 2.0)):
        add_sample(engine, "node_boot_time_seconds", boot, at=at, instance="n1:9100")
    diagnosis = diagnose(facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=engine), NOON)
    changes = [text for text in diagnosis.checked_sources if text.startswith("changed: ")]
    assert changes == [
        "changed: the driver of n1 changed from 550.1 to 580.2 within the last 6 hours",
        "changed: n1 booted within the last 6 hours",
    ]


def test_an_application_fault_after_a_hardware_fault_is_its_consequence_in_either_order() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    for first, then in ((79, 31), (31, 79), (48, 43), (45, 48)):
        diagnosis = diagnose(facts_about(incident, happened=[xid(first, gpu(1)), xid(then, gpu(1), 2)]), NOON)
        assert best(diagnosis).cause in ("gpu_fell_off_bus", "ecc_uncorrectable")


def test_a_fault_of_a_neighbour_does_not_clear_a_program() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    diagnosis = diagnose(facts_about(incident, happened=[xid(31, gpu(1)), xid(48, gpu(2))]), NOON)
    assert best(diagnosis).cause == "app_illegal_access"


def test_a_clock_that_is_ahead_lowers_confidence_and_is_listed() -> None:
    incident = an_incident("ecc_uncorrectable", gpu(1), family="gpu_memory", kind=MemberKind.EVENT)
    wrong = replace(xid(48, gpu(1)), received_at=NOON - timedelta(seconds=40))
    sure, unsure = (diagnose(facts_about(incident, happened=[event]), NOON) for event in (xid(48, gpu(1)), wrong))
    assert best(unsure).confidence < best(sure).confidence
    assert (
        "missing data: the clock of n1 is 40 s ahead of the hub's: the order of events is uncertain"
        in unsure.checked_sources
    )


def test_missing_series_and_topology_are_listed() -> None:
    diagnosis = diagnose(facts_about(an_incident("training_slow", JOB, family="training")), NOON)
    assert any("no series for " in text for text in diagnosis.checked_sources)
    node = diagnose(facts_about(an_incident("gpu_missing", NODE, family="gpu_lost")), NOON)
    assert any("no rack or leaf for n1" in text for text in node.checked_sources)


def test_a_pair_of_rivals_is_found_in_either_order() -> None:
    row = catalogue.rival_between("power_brake", "thermal_throttle")
    assert row is not None
    assert catalogue.rival_between("thermal_throttle", "power_brake") == row


def test_a_rank_that_died_with_its_gpu_is_diagnosed_as_the_gpu_fault() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 3: 1.0}, age=90.0)
    add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    incident = an_incident("nccl_rank_died", JOB, family="nccl")
    diagnosis = diagnose(facts_about(incident, engine=engine, happened=[xid(79, gpu(2), -60)]), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["gpu_fell_off_bus", "nccl_rank_died"]
    assert diagnosis.distinguishing_check.startswith(
        "To rule out nccl_rank_died, run: journalctl -k (read the kernel log"
    )


def test_a_job_that_stalled_when_its_gpu_broke_is_diagnosed_as_the_gpu_fault() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0), age=700.0)
    add_sample(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    incident = an_incident("training_stalled", JOB, family="training")
    diagnosis = diagnose(
        facts_about(incident, engine=engine, happened=[xid(79, gpu(2), -60), xid(45, gpu(2), -59)]), NOON
    )
    assert (best(diagnosis).cause, best(diagnosis).place) == ("gpu_fell_off_bus", gpu(2))
    assert best(diagnosis).why == "GPU 2 on n1, held by the job, failed first."


def test_a_hot_rack_is_a_cooling_failure_of_the_rack() -> None:
    engine = an_engine()
    for node, celsius in (("n1", 90.0), ("n2", 89.0), ("n3", 60.0)):
        add_sample(engine, "watchkeeper_node_info", 1, Hostname=node, rack="r1")
        add_sample(engine, "DCGM_FI_DEV_GPU_TEMP", celsius, Hostname=node, UUID=f"GPU-of-{node}")
    rack = an_incident("cooling_failure", replace(JOB, domain="rack=r1"), family="cooling")
    finding = best(diagnose(facts_about(rack, engine=engine), NOON))
    assert (finding.cause, finding.confidence) == ("cooling_failure", 0.95)
    assert finding.evidence[0].text.startswith("2 of 3 nodes of ")


def test_a_power_brake_with_gpus_near_their_limit_is_a_cooling_failure() -> None:
    warm = {"DCGM_FI_DEV_GPU_TEMP": 84.0, REASONS: 128.0}
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    diagnosis = diagnose(facts_about(incident, engine=an_engine(dict.fromkeys(range(4), warm))), NOON)
    assert (best(diagnosis).cause, best(diagnosis).place) == ("cooling_failure", NODE)
