"""Create, list and expire silences, in the journal or in the Alertmanager that sends the notifications."""

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
    def _notifier(self) -> delivery.Notifier:
        return self._current.stages.notifier

    async def silence(self, request: silence_store.SilenceRequest) -> Silence:
        silence = await self._notifier.silence(request, self._clock, self._thread.run)
        self._changes.send("incidents")
        return silence

    async def expire_silence(self, id: str, actor: str) -> Silence:
        ended = await self._notifier.end_silence(id, actor, time=self._clock, on_journal_thread=self._thread.run)
        self._changes.send("incidents")
        return ended

    def silences(self) -> list[Silence]:
        return self._notifier.list_silences(self._clock.now())

    def silences_problem(self) -> str:
        """Why some silences could not be read; empty if all were read."""
        return self._notifier.silences_problem(self._clock.now())

    def silenced_by(self, incident: Incident) -> Silence | None:
        return self._notifier.silenced_by(incident, self._clock.now())
