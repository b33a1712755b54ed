"""The whole diagnosis: missing data and failed checks are listed, and there is always a finding."""

from __future__ import annotations

import logging

import pytest

from tests.diagnose.scenes import CountingEngine
from tests.diagnose.stories import HEALTHY, NODE, NOON, an_engine, an_incident, facts_about, gpu, xid
from watchkeeper.diagnose.checks import CHECKS
from watchkeeper.diagnose.evidence import FIELDS, IncidentFacts
from watchkeeper.diagnose.explain import diagnose
from watchkeeper.model.diagnosis import Finding
from watchkeeper.model.incidents import MemberKind
from watchkeeper.query import embedded, engine
from watchkeeper.store.head import head


def test_missing_data_is_listed() -> None:
    facts = facts_about(an_incident("gpu_idle_waste", gpu(1), family="waste"))
    assert "no DCGM_FI_DEV_MEMORY_TEMP for GPU 1 on n1" in facts.missing_data
    assert f"{len(HEALTHY)} of {len(FIELDS)} series of n1" in facts.sources
    assert "missing data: no DCGM_FI_DEV_MEMORY_TEMP for GPU 1 on n1" in diagnose(facts, NOON).checked_sources


def test_a_missing_temperature_does_not_rule_out_heat() -> None:
    empty = embedded.EmbeddedEngine(head.Head())
    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost", kind=MemberKind.EVENT)
    diagnosis = diagnose(facts_about(incident, happened=[xid(79, gpu(3))], engine=empty), NOON)
    assert [ruled.cause for finding in diagnosis.findings for ruled in finding.ruled_out] == ["app_illegal_access"]
    assert "no watchkeeper_node_expected_gpus for n1" in " ".join(diagnosis.checked_sources)


def test_gathering_facts_takes_at_most_twenty_queries() -> None:
    counting = CountingEngine(head.Head())
    facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=counting)
    assert 0 < counting.query_count <= 20


def test_a_failed_query_is_missing_data_and_not_an_error() -> None:
    strict = embedded.EmbeddedEngine(head.Head(), engine.QueryLimits(max_expression_bytes=1))
    facts = facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=strict)
    assert facts.reporting is None
    assert any("query for DCGM_FI_DEV_GPU_TEMP failed" in gap for gap in facts.missing_data)


def test_a_failed_check_is_named_and_the_others_still_run(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: IncidentFacts) -> Finding | None:
        raise ZeroDivisionError("nothing to divide by")

    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost", kind=MemberKind.EVENT)
    with caplog.at_level(logging.ERROR):
        diagnosis = diagnose(facts_about(incident, happened=[xid(79, gpu(3))]), NOON, checks=[broken, *CHECKS])
    assert diagnosis.best is not None
    assert diagnosis.best.cause == "gpu_fell_off_bus"
    assert "check broken failed: ZeroDivisionError: nothing to divide by" in diagnosis.checked_sources
    assert "check failed" in caplog.messages


def test_a_cause_without_its_own_check_is_answered_by_the_catalogue() -> None:
    incident = an_incident("gsp_timeout", gpu(1), family="gpu_firmware", kind=MemberKind.EVENT)
    finding = diagnose(facts_about(incident, happened=[xid(119, gpu(1))]), NOON).best
    assert finding is not None
    assert (finding.cause, finding.confidence) == ("gsp_timeout", 0.75)
    assert finding.evidence[0].text == xid(119, gpu(1)).text


def test_an_unknown_cause_says_what_the_code_means_and_what_to_collect() -> None:
    incident = an_incident("unknown", gpu(1), family="unknown", kind=MemberKind.EVENT)
    finding = diagnose(facts_about(incident, happened=[xid(109, gpu(1))]), NOON).best
    assert finding is not None
    assert finding.cause == "unknown"
    assert finding.why.startswith("Xid 109: context-switch timeout")
    assert any(step.command == "nvidia-bug-report.sh" for step in finding.actions)


def test_the_same_facts_give_the_same_answer() -> None:
    facts = facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), happened=[xid(79, gpu(3))])
    assert diagnose(facts, NOON) == diagnose(facts, NOON)


def test_a_fault_of_one_gpu_is_only_mentioned_in_a_cooling_incident_of_its_node() -> None:
    hot = {"DCGM_FI_DEV_GPU_TEMP": 89.0}
    incident = an_incident("cooling_failure", NODE, family="cooling")
    engine = an_engine(dict.fromkeys(range(4), hot))
    diagnosis = diagnose(facts_about(incident, happened=[xid(48, gpu(3)), xid(79, gpu(1))], engine=engine), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["cooling_failure"]
    mentioned = [text for text in diagnosis.checked_sources if text.startswith("also here: ")]
    assert len(mentioned) == 2
    assert "GPU 1 on n1 fell off the bus (gpu_fell_off_bus)" in mentioned[0]


def test_two_faults_of_one_gpu_keep_their_own_causes() -> None:
    happened = [xid(48, gpu(1)), xid(79, gpu(1), 5)]
    memory = an_incident("ecc_uncorrectable", gpu(1), family="gpu_memory", kind=MemberKind.EVENT)
    lost = an_incident("gpu_fell_off_bus", gpu(1), family="gpu_lost", kind=MemberKind.EVENT)
    for incident in (memory, lost):
        diagnosis = diagnose(facts_about(incident, happened=happened), NOON)
        assert [finding.cause for finding in diagnosis.findings] == [incident.cause]


def test_two_gpus_that_fell_off_one_node_are_each_named_in_their_own_incident() -> None:
    happened = [xid(79, gpu(3)), xid(79, gpu(2), 5)]
    incident = an_incident("gpu_fell_off_bus", gpu(2), family="gpu_lost", kind=MemberKind.EVENT)
    finding = diagnose(facts_about(incident, happened=happened), NOON).best
    assert finding is not None
    assert finding.place == gpu(2)


def test_a_fault_of_one_gpu_does_not_explain_an_unknown_cause_of_its_node() -> None:
    incident = an_incident("unknown", NODE, family="unknown")
    diagnosis = diagnose(facts_about(incident, happened=[xid(48, gpu(1))]), NOON)
    assert [finding.cause for finding in diagnosis.findings] == ["unknown"]
    assert any(text.startswith("also here: ") for text in diagnosis.checked_sources)
