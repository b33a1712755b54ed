"""Serve a recording like a hub: the same console and API over the samples, events and incidents of a file.

`watchkeeper play` passes the read-only `recorded_services` of a file to the web application. The clock shows
the end of the recording, or runs from its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, NoReturn, TypeVar

from watchkeeper.config.settings import Settings
from watchkeeper.diagnose import corrections
from watchkeeper.errors import InvalidTransition
from watchkeeper.hub import runtime, samples, services
from watchkeeper.kit import clock
from watchkeeper.model import actions, diagnosis, events, fleet
from watchkeeper.model.alerts import Alert, AlertState
from watchkeeper.model.fleet import Place
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import METRIC_NAME
from watchkeeper.model.notices import Notice
from watchkeeper.model.silences import Silence
from watchkeeper.notify.silence_store import SilenceRequest
from watchkeeper.query import embedded
from watchkeeper.rules import evaluate, reload, rulefile, slo
from watchkeeper.scrape import jobs, scrape
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.store import recording
from watchkeeper.store.head import head

T = TypeVar("T")

# Longer than the lookback of queries and rules: retention must not drop samples from the start of a recording.
LOOKBACK_MARGIN_MS = 3_600_000


class RecordingClock:
    """The time of a recording: always its end, or with `speed`, running from its start to its end."""

    def __init__(self, start: datetime, end: datetime, *, speed: float | None) -> None:
        self._start, self._end, self._speed = start, end, speed
        self._began = monotonic()

    def now(self) -> datetime:
        if self._speed is None:
            return self._end
        return min(self._end, self._start + timedelta(seconds=(monotonic() - self._began) * self._speed))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) / (self._speed or 1.0))


def load_engine(recorded: recording.Recording, *, progress: Any = None) -> embedded.EmbeddedEngine:
    """Load the samples of a recording into an engine."""
    span_ms = recorded.header.to_ms - recorded.header.from_ms + LOOKBACK_MARGIN_MS
    samples_head = head.Head(retention_ms=span_ms, max_series=max(1, 2 * (len(recorded.series) + len(recorded.native))))
    recording.load_series(recorded.series, samples_head, until_ms=recorded.header.to_ms, progress=progress)
    recording.load_histogram_series(recorded.native, samples_head, until_ms=recorded.header.to_ms)
    for metric in recorded.metrics:
        samples_head.metadata.record(metric.name, metric.type, help=metric.help, unit=metric.unit)
    return embedded.EmbeddedEngine(samples_head)


def recorded_services(
    recorded: recording.Recording, embedded_engine: embedded.EmbeddedEngine, *, settings: Settings, speed: float | None
) -> services.Services:
    """The services of a hub, read-only, over one recording."""
    start, end = clock.from_ms(recorded.header.from_ms), clock.from_ms(recorded.header.to_ms)
    shared_runtime = runtime.Runtime(settings, RecordingClock(start, end, speed=speed))
    read_only = ReadOnlyServices()
    return services.Services(
        shared_runtime,
        services.HubHealth(),
        samples.Queries(embedded_engine, shared_runtime.clock),
        RecordedJournal(recorded, shared_runtime.clock),
        read_only,
        read_only,
        RecordedRules(embedded_engine, shared_runtime.clock),
        _build_inventory(recorded),
        read_only,
    )


def _build_inventory(recorded: recording.Recording) -> ScrapedInventory:
    """The inventory at the end of the recording; GPUs that were gone are recorded once and then removed."""
    at_ms, inventory = recorded.header.to_ms, ScrapedInventory()
    inventory.set_expected_nodes(recorded.nodes, at_ms)
    for node in recorded.nodes:
        node_gpus = [gpu for gpu in recorded.gpus if (gpu.cluster, gpu.node) == (node.cluster, node.name)]
        inventory.record_page(node, {gpu.gpu.uuid: gpu.gpu for gpu in node_gpus}, at_ms=at_ms, source="recording")
        present_gpus = {gpu.gpu.uuid: gpu.gpu for gpu in node_gpus if not gpu.is_gone}
        inventory.record_page(node, present_gpus, at_ms=at_ms, source="recording")
    return inventory


class RecordedJournal:
    """Events and incidents of a recording, in memory."""

    def __init__(self, recorded: recording.Recording, recording_clock: clock.Clock) -> None:
        self._recorded, self._clock = recorded, recording_clock
        self._incidents_by_id = {str(entry.incident.id): entry for entry in recorded.incidents}

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T:  # noqa: ARG002 (all is in memory)
        return await asyncio.to_thread(work)

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self._recorded.events if since <= event.at <= until]

    def events_at(self, place: Place, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.events_between(since, until) if place.encloses(event.place)]

    def incidents(
        self, *, open_only: bool = True, limit: int = 200, opened_since: datetime | None = None
    ) -> list[Incident]:
        matches = [
            incident
            for incident in self._opened_incidents()
            if (incident.is_open or not open_only) and (opened_since is None or incident.opened_at >= opened_since)
        ]
        return sorted(matches, key=lambda incident: incident.opened_at, reverse=True)[:limit]

    def first_opened_at(self) -> datetime | None:
        return min((incident.opened_at for incident in self._opened_incidents()), default=None)

    def first_entry_at(self) -> datetime | None:
        return clock.from_ms(self._recorded.header.from_ms)

    def _opened_incidents(self) -> list[Incident]:
        """Incidents that were opened before the time of the clock."""
        now = self._clock.now()
        return [entry.incident for entry in self._incidents_by_id.values() if entry.incident.opened_at <= now]

    def incident(self, id: str) -> Incident | None:
        entry = self._incidents_by_id.get(id)
        return None if entry is None else entry.incident

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        entry = self._incidents_by_id.get(id)
        return None if entry is None else entry.diagnosis

    def plan(self, id: str) -> actions.Plan | None:
        entry = self._incidents_by_id.get(id)
        return None if entry is None else entry.plan

    def timeline(self, id: str) -> Sequence[recording.RecordedEntry]:
        entry = self._incidents_by_id.get(id)
        return () if entry is None else entry.timeline

    def notices(self, id: str) -> list[Notice]:  # noqa: ARG002 (a recording has no notifications)
        return []


class RecordedRules:
    """Rules of a recording: it contains the series of rules, but not the rule files."""

    is_evaluating = False
    slos: Sequence[slo.Slo] = ()

    def __init__(self, embedded_engine: embedded.EmbeddedEngine, recording_clock: clock.Clock) -> None:
        self._engine, self._clock = embedded_engine, recording_clock

    @property
    def last_reload(self) -> reload.Reload:
        return reload.Reload(self._clock.now(), self._clock.now())

    async def reload(self) -> reload.Reload:
        _refuse("rules cannot be reloaded")

    def groups(self) -> Sequence[tuple[rulefile.RuleGroup, evaluate.RuleStates]]:
        return ()

    def alerts(self) -> list[Alert]:
        """The alerts that are pending or firing at this time, from the recorded series `ALERTS`."""
        now = self._clock.now()
        alerts = []
        for labels in self._engine.instant(evaluate.ALERTS, clock.to_ms(now)).frame.labels:
            state = AlertState(labels.get(evaluate.ALERT_STATE, AlertState.FIRING.value))
            alerts.append(Alert(labels.without(METRIC_NAME, evaluate.ALERT_STATE), state, now, 1.0))
        return alerts

    def alert_causes(self) -> Mapping[str, str]:
        return {}


class ReadOnlyServices:
    """The services that a recording does not have: lists are empty, and changes are refused."""

    def targets(self) -> Sequence[scrape.TargetState]:
        return ()

    def dropped_targets(self) -> Sequence[jobs.DroppedTarget]:
        return ()

    def register_node(self, registration: fleet.NodeRegistration, peer: str) -> None:
        _refuse(f"node {registration.node} cannot register from {peer}")

    async def ingest_events(self, batch: Sequence[events.Event]) -> int:
        _refuse(f"{len(batch)} events cannot be stored")

    async def ingest_external_alerts(self, pushed: Sequence[Alert]) -> None:
        _refuse(f"{len(pushed)} alerts cannot be stored")

    async def acknowledge(self, id: str, actor: str) -> Incident:
        _refuse(f"{actor} cannot acknowledge {id}")

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        _refuse(f"{actor} cannot resolve {id} ({why})")

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        _refuse(f"{actor} cannot assign {id} to {to}")

    async def note(self, id: str, actor: str, text: str) -> None:
        _refuse(f"{actor} cannot add the note `{text[:40]}` to {id}")

    async def correct(self, id: str, actor: str, cause: str, why: str) -> corrections.Correction:
        _refuse(f"{actor} cannot change the cause of {id} to {cause} ({why})")

    def corrections(self) -> Sequence[corrections.Correction]:
        return ()

    async def silence(self, request: SilenceRequest) -> Silence:
        _refuse(f"{request.author} cannot create a silence")

    async def expire_silence(self, id: str, actor: str) -> Silence:
        _refuse(f"{actor} cannot expire silence {id}")

    def silences(self) -> list[Silence]:
        return []

    def silences_problem(self) -> str:
        return ""

    def silenced_by(self, incident: Incident) -> Silence | None:  # noqa: ARG002
        return None


def _refuse(problem: str) -> NoReturn:
    raise InvalidTransition(f"{problem}: this is a recording, which is read-only", now="Nothing was changed")
