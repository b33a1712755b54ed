"""Silences while the hub runs: who is not told for a while, here or in an Alertmanager that routes."""

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

    async def silence(self, wish: silence_store.SilenceRequest) -> Silence:
        made = await self._delivery.silence(wish, self._clock, self._thread.run)
        self._changes.send("incidents")
        return made

    async def expire_silence(self, id: str, actor: str) -> Silence:
        ended = await self._delivery.end_silence(id, actor, time=self._clock, on_journal_thread=self._thread.run)
        self._changes.send("incidents")
        return ended

    def silences(self) -> list[Silence]:
        return self._delivery.list_silences(self._clock.now())

    def silences_problem(self) -> str:
        """Why not all silences are known; empty where they are."""
        return self._delivery.silences_problem(self._clock.now())

    def silenced_by(self, incident: Incident) -> Silence | None:
        return self._delivery.silenced_by(incident, self._clock.now())
