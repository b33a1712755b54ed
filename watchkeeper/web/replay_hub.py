"""A recording shown as a hub: the same console and the same API over samples, events and incidents of a file.

`watchkeeper play` takes `services_of` a file and serves them. Nothing in it can be changed, and its clock stands at the
end of the recording or runs through it.
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
from watchkeeper.hub import health, runtime, samples, services
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
from watchkeeper.scrape import discovery, scrape
from watchkeeper.scrape.fleet import ScrapedInventory
from watchkeeper.store import recording
from watchkeeper.store.head import head

T = TypeVar("T")

# Lookback, and what rules look back: samples at the start of a recording must not look old at its end.
LOOKBACK_MARGIN_MS = 3_600_000


class RecordingClock:
    """The time of a recording: it stands at the end, or runs from the start at a speed and then stands."""

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
    """An engine that answers from the samples of a recording."""
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
    """What a hub would offer, over one recording."""
    start, end = clock.from_ms(recorded.header.from_ms), clock.from_ms(recorded.header.to_ms)
    shared_runtime = runtime.Runtime(settings, RecordingClock(start, end, speed=speed))
    read_only = ReadOnlyServices()
    return services.Services(
        shared_runtime,
        health.HubHealth(),
        samples.Queries(embedded_engine, shared_runtime.clock),
        RecordedJournal(recorded, shared_runtime.clock),
        read_only,
        read_only,
        RecordedRules(embedded_engine, shared_runtime.clock),
        _build_inventory(recorded),
        read_only,
    )


def _build_inventory(recorded: recording.Recording) -> ScrapedInventory:
    """What the hub had seen at the end; a GPU that was gone is seen once and then no more."""
    at_ms, inventory = recorded.header.to_ms, ScrapedInventory()
    inventory.set_expected_nodes(recorded.nodes, at_ms)
    for node in recorded.nodes:
        node_gpus = [gpu for gpu in recorded.gpus if (gpu.cluster, gpu.node) == (node.cluster, node.name)]
        inventory.record_page(node, {gpu.gpu.uuid: gpu.gpu for gpu in node_gpus}, at_ms=at_ms, source="recording")
        present_gpus = {gpu.gpu.uuid: gpu.gpu for gpu in node_gpus if not gpu.is_gone}
        inventory.record_page(node, present_gpus, at_ms=at_ms, source="recording")
    return inventory


class RecordedJournal:
    """Events and incidents of a recording; all is in memory."""

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
        opened, since = self._opened_incidents(), opened_since
        matches = [
            incident
            for incident in opened
            if (incident.is_open or not open_only) and (since is None or incident.opened_at >= since)
        ]
        return sorted(matches, key=lambda incident: incident.opened_at, reverse=True)[:limit]

    def first_opened_at(self) -> datetime | None:
        return min((incident.opened_at for incident in self._opened_incidents()), default=None)

    def _opened_incidents(self) -> list[Incident]:
        """Those of the recording up to now."""
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

    def notices(self, id: str) -> list[Notice]:  # noqa: ARG002 (nobody is told of a recording)
        return []


class RecordedRules:
    """A recording has the series of rules and objectives, and not the files that they came from."""

    is_evaluating = False
    slos: Sequence[slo.Slo] = ()

    def __init__(self, embedded_engine: embedded.EmbeddedEngine, recording_clock: clock.Clock) -> None:
        self._engine, self._clock = embedded_engine, recording_clock

    @property
    def last_reload(self) -> reload.Reload:
        return reload.Reload(self._clock.now(), self._clock.now())

    async def reload(self) -> reload.Reload:
        _refuse("a reload of the rules was asked for")

    def groups(self) -> Sequence[tuple[rulefile.RuleGroup, evaluate.RuleStates]]:
        return ()

    def alerts(self) -> list[Alert]:
        """What the recorded series `ALERTS` says is pending or firing at this time."""
        now = self._clock.now()
        alerts = []
        for labels in self._engine.instant(evaluate.ALERTS, clock.to_ms(now)).frame.labels:
            state = AlertState(labels.get(evaluate.ALERT_STATE, AlertState.FIRING.value))
            alerts.append(Alert(labels.without(METRIC_NAME, evaluate.ALERT_STATE), state, now, 1.0))
        return alerts

    def alert_causes(self) -> Mapping[str, str]:
        return {}


class ReadOnlyServices:
    """Whatever would change something: it is refused, and there is nothing of it to be shown."""

    def targets(self) -> Sequence[scrape.TargetState]:
        return ()

    def dropped_targets(self) -> Sequence[discovery.DroppedTarget]:
        return ()

    def register_node(self, registration: fleet.NodeRegistration, peer: str) -> None:
        _refuse(f"{registration.node} wanted to register from {peer}")

    async def ingest_events(self, batch: Sequence[events.Event]) -> int:
        _refuse(f"{len(batch)} events were pushed")

    async def ingest_external_alerts(self, pushed: Sequence[Alert]) -> None:
        _refuse(f"{len(pushed)} alerts were pushed")

    async def acknowledge(self, id: str, actor: str) -> Incident:
        _refuse(f"{actor} wanted to acknowledge {id}")

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        _refuse(f"{actor} wanted to resolve {id} ({why})")

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        _refuse(f"{actor} wanted to assign {id} to {to}")

    async def note(self, id: str, actor: str, text: str) -> None:
        _refuse(f"{actor} wanted to note {text[:40]} at {id}")

    async def correct(self, id: str, actor: str, cause: str, why: str) -> corrections.Correction:
        _refuse(f"{actor} wanted to say that {id} was {cause} ({why})")

    def corrections(self) -> Sequence[corrections.Correction]:
        return ()

    async def silence(self, request: SilenceRequest) -> Silence:
        _refuse(f"{request.author} wanted a silence")

    async def expire_silence(self, id: str, actor: str) -> Silence:
        _refuse(f"{actor} wanted to end the silence {id}")

    def silences(self) -> list[Silence]:
        return []

    def silences_problem(self) -> str:
        return ""

    def silenced_by(self, incident: Incident) -> Silence | None:  # noqa: ARG002
        return None


def _refuse(action: str) -> NoReturn:
    raise InvalidTransition(f"{action}, but this is a recording", now="Nothing was changed")
