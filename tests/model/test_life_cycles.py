"""Incidents and alerts: no illegal state, every state reachable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.model.strategies import incident_values
from watchkeeper.errors import InvalidTransition
from watchkeeper.model import actions, alerts, diagnosis, incidents
from watchkeeper.model.alerts import Severity
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import INCIDENT_MOVES, Incident, IncidentState
from watchkeeper.model.labels import Labels

NINE = datetime(2026, 1, 31, 9, tzinfo=UTC)
State = TypeVar("State")


def reachable(moves: Mapping[State, frozenset[State]], start: State) -> set[State]:
    reached, waiting = {start}, [start]
    while waiting:
        fresh = moves[waiting.pop()] - reached
        reached |= fresh
        waiting += fresh
    return reached


def test_every_state_of_an_incident_is_reachable_from_open() -> None:
    assert reachable(INCIDENT_MOVES, IncidentState.OPEN) == set(IncidentState)


@given(incident_values, st.lists(st.sampled_from(IncidentState), max_size=8))
def test_an_incident_moves_legally_or_refuses_and_stays(incident: Incident, steps: list[IncidentState]) -> None:
    for hours, to in enumerate(steps):
        at = NINE + timedelta(hours=hours)
        if to in INCIDENT_MOVES[incident.state]:
            moved = incidents.move(incident, to, at=at)
            assert (moved.state, moved.version) == (to, incident.version + 1)
            assert moved.resolved_at == (at if to is IncidentState.RESOLVED else None)
            assert moved.is_open == (to is not IncidentState.RESOLVED)
            incident = moved
        else:
            with pytest.raises(InvalidTransition, match=f"cannot become {to}. It is {incident.state}. Possible: "):
                incidents.move(incident, to, at=at)


@given(st.permutations(list(Severity)))
def test_severities_rank_from_info_to_critical(severities: list[Severity]) -> None:
    assert sorted(severities, key=lambda severity: severity.rank) == [
        Severity.INFO,
        Severity.WARNING,
        Severity.CRITICAL,
    ]


@pytest.mark.parametrize(("text", "severity"), [("critical", "critical"), ("page", "warning"), ("", "warning")])
def test_an_alert_without_a_valid_severity_is_a_warning(text: str, severity: str) -> None:
    alert = alerts.Alert(Labels({"alertname": "Odd", "severity": text}), alerts.AlertState.FIRING, NINE, 1.0)
    assert (alert.name, alert.severity) == ("Odd", severity)


def test_an_action_marks_the_machine_with_its_incident_and_id() -> None:
    action = actions.Action(
        actions.ActionId("a1"), actions.ActionKind.CORDON, Place("main", node="n1"), incidents.IncidentId("i7"), "why"
    )
    assert action.mark == "watchkeeper:i7/a1"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.1, 0.5, 0.9])), max_size=5), st.randoms())
def test_ranking_is_best_first_and_does_not_depend_on_the_order_of_arrival(
    drawn: list[tuple[str, float]], random: object
) -> None:
    findings = [diagnosis.Finding(cause, sure, Place("main"), "", "", ()) for cause, sure in drawn]
    ranked = diagnosis.rank_findings(tuple(findings))
    random.shuffle(findings)  # type: ignore[attr-defined]
    assert diagnosis.rank_findings(tuple(findings)) == ranked
    assert [finding.confidence for finding in ranked] == sorted(
        (finding.confidence for finding in findings), reverse=True
    )


@pytest.mark.parametrize("confidence", [-0.1, 1.1, float("nan")])
def test_a_confidence_outside_zero_to_one_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="is not between 0 and 1"):
        diagnosis.Finding("unknown", confidence, Place("main"), "", "", ())
