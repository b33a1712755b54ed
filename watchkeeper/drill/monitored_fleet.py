"""One simulated fleet under the real pipeline, in simulated time, as fast as the machine allows.

`advance` lets seconds pass: kernel records become events at once, each target is scraped at its own
second of the interval, rules run at full intervals, and what changed is diagnosed and planned for. Only
the way to the targets differs from a hub: `Simulation.page_at` answers instead of HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper.agent.kernel import gpu_addresses, kernel_follow
from watchkeeper.errors import CollectError
from watchkeeper.hub import pipeline
from watchkeeper.kit import clock
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident, Member, MemberKind
from watchkeeper.net import http
from watchkeeper.query import embedded, prometheus
from watchkeeper.readers import exposition
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import discovery, fleet, schedule, scrape, status_series
from watchkeeper.sim.simulation import Simulation
from watchkeeper.store import interfaces
from watchkeeper.store.head import head
from watchkeeper.store.journal import journal

SHIPPED_RULES = Path(pipeline.__file__).parents[1] / "packs" / "rules"
# The address is never connected to; targets need one to have a name.
ADDRESS = "sim.invalid:80"
TICK_SECONDS = 15
# What an event may take from the kernel's line to an incident, and how many evaluations an alert after its hold.
EVENT_SECONDS = 2.0
EVALUATIONS = 2


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the fleet is read and the rules are run; a hub's own defaults."""

    scrape_seconds: int = 15
    rule_seconds: int = 15
    retention_seconds: int = 2 * 3600


HUB_PACE = Pace()


