"""Run the real pipeline over a simulated fleet, in simulated time, as fast as the machine allows.

`advance` simulates seconds: kernel records become events at once, each target is scraped at its offset in the scrape
interval, rules are evaluated at their intervals, and changed incidents are diagnosed and get a repair plan. Only the
connection to targets differs from a hub: `Simulation.page_at` replaces HTTP.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from watchkeeper.agent.kernel import gpu_addresses, kernel_follow
from watchkeeper.errors import CollectError
from watchkeeper.hub import pipeline
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident, Member, MemberKind
from watchkeeper.net import http
from watchkeeper.query import embedded, prometheus
from watchkeeper.readers import exposition
from watchkeeper.rules import evaluate, rulefile
from watchkeeper.scrape import discovery, fleet, schedule, scrape, status_series
from watchkeeper.sim.simulation import SimSettings, Simulation
from watchkeeper.store import durable
from watchkeeper.store.head import head
from watchkeeper.store.journal import journal

SHIPPED_RULES = Path(pipeline.__file__).parents[1] / "packs" / "rules"
# Targets need an address; this one is never connected to.
ADDRESS = "sim.invalid:80"
TICK_SECONDS = 15
# How long an event may take from the kernel log to an incident, and how many evaluations an alert may take after `for`.
EVENT_SECONDS = 2.0
ALERT_EVALUATIONS = 2


@dataclass(frozen=True, slots=True)
class FleetIntervals:
    """How often the fleet is scraped and the rules are evaluated, with a hub's defaults."""

    scrape_seconds: int = 15
    rule_seconds: int = 15
    retention_seconds: int = 2 * 3600


HUB_INTERVALS = FleetIntervals()


