"""Each cause with a check: its evidence, what it rules out, and when there is no finding."""

from __future__ import annotations

from tests.diagnose.stories import NODE, NOON, an_engine, an_incident, facts_about, gpu, xid
from watchkeeper.diagnose.explain import diagnose
from watchkeeper.model.diagnosis import Diagnosis, Finding
from watchkeeper.model.incidents import MemberKind


def best(diagnosis: Diagnosis) -> Finding:
    assert diagnosis.best is not None
    return diagnosis.best


def reasons(finding: Finding) -> dict[str, str]:
    return {ruled.cause: ruled.why for ruled in finding.ruled_out}


def test_a_gpu_that_fell_off_the_bus_is_named_with_its_kernel_log_line() -> None:
    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost", kind=MemberKind.EVENT)
    line = xid(79, gpu(3))
    finding = best(diagnose(facts_about(incident, happened=[line], engine=an_engine(gone=[3])), NOON))
    assert (finding.cause, finding.place) == ("gpu_fell_off_bus", gpu(3))
    assert finding.title == "GPU 3 on n1 fell off the bus"
    first = finding.evidence[0]
    assert (first.source, first.text, first.at) == ("kernel log of n1", line.text, NOON)
    assert "GPU 3 on n1 stopped reporting, last temperature 61 °C" in [item.text for item in finding.evidence]
    assert reasons(finding)["thermal_throttle"] == "last temperature 61 °C, limit 87 °C"
    assert "no application Xid of GPU 3 on n1" in reasons(finding)["app_illegal_access"]


def test_an_xid_of_one_gpu_explains_the_missing_one_of_its_node() -> None:
    incident = an_incident("gpu_missing", NODE, family="gpu_lost")
    diagnosis = diagnose(facts_about(incident, happened=[xid(79, gpu(3))], engine=an_engine(gone=[3])), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["gpu_fell_off_bus"]


def test_a_gpu_that_stopped_reporting_without_an_xid_is_missing_and_named() -> None:
    incident = an_incident("gpu_missing", NODE, family="gpu_lost")
    finding = best(diagnose(facts_about(incident, engine=an_engine(gone=[2])), NOON))
    assert (finding.cause, finding.place) == ("gpu_missing", gpu(2))
    assert finding.evidence[0].text == "3 GPUs of n1 report, 4 are expected"
    assert reasons(finding)["gpu_fell_off_bus"] == "no Xid 79 of n1 within 10 minutes"


def test_an_uncorrectable_error_shows_line_counter_and_remap_state() -> None:
    incident = an_incident("ecc_uncorrectable", gpu(1), family="gpu_memory", kind=MemberKind.EVENT)
    engine = an_engine({1: {"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1.0, "DCGM_FI_DEV_ROW_REMAP_PENDING": 1.0}})
    happened = [xid(48, gpu(1)), xid(63, gpu(1), 1), xid(31, gpu(2))]
    finding = best(diagnose(facts_about(incident, happened=happened, engine=engine), NOON))
    texts = [item.text for item in finding.evidence]
    assert (finding.cause, finding.confidence) == ("ecc_uncorrectable", 0.97)
    assert happened[0].text in texts
    assert happened[1].text in texts
    assert happened[2].text not in texts
    assert "GPU 1 on n1: uncorrectable errors since the last reset 1" in texts
    assert "row_remap_failure" in reasons(finding)
    assert any("--gpu-reset -i GPU-1" in (step.command or "") for step in finding.actions)


def test_an_application_fault_rules_out_the_hardware() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    finding = best(diagnose(facts_about(incident, happened=[xid(31, gpu(1), program="python")]), NOON))
    assert (finding.cause, finding.confidence) == ("app_illegal_access", 0.92)
    assert set(reasons(finding)) == {"gpu_fell_off_bus", "ecc_uncorrectable", "thermal_throttle"}


def test_different_programs_that_fail_on_one_gpu_make_the_gpu_suspect() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    happened = [xid(31, gpu(1), program="python"), xid(13, gpu(1), 3, program="vllm")]
    finding = best(diagnose(facts_about(incident, happened=happened), NOON))
    assert finding.confidence == 0.6
    assert "2 different programs (python, vllm)" in finding.why


def test_an_application_fault_with_a_memory_error_is_diagnosed_as_memory() -> None:
    incident = an_incident("app_illegal_access", gpu(1), family="application", kind=MemberKind.EVENT)
    diagnosis = diagnose(facts_about(incident, happened=[xid(31, gpu(1)), xid(48, gpu(1), 5)]), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["ecc_uncorrectable"]


def test_a_node_whose_gpus_are_all_hot_has_lost_its_cooling() -> None:
    hot = {"DCGM_FI_DEV_GPU_TEMP": 89.0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": float(0x40)}
    incident = an_incident("cooling_failure", NODE, family="cooling")
    finding = best(diagnose(facts_about(incident, engine=an_engine(dict.fromkeys(range(4), hot))), NOON))
    assert (finding.cause, finding.place, finding.confidence) == ("cooling_failure", NODE, 0.95)
    assert finding.evidence[0].text == "4 of 4 GPUs of n1 are at their limit; highest temperature 89 °C"
    assert set(reasons(finding)) == {"power_brake", "thermal_throttle"}


def test_two_gpus_at_their_limit_are_the_cooling_of_a_node_whose_others_are_cool() -> None:
    hot = {index: {"DCGM_FI_DEV_GPU_TEMP": 89.0} for index in range(2)}
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    finding = best(diagnose(facts_about(incident, engine=an_engine(hot)), NOON))
    assert (finding.cause, finding.place, finding.confidence) == ("cooling_failure", NODE, 0.85)


def test_one_hot_gpu_is_not_a_cooling_failure_of_its_node() -> None:
    incident = an_incident("thermal_throttle", gpu(1), family="cooling")
    diagnosis = diagnose(facts_about(incident, engine=an_engine({1: {"DCGM_FI_DEV_GPU_TEMP": 90.0}})), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["thermal_throttle"]


def test_an_allocated_idle_gpu_names_its_holder_and_rules_out_an_nccl_wait() -> None:
    idle = {"DCGM_FI_PROF_SM_ACTIVE": 0.0, "DCGM_FI_DEV_GPU_UTIL": 0.0}
    incident = an_incident("gpu_idle_waste", gpu(1), family="waste")
    finding = best(diagnose(facts_about(incident, engine=an_engine({1: idle})), NOON))
    assert (finding.cause, finding.confidence) == ("gpu_idle_waste", 0.9)
    assert "GPU 1 on n1: SM activity 0 %" in [item.text for item in finding.evidence]
    assert any("research/notebook" in step.do for step in finding.actions)
    assert "nccl_timeout_straggler" in reasons(finding)


def test_an_allocated_gpu_with_running_kernels_has_low_confidence_for_idle() -> None:
    incident = an_incident("gpu_idle_waste", gpu(1), family="waste")
    finding = best(diagnose(facts_about(incident, engine=an_engine({1: {"DCGM_FI_PROF_SM_ACTIVE": 0.4}})), NOON))
    assert (finding.cause, finding.confidence) == ("gpu_idle_waste", 0.4)
