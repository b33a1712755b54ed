"""The services of a small hub: a fleet, fixed readings, and incidents that a test opens."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.web.canned_engine import CannedEngine, CannedQueries, Readings
from tests.web.kept_services import (
    START,
    CannedSimulator,
    GivenRules,
    KeptIncidents,
    KeptJournal,
    KeptSilences,
    NoTargets,
)
from tests.web.small_fleet import SmallFleet
from watchkeeper.config import settings
from watchkeeper.hub import runtime, services
from watchkeeper.kit import broadcast, clock, own_metrics


@dataclass
class SmallHub:
    """Put another part in the place of one before the hub is served."""

    racks: int = 2
    per_rack: int = 2
    settings: settings.Settings = field(default_factory=settings.Settings)
    clock: clock.Clock = field(default_factory=lambda: clock.ScaledClock(epoch_seconds=START.timestamp()))
    metrics: own_metrics.Registry = field(default_factory=own_metrics.Registry)
    changes: broadcast.Broadcast = field(default_factory=broadcast.Broadcast)
    not_ready_reason: str | None = None
    rules: GivenRules = field(default_factory=GivenRules)
    journal_type: type[KeptJournal] = KeptJournal
    targets: NoTargets = field(default_factory=NoTargets)
    simulator: CannedSimulator | None = None
    orders: Any = None
    repairs: Any = None
    evidence: Any = None
    fabric: Any = None
    clusters: Any = None

    def __post_init__(self) -> None:
        self.fleet, self.readings = SmallFleet(self.racks, self.per_rack), Readings()
        self.engine: Any = CannedEngine(self.fleet, self.readings, self.clock)
        self.journal = self.journal_type(self.changes)
        self.incidents = KeptIncidents(self.journal, self.clock)
        self.silences = KeptSilences(self.changes, self.clock)

    @cached_property
    def queries(self) -> CannedQueries:
        return CannedQueries(self.engine, self.clock)

    @property
    def services(self) -> services.Services:
        simulated: Any = self.simulator
        return services.Services(
            runtime.Runtime(self.settings, self.clock, self.metrics, self.changes, "0.0.test"),
            services.HubHealth([lambda: self.not_ready_reason], [lambda: filter(None, [self.silences.problem])]),
            self.queries,
            self.journal,
            self.incidents,
            self.silences,
            self.rules,
            self.fleet,
            self.targets,
            self.clusters,
            self.fabric,
            simulated,
            self.repairs,
            lambda: self.orders,
            lambda: self.evidence,
        )
