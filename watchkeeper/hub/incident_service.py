"""Open, change, diagnose, notify and silence incidents while the hub runs.

All changes of incidents run on the journal thread, and open pages are notified of each. The stages are read from
`CurrentStages` at each call, because another journal replaces them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta

from watchkeeper.diagnose import corrections
from watchkeeper.errors import StoreError
from watchkeeper.hub import pipeline as pipelines
from watchkeeper.hub.fleet_state import FleetState
from watchkeeper.hub.journal_reader import JournalReader
from watchkeeper.hub.repair_loop import RepairLoop
from watchkeeper.hub.rule_loops import RuleLoops
from watchkeeper.hub.runtime import Loop, LoopRunner, Runtime
from watchkeeper.hub.stages import CurrentStages
from watchkeeper.kit import clock
from watchkeeper.model import alerts, events
from watchkeeper.model.incidents import Incident
from watchkeeper.model.silences import Silence
from watchkeeper.notify import delivery, heartbeat, silence_store
from watchkeeper.scrape import status_series
from watchkeeper.store.journal import journal

# A failed diagnosis is retried after the others; the last failure goes to the timeline.
MAX_ATTEMPTS = 3
MAX_WAITS, WAIT_SECONDS = 50, 0.01
TICK_SECONDS = 1.0
RECOVERY_SECONDS = 15.0
TRIM_SECONDS = 3600.0


class DiagnosisQueue:
    """Diagnoses incidents one at a time, the most severe first, each in its newest state."""

    def __init__(
        self,
        find: Callable[[str], Awaitable[Incident | None]],
        diagnose: Callable[[Incident], Awaitable[None]],
        *,
        is_busy: Callable[[], bool],
        note: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._find, self._diagnose, self._is_busy, self._note = find, diagnose, is_busy, note
        # Severity and number of failed diagnoses since the last change, by incident.
        self._waiting: dict[str, tuple[int, int]] = {}
        self._not_empty = asyncio.Event()

    def add(self, changed: Iterable[Incident]) -> None:
        self._waiting.update({str(incident.id): (incident.severity.rank, 0) for incident in changed})
        if self._waiting:
            self._not_empty.set()

    async def diagnose_waiting(self) -> None:
        await self._not_empty.wait()
        while self._waiting:
            # While many events arrive, the diagnosis waits for them.
            for _ in range(MAX_WAITS):
                if not self._is_busy():
                    break
                await asyncio.sleep(WAIT_SECONDS)
            id = max(self._waiting, key=lambda waiting_id: self._waiting[waiting_id][0])
            _, failures = self._waiting.pop(id)
            try:
                incident = await self._find(id)
                if incident is not None and incident.is_open:
                    await self._diagnose(incident)
            except Exception as error:
                await self._retry_later(id, failures + 1, error)
                raise
        self._not_empty.clear()

    async def _retry_later(self, id: str, failures: int, error: Exception) -> None:
        """Queue the incident after the others, or note the failure on its timeline after the last attempt."""
        if failures < MAX_ATTEMPTS:
            self._waiting.setdefault(id, (0, failures))
            return
        last_error = f"{type(error).__name__}: {str(error)[:300]}"
        try:
            await self._note(id, f"Diagnosis failed {failures} times. Last error: {last_error}")
        except StoreError:
            # The journal itself may have failed: keep the incident in the queue.
            self._waiting.setdefault(id, (0, failures))


class IncidentService:
    def __init__(
        self,
        runtime: Runtime,
        current: CurrentStages,
        *,
        reader: JournalReader,
        fleet: FleetState,
        rules: RuleLoops,
        repairs: RepairLoop,
        loops: LoopRunner,
    ) -> None:
        self._runtime, self._clock, self._current = runtime, runtime.clock, current
        self._reader, self._fleet = reader, fleet
        self._rules, self._repairs, self._loops = rules, repairs, loops
        # Event counts by kind, for series that rules use.
        self.event_counts = status_series.EventCounts()
        self._clock_jump = clock.ClockJumpGuard(TRIM_SECONDS)
        self._queue = DiagnosisQueue(
            lambda incident_id: reader.read(lambda: reader.incident(incident_id)),
            self._diagnose,
            is_busy=lambda: current.is_busy or repairs.is_starting,
            note=lambda incident_id, text: self.note(incident_id, journal.HUB, text),
        )
        counter = runtime.metrics.counter
        self._events = counter("watchkeeper_hub_events_total", "New events, by kind")
        self._repeats = counter("watchkeeper_hub_repeated_events_total", "Pushed events that the hub already had")

    def loops(self) -> list[Loop]:
        return [
            Loop("incidents", self._tick, TICK_SECONDS),
            Loop("diagnosis", self._queue.diagnose_waiting, 0.0),
            Loop("recovery", self._check_recovery, RECOVERY_SECONDS),
            Loop("trimming", self._trim, TRIM_SECONDS),
            Loop("heartbeat", self._send_heartbeat, heartbeat.BEAT_SECONDS),
            Loop("fabric", self._refresh_fabric, self._runtime.settings.fabric.interval_seconds),
            *(Loop(name, body, 0.0) for name, body in self._notifier.loops(self._clock, self._current.write)),
        ]

    @property
    def _notifier(self) -> delivery.Notifier:
        return self._current.stages.notifier

    @property
    def _pipeline(self) -> pipelines.Pipeline:
        return self._current.stages.pipeline

    # Events and alerts

    async def ingest_events(self, batch: Sequence[events.Event]) -> int:
        """Store pushed events and open their incidents; return the number of new events, after the commit."""
        now = self._clock.now()
        self._fleet.record_gpu_indices(batch)
        applied = await self._current.write(lambda: self._pipeline.ingest_events(batch, now))
        self._repairs.start_urgent(applied.changed_incidents)
        self.event_counts.count(applied.events)
        for event in applied.events:
            self._events.add(kind=event.kind)
        self._repeats.add(len(batch) - len(applied.events))
        self._announce(applied.changed_incidents)
        return len(applied.events)

    async def ingest_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> None:
        """Apply changed alerts in batches, so that events are handled between them; return after they are stored."""
        pipeline = self._pipeline
        await self._change(lambda: pipeline.ingest_alert_batch(now, changed))
        while pipeline.has_undelivered_alerts:
            await self._change(lambda: pipeline.ingest_alert_batch(now))

    async def ingest_external_alerts(self, pushed: Sequence[alerts.Alert]) -> None:
        await self.ingest_alerts(pushed, self._clock.now())

    # Changes by people

    async def acknowledge(self, id: str, actor: str) -> Incident:
        return await self._change_one(lambda: self._pipeline.incidents.acknowledge(id, actor, self._clock.now()))

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        return await self._change_one(
            lambda: self._pipeline.incidents.resolve(id, actor, why=why, now=self._clock.now())
        )

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        return await self._change_one(lambda: self._pipeline.incidents.assign(id, actor, to=to, now=self._clock.now()))

    async def note(self, id: str, actor: str, text: str) -> None:
        await self._current.write(
            lambda: self._pipeline.incidents.add_note(id, actor, text=text, now=self._clock.now())
        )
        self._runtime.changes.send("incidents")

    async def correct(self, id: str, actor: str, cause: str, why: str) -> corrections.Correction:
        now = self._clock.now()
        correction = await self._current.write(lambda: self._pipeline.correct(id, actor, cause=cause, why=why, now=now))
        self._announce(filter(None, [await self._reader.read(lambda: self._reader.incident(id))]))
        return correction

    def corrections(self) -> list[corrections.Correction]:
        return self._pipeline.corrections.all()

    def dropped_signals(self) -> int:
        """Signals dropped because an incident or the tracker was at its limit."""
        return self._pipeline.incidents.dropped_signals

    # Loops

    async def _tick(self) -> None:
        def work() -> list[Incident]:
            now, pipeline = self._clock.now(), self._pipeline
            changed = pipeline.tick(now, self._rules.server_alerts.values())
            self._notifier.update(pipeline.incidents.recent(), now)
            return changed

        await self._change(work)

    async def _check_recovery(self) -> None:
        """Create events for GPUs that work again, which only their samples show."""
        pipeline = self._pipeline
        broken = await self._current.write(pipeline.incidents.broken_gpus)
        now = self._clock.now()
        recovered = await asyncio.to_thread(pipeline.find_recoveries, broken, now) if broken else []
        if recovered:
            await self.ingest_events(recovered)

    async def _refresh_fabric(self) -> None:
        fabric = self._fleet.fabric
        if self._runtime.settings.fabric.is_watched and (changed := await fabric.refresh(self._clock.now())):
            await self.ingest_events(changed)

    async def _send_heartbeat(self) -> None:
        """Send the heartbeat if the journal and the vital loops work; the receiver alerts on its absence."""
        await self._current.write(self._current.stages.journal.count_open)
        if not self._loops.failures.has_any(heartbeat.VITAL_LOOPS, now=self._clock.now()):
            await asyncio.to_thread(heartbeat.send_heartbeat, self._runtime.settings, self._clock.now())

    async def _trim(self) -> None:
        """Delete journal entries past the retention; the hash chain stays verifiable."""
        now = self._clock.now()
        before = now - timedelta(seconds=self._runtime.settings.journal.retention_seconds)
        if self._clock_jump.may_remove(now.timestamp()):
            await self._current.write(lambda: self._current.stages.journal.trim(before, now=now))

    async def _diagnose(self, incident: Incident) -> None:
        now, pipeline = self._clock.now(), self._pipeline
        if await asyncio.to_thread(self._repairs.keeps_cause, incident):
            return
        finding = await asyncio.to_thread(pipeline.diagnose, incident, now)
        await asyncio.to_thread(self._repairs.submit_plan, incident.id)
        self._runtime.changes.send("incidents")
        if finding is not None:
            await self._change(lambda: pipeline.apply_finding(incident, finding, now))

    async def _change(self, work: Callable[[], Iterable[Incident]]) -> None:
        self._announce(await self._current.write(work))

    async def _change_one(self, work: Callable[[], Incident]) -> Incident:
        incident = await self._current.write(work)
        self._announce([incident])
        return incident

    def _announce(self, changed: Iterable[Incident]) -> None:
        """Update open pages, and queue a diagnosis of open incidents."""
        if incidents := list(changed):
            self._queue.add(incidents)
            self._runtime.changes.send("incidents")


class SilenceService:
    def __init__(self, runtime: Runtime, current: CurrentStages) -> None:
        self._clock, self._changes, self._current = runtime.clock, runtime.changes, current

    @property
    def _notifier(self) -> delivery.Notifier:
        return self._current.stages.notifier

    async def silence(self, request: silence_store.SilenceRequest) -> Silence:
        silence = await self._notifier.silence(request, self._clock, self._current.write)
        self._changes.send("incidents")
        return silence

    async def expire_silence(self, id: str, actor: str) -> Silence:
        ended = await self._notifier.end_silence(id, actor, time=self._clock, on_journal_thread=self._current.write)
        self._changes.send("incidents")
        return ended

    def silences(self) -> list[Silence]:
        return self._notifier.list_silences(self._clock.now())

    def silences_problem(self) -> str:
        return self._notifier.silences_problem(self._clock.now())

    def silenced_by(self, incident: Incident) -> Silence | None:
        return self._notifier.silenced_by(incident, self._clock.now())
