"""What the web application needs of a hub, and nothing more.

`hub.py` satisfies this protocol; so does the hand-written fake beside the tests. Everything a page or
an API answer shows comes through here. Names are imported singly because the protocol's own members are
called like their modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from watchkeeper.collect import discovery, registration, scrape
from watchkeeper.config.settings import Settings
from watchkeeper.kit import broadcast, own_metrics
from watchkeeper.kit.clock import Clock
from watchkeeper.model import actions, events, fleet
from watchkeeper.model.alerts import Alert
from watchkeeper.model.diagnosis import Diagnosis
from watchkeeper.model.incidents import Incident
from watchkeeper.query.engine import Answer, Engine, Span
from watchkeeper.rules import evaluate, rulefile


class SeenView(Protocol):
    """A GPU that has reported at least once; `gone_since_ms` is None while it still does."""

    @property
    def node(self) -> str: ...
    @property
    def gpu(self) -> fleet.Gpu: ...
    @property
    def gone_since_ms(self) -> int | None: ...


class FleetView(Protocol):
    """The inventory: what should be there, and what reports."""

    def nodes(self) -> list[fleet.Node]: ...

    def gpus(self) -> Sequence[SeenView]: ...

    def place_name(self, place: fleet.Place) -> str: ...


class EntryView(Protocol):
    """One line of the journal about an incident."""

    @property
    def at(self) -> datetime: ...
    @property
    def actor(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> Any: ...


class HubView(Protocol):
    """The hub as a browser, an agent or a Prometheus client may see it."""

    settings: Settings
    clock: Clock
    version: str
    metrics: own_metrics.Registry
    changes: broadcast.Broadcast

    @property
    def is_ready(self) -> bool: ...
    @property
    def not_ready_because(self) -> str | None: ...
    @property
    def simulator_url(self) -> str | None: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def fleet(self) -> FleetView: ...

    async def ask(self, expr: str, at_ms: int) -> Answer: ...

    async def ask_range(self, expr: str, span: Span) -> Answer: ...

    def targets(self) -> Sequence[scrape.TargetState]: ...

    def dropped_targets(self) -> Sequence[discovery.Dropped]: ...

    def rule_groups(self) -> Sequence[tuple[rulefile.Group, evaluate.State]]: ...

    def alerts(self) -> Sequence[Alert]: ...

    def register_node(self, told: registration.NodeRegistration, peer: str) -> None: ...

    async def take_events(self, batch: list[events.Event]) -> int: ...

    def events_between(self, since: datetime, until: datetime) -> Sequence[events.Event]: ...

    def incidents(self, *, open_only: bool = True, limit: int = 200) -> list[Incident]: ...

    def incident(self, id: str) -> Incident | None: ...

    def diagnosis(self, id: str) -> Diagnosis | None: ...

    def plan(self, id: str) -> actions.Plan | None: ...

    def timeline(self, id: str) -> Sequence[EntryView]: ...

    async def acknowledge(self, id: str, actor: str) -> Incident: ...

    async def resolve(self, id: str, actor: str, why: str) -> Incident: ...

    async def note(self, id: str, actor: str, text: str) -> None: ...

    async def simulator_request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]: ...
