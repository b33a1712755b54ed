"""Silences while the hub runs: in the journal, or in the Alertmanager that routes."""

from __future__ import annotations

from watchkeeper.hub.journal_thread import JournalThread
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.stages import CurrentStages
from watchkeeper.model.incidents import Incident
from watchkeeper.model.silences import Silence
from watchkeeper.notify import delivery, silence_store


class SilenceService:
    def __init__(self, runtime: Runtime, current: CurrentStages, journal_thread: JournalThread) -> None:
        self._clock, self._changes = runtime.clock, runtime.changes
        self._current, self._thread = current, journal_thread

    @property
    def _delivery(self) -> delivery.Notifier:
        return self._current.stages.delivery

    async def silence(self, request: silence_store.SilenceRequest) -> Silence:
        silence = await self._delivery.silence(request, self._clock, self._thread.run)
        self._changes.send("incidents")
        return silence

    async def expire_silence(self, id: str, actor: str) -> Silence:
        ended = await self._delivery.end_silence(id, actor, time=self._clock, on_journal_thread=self._thread.run)
        self._changes.send("incidents")
        return ended

    def silences(self) -> list[Silence]:
        return self._delivery.list_silences(self._clock.now())

    def silences_problem(self) -> str:
        """Why some silences are unknown; empty if all are known."""
        return self._delivery.silences_problem(self._clock.now())

    def silenced_by(self, incident: Incident) -> Silence | None:
        return self._delivery.silenced_by(incident, self._clock.now())
