"""Incidents that wait for their diagnosis: one at a time, the gravest first, each in its newest state.

The hub adds every incident that changed and runs `work` as a loop. In a storm what happened goes before why, but not
for ever. A diagnosis that fails is tried again after the others; one that keeps failing is said to be missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from watchkeeper.errors import StoreError
from watchkeeper.model.incidents import Incident

# What fails as often as this fails always.
DIAGNOSIS_TRIES = 3
WAITS, WAIT_SECONDS = 50, 0.01


@dataclass(frozen=True, slots=True)
class DiagnosisDependencies:
    """What the queue needs of the hub."""

    incident: Callable[[str], Awaitable[Incident | None]]
    is_busy: Callable[[], bool]
    diagnose: Callable[[Incident], Awaitable[None]]
    note: Callable[[str, str], Awaitable[None]]


class DiagnosisQueue:
    def __init__(self, around: DiagnosisDependencies) -> None:
        self._around = around
        # How grave each is, and how often its diagnosis has failed since it changed.
        self._waiting: dict[str, tuple[int, int]] = {}
        self._has_some = asyncio.Event()

    def add(self, changed: Iterable[Incident]) -> None:
        self._waiting.update({str(incident.id): (incident.severity.rank, 0) for incident in changed})
        if self._waiting:
            self._has_some.set()

    async def work(self) -> None:
        """Wait for incidents that changed, and find out why."""
        await self._has_some.wait()
        while self._waiting:
            await self._let_events_pass()
            id = max(self._waiting, key=lambda one: self._waiting[one][0])
            _, failures = self._waiting.pop(id)
            try:
                incident = await self._around.incident(id)
                if incident is not None and incident.is_open:
                    await self._around.diagnose(incident)
            except Exception as error:
                await self._later(id, failures + 1, error)
                raise
        self._has_some.clear()

    async def _let_events_pass(self) -> None:
        for _ in range(WAITS):
            if not self._around.is_busy():
                return
            await asyncio.sleep(WAIT_SECONDS)

    async def _later(self, id: str, failures: int, error: Exception) -> None:
        """Put it behind the others, or say on its timeline that there will be no diagnosis until it changes."""
        if failures < DIAGNOSIS_TRIES:
            self._waiting.setdefault(id, (0, failures))
            return
        last = f"{type(error).__name__}: {str(error)[:300]}"
        try:
            await self._around.note(id, f"No diagnosis: it failed {failures} times, the last time with {last}")
        except StoreError:
            # The journal that does not take it may be what failed: it waits on.
            self._waiting.setdefault(id, (0, failures))
