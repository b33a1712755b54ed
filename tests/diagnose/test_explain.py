"""The whole diagnosis: gaps are said, broken checks are named, and there is always an answer."""

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


def test_what_could_not_be_seen_is_said() -> None:
    facts = facts_about(an_incident("gpu_idle_waste", gpu(1), family="waste"))
    assert "no DCGM_FI_DEV_MEMORY_TEMP for GPU 1 on n1" in facts.missing_data
    assert f"{len(HEALTHY)} of {len(FIELDS)} series of n1" in facts.sources
    assert "not seen: no DCGM_FI_DEV_MEMORY_TEMP for GPU 1 on n1" in diagnose(facts, NOON).checked_sources


def test_an_unseen_temperature_rules_no_heat_out() -> None:
    empty = embedded.EmbeddedEngine(head.Head())
    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost", kind=MemberKind.EVENT)
    found = diagnose(facts_about(incident, happened=[xid(79, gpu(3))], engine=empty), NOON)
    assert [ruled.cause for finding in found.findings for ruled in finding.ruled_out] == ["app_illegal_access"]
    assert "no watchkeeper_node_expected_gpus for n1" in " ".join(found.checked_sources)


def test_gathering_asks_at_most_twenty_questions() -> None:
    counting = CountingEngine(head.Head())
    facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=counting)
    assert 0 < counting.asked <= 20


def test_an_engine_that_refuses_is_a_fact_and_not_a_failure() -> None:
    strict = embedded.EmbeddedEngine(head.Head(), engine.QueryLimits(max_expression_bytes=1))
    facts = facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), engine=strict)
    assert facts.reporting is None
    assert any("DCGM_FI_DEV_GPU_TEMP could not be asked" in gap for gap in facts.missing_data)


def test_a_broken_check_is_named_and_does_not_cost_the_other_answers(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: IncidentFacts) -> Finding | None:
        raise ZeroDivisionError("nothing to divide by")

    incident = an_incident("gpu_fell_off_bus", gpu(3), family="gpu_lost", kind=MemberKind.EVENT)
    with caplog.at_level(logging.ERROR):
        found = diagnose(facts_about(incident, happened=[xid(79, gpu(3))]), NOON, checks=[broken, *CHECKS])
    assert found.best is not None
    assert found.best.cause == "gpu_fell_off_bus"
    assert "check broken gave no answer: ZeroDivisionError: nothing to divide by" in found.checked_sources
    assert "Check failed" in caplog.messages


def test_a_cause_without_its_own_check_is_answered_by_the_catalogue() -> None:
    incident = an_incident("gsp_timeout", gpu(1), family="gpu_firmware", kind=MemberKind.EVENT)
    found = diagnose(facts_about(incident, happened=[xid(119, gpu(1))]), NOON).best
    assert found is not None
    assert (found.cause, found.confidence) == ("gsp_timeout", 0.75)
    assert found.evidence[0].text == xid(119, gpu(1)).text


def test_an_unknown_cause_says_what_the_code_means_and_what_to_collect() -> None:
    incident = an_incident("unknown", gpu(1), family="unknown", kind=MemberKind.EVENT)
    found = diagnose(facts_about(incident, happened=[xid(109, gpu(1))]), NOON).best
    assert found is not None
    assert found.cause == "unknown"
    assert found.why.startswith("Xid 109: context-switch timeout")
    assert any(step.command == "nvidia-bug-report.sh" for step in found.actions)


def test_the_same_facts_give_the_same_answer() -> None:
    facts = facts_about(an_incident("gpu_missing", NODE, family="gpu_lost"), happened=[xid(79, gpu(3))])
    assert diagnose(facts, NOON) == diagnose(facts, NOON)


def test_a_fault_of_one_gpu_is_no_cause_of_its_nodes_heat_and_is_mentioned() -> None:
    hot = {"DCGM_FI_DEV_GPU_TEMP": 89.0}
    incident = an_incident("cooling_failure", NODE, family="cooling")
    engine = an_engine(dict.fromkeys(range(4), hot))
    found = diagnose(facts_about(incident, happened=[xid(48, gpu(3)), xid(79, gpu(1))], engine=engine), NOON)
    assert [finding.cause for finding in found.findings] == ["cooling_failure"]
    mentioned = [text for text in found.checked_sources if text.startswith("also here: ")]
    assert len(mentioned) == 2
    assert "GPU 1 on n1 fell off the bus (gpu_fell_off_bus)" in mentioned[0]


def test_two_faults_of_one_gpu_keep_their_own_causes() -> None:
    happened = [xid(48, gpu(1)), xid(79, gpu(1), 5)]
    memory = an_incident("ecc_uncorrectable", gpu(1), family="gpu_memory", kind=MemberKind.EVENT)
    lost = an_incident("gpu_fell_off_bus", gpu(1), family="gpu_lost", kind=MemberKind.EVENT)
    for incident in (memory, lost):
        found = diagnose(facts_about(incident, happened=happened), NOON)
        assert [finding.cause for finding in found.findings] == [incident.cause]


def test_two_gpus_that_fell_off_one_node_are_each_named_in_their_own_incident() -> None:
    happened = [xid(79, gpu(3)), xid(79, gpu(2), 5)]
    incident = an_incident("gpu_fell_off_bus", gpu(2), family="gpu_lost", kind=MemberKind.EVENT)
    found = diagnose(facts_about(incident, happened=happened), NOON).best
    assert found is not None
    assert found.place == gpu(2)


def test_a_fault_of_one_gpu_does_not_explain_what_nobody_knows_about_its_node() -> None:
    incident = an_incident("unknown", NODE, family="unknown")
    found = diagnose(facts_about(incident, happened=[xid(48, gpu(1))]), NOON)
    assert [finding.cause for finding in found.findings] == ["unknown"]
    assert any(text.startswith("also here: ") for text in found.checked_sources)
