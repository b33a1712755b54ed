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
MARGIN_MS = 3_600_000


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


def load_engine(tape: recording.Recording, *, progress: Any = None) -> embedded.EmbeddedEngine:
    """An engine that answers from the samples of a recording."""
    span_ms = tape.header.to_ms - tape.header.from_ms + MARGIN_MS
    kept = head.Head(retention_ms=span_ms, max_series=max(1, 2 * (len(tape.series) + len(tape.native))))
    recording.load_series(tape.series, kept, until_ms=tape.header.to_ms, progress=progress)
    recording.load_histogram_series(tape.native, kept, until_ms=tape.header.to_ms)
    for metric in tape.metrics:
        kept.metadata.record(metric.name, metric.type, help=metric.help, unit=metric.unit)
    return embedded.EmbeddedEngine(kept)


def recorded_services(
    tape: recording.Recording, on: embedded.EmbeddedEngine, *, settings: Settings, speed: float | None
) -> services.Services:
    """What a hub would offer, over one recording."""
    start, end = clock.from_ms(tape.header.from_ms), clock.from_ms(tape.header.to_ms)
    shared = runtime.Runtime(settings, RecordingClock(start, end, speed=speed))
    nothing = ReadOnlyServices()
    return services.Services(
        shared,
        health.HubHealth(),
        samples.Queries(on, shared.clock),
        RecordedJournal(tape, shared.clock),
        nothing,
        nothing,
        RecordedRules(on, shared.clock),
        _fleet_of(tape),
        nothing,
    )


def _fleet_of(tape: recording.Recording) -> ScrapedInventory:
    """What the hub had seen at the end; a GPU that was gone is seen once and then no more."""
    at_ms, made = tape.header.to_ms, ScrapedInventory()
    made.set_expected_nodes(tape.nodes, at_ms)
    for node in tape.nodes:
        there = [seen for seen in tape.gpus if (seen.cluster, seen.node) == (node.cluster, node.name)]
        made.record_page(node, {seen.gpu.uuid: seen.gpu for seen in there}, at_ms=at_ms, source="recording")
        left = {seen.gpu.uuid: seen.gpu for seen in there if not seen.is_gone}
        made.record_page(node, left, at_ms=at_ms, source="recording")
    return made


class RecordedJournal:
    """Events and incidents of a recording; all is in memory."""

    def __init__(self, tape: recording.Recording, time: clock.Clock) -> None:
        self._tape, self._clock = tape, time
        self._stories = {str(story.incident.id): story for story in tape.incidents}

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T:  # noqa: ARG002 (all is in memory)
        return await asyncio.to_thread(work)

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self._tape.events if since <= event.at <= until]

    def events_at(self, place: Place, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.events_between(since, until) if place.encloses(event.place)]

    def incidents(
        self, *, open_only: bool = True, limit: int = 200, opened_since: datetime | None = None
    ) -> list[Incident]:
        known, since = self._opened(), opened_since
        found = [one for one in known if (one.is_open or not open_only) and (since is None or one.opened_at >= since)]
        return sorted(found, key=lambda incident: incident.opened_at, reverse=True)[:limit]

    def first_opened_at(self) -> datetime | None:
        return min((one.opened_at for one in self._opened()), default=None)

    def _opened(self) -> list[Incident]:
        """Those of the recording up to now."""
        now = self._clock.now()
        return [story.incident for story in self._stories.values() if story.incident.opened_at <= now]

    def incident(self, id: str) -> Incident | None:
        story = self._stories.get(id)
        return None if story is None else story.incident

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        story = self._stories.get(id)
        return None if story is None else story.diagnosis

    def plan(self, id: str) -> actions.Plan | None:
        story = self._stories.get(id)
        return None if story is None else story.plan

    def timeline(self, id: str) -> Sequence[recording.RecordedEntry]:
        story = self._stories.get(id)
        return () if story is None else story.timeline

    def notices(self, id: str) -> list[Notice]:  # noqa: ARG002 (nobody is told of a recording)
        return []


class RecordedRules:
    """A recording has the series of rules and objectives, and not the files that they came from."""

    is_evaluating = False
    slos: Sequence[slo.Slo] = ()

    def __init__(self, on: embedded.EmbeddedEngine, time: clock.Clock) -> None:
        self._engine, self._clock = on, time

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
        found = []
        for labels in self._engine.instant(evaluate.ALERTS, clock.to_ms(now)).frame.labels:
            state = AlertState(labels.get(evaluate.ALERT_STATE, AlertState.FIRING.value))
            found.append(Alert(labels.without(METRIC_NAME, evaluate.ALERT_STATE), state, now, 1.0))
        return found

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

    async def silence(self, wish: SilenceRequest) -> Silence:
        _refuse(f"{wish.author} wanted a silence")

    async def expire_silence(self, id: str, actor: str) -> Silence:
        _refuse(f"{actor} wanted to end the silence {id}")

    def silences(self) -> list[Silence]:
        return []

    def silences_problem(self) -> str:
        return ""

    def silenced_by(self, incident: Incident) -> Silence | None:  # noqa: ARG002
        return None


def _refuse(what: str) -> NoReturn:
    raise InvalidTransition(f"{what}, but this is a recording", now="Nothing was changed")
