"""A hub written by hand: a small fleet, canned readings, and incidents a test can open at will."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from watchkeeper.config import settings
from watchkeeper.diagnose import lessons
from watchkeeper.errors import IllegalMove, QueryError, StoreError
from watchkeeper.hub import health, runtime, samples, services
from watchkeeper.incidents import subject
from watchkeeper.kit import broadcast, clock, own_metrics
from watchkeeper.model import actions, alerts, diagnosis, events, exemplars, fleet
from watchkeeper.model.incidents import Incident, IncidentState, move
from watchkeeper.model.labels import Labels
from watchkeeper.model.silences import Silence
from watchkeeper.notify import silencing
from watchkeeper.query import engine
from watchkeeper.rules import reload, slo
from watchkeeper.store.head import head

START = datetime(2026, 2, 12, 2, 14, 7, tzinfo=UTC)
UNREADABLE = "many-to-many matching is not allowed"
METRICS = {
    "SM_ACTIVE": 0.72,
    "GPU_UTIL": 88.0,
    "POWER_USAGE": 560.0,
    "GPU_TEMP": 61.0,
    "SM_CLOCK": 1755.0,
    "FB_USED": 98_000.0,
    "PCIE_TX": 9e9,
    "NVLINK_TX": 120e9,
    "TENSOR": 0.4,
}


@dataclass(frozen=True, slots=True)
class Seen:
    node: str
    gpu: fleet.Gpu
    gone_since_ms: int | None = None
    cluster: str = "main"
    last_seen_ms: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    at: datetime
    actor: str
    kind: str
    body: Any


class FakeFleet:
    def __init__(self, racks: int, per_rack: int) -> None:
        self._nodes = [
            fleet.Node("main", f"gpu-r{rack:02}-{row:02}", "h200", expected_gpus=8, domains={"rack": f"r{rack:02}"})
            for rack in range(1, racks + 1)
            for row in range(1, per_rack + 1)
        ]
        self.seen = [
            Seen(node.name, fleet.Gpu(f"GPU-{node.name[4:]}-{index}", index, f"0000:{index:02x}:00", "NVIDIA H200"))
            for node in self._nodes
            for index in range(8)
        ]

    @property
    def changes(self) -> int:
        return hash((tuple((node.cluster, node.name) for node in self._nodes), tuple(self.seen)))

    def nodes(self) -> list[fleet.Node]:
        return list(self._nodes)

    def gpus(self) -> Sequence[Seen]:
        return self.seen

    def gone_nodes(self) -> list[tuple[fleet.Node, int]]:
        return []

    def holders(self) -> list[Labels]:
        return []

    def gpus_at(self, place: fleet.Place) -> int:
        return 1 if place.gpu else sum(seen.node == place.node for seen in self.seen)

    def place_name(self, place: fleet.Place) -> str:
        index = next((seen.gpu.index for seen in self.seen if seen.gpu.uuid == place.gpu), None)
        return place.node or place.cluster if index is None else f"GPU {index} on {place.node}"


class FakeEngine:
    """Answers every expression with a steady number per GPU, chosen by the metric it names."""

    local = None

    def __init__(self, hub: FakeHub) -> None:
        self._hub = hub
        self.appender = head.Head()

    def instant(self, expr: str, at_ms: int) -> engine.Answer:
        if "slo:" in expr:
            kept = self._hub.recorded
            return answer(list(kept), [at_ms], np.array(list(kept.values())))
        if "CLOCKS_EVENT" in expr or ("watchkeeper_gpu_" in expr and "DCGM_" not in expr):
            return answer([], [at_ms], np.zeros((0, 1)))
        rows = [seen for seen in self._hub.fleet.seen if seen.gpu.uuid not in self._hub.silent]
        if 'UUID="' in expr:
            rows = [seen for seen in rows if seen.gpu.uuid in expr]
        return answer([self._labels(seen) for seen in rows], [at_ms], np.array([[self._value(s, expr)] for s in rows]))

    def range(self, expr: str, span: engine.Span) -> engine.Answer:
        size = next((size for name, size in METRICS.items() if name in expr), 93.0)
        size *= 100 if expr.startswith("100 * ") and size < 1 else 1
        times, opened = span.times, clock.to_ms(self._hub.clock.now() - timedelta(minutes=4))
        wave = size * (1 + 0.02 * np.sin(times / 47_000) + 0.015 * np.sin(times / 11_000))
        if 'UUID="' in expr:
            wave = np.where(times > opened, np.nan, wave)
        present = ~np.isnan(wave)
        frame = engine.Frame([Labels()], times, np.nan_to_num(wave)[None, :], present[None, :])
        return engine.Answer(engine.Kind.MATRIX, frame)

    def series(self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int) -> list[Labels]:
        return [self._labels(seen).having(__name__="DCGM_FI_DEV_GPU_TEMP") for seen in self._hub.fleet.seen[:4]]

    def label_names(self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int) -> list[str]:
        return sorted({name for labels in self.series(matchers, start_ms, end_ms) for name in labels})

    def label_values(
        self, name: str, matchers: Sequence[Sequence[engine.Matcher]], *, start_ms: int, end_ms: int
    ) -> list[str]:
        return sorted({labels[name] for labels in self.series(matchers, start_ms, end_ms) if name in labels})

    def metadata(self) -> dict[str, tuple[str, str, str]]:
        return {"DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature", "")}

    def exemplars(
        self, matchers: Sequence[Sequence[engine.Matcher]], start_ms: int, end_ms: int
    ) -> list[tuple[Labels, list[exemplars.Exemplar]]]:
        return []

    def for_rules(self) -> FakeEngine:
        return self

    def close(self) -> None:
        return None

    def limits(self) -> engine.Limits:
        return engine.Limits()

    def _labels(self, seen: Seen) -> Labels:
        named = {"UUID": seen.gpu.uuid, "gpu": str(seen.gpu.index), "Hostname": seen.node}
        job = zlib.crc32(seen.node.encode()) % 16
        if job < 15:
            pod = self._hub.moved.get(seen.gpu.uuid, f"train-{job}")
            named |= {"namespace": ("research", "vision", "speech")[job % 3], "pod": pod}
        return Labels(named)

    def _value(self, seen: Seen, expr: str) -> float:
        size = next((size for name, size in METRICS.items() if name in expr), 1.0)
        spread = zlib.crc32(f"{seen.node}".encode()) % 100 / 100
        own = zlib.crc32(seen.gpu.uuid.encode()) % 100 / 100
        if "SM_ACTIVE" in expr or "TENSOR" in expr:
            share = 0.0 if spread < 0.08 else min(1.0, 0.35 + 0.6 * spread + 0.06 * own)
            return share * (100 if expr.startswith("100 * ") else 1)
        return size * (0.8 + 0.2 * spread + 0.04 * own)


def answer(labels: list[Labels], times: list[int], values: Any) -> engine.Answer:
    matrix = values.reshape(len(labels), len(times))
    frame = engine.Frame(labels, np.array(times), matrix, np.ones(matrix.shape, dtype=np.bool_))
    return engine.Answer(engine.Kind.VECTOR, frame)


class FakeQueries(samples.Queries):
    def __init__(self, hub: FakeHub) -> None:
        super().__init__(hub.engine, hub.clock)
        self._hub = hub

    async def instant(self, expr: str, at_ms: int | None = None) -> engine.Answer:
        return await self._hub.ask(expr, self.now_ms if at_ms is None else at_ms)

    async def range(self, expr: str, span: engine.Span) -> engine.Answer:
        return await self._hub.ask_range(expr, span)


@dataclass
class FakeHub:
    racks: int = 2
    per_rack: int = 2
    settings: settings.Settings = field(default_factory=settings.Settings)
    clock: clock.Clock = field(default_factory=lambda: clock.ScaledClock(epoch_seconds=START.timestamp()))
    version: str = "0.0.test"
    metrics: own_metrics.Registry = field(default_factory=own_metrics.Registry)
    changes: broadcast.Broadcast = field(default_factory=broadcast.Broadcast)
    not_ready_because: str | None = None
    simulator_url: str | None = None
    orders: Any = None
    repairs: Any = None
    evidence: Any = None
    fabric: Any = None
    clusters: Any = None
    silent: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    taken: list[events.Event] = field(default_factory=list)
    kept: dict[str, Incident] = field(default_factory=dict)
    diagnoses: dict[str, diagnosis.Diagnosis] = field(default_factory=dict)
    plans: dict[str, actions.Plan] = field(default_factory=dict)
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    drills: list[bytes] = field(default_factory=list)
    said: list[lessons.Correction] = field(default_factory=list)
    silenced: list[Silence] = field(default_factory=list)
    silences_unknown: str = ""
    cannot_write: StoreError | None = None
    # How many of the next questions about incidents the journal does not answer.
    unanswered: int = 0
    foreign: list[alerts.Alert] = field(default_factory=list)
    failing: bool = False
    objectives: list[slo.Slo] = field(default_factory=list)
    recorded: dict[Labels, float] = field(default_factory=dict)
    reloaded: reload.Reload = field(default_factory=lambda: reload.Reload(START, START, rules=114, groups=20))

    def __post_init__(self) -> None:
        self.fleet = FakeFleet(self.racks, self.per_rack)
        self.engine: engine.Engine = FakeEngine(self)

    @property
    def services(self) -> services.Services:
        shared = runtime.Runtime(self.settings, self.clock, self.metrics, self.changes, self.version)
        ready = health.Health([lambda: self.not_ready_because], [lambda: filter(None, [self.silences_unknown])])
        simulated: Any = None if self.simulator_url is None else self
        return services.Services(
            shared, ready, FakeQueries(self), self, self, self, self, self.fleet, self,
            self.clusters, self.fabric, simulated, self.repairs, lambda: self.orders, lambda: self.evidence,
        )  # fmt: skip

    async def ask(self, expr: str, at_ms: int) -> engine.Answer:
        if self.failing:
            raise QueryError(UNREADABLE)
        return self.engine.instant(expr, at_ms)

    async def read(self, work: Callable[[], Any], *, is_long: bool = False) -> Any:
        return await asyncio.to_thread(work)

    async def ask_range(self, expr: str, span: engine.Span) -> engine.Answer:
        return self.engine.range(expr, span)

    def targets(self) -> list[Any]:
        return []

    def dropped_targets(self) -> list[Any]:
        return []

    def groups(self) -> list[Any]:
        return []

    def alerts(self) -> list[alerts.Alert]:
        labels = Labels({"alertname": "GpuHot", "severity": "warning"})
        return [alerts.Alert(labels, alerts.AlertState.FIRING, START, 91.5, {"summary": "hot"})]

    @property
    def slos(self) -> list[slo.Slo]:
        return self.objectives

    @property
    def last_reload(self) -> reload.Reload:
        return self.reloaded

    async def reload(self) -> reload.Reload:
        return self.reloaded

    def register_node(self, registration: fleet.NodeRegistration, peer: str) -> None:
        raise NotImplementedError

    async def take_events(self, batch: Sequence[events.Event]) -> int:
        self.taken += batch
        return len(batch)

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.taken if since <= event.at <= until]

    def events_at(self, place: fleet.Place, since: datetime, until: datetime) -> list[events.Event]:
        return [event for event in self.events_between(since, until) if place.encloses(event.place)]

    def incidents(
        self, *, open_only: bool = True, limit: int = 200, opened_since: datetime | None = None
    ) -> list[Incident]:
        if self.unanswered:
            self.unanswered -= 1
            raise StoreError("the journal refused: the server is away")
        kept = [one for one in self.kept.values() if opened_since is None or one.opened_at >= opened_since]
        return [incident for incident in kept if incident.is_open or not open_only][:limit]

    def first_opened_at(self) -> datetime | None:
        return min((one.opened_at for one in self.kept.values()), default=None)

    def incident(self, id: str) -> Incident | None:
        return self.kept.get(id)

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        return self.diagnoses.get(id)

    def plan(self, id: str) -> actions.Plan | None:
        return self.plans.get(id)

    def timeline(self, id: str) -> list[Entry]:
        return self.entries.get(id, [])

    async def acknowledge(self, id: str, actor: str) -> Incident:
        moved = move(self.kept[id], IncidentState.ACKNOWLEDGED, at=self.clock.now())
        return self._keep(replace(moved, assignee=actor), Entry(self.clock.now(), actor, "incident.acknowledged", {}))

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        moved = move(self.kept[id], IncidentState.RESOLVED, at=self.clock.now())
        return self._keep(moved, Entry(self.clock.now(), actor, "incident.resolved", {"why": why}))

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        return self._keep(replace(self.kept[id], assignee=to), Entry(self.clock.now(), actor, "assigned", {}))

    async def silence(self, wish: silencing.Wish) -> Silence:
        try:
            made = Silence("S-1", wish.matchers, wish.author, wish.reason, wish.starts_at, wish.ends_at)
        except ValueError as error:
            raise IllegalMove(str(error)) from error
        self.silenced.append(made)
        return made

    async def unsilence(self, id: str, actor: str) -> Silence:
        found = next((one for one in self.silenced if one.id == id), None)
        if found is None:
            raise IllegalMove("there is no such silence", where=id)
        self.silenced.remove(found)
        return replace(found, ended_by=actor)

    async def take_foreign_alerts(self, pushed: Sequence[alerts.Alert]) -> None:
        if self.cannot_write is not None:
            raise self.cannot_write
        self.foreign += pushed

    def notices(self, _: str) -> list[Any]:
        return []

    def silences(self) -> list[Silence]:
        return self.silenced

    def silences_problem(self) -> str:
        return self.silences_unknown

    @property
    def is_at_work(self) -> bool:
        return False

    def silenced_by(self, incident: Incident) -> Silence | None:
        about = subject.subject_of(incident, subject.Inventory())
        return silencing.holding(self.silenced, about, self.clock.now())

    def alert_causes(self) -> dict[str, str]:
        return {"GPUMissing": "gpu_missing"}

    async def note(self, id: str, actor: str, text: str) -> None:
        self._keep(self.kept[id], Entry(self.clock.now(), actor, "note", {"text": text}))

    async def correct(self, id: str, actor: str, cause: str, why: str) -> lessons.Correction:
        kept = self.kept[id]
        said = lessons.Correction(id, self.clock.now(), actor, kept.cause, cause, why, str(kept.place))
        self.said.append(said)
        return said

    def corrections(self) -> list[lessons.Correction]:
        return self.said

    async def request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        self.drills.append(b"%s %s %s" % (method.encode(), path.encode(), body or b""))
        if path == "/scenarios":
            return 200, b'[{"name":"xid-79","title":"GPU falls off the bus","truth":{"cause":"gpu_fell_off_bus"}}]'
        return 200, b'{"id":"f1","scenario":"xid-79","node":"gpu-r01-01","gpu":3}'

    def _keep(self, incident: Incident, entry: Entry) -> Incident:
        self.kept[incident.id] = incident
        self.entries.setdefault(incident.id, []).append(entry)
        self.changes.send("incidents")
        return incident
