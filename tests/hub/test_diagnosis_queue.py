"""Incidents that wait for their diagnosis: the gravest first, each once in its newest state, those over not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.hub_stories import NOON, gpu
from watchkeeper.errors import StoreError
from watchkeeper.hub.diagnosis_queue import MAX_ATTEMPTS, DiagnosisDependencies, DiagnosisQueue
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
    known = {str(one.id): one for one in added} | (now or {})
    done: list[tuple[str, int]] = []

    async def diagnose(one: Incident) -> None:
        done.append((one.id, one.version))

    async def note(id: str, text: str) -> None:
        raise AssertionError((id, text))

    async def find(id: str) -> Incident | None:
        return known.get(id)

    queue = DiagnosisQueue(DiagnosisDependencies(find, lambda: False, diagnose, note))
    queue.add(added)
    asyncio.run(queue.work())
    return done


def test_the_gravest_are_diagnosed_first_and_of_equals_the_one_that_waited_longest() -> None:
    order = [Severity.INFO, Severity.CRITICAL, Severity.WARNING, Severity.CRITICAL, Severity.WARNING]
    done = diagnosed(*(incident(at, severity) for at, severity in enumerate(order)))
    assert [id for id, _ in done] == ["INC-1", "INC-3", "INC-2", "INC-4", "INC-0"]


def test_one_that_changed_again_is_diagnosed_once_as_it_is_now() -> None:
    first = incident(1, Severity.WARNING)
    again = replace(first, version=2, severity=Severity.CRITICAL)
    assert diagnosed(first, incident(2, Severity.WARNING), again) == [("INC-1", 2), ("INC-2", 1)]


def test_what_is_over_or_forgotten_by_then_is_left_out() -> None:
    over = incident(1, Severity.CRITICAL)
    closed = replace(over, state=IncidentState.RESOLVED, resolved_at=NOON)
    assert diagnosed(over, incident(2, Severity.INFO), now={"INC-1": closed}) == [("INC-2", 1)]


def test_a_journal_that_is_away_costs_no_incident_its_diagnosis() -> None:
    is_away, known = True, {"INC-1": incident(1, Severity.CRITICAL)}
    done: list[str] = []

    async def find(id: str) -> Incident | None:
        if is_away:
            raise StoreError("the journal does not answer")
        return known[id]

    async def diagnose(one: Incident) -> None:
        done.append(one.id)

    async def note(id: str, text: str) -> None:
        raise StoreError("the journal does not answer")

    async def story() -> None:
        nonlocal is_away
        queue = DiagnosisQueue(DiagnosisDependencies(find, lambda: False, diagnose, note))
        queue.add(known.values())
        for _ in range(2 * MAX_ATTEMPTS):
            with pytest.raises(StoreError):
                await queue.work()
        is_away = False
        await queue.work()

    asyncio.run(story())
    assert done == ["INC-1"]
