"""Queue incidents for diagnosis: one at a time, the most severe first, each in its newest state.

The hub adds every changed incident and runs `diagnose_waiting` as a loop. While many events arrive, a diagnosis waits
for them, up to a limit. A failed diagnosis is retried after the others; the last failure goes to the timeline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from watchkeeper.errors import StoreError
from watchkeeper.model.incidents import Incident

MAX_ATTEMPTS = 3
MAX_WAITS, WAIT_SECONDS = 50, 0.01


@dataclass(frozen=True, slots=True)
class DiagnosisDependencies:
    """What the queue needs from the hub."""

    incident: Callable[[str], Awaitable[Incident | None]]
    is_busy: Callable[[], bool]
    diagnose: Callable[[Incident], Awaitable[None]]
    note: Callable[[str, str], Awaitable[None]]


class DiagnosisQueue:
    def __init__(self, dependencies: DiagnosisDependencies) -> None:
        self._dependencies = dependencies
        # Severity and number of failed diagnoses since the last change, by incident.
        self._waiting: dict[str, tuple[int, int]] = {}
        self._not_empty = asyncio.Event()

    def add(self, changed: Iterable[Incident]) -> None:
        self._waiting.update({str(incident.id): (incident.severity.rank, 0) for incident in changed})
        if self._waiting:
            self._not_empty.set()

    async def diagnose_waiting(self) -> None:
        """Wait for changed incidents, and diagnose all of them."""
        await self._not_empty.wait()
        while self._waiting:
            await self._wait_for_events()
            id = max(self._waiting, key=lambda waiting_id: self._waiting[waiting_id][0])
            _, failures = self._waiting.pop(id)
            try:
                incident = await self._dependencies.incident(id)
                if incident is not None and incident.is_open:
                    await self._dependencies.diagnose(incident)
            except Exception as error:
                await self._retry_later(id, failures + 1, error)
                raise
        self._not_empty.clear()

    async def _wait_for_events(self) -> None:
        for _ in range(MAX_WAITS):
            if not self._dependencies.is_busy():
                return
            await asyncio.sleep(WAIT_SECONDS)

    async def _retry_later(self, id: str, failures: int, error: Exception) -> None:
        """Queue the incident after the others, or note the failure on its timeline after the last attempt."""
        if failures < MAX_ATTEMPTS:
            self._waiting.setdefault(id, (0, failures))
            return
        last_error = f"{type(error).__name__}: {str(error)[:300]}"
        try:
            await self._dependencies.note(id, f"Diagnosis failed {failures} times. Last error: {last_error}")
        except StoreError:
            # The journal itself may have failed: keep the incident in the queue.
            self._waiting.setdefault(id, (0, failures))
