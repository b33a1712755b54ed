"""A drill compares incidents with the truth of a fault and counts false alarms."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.drill import score
from watchkeeper.model import alerts, diagnosis, fleet, incidents
from watchkeeper.sim.faults import SimFault
from watchkeeper.sim.simulation import SimSettings, Simulation

SIMULATION = Simulation(SimSettings(gpus=16))
GPU = SIMULATION.layout.nodes[0].gpus[3]
PLACE = fleet.Place("sim", node="gpu-r01-01", gpu=GPU.uuid)


SIGNAL = incidents.Member(
    incidents.MemberKind.EVENT,
    "e1",
    PLACE,
    "gpu_fell_off_bus",
    datetime.fromtimestamp(1_000_000, UTC),
    "Xid 79",
    alerts.Severity.CRITICAL,
)


@pytest.fixture
def fault() -> SimFault:
    scenario = SIMULATION.scenarios["xid-79"]
    return SimFault("f1", scenario, SIMULATION.layout.nodes[0], GPU, at=1_000_000, until=None)


def incident(**changes: object) -> incidents.Incident:
    right = incidents.Incident(
        id=incidents.IncidentId("INC-1"),
        place=PLACE,
        title="GPU 3 fell off the bus",
        severity=alerts.Severity.CRITICAL,
        state=incidents.IncidentState.OPEN,
        opened_at=datetime.fromtimestamp(1_000_000, UTC) + timedelta(seconds=2),
        cause="gpu_fell_off_bus",
        family="gpu_lost",
        members=(SIGNAL,),
    )
    return replace(right, **changes)  # type: ignore[arg-type]


def allowed(_: incidents.Member) -> float:
    return 2.0


def diagnose_as(cause: str, place: fleet.Place = PLACE) -> diagnosis.Diagnosis:
    finding = diagnosis.Finding(cause, 0.9, place, "title", "why", evidence=(diagnosis.Evidence("log", "line"),))
    return diagnosis.Diagnosis(incidents.IncidentId("INC-1"), datetime.now(UTC), (finding,), checked_sources=())


def test_the_right_answer_is_right_in_every_part(fault: SimFault) -> None:
    scored = score.score_best_incident(
        fault, PLACE, [incident()], diagnosis_of=lambda _: diagnose_as("gpu_fell_off_bus"), allowed_seconds=allowed
    )
    named = {"cause": "gpu_fell_off_bus", "named_cause": "gpu_fell_off_bus"}
    assert scored == score.ScenarioScore("xid-79", True, 2.0, 2.0, True, True, True, True, **named)
    assert scored.is_right


def test_no_incident_means_not_detected(fault: SimFault) -> None:
    scored = score.score_best_incident(fault, PLACE, [], diagnosis_of=lambda _: None, allowed_seconds=allowed)
    assert (scored.detected, scored.seconds_to_detect, scored.is_right) == (False, None, False)


def test_an_incident_at_another_place_or_of_another_family_is_not_a_detection(fault: SimFault) -> None:
    elsewhere = incident(place=fleet.Place("sim", node="gpu-r01-02"))
    other = incident(cause="gpu_idle_waste", family="waste")
    everywhere = incident(place=fleet.Place("sim"))
    assert not score.score_best_incident(
        fault,
        PLACE,
        [elsewhere, other, everywhere],
        diagnosis_of=lambda _: diagnose_as("gpu_fell_off_bus"),
        allowed_seconds=allowed,
    ).detected


def test_wrong_place_cause_and_severity_are_scored_separately(fault: SimFault) -> None:
    node = incident(place=fleet.Place("sim", node="gpu-r01-01"))
    vague = score.score_best_incident(
        fault, PLACE, [node], diagnosis_of=lambda _: diagnose_as("gpu_missing", node.place), allowed_seconds=allowed
    )
    assert (vague.detected, vague.place_right, vague.severity_right, vague.diagnosed) == (True, False, True, False)
    mild = score.score_best_incident(
        fault,
        PLACE,
        [incident(severity=alerts.Severity.WARNING)],
        diagnosis_of=lambda _: diagnose_as("gpu_fell_off_bus"),
        allowed_seconds=allowed,
    )
    assert (mild.place_right, mild.severity_right, mild.diagnosed) == (True, False, True)


def test_critical_incidents_are_false_pages_and_info_is_not_counted() -> None:
    opened = [incident(), incident(severity=alerts.Severity.WARNING), incident(severity=alerts.Severity.INFO)]
    healthy = score.HealthyHours(2000.0, tuple(score.pages_and_tickets(opened)))
    total = score.total_score([], healthy)
    assert (total.false_pages, total.false_alarms_per_1000_gpu_hours, total.is_right) == (1, 1.0, False)


def test_a_separate_incident_for_a_stopped_job_is_a_mistake(fault: SimFault) -> None:
    scored = score.score_best_incident(
        fault, PLACE, [incident()], diagnosis_of=lambda _: diagnose_as("gpu_fell_off_bus"), allowed_seconds=allowed
    )
    twice = incident(title="Training of llm has stalled", place=fleet.Place("sim", domain="job=llm"))
    total = score.total_score(
        [score.ScenarioVerdict(replace(scored, has_no_duplicates=False), duplicate_incidents=(twice,))],
        score.HealthyHours(),
    )
    assert (total.is_right, total.false_pages) == (False, 0)
    assert total.mistakes == ("duplicate in xid-79: Training of llm has stalled",)


def test_a_detection_after_the_time_limit_is_not_within_budget(fault: SimFault) -> None:
    late = incident(opened_at=datetime.fromtimestamp(1_000_000, UTC) + timedelta(seconds=3))
    scored = score.score_best_incident(
        fault, PLACE, [late], diagnosis_of=lambda _: diagnose_as("gpu_fell_off_bus"), allowed_seconds=allowed
    )
    assert (scored.is_right, scored.within_budget) == (True, False)
    assert not score.total_score([score.ScenarioVerdict(scored)], score.HealthyHours()).is_right


def test_visible_after_extends_the_time_limit(fault: SimFault) -> None:
    slow = replace(fault, scenario=replace(fault.scenario, visible_after="60s"))
    late = incident(opened_at=datetime.fromtimestamp(1_000_000, UTC) + timedelta(seconds=62))
    scored = score.score_best_incident(slow, PLACE, [late], diagnosis_of=lambda _: None, allowed_seconds=allowed)
    assert (scored.budget_seconds, scored.within_budget) == (62.0, True)
