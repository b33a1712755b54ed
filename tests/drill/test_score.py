"""A drill compares incidents with the truth of a fault, and counts what was cried for nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from watchkeeper.drill import score
from watchkeeper.model import alerts, diagnosis, fleet, incidents
from watchkeeper.sim.faults import Fault
from watchkeeper.sim.simulation import SimSettings, Simulation

SIMULATION = Simulation(SimSettings(gpus=16))
GPU = SIMULATION.layout.nodes[0].gpus[3]
PLACE = fleet.Place("sim", node="gpu-r01-01", gpu=GPU.uuid)


@pytest.fixture
def fault() -> Fault:
    scenario = SIMULATION.scenarios["xid-79"]
    return Fault("f1", scenario, SIMULATION.layout.nodes[0], GPU, at=1_000_000, until=None)


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
        members=(),
    )
    return replace(right, **changes)  # type: ignore[arg-type]


def says(cause: str, place: fleet.Place = PLACE) -> diagnosis.Diagnosis:
    finding = diagnosis.Finding(cause, 0.9, place, "title", "why", evidence=(diagnosis.Evidence("log", "line"),))
    return diagnosis.Diagnosis(incidents.IncidentId("INC-1"), datetime.now(UTC), (finding,), looked_at=())


def test_the_right_answer_is_right_in_every_part(fault: Fault) -> None:
    found = score.judge(fault, PLACE, [incident()], found=lambda _: says("gpu_fell_off_bus"))
    assert found == score.ScenarioScore("xid-79", True, 2.0, True, True, True)
    assert found.is_right


def test_silence_is_not_detection(fault: Fault) -> None:
    found = score.judge(fault, PLACE, [], found=lambda _: None)
    assert (found.detected, found.seconds_to_detect, found.is_right) == (False, None, False)


def test_an_incident_elsewhere_or_of_another_family_is_no_detection(fault: Fault) -> None:
    elsewhere = incident(place=fleet.Place("sim", node="gpu-r01-02"))
    other = incident(cause="gpu_idle_waste", family="waste")
    assert not score.judge(fault, PLACE, [elsewhere, other], found=lambda _: says("gpu_fell_off_bus")).detected


def test_each_mistake_is_told_apart(fault: Fault) -> None:
    node = incident(place=fleet.Place("sim", node="gpu-r01-01"))
    vague = score.judge(fault, PLACE, [node], found=lambda _: says("gpu_missing", node.place))
    assert (vague.detected, vague.place_right, vague.severity_right, vague.diagnosed) == (True, False, True, False)
    mild = score.judge(
        fault, PLACE, [incident(severity=alerts.Severity.WARNING)], found=lambda _: says("gpu_fell_off_bus")
    )
    assert (mild.place_right, mild.severity_right, mild.diagnosed) == (True, False, True)


def test_pages_count_once_and_remarks_never() -> None:
    cried = [incident(), incident(severity=alerts.Severity.WARNING), incident(severity=alerts.Severity.INFO)]
    healthy = score.Healthy(2000.0, tuple(score.alarms(cried)))
    total = score.total([], healthy)
    assert (total.false_pages, total.false_alarms_per_1000_gpu_hours, total.is_right) == (1, 1.0, False)
