"""Incidents that wait for diagnosis: most severe first, each once in its newest state, resolved ones never."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.hub_stories import NOON, gpu
from watchkeeper.errors import StoreError
from watchkeeper.hub.incident_service import MAX_ATTEMPTS, DiagnosisQueue
from watchkeeper.model.alerts import Severity
from watchkeeper.model.incidents import Incident, IncidentId, IncidentState


def incident(number: int, severity: Severity) -> Incident:
    return Incident(
        IncidentId(f"INC-{number}"),
        gpu(number),
        "",
        severity,
        IncidentState.OPEN,
        NOON,
        cause="",
        family="",
        members=(),
    )


def diagnosed(*added: Incident, now: dict[str, Incident] | None = None) -> list[tuple[str, int]]:
    """The ids and versions of incidents in the order of their diagnoses; `now` are some as they are meanwhile."""
    incidents = {str(added_incident.id): added_incident for added_incident in added} | (now or {})
    diagnosed_versions: list[tuple[str, int]] = []

    async def diagnose(found_incident: Incident) -> None:
        diagnosed_versions.append((found_incident.id, found_incident.version))

    async def note(id: str, text: str) -> None:
        raise AssertionError((id, text))

    async def find(id: str) -> Incident | None:
        return incidents.get(id)

    queue = DiagnosisQueue(find, diagnose, is_busy=lambda: False, note=note)
    queue.add(added)
    asyncio.run(queue.diagnose_waiting())
    return diagnosed_versions


def test_the_most_severe_incident_is_diagnosed_first_then_the_one_that_waited_longest() -> None:
    order = [Severity.INFO, Severity.CRITICAL, Severity.WARNING, Severity.CRITICAL, Severity.WARNING]
    done = diagnosed(*(incident(at, severity) for at, severity in enumerate(order)))
    assert [id for id, _ in done] == ["INC-1", "INC-3", "INC-2", "INC-4", "INC-0"]


def test_an_incident_that_changed_again_is_diagnosed_once_in_its_newest_state() -> None:
    first = incident(1, Severity.WARNING)
    again = replace(first, version=2, severity=Severity.CRITICAL)
    assert diagnosed(first, incident(2, Severity.WARNING), again) == [("INC-1", 2), ("INC-2", 1)]


def test_a_resolved_or_deleted_incident_is_skipped() -> None:
    over = incident(1, Severity.CRITICAL)
    closed = replace(over, state=IncidentState.RESOLVED, resolved_at=NOON)
    assert diagnosed(over, incident(2, Severity.INFO), now={"INC-1": closed}) == [("INC-2", 1)]


def test_an_unavailable_journal_loses_no_diagnosis() -> None:
    is_away, incidents = True, {"INC-1": incident(1, Severity.CRITICAL)}
    done: list[str] = []

    async def find(id: str) -> Incident | None:
        if is_away:
            raise StoreError("the journal does not answer")
        return incidents[id]

    async def diagnose(incident_to_diagnose: Incident) -> None:
        done.append(incident_to_diagnose.id)

    async def note(id: str, text: str) -> None:
        raise StoreError("the journal does not answer")

    async def story() -> None:
        nonlocal is_away
        queue = DiagnosisQueue(find, diagnose, is_busy=lambda: False, note=note)
        queue.add(incidents.values())
        for _ in range(2 * MAX_ATTEMPTS):
            with pytest.raises(StoreError):
                await queue.diagnose_waiting()
        is_away = False
        await queue.diagnose_waiting()

    asyncio.run(story())
    assert done == ["INC-1"]