class SimulatedConnection:
    """Hands a target's page over in this process; a page that cannot be had is a failed scrape."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        return http.HttpResponse(200, {}, self._simulation.page_at(urlsplit(request.url).path))

    async def aclose(self) -> None:
        return None


class MonitoredFleet:
    """A fleet, watched; `close` lets go of the journal."""

    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        *,
        pace: Pace = HUB_PACE,
        store: interfaces.SampleStore | None = None,
        line: scrape.TargetConnection | None = None,
        remote: prometheus.PrometheusEngine | None = None,
        max_page_series: int = exposition.MAX_SERIES,
    ) -> None:
        """Samples stay in memory, and pages come from the simulation, unless a store, a server or a line is given."""
        self.simulation = simulation
        self.pace = pace
        self.fleet = fleet.ScrapedInventory()
        self.journal = journal.Journal(folder / "journal.sqlite")
        self.rules = rulefile.load_rules([SHIPPED_RULES])
        # Not `or`: a store without series counts as false.
        kept = head.Head(retention_ms=pace.retention_seconds * 1000) if store is None else store
        self.engine = embedded.EmbeddedEngine(kept) if remote is None else remote
        parts = pipeline.dry_run_dependencies(self.engine, self.fleet, journal=self.journal, rules=self.rules)
        self.pipeline = pipeline.Pipeline(parts, now=simulation.now)
        self._kernel = kernel_follow.KernelEvents(
            simulation.settings.cluster, gpu_addresses.GpuAddresses(self._ask_inventory)
        )
        self._seen_record = simulation.machines.kernel.last_seq
        self._holders = status_series.StatusSeries()
        self._max_page_series = max_page_series
        self._loops = self._discover(line or SimulatedConnection(simulation))

    def close(self) -> None:
        self.journal.close()

    async def advance(self, seconds: int, *, with_rules: bool = True) -> None:
        for _ in range(seconds):
            self.simulation.advance(1)
            now = self.simulation.now
            await self._take_kernel_records(now)
            await self._scrape(self.simulation.second)
            if with_rules:
                self._run_rules(now)
            if self.simulation.second % TICK_SECONDS == 0:
                self._look_into(self.pipeline.tick(now), now)
                self._look_for_recovery(now)

    def incidents(self) -> list[Incident]:
        """Every incident of this watch, resolved ones too."""
        return self.journal.incidents(open_only=False, limit=journal.MOST_ROWS)

    def allowed_seconds(self, member: Member) -> float:
        """How long it may take until this signal is heard: 2 s for an event, hold and two evaluations for an alert."""
        if member.kind is MemberKind.EVENT:
            return EVENT_SECONDS
        for group in self.rules.groups:
            for rule in group.rules:
                state = self.pipeline.rule_state.get(evaluate.rule_key(group, rule))
                if state is not None and any(str(labels) == member.ref for labels in state.alerts):
                    hold = rule.hold_seconds if isinstance(rule, rulefile.AlertingRule) else 0.0
                    return hold + EVALUATIONS * (group.interval_seconds or self.pace.rule_seconds)
        return 0.0

    def _discover(self, line: scrape.TargetConnection) -> list[tuple[int, scrape.TargetLoop]]:
        """Every target with its second inside the interval."""
        document = json.dumps(self.simulation.service_discovery(ADDRESS)).encode()
        found = discovery.read_groups(document, "the simulated fleet", defaults=discovery.DiscoveryDefaults())
        self.fleet.set_expected_nodes(found.nodes, clock.to_ms(self.simulation.now))
        settings = scrape.ScrapeSettings(interval_seconds=self.pace.scrape_seconds, max_series=self._max_page_series)
        return [
            (
                schedule.offset_ms(target.key, self.pace.scrape_seconds * 1000) // 1000,
                scrape.TargetLoop(target, settings, sink=self.engine.appender, inventory=self.fleet, connection=line),
            )
            for target in found.targets
        ]

    async def _scrape(self, second: int) -> None:
        turn = second % self.pace.scrape_seconds
        for offset, loop in self._loops:
            if offset == turn:
                await loop.scrape(second * 1000)
        if turn == 0:
            self._append_standing(second * 1000)

    def _append_standing(self, at_ms: int) -> None:
        """Nodes and holders of GPUs, which a hub would write."""
        held = status_series.workload_series(self.engine.instant(status_series.WORKLOAD_SOURCES, at_ms).frame.labels)
        found = fleet.inventory_samples(self.fleet, at_ms) + self._holders.samples(held, at_ms)
        self.engine.appender.append(found, group_key="standing series")

    async def _take_kernel_records(self, now: datetime) -> None:
        records = self.simulation.kernel_records_since(self._seen_record)
        if not records:
            return
        self._seen_record = records[-1].seq
        read = [
            await self._kernel.build_event(kernel_follow.KernelRecord(one.node, one.boot, one.record, one.at, one.seq))
            for one in records
        ]
        batch = [event for event in read if event is not None]
        if batch:
            self._look_into(self.pipeline.ingest_events(batch, now).changed_incidents, now)

    def _run_rules(self, now: datetime) -> None:
        changed = [alert for group in self._due(now) for alert in self.pipeline.evaluate(group, now)]
        if changed:
            self._look_into(self.pipeline.ingest_alerts(changed, now), now)

    def _due(self, now: datetime) -> list[rulefile.RuleGroup]:
        """The groups that have their turn at this second; a slow pace slows down all of them."""
        second, slowest = int(now.timestamp()), float(self.pace.rule_seconds)
        turns = ((group, max(slowest, group.interval_seconds or 0.0)) for group in self.rules.groups)
        return [group for group, interval in turns if second % interval == 0]

    def _look_into(self, changed: Sequence[Incident], now: datetime) -> None:
        for incident in {incident.id: incident for incident in changed if incident.is_open}.values():
            finding = self.pipeline.diagnose(incident, now)
            if finding is not None:
                self.pipeline.apply_finding(incident, finding, now)

    def _look_for_recovery(self, now: datetime) -> None:
        broken = self.pipeline.incidents.broken_gpus()
        found = self.pipeline.recoveries(broken, now) if broken else []
        if found:
            self._look_into(self.pipeline.ingest_events(found, now).changed_incidents, now)

    async def _ask_inventory(self, node: str) -> Sequence[fleet_model.Gpu]:
        plain = self.simulation.inventory(node)["gpus"]
        try:
            return [
                fleet_model.Gpu(gpu["uuid"], gpu["index"], fleet_model.normalise_pci(gpu["pci"]), gpu["model"])
                for gpu in plain
            ]
        except ValueError as error:
            raise CollectError(f"is not an inventory: {error}", where=node) from error