class SimulatedConnection:
    """Return a target's page in this process; a page that the simulation refuses is a failed scrape."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    async def send(self, request: http.HttpRequest) -> http.HttpResponse:
        return http.HttpResponse(200, {}, self._simulation.page_at(urlsplit(request.url).path))

    async def aclose(self) -> None:
        return None


class MonitoredFleet:
    """A simulated fleet with the pipeline that monitors it; `close` closes the journal."""

    def __init__(
        self,
        simulation: Simulation,
        folder: Path,
        *,
        intervals: FleetIntervals = HUB_INTERVALS,
        store: durable.SampleStore | None = None,
        connection: scrape.TargetConnection | None = None,
        remote: prometheus.PrometheusEngine | None = None,
        max_page_series: int = exposition.MAX_SERIES,
    ) -> None:
        """By default, samples stay in memory and pages come from the simulation."""
        # `store` or `remote` store and evaluate elsewhere; `connection` reads pages elsewhere.
        self.simulation = simulation
        self.intervals = intervals
        self.fleet = fleet.ScrapedInventory()
        self.journal = journal.Journal(folder / "journal.sqlite")
        self.rules = rulefile.load_rules([SHIPPED_RULES])
        # Not `or`: a store without series counts as false.
        sample_store = head.Head(retention_ms=intervals.retention_seconds * 1000) if store is None else store
        self.engine = embedded.EmbeddedEngine(sample_store) if remote is None else remote
        dependencies = pipeline.dry_run_dependencies(self.engine, self.fleet, journal=self.journal, rules=self.rules)
        self.pipeline = pipeline.Pipeline(dependencies, now=simulation.now)
        addresses = gpu_addresses.GpuAddresses(self._list_gpus)
        self._kernel = kernel_follow.KernelEvents(simulation.settings.cluster, addresses)
        self._last_record_seq = simulation.machines.kernel.last_seq
        self._workload_series = status_series.StatusSeries()
        self._max_page_series = max_page_series
        self._connection = connection or SimulatedConnection(simulation)
        self._target_loops: dict[str, tuple[int, scrape.TargetLoop]] = {}
        self._services: list[str] | None = None

    def close(self) -> None:
        self.journal.close()

    async def advance(self, seconds: int, *, with_rules: bool = True) -> None:
        for _ in range(seconds):
            self.simulation.advance(1)
            now = self.simulation.now
            await self._ingest_kernel_records(now)
            await self._scrape(self.simulation.second)
            if with_rules:
                self._run_rules(now)
            if self.simulation.second % TICK_SECONDS == 0:
                self._diagnose_open(self.pipeline.tick(now), now)
                broken_gpus = self.pipeline.incidents.broken_gpus()
                recoveries = self.pipeline.find_recoveries(broken_gpus, now) if broken_gpus else []
                if recoveries:
                    self._diagnose_open(self.pipeline.ingest_events(recoveries, now).changed_incidents, now)

    def incidents(self) -> list[Incident]:
        """All incidents since the start, including resolved ones."""
        return self.journal.incidents(open_only=False, limit=journal.MAX_ROWS)

    def allowed_seconds(self, member: Member) -> float:
        """The time limit for this signal: 2 s for an event, `for` and two evaluations for an alert."""
        if member.kind is MemberKind.EVENT:
            return EVENT_SECONDS
        for group in self.rules.groups:
            for rule in group.rules:
                state = self.pipeline.rule_state.get(evaluate.rule_key(group, rule))
                if state is not None and any(str(labels) == member.ref for labels in state.alerts):
                    hold = rule.hold_seconds if isinstance(rule, rulefile.AlertingRule) else 0.0
                    return hold + ALERT_EVALUATIONS * (group.interval_seconds or self.intervals.rule_seconds)
        return 0.0

    async def _discover(self, at_ms: int) -> None:
        """One loop for each target, with its offset in the scrape interval; services start and end."""
        services = [server.job.name for server in self.simulation.serving()]
        if services == self._services:
            return
        self._services = services
        document = json.dumps(self.simulation.service_discovery(ADDRESS)).encode()
        discovered = discovery.read_groups(document, "the simulated fleet")
        self.fleet.set_expected_nodes(discovered.nodes, at_ms)
        interval = self.intervals.scrape_seconds
        settings = scrape.ScrapeSettings(interval_seconds=interval, max_series=self._max_page_series)
        targets = {target.key: target for target in discovered.targets}
        for key in self._target_loops.keys() - targets:
            await self._target_loops.pop(key)[1].close(at_ms)
        for key in targets.keys() - self._target_loops:
            loop = scrape.TargetLoop(
                targets[key], settings, sink=self.engine.appender, inventory=self.fleet, connection=self._connection
            )
            self._target_loops[key] = schedule.offset_ms(key, interval * 1000) // 1000, loop

    async def _scrape(self, second: int) -> None:
        offset_seconds = second % self.intervals.scrape_seconds
        await self._discover(second * 1000)
        for offset, loop in list(self._target_loops.values()):
            if offset == offset_seconds:
                await loop.scrape(second * 1000)
        if offset_seconds == 0:
            # The series of nodes and GPU holders, as a hub appends them.
            at_ms = second * 1000
            sources = self.engine.instant(status_series.WORKLOAD_SOURCES, at_ms).frame.labels
            workload_samples = self._workload_series.samples(status_series.workload_series(sources), at_ms)
            samples = fleet.inventory_samples(self.fleet, at_ms) + workload_samples
            self.engine.appender.append(samples, group_key="status series")

    async def _ingest_kernel_records(self, now: datetime) -> None:
        records = self.simulation.kernel_records_since(self._last_record_seq)
        if not records:
            return
        self._last_record_seq = records[-1].seq
        fields = ((record.node, record.boot, record.record, record.at, record.seq) for record in records)
        events = [await self._kernel.build_event(kernel_follow.KernelRecord(*values)) for values in fields]
        batch = [event for event in events if event is not None]
        if batch:
            self._diagnose_open(self.pipeline.ingest_events(batch, now).changed_incidents, now)

    def _run_rules(self, now: datetime) -> None:
        """Evaluate the groups of this second; `rule_seconds` is the shortest interval of all groups."""
        second, min_interval = int(now.timestamp()), float(self.intervals.rule_seconds)
        intervals = ((group, max(min_interval, group.interval_seconds or 0.0)) for group in self.rules.groups)
        due = [group for group, interval in intervals if second % interval == 0]
        changed = [alert for group in due for alert in self.pipeline.evaluate(group, now)]
        if changed:
            self._diagnose_open(self.pipeline.ingest_alerts(changed, now), now)

    def _diagnose_open(self, changed: Sequence[Incident], now: datetime) -> None:
        for incident in {incident.id: incident for incident in changed if incident.is_open}.values():
            finding = self.pipeline.diagnose(incident, now)
            if finding is not None:
                self.pipeline.apply_finding(incident, finding, now)

    async def _list_gpus(self, node: str) -> Sequence[fleet_model.Gpu]:
        rows, normalise = self.simulation.inventory(node)["gpus"], fleet_model.normalise_pci
        try:
            return [fleet_model.Gpu(gpu["uuid"], gpu["index"], normalise(gpu["pci"]), gpu["model"]) for gpu in rows]
        except ValueError as error:
            raise CollectError(f"invalid inventory: {error}", where=node) from error


@contextmanager
def temporary_fleet(settings: SimSettings, intervals: FleetIntervals) -> Iterator[MonitoredFleet]:
    with (
        tempfile.TemporaryDirectory(prefix="watchkeeper-drill-") as folder,
        closing(MonitoredFleet(Simulation(settings), Path(folder), intervals=intervals)) as monitored,
    ):
        yield monitored
