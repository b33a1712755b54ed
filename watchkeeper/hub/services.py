"""The services that a hub offers to its console and API, as protocols.

The hub and a replayed recording both implement these protocols and fill a `Services`. `web.app` passes each part of the
API the services that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Protocol, TypeVar

from watchkeeper.hub import node_service
from watchkeeper.net import http

if TYPE_CHECKING:
    from watchkeeper.clusters.clusters import Clusters
    from watchkeeper.clusters.fabric.fabric_watch import FabricWatch
    from watchkeeper.diagnose.corrections import Correction
    from watchkeeper.hub.repair_loop import RepairLoop
    from watchkeeper.hub.runtime import Runtime
    from watchkeeper.hub.samples import Queries
    from watchkeeper.model.actions import Plan
    from watchkeeper.model.alerts import Alert
    from watchkeeper.model.cluster import ClusterView
    from watchkeeper.model.diagnosis import Diagnosis
    from watchkeeper.model.events import Event
    from watchkeeper.model.fleet import Gpu, Node, NodeRegistration, Place
    from watchkeeper.model.incidents import Incident
    from watchkeeper.model.labels import Labels
    from watchkeeper.model.node_list import NodeService
    from watchkeeper.model.notices import Notice
    from watchkeeper.model.silences import Silence
    from watchkeeper.notify.incident_report import TimelineEntry
    from watchkeeper.notify.silence_store import SilenceRequest
    from watchkeeper.remediate.evidence import EvidenceSources
    from watchkeeper.remediate.orders import OrderQueue
    from watchkeeper.rules.evaluate import RuleStates
    from watchkeeper.rules.reload import Reload
    from watchkeeper.rules.rulefile import RuleGroup
    from watchkeeper.rules.slo import Slo
    from watchkeeper.scrape.jobs import DroppedTarget
    from watchkeeper.scrape.scrape import TargetState

T = TypeVar("T")


class HubHealth:
    def __init__(
        self,
        readiness_checks: Iterable[Callable[[], str | None]] = (),
        problems: Iterable[Callable[[], Iterable[str]]] = (),
    ) -> None:
        self._readiness_checks, self._problems = tuple(readiness_checks), tuple(problems)

    @property
    def is_ready(self) -> bool:
        return self.not_ready_reason is None

    @property
    def not_ready_reason(self) -> str | None:
        return next((reason for get_reason in self._readiness_checks if (reason := get_reason())), None)

    def problems(self) -> list[str]:
        return list(chain.from_iterable(get_problems() for get_problems in self._problems))


class JournalProtocol(Protocol):
    """Reads of the journal; `read` runs a function that calls the other methods away from the event loop."""

    async def read(self, work: Callable[[], T], *, is_long: bool = False) -> T: ...

    def incidents(
        self, *, open_only: bool = True, limit: int = ..., opened_since: datetime | None = None
    ) -> list[Incident]: ...

    def first_opened_at(self) -> datetime | None: ...

    def first_entry_at(self) -> datetime | None: ...

    def incident(self, id: str) -> Incident | None: ...

    def diagnosis(self, id: str) -> Diagnosis | None: ...

    def plan(self, id: str) -> Plan | None: ...

    def timeline(self, id: str) -> Sequence[TimelineEntry]: ...

    def notices(self, id: str) -> list[Notice]: ...

    def events_at(self, place: Place, since: datetime, until: datetime) -> Sequence[Event]: ...

    def events_between(self, since: datetime, until: datetime) -> Sequence[Event]: ...


class IncidentsProtocol(Protocol):
    async def ingest_events(self, batch: Sequence[Event]) -> int: ...

    async def ingest_external_alerts(self, pushed: Sequence[Alert]) -> None: ...

    async def acknowledge(self, id: str, actor: str) -> Incident: ...

    async def resolve(self, id: str, actor: str, why: str) -> Incident: ...

    async def assign(self, id: str, actor: str, to: str) -> Incident: ...

    async def note(self, id: str, actor: str, text: str) -> None: ...

    async def correct(self, id: str, actor: str, cause: str, why: str) -> Correction: ...

    def corrections(self) -> Sequence[Correction]: ...


class SilencesProtocol(Protocol):
    async def silence(self, request: SilenceRequest) -> Silence: ...

    async def expire_silence(self, id: str, actor: str) -> Silence: ...

    def silences(self) -> list[Silence]: ...

    def silences_problem(self) -> str: ...

    def silenced_by(self, incident: Incident) -> Silence | None: ...


class RulesProtocol(Protocol):
    @property
    def is_evaluating(self) -> bool: ...
    @property
    def slos(self) -> Sequence[Slo]: ...
    @property
    def last_reload(self) -> Reload: ...

    async def reload(self) -> Reload: ...

    def groups(self) -> Sequence[tuple[RuleGroup, RuleStates]]: ...

    def alerts(self) -> Sequence[Alert]: ...

    def alert_causes(self) -> Mapping[str, str]: ...


class GpuView(Protocol):
    """A GPU that has reported at least once; `gone_since_ms` is None while it still reports."""

    @property
    def node(self) -> str: ...
    @property
    def gpu(self) -> Gpu: ...
    @property
    def gone_since_ms(self) -> int | None: ...
    @property
    def cluster(self) -> str: ...
    @property
    def last_seen_ms(self) -> int: ...


class FleetProtocol(Protocol):
    """The inventory: what should exist, and what reports; `revision` changes whenever the inventory changes."""

    @property
    def revision(self) -> int: ...

    def nodes(self) -> list[Node]: ...

    def gpus(self) -> Sequence[GpuView]: ...

    def gone_nodes(self) -> list[tuple[Node, int]]: ...

    def workload_labels(self) -> Sequence[Labels]: ...

    def place_name(self, place: Place) -> str: ...

    def gpu_ids_at(self, place: Place) -> Collection[str]: ...


class TargetsProtocol(Protocol):
    def targets(self) -> Sequence[TargetState]: ...

    def dropped_targets(self) -> Sequence[DroppedTarget]: ...

    def register_node(self, registration: NodeRegistration, peer: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    runtime: Runtime
    health: HubHealth
    queries: Queries
    journal: JournalProtocol
    incidents: IncidentsProtocol
    silences: SilencesProtocol
    rules: RulesProtocol
    fleet: FleetProtocol
    targets: TargetsProtocol
    # None for a replayed recording, or for a fleet without this part.
    clusters: Clusters | None = None
    fabric: FabricWatch | None = None
    simulator: SimulatorProxy | None = None
    repairs: RepairLoop | None = None
    # These change with the journal: call them at each use.
    orders: Callable[[], OrderQueue | None] = lambda: None
    evidence: Callable[[], EvidenceSources | None] = lambda: None

    def node_services(self) -> dict[Place, NodeService]:
        """Which nodes are in service, and which a scheduler or a repair keeps out of it."""
        repairs = None if self.repairs is None else self.repairs.repairs
        return node_service.services_by_node(
            self.cluster_views(),
            () if repairs is None else repairs.repairs_with_nodes(),
            {} if repairs is None else repairs.ended_at(),
            now=self.runtime.clock.now(),
        )

    def cluster_views(self) -> list[ClusterView]:
        return [] if self.clusters is None else self.clusters.views()


@dataclass(frozen=True, slots=True)
class SimulatorProxy:
    url: str

    async def request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        connection = http.Connection()
        try:
            headers = {"Content-Type": "application/json"}
            request = http.HttpRequest(self.url + path, method=method, headers=headers, body=body or b"")
            response = await connection.send(request)
            return response.status, response.body
        finally:
            await connection.aclose()
