"""The cause from everything around the place, where the alert alone would have guessed otherwise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.diagnose.scenes import JOB, a_cluster, a_job, about_job, about_pod, say
from tests.diagnose.stories import NODE, NOON, an_engine, an_incident, facts_about, gpu, xid
from watchkeeper.catalogue import rivals
from watchkeeper.diagnose.explain import diagnose
from watchkeeper.model.diagnosis import Diagnosis, Finding
from watchkeeper.model.incidents import MemberKind

REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


def best(found: Diagnosis) -> Finding:
    assert found.best is not None
    return found.best


def dropped(found: Diagnosis) -> set[str]:
    return {ruled.cause for ruled in best(found).ruled_out}


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"DCGM_FI_DEV_GPU_TEMP": 90.0, REASONS: 64.0}, "thermal_throttle"),
        ({REASONS: 4.0}, "power_cap"),
        ({REASONS: 128.0}, "power_brake"),
    ],
)
def test_the_reasons_of_the_clocks_correct_an_alert_that_blamed_heat(changed: dict[str, float], cause: str) -> None:
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    found = diagnose(facts_about(incident, engine=an_engine({1: changed})), NOON)
    assert best(found).cause == cause
    assert cause not in dropped(found)


def test_what_would_tell_the_best_two_apart_is_said_until_the_other_is_ruled_out() -> None:
    incident = an_incident("gpu_missing", NODE, family="gpu_lost")
    found = diagnose(facts_about(incident, engine=an_engine(gone=[2])), NOON)
    assert "gpu_fell_off_bus" in dropped(found)
    assert (
        found.distinguishing_check
        == "gpu_missing or driver_not_loaded? Whether any GPU of the node reports: lsmod | grep nvidia"
    )


def test_a_rank_that_says_nothing_while_all_wait_is_dead_and_named() -> None:
    found = about_job("training_stalled", a_job({0: 1.0, 1: 1.0, 3: 1.0}, age=90.0))
    assert best(found).cause == "nccl_rank_died"
    assert best(found).evidence[0].text.startswith("rank 2 falls silent")


def test_the_gpu_that_does_not_spin_is_the_one_that_a_mute_job_waits_for() -> None:
    engine = an_engine()
    for index in range(8):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        say(engine, "DCGM_FI_DEV_GPU_UTIL", 0.0 if index == 5 else 100.0, **named)
        say(engine, "DCGM_FI_PROF_SM_ACTIVE", 0.0 if index == 5 else 0.11, **named)
        say(engine, "DCGM_FI_DEV_POWER_USAGE", 120.0 + index, **named)
    found = best(about_job("training_stalled", engine))
    assert (found.cause, found.place) == ("training_stalled", JOB)
    assert found.evidence[0].text == "7 of 8 GPUs spin in a collective; GPU 5 on n1 shows 0 % and does not"
    assert found.evidence[1].text == "those that spin draw 120 to 127 W"
    assert "py-spy dump --pid PID" in {step.command for step in found.actions}


@pytest.mark.parametrize(
    ("percents", "watts", "said"),
    [
        ([100.0] * 7 + [0.0], 150.0, "7 of 8 GPUs spin in a collective; GPU 7 on n1 shows 0 % and does not"),
        ([100.0] * 8, 150.0, "all 8 GPUs spin in a collective"),
        ([0.0] * 8, 120.0, "none of the 8 GPUs does anything"),
        ([0.0] * 7 + [100.0], 120.0, "7 of 8 GPUs do nothing; GPU 7 on n1 shows 100 % and does not"),
    ],
)
def test_a_mute_job_without_profiling_fields_is_judged_by_utilisation_and_watts(
    percents: list[float], watts: float, said: str
) -> None:
    engine = an_engine()
    for index, percent in enumerate(percents):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        say(engine, "DCGM_FI_DEV_GPU_UTIL", percent, **named)
        say(engine, "DCGM_FI_DEV_POWER_USAGE", watts, **named)
        say(engine, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", 700.0, **named)
    say(engine, "watchkeeper:job_traffic:bytes_per_second", 2e6, job_name="llm", over="nvlink")
    found = best(about_job("training_stalled", engine))
    assert (found.cause, found.evidence[0].text) == ("training_stalled", said)
    assert "nothing moves between them: at most NVLink 2 MB/s" in [one.text for one in found.evidence]


def test_a_node_whose_cpus_are_busy_alone_is_where_to_look_when_all_gpus_are_idle() -> None:
    engine = an_engine()
    for node in range(4):
        named = {"UUID": f"GPU-{node}", "gpu": "0", "Hostname": f"n{node}", "pod": f"llm-worker-{node}"}
        say(engine, "DCGM_FI_DEV_GPU_UTIL", 0.0, **named)
        idle, share = {"instance": f"n{node}:9100", "mode": "idle", "cpu": "0"}, 0.2 if node == 2 else 0.97
        for at in range(-300, 1, 60):
            say(engine, "node_cpu_seconds_total", 1000 + share * at, at=at, **idle)
    found = best(about_job("training_stalled", engine))
    assert [one.text for one in found.evidence if one.source == "node_cpu_seconds_total"] == [
        "n2 keeps 80% of its CPUs busy, the others 3%"
    ]
    assert "See where the program of n2 stands" in [step.do for step in found.actions]


@pytest.mark.parametrize(("clock", "sure"), [(1500.0, 0.88), (1980.0, 0.82)])
def test_the_gpu_that_a_mute_job_waits_for_is_named_with_its_clock_where_that_is_low(clock: float, sure: float) -> None:
    engine = an_engine()
    for index in range(4):
        named = {"UUID": f"GPU-{index}", "gpu": str(index), "Hostname": "n1", "pod": "llm-worker-0"}
        say(engine, "DCGM_FI_DEV_GPU_UTIL", 99.0, **named)
        say(engine, "DCGM_FI_DEV_SM_CLOCK", clock if index == 3 else 1980.0, **named)
        share = 0.25 if index == 3 else 0.0
        say(engine, "watchkeeper:job_gpu_busier:ratio", share, job_name="llm", Hostname="n1", UUID=f"GPU-{index}")
    found = best(about_job("nccl_timeout_straggler", engine))
    assert (found.cause, found.confidence) == ("nccl_timeout_straggler", sure)
    said = [one.text for one in found.evidence]
    assert said[0].endswith("keeps its SMs busy 25% longer than the others of its node, which wait for it")
    assert any("SM clock 1500 MHz, the others of its node 1980 MHz" in text for text in said) is (clock < 1980)
    assert [one.cause for one in found.ruled_out] == ["ib_link_degraded"]


def test_what_a_gpu_did_for_its_last_holder_is_not_about_the_job_that_holds_it_now() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}, age=300.0)
    for rank in range(4):
        where = {"UUID": f"GPU-{rank}", "gpu": str(rank), "Hostname": "n1"}
        say(engine, "training_rank_info", 1, job_name="llm", rank=str(rank), **where)
        for field, before, now in (("DCGM_FI_DEV_GPU_UTIL", 0.0, 100.0), ("DCGM_FI_PROF_SM_ACTIVE", 0.0, 0.11)):
            say(engine, field, before, at=-200, pod="zoo-worker-0", **where)
            say(engine, field, now, pod="llm-worker-0", **where)
    found = best(about_job("training_stalled", engine))
    assert found.evidence[0].text == "all 4 GPUs spin in a collective"


@pytest.mark.parametrize("source", ["node_cpu_seconds_total", "watchkeeper_host_load"])
def test_a_straggler_on_the_one_node_without_free_cpus_is_short_of_cpu(source: str) -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0})
    for rank in range(4):
        node, taken = f"n{rank}", 0.98 if rank == 2 else 0.24
        at_gpu = {"Hostname": node, "gpu": "0", "UUID": f"GPU-{rank}"}
        say(engine, "training_rank_info", 1, job_name="llm", rank=str(rank), **at_gpu)
        say(engine, "DCGM_FI_DEV_GPU_UTIL", 99.0, pod=f"llm-worker-{rank}", **at_gpu)
        if source == "watchkeeper_host_load":
            say(engine, source, taken * 96, Hostname=node, minutes="1")
            say(engine, "watchkeeper_host_cpus", 96, Hostname=node)
            continue
        for at in range(-300, 1, 60):
            say(engine, source, 1000 + (1 - taken) * at, at=at, instance=f"{node}:9100", mode="idle", cpu="0")
    found = best(about_job("training_slow", engine))
    assert [one.text for one in found.evidence if one.source == source] == [
        "n2 keeps 98% of its CPUs busy, the others 24%"
    ]
    assert "Late at every collective: rank 2, short of CPU." in found.why
    assert "See what takes the CPUs of n2" in [step.do for step in found.actions]


def test_a_rank_that_computes_longer_is_a_straggler_and_not_the_fabric() -> None:
    found = about_job("training_slow", a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0}))
    assert best(found).cause == "nccl_timeout_straggler"
    assert "rank 2 computes 2.4 s a step" in best(found).evidence[0].text
    assert {"ib_link_degraded", "data_loader_starved"} <= dropped(found)


def test_a_straggler_that_says_where_it_runs_shows_the_clock_of_its_gpu() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 2: 2.4, 3: 1.0})
    say(engine, "training_rank_info", 1, job_name="llm", rank="2", Hostname="n1", UUID="GPU-2")
    found = best(about_job("training_slow", engine))
    assert "GPU 2 on n1: SM clock 1900 MHz" in [one.text for one in found.evidence]


def test_a_port_that_loses_symbols_slows_all_ranks_alike() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    for at in (-120, 0):
        say(engine, "node_infiniband_symbol_error_total", 9000 + 75 * at, at=at, instance="n1:9100", device="mlx5_0")
    say(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-9", pod="llm-worker-0")
    found = about_job("training_slow", engine)
    assert (best(found).cause, best(found).place) == ("ib_link_degraded", NODE)
    assert "nccl_timeout_straggler" in dropped(found)


def test_ranks_that_wait_for_input_are_starved_and_nothing_else() -> None:
    found = about_job("training_slow", a_job(dict.fromkeys(range(4), 1.0), wait=0.6))
    assert best(found).cause == "data_loader_starved"
    assert {"nccl_timeout_straggler", "nccl_rank_died"} <= dropped(found)


def test_a_job_is_as_slow_as_its_hottest_gpu() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    say(engine, REASONS, 64, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    found = about_job("training_slow", engine)
    assert (best(found).cause, best(found).place) == ("thermal_throttle", gpu(2))


@pytest.mark.parametrize(("gpus", "reason", "cause"), [((1, 2), 0x40, "cooling_failure"), ((2,), 0x80, "power_brake")])
def test_heat_of_several_gpus_and_a_brake_are_their_nodes(gpus: tuple[int, ...], reason: int, cause: str) -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0))
    for index in gpus:
        say(engine, REASONS, reason, Hostname="n1", UUID=f"GPU-{index}", pod="llm-worker-0")
    found = about_job("training_slow", engine)
    assert (best(found).cause, best(found).place) == (cause, NODE)


@pytest.mark.parametrize(
    ("free", "asks", "taint", "cause"),
    [
        ({"a": 0, "b": 1}, 8, False, "insufficient_gpu_capacity"),
        ({"a": 4, "b": 4}, 8, False, "gpu_fragmentation"),
        ({"a": 8, "b": 0}, 8, True, "untolerated_taint"),
        ({"a": 8, "b": 8}, 64, False, "insufficient_gpu_capacity"),
    ],
)
def test_a_pod_that_waits_is_told_why_by_each_node(free: dict[str, int], asks: int, taint: bool, cause: str) -> None:
    found = about_pod(a_cluster(free, asks=asks, taint=taint, tolerates=not taint))
    assert best(found).cause == cause
    assert any(step.do.startswith("The smallest change: ") for step in best(found).actions)


def test_a_node_whose_exporter_alone_is_silent_is_not_down() -> None:
    engine = an_engine()
    say(engine, "up", 1, instance="n1:9100", job="node")
    say(engine, "up", 0, instance="n1:9400", job="dcgm")
    found = diagnose(facts_about(an_incident("agent_down", NODE, family="monitoring"), engine=engine), NOON)
    assert best(found).cause == "agent_down"
    assert "node_down" in dropped(found)


def test_another_driver_than_before_and_a_boot_are_said() -> None:
    engine = an_engine()
    named = {"Hostname": "n1", "UUID": "GPU-0", "gpu": "0"}
    say(engine, "DCGM_FI_DEV_GPU_TEMP", 60, at=-7200, DCGM_FI_DRIVER_VERSION="550.1", **named)
    say(engine, "DCGM_FI_DEV_GPU_TEMP", 60, DCGM_FI_DRIVER_VERSION="580.2", **named)
    for at, boot in ((-3600, 1.0), (0, 2.0)):
        say(engine, "node_boot_time_seconds", boot, at=at, instance="n1:9100")
    found = diagnose(facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=engine), NOON)
    changes = [text for text in found.checked_sources if text.startswith("changed: ")]
    assert changes == [
        "changed: the driver of n1 is 580.2 and was 550.1 within the last 6 hours",
        "changed: n1 was booted within the last 6 hours",
    ]


def test_an_application_fault_after_a_hardware_fault_is_its_consequence_in_either_order() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    for first, then in ((79, 31), (31, 79), (48, 43), (45, 48)):
        found = diagnose(facts_about(incident, happened=[xid(first, gpu(1)), xid(then, gpu(1), 2)]), NOON)
        assert best(found).cause in ("gpu_fell_off_bus", "ecc_uncorrectable")


def test_a_fault_of_a_neighbour_does_not_clear_a_program() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    found = diagnose(facts_about(incident, happened=[xid(31, gpu(1)), xid(48, gpu(2))]), NOON)
    assert best(found).cause == "app_illegal_access"


def test_a_clock_that_is_ahead_makes_less_sure_and_is_said() -> None:
    incident = an_incident("ecc_uncorrectable", gpu(1), family="gpu_memory", kind=MemberKind.EVENT)
    wrong = replace(xid(48, gpu(1)), received_at=NOON - timedelta(seconds=40))
    sure, unsure = (diagnose(facts_about(incident, happened=[one]), NOON) for one in (xid(48, gpu(1)), wrong))
    assert best(unsure).confidence < best(sure).confidence
    assert "not seen: the clock of n1 is 40 s ahead of ours: the order of events is uncertain" in unsure.checked_sources


def test_without_profiling_fields_and_topology_it_says_so() -> None:
    found = diagnose(facts_about(an_incident("training_slow", JOB, family="training")), NOON)
    assert any("is no single node, and nothing tells about it" in text for text in found.checked_sources)
    node = diagnose(facts_about(an_incident("gpu_missing", NODE, family="gpu_lost")), NOON)
    assert any("no rack or leaf of n1" in text for text in node.checked_sources)


def test_each_rival_can_be_told_apart_from_either_side() -> None:
    row = rivals.rival_between("power_brake", "thermal_throttle")
    assert row is not None
    assert rivals.rival_between("thermal_throttle", "power_brake") == row


def test_a_rank_that_died_with_its_gpu_is_the_gpus_fault() -> None:
    engine = a_job({0: 1.0, 1: 1.0, 3: 1.0}, age=90.0)
    say(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    incident = an_incident("nccl_rank_died", JOB, family="nccl")
    found = diagnose(facts_about(incident, engine=engine, happened=[xid(79, gpu(2), -60)]), NOON)
    assert [finding.cause for finding in found.findings] == ["gpu_fell_off_bus", "nccl_rank_died"]
    assert found.distinguishing_check.startswith("gpu_fell_off_bus or nccl_rank_died? The kernel log of the node")


def test_a_job_that_stalled_when_one_of_its_gpus_broke_is_not_to_blame() -> None:
    engine = a_job(dict.fromkeys(range(4), 1.0), age=700.0)
    say(engine, "DCGM_FI_DEV_GPU_UTIL", 100, Hostname="n1", UUID="GPU-2", pod="llm-worker-0")
    incident = an_incident("training_stalled", JOB, family="training")
    found = diagnose(facts_about(incident, engine=engine, happened=[xid(79, gpu(2), -60), xid(45, gpu(2), -59)]), NOON)
    assert (best(found).cause, best(found).place) == ("gpu_fell_off_bus", gpu(2))
    assert best(found).why == "GPU 2 on n1, which the job holds, broke first."


def test_a_rack_that_is_hot_and_a_node_whose_neighbours_are_cool_are_told_apart() -> None:
    engine = an_engine()
    for node, celsius in (("n1", 90.0), ("n2", 89.0), ("n3", 60.0)):
        say(engine, "watchkeeper_node_info", 1, Hostname=node, rack="r1")
        say(engine, "DCGM_FI_DEV_GPU_TEMP", celsius, Hostname=node, UUID=f"GPU-of-{node}")
    rack = an_incident("cooling_failure", replace(JOB, domain="rack=r1"), family="cooling")
    found = best(diagnose(facts_about(rack, engine=engine), NOON))
    assert (found.cause, found.confidence) == ("cooling_failure", 0.95)
    assert found.evidence[0].text.startswith("2 of 3 nodes of ")


def test_gpus_that_a_power_brake_keeps_below_their_limit_still_show_that_the_air_is_gone() -> None:
    warm = {"DCGM_FI_DEV_GPU_TEMP": 84.0, REASONS: 128.0}
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    found = diagnose(facts_about(incident, engine=an_engine(dict.fromkeys(range(4), warm))), NOON)
    assert (best(found).cause, best(found).place) == ("cooling_failure", NODE)
