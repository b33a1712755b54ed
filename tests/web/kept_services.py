"""The services of a hub, in memory: each as small as its protocol in `hub.services`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from watchkeeper.diagnose import corrections
from watchkeeper.errors import InvalidTransition, StoreError
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import broadcast, clock
from watchkeeper.model import actions, alerts, diagnosis, events, fleet
from watchkeeper.model.incidents import Incident, IncidentState, move
from watchkeeper.model.labels import Labels
from watchkeeper.model.notices import Notice
from watchkeeper.model.silences import Silence
from watchkeeper.notify import silence_store
from watchkeeper.rules import evaluate, reload, rulefile, slo

START = datetime(2026, 2, 12, 2, 14, 7, tzinfo=UTC)
HOT = alerts.Alert(
    Labels({"alertname": "GpuHot", "severity": "warning"}), alerts.AlertState.FIRING, START, 91.5, {"summary": "hot"}
)
SCENARIOS = [{"name": "xid-79", "title": "GPU falls off the bus", "truth": {"cause": "gpu_fell_off_bus"}}]
FAULT = {"id": "f1", "scenario": "xid-79", "node": "gpu-r01-01", "gpu": 3}


@dataclass(frozen=True, slots=True)
class Entry:
    at: datetime
    actor: str
    kind: str
    body: Any


@dataclass
class KeptJournal:
    """Events that were pushed, and incidents that a test opens with `keep`."""

    changes: broadcast.Broadcast
    taken: list[events.Event] = field(default_factory=list)
    kept: dict[str, Incident] = field(default_factory=dict)
    diagnoses: dict[str, diagnosis.Diagnosis] = field(default_factory=dict)
    plans: dict[str, actions.Plan] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    # How many of the next questions about incidents are not answered.
    unanswered: int = 0
    first_entry: datetime | None = None

    def keep(self, incident: Incident, entry: Entry) -> Incident:
        self.kept[incident.id] = incident
        self.entries.setdefault(incident.id, []).append(entry)
        self.changes.send("incidents")
        return incident

    async def read(self, work: Callable[[], Any], *, is_long: bool = False) -> Any:
        return await asyncio.to_thread(work)

    def incidents(
        self, *, open_only: bool = True, limit: int = 200, opened_since: datetime | None = None
    ) -> list[Incident]:
        if self.unanswered:
            self.unanswered -= 1
            raise StoreError("the journal refused: the server is away")
        kept = [
            incident for incident in self.kept.values() if opened_since is None or incident.opened_at >= opened_since
        ]
        return [incident for incident in kept if incident.is_open or not open_only][:limit]

    def first_opened_at(self) -> datetime | None:
        return min((incident.opened_at for incident in self.kept.values()), default=None)

    def first_entry_at(self) -> datetime | None:
        return self.first_entry

    def incident(self, id: str) -> Incident | None:
        return self.kept.get(id)

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        return self.diagnoses.get(id)

    def plan(self, id: str) -> actions.Plan | None:
        return self.plans.get(id)

    def timeline(self, id: str) -> list[Entry]:
        return self.entries.get(id, [])

    def notices(self, id: str) -> list[Notice]:
        return []

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.taken if since <= event.at <= until]

    def events_at(self, place: fleet.Place, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.events_between(since, until) if place.encloses(event.place)]


@dataclass
class KeptIncidents:
    """Changes of what the journal keeps."""

    journal: KeptJournal
    clock: clock.Clock
    kept_corrections: list[corrections.Correction] = field(default_factory=list)
    foreign: list[alerts.Alert] = field(default_factory=list)
    cannot_write: StoreError | None = None

    async def ingest_events(self, batch: Sequence[events.Event]) -> int:
        self.journal.taken += batch
        return len(batch)

    async def ingest_external_alerts(self, pushed: Sequence[alerts.Alert]) -> None:
        if self.cannot_write is not None:
            raise self.cannot_write
        self.foreign += pushed

    async def acknowledge(self, id: str, actor: str) -> Incident:
        moved = move(self.journal.kept[id], IncidentState.ACKNOWLEDGED, at=self.clock.now())
        return self._keep(replace(moved, assignee=actor), actor, "incident.acknowledged", {})

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        moved = move(self.journal.kept[id], IncidentState.RESOLVED, at=self.clock.now())
        return self._keep(moved, actor, "incident.resolved", {"why": why})

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        return self._keep(replace(self.journal.kept[id], assignee=to), actor, "assigned", {})

    async def note(self, id: str, actor: str, text: str) -> None:
        self._keep(self.journal.kept[id], actor, "note", {"text": text})

    async def correct(self, id: str, actor: str, cause: str, why: str) -> corrections.Correction:
        kept = self.journal.kept[id]
        correction = corrections.Correction(id, self.clock.now(), actor, kept.cause, cause, why, str(kept.place))
        self.kept_corrections.append(correction)
        return correction

    def corrections(self) -> list[corrections.Correction]:
        return self.kept_corrections

    def _keep(self, incident: Incident, actor: str, kind: str, body: Any) -> Incident:
        return self.journal.keep(incident, Entry(self.clock.now(), actor, kind, body))


@dataclass
class KeptSilences:
    changes: broadcast.Broadcast
    clock: clock.Clock
    silenced: list[Silence] = field(default_factory=list)
    problem: str = ""

    async def silence(self, request: silence_store.SilenceRequest) -> Silence:
        try:
            made = Silence("S-1", request.matchers, request.author, request.reason, request.starts_at, request.ends_at)
        except ValueError as error:
            raise InvalidTransition(str(error)) from error
        self.silenced.append(made)
        self.changes.send("incidents")
        return made

    async def expire_silence(self, id: str, actor: str) -> Silence:
        silence = next((silence for silence in self.silenced if silence.id == id), None)
        if silence is None:
            raise InvalidTransition("there is no such silence", where=id)
        self.silenced.remove(silence)
        self.changes.send("incidents")
        return replace(silence, ended_by=actor)

    def silences(self) -> list[Silence]:
        return self.silenced

    def silences_problem(self) -> str:
        return self.problem

    def silenced_by(self, incident: Incident) -> Silence | None:
        about = incident_labels.collect_labels(incident, incident_labels.InventoryLookup())
        return silence_store.longest_match(self.silenced, about, self.clock.now())


@dataclass
class GivenRules:
    """Rules that a test gives, and the alerts that they are said to have."""

    slos: list[slo.Slo] = field(default_factory=list)
    last_reload: reload.Reload = field(default_factory=lambda: reload.Reload(START, START, rules=114, groups=20))
    in_force: Sequence[tuple[rulefile.RuleGroup, evaluate.RuleStates]] = ()
    active: Sequence[alerts.Alert] = (HOT,)
    is_evaluating: bool = False

    async def reload(self) -> reload.Reload:
        return self.last_reload

    def groups(self) -> Sequence[tuple[rulefile.RuleGroup, evaluate.RuleStates]]:
        return self.in_force

    def alerts(self) -> Sequence[alerts.Alert]:
        return self.active

    def alert_causes(self) -> dict[str, str]:
        return {"GPUMissing": "gpu_missing"}


@dataclass
class NoTargets:
    """Scrapes nothing, and accepts every registration."""

    registered: list[fleet.NodeRegistration] = field(default_factory=list)

    def targets(self) -> list[Any]:
        return []

    def dropped_targets(self) -> list[Any]:
        return []

    def register_node(self, registration: fleet.NodeRegistration, peer: str) -> None:
        self.registered.append(registration)


@dataclass
class CannedSimulator:
    """Writes down what it is asked for."""

    faults: bytes = orjson.dumps(FAULT)
    drills: list[bytes] = field(default_factory=list)

    async def request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        self.drills.append(b"%s %s %s" % (method.encode(), path.encode(), body or b""))
        return 200, orjson.dumps(SCENARIOS) if path == "/scenarios" else self.faults
