"""The hub: the map of the fleet's side. It wires the stages, runs their loops, and owns the clock.

Read `Hub.run` for what happens all the time, and `pipeline.Pipeline` for what happens to an incident. Two paths
lead to one: pushed events at once (`take_events`), and rules over scraped samples. Every loop survives
its own failures: it says so in the log and in `watchkeeper_hub_loop_failures_total`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from watchkeeper import __version__
from watchkeeper.clusters import clusters
from watchkeeper.clusters.fabric import fabric_watch
from watchkeeper.config import settings as config
from watchkeeper.diagnose import lessons
from watchkeeper.errors import HubError, WatchkeeperError
from watchkeeper.hub import choices, diagnosis_queue, leadership, pipeline, repair_loop, rule_loops, upkeep
from watchkeeper.incidents import subject
from watchkeeper.kit import broadcast, clock, files, leaps, own_metrics, troubles
from watchkeeper.kit.logs import fields
from watchkeeper.model import actions, alerts, diagnosis, events, notices
from watchkeeper.model import fleet as fleet_model
from watchkeeper.model.incidents import Incident
from watchkeeper.model.labels import Labels
from watchkeeper.model.silences import Silence
from watchkeeper.net import http
from watchkeeper.notify import delivery, heartbeat, message, silencing
from watchkeeper.query import engine
from watchkeeper.remediate import evidence, node_checks, orders
from watchkeeper.remediate.drivers import kubernetes, together
from watchkeeper.rules import evaluate, reload, rulefile, slo
from watchkeeper.scrape import discovery, fleet, registered, scrape, seen_elsewhere, standing
from watchkeeper.store.journal import chain, journal, journal_readers

log = logging.getLogger(__name__)
T = TypeVar("T")

DISCOVER_SECONDS = 30.0
TICK_SECONDS = 1.0
# More would only wait for one another's cores; the rest of the questions queue up.
QUESTIONS_AT_ONCE = 4
RECOVERY_SECONDS = 15.0
# Pages show every open incident; a fleet with more has one fault, and it is not in this list.
MOST_INCIDENTS = 10_000
TRIM_SECONDS = 3600.0
# Where Prometheus reads the agents itself, their own series is there already.
HOLDER_EXPR = f'{standing.HOLDERS} unless on (UUID) {standing.WORKLOAD_INFO}{{instance!=""}}'


class Hub:
    """One fleet, watched. `open` claims the data directory, `run` watches until told to stop, `close` lets go.

    A hub can answer questions from `open_samples` on; all else needs `build`, and `open_stages` after both.
    """

    version = __version__

    def __init__(self, settings: config.Settings, *, time: clock.Clock, simulator_url: str | None = None) -> None:
        self.settings = settings
        self.clock = time
        self.simulator_url = simulator_url
        self.metrics = own_metrics.Registry()
        self.changes = broadcast.Broadcast()
        self.engine = choices.engine_of(settings)
        self._upkeep = upkeep.Upkeep(settings, self.engine, time=time, metrics=self.metrics)
        self._directory = files.DataDirectory(Path(settings.hub.data))
        # Incidents and the journal belong to one thread: no locks above it, and no fsync on the event loop.
        self._clerk = ThreadPoolExecutor(1, thread_name_prefix="clerk")
        # Questions of people wait for one another, never the log's fsync or a rule for them.
        self._askers = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="asker")
        self._readers = journal_readers.JournalReaders()
        self.read = self._readers.read
        self._unread_because: str | None = "the fleet has not been read yet"
        self._known_problems: list[str] = []
        self._dropped_targets: tuple[discovery.Dropped, ...] = ()
        self._at_work = 0
        self._is_built = False
        self._closing = contextlib.ExitStack()

    def build(self) -> None:
        """Make the stages as settings have them; an error of ours where those, or files they name, are wrong."""
        settings, time = self.settings, self.clock
        self.fleet = fleet.Fleet()
        self._registered = registered.Registered()
        self.clusters = clusters.of_settings(settings.fleet, time=time, metrics=self.metrics)
        self._rules = rule_loops.RuleLoops(settings, time=time, metrics=self.metrics)
        kept = Path(settings.hub.data) / "fabric.json"
        self.fabric = fabric_watch.FabricWatch(settings.fabric, settings.fleet.cluster, kept=kept)
        self.policy = repair_loop.policy_of(settings.remediate, gives_orders=together.gives_orders(settings))
        self.repairs = repair_loop.RepairLoop(settings.remediate, time=time, metrics=self.metrics)
        self._cluster_driver = choices.driver_of(
            settings, self.simulator_url, is_stopped=lambda: self.repairs.is_stopped
        )
        self.driver = together.with_nodes(self._cluster_driver, settings, lambda: self.orders, time=time)
        self.orders: orders.Outbox | None = None
        self.lead = leadership.Leadership(settings, metrics=self.metrics)
        self._standing = {name: standing.Standing() for name in ("workloads", "events", "own", "fabric")}
        self._event_counts = standing.EventCounts()
        self._troubles = troubles.Troubles()
        self._doubt = leaps.Doubt(TRIM_SECONDS)
        self._undiagnosed = diagnosis_queue.DiagnosisQueue(
            diagnosis_queue.Surroundings(
                lambda one: self.read(lambda: self.incident(one)),
                lambda: self._at_work > 0 or self.repairs.is_starting,
                self._diagnose,
                lambda incident, text: self.note(incident, journal.HUB, text),
            )
        )
        self._declare_metrics()
        self._is_built = True

    def _declare_metrics(self) -> None:
        gauge, counter = self.metrics.gauge, self.metrics.counter
        self._failures = counter("watchkeeper_hub_loop_failures_total", "Failures that a loop of the hub survived")
        self._events = counter("watchkeeper_hub_events_total", "New events taken, by kind")
        self._repeats = counter("watchkeeper_hub_repeated_events_total", "Pushed events that were known already")
        self._left_out = gauge("watchkeeper_hub_signals_left_out", "Signals that found no room in an incident")
        self._open_incidents = gauge("watchkeeper_hub_open_incidents", "Incidents that are not resolved, by severity")

    @property
    def is_ready(self) -> bool:
        return self.not_ready_because is None

    @property
    def not_ready_because(self) -> str | None:
        return self.lead.not_leading_because or self._unread_because

    @property
    def is_evaluating(self) -> bool:
        return self._is_built and self._rules.is_at_work

    def degraded(self) -> list[str]:
        """What does not work now, in sentences; nothing while all is well."""
        failing = [f"{each.what}: {each.problem}" for each in self._troubles.current(self.clock.now())]
        return [*failing, *self._known_problems, *self._upkeep.problems(), *filter(None, [self.silences_problem()])]

    def open(self) -> None:
        """Claim the data directory and restore what was so before; StartRefused or StoreError if that cannot be."""
        if not self._is_built:
            self.build()
        self.open_samples()
        self.open_stages()

    def open_samples(self) -> None:
        """Claim the data directory and read the samples in it."""
        self._directory.claim()
        self._closing.callback(self._directory.release)
        with self._letting_go():
            self._upkeep.open()
            self._closing.callback(self.engine.close)
            self._closing.callback(self._askers.shutdown, cancel_futures=True)

    def open_stages(self) -> None:
        """Go on where the journal ends."""
        self._closing.callback(self.lead.close)
        with self._letting_go():
            self._join_stages(self.lead.open())
            # Another lead brings another journal.
            self._closing.callback(lambda: self.journal.close())  # noqa: PLW0108
            self._closing.callback(self._clerk.shutdown)
            self._closing.callback(self._readers.close)
            self._closing.callback(self._rules.close)
            self._closing.callback(self.repairs.close)

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        """Whoever cannot be opened holds nothing."""
        try:
            yield
        except (OSError, WatchkeeperError):
            self.close()
            raise

    def _join_stages(self, kept: journal.Journal) -> None:
        """Build everything that remembers on a journal; it remembers what that has, and nothing else."""
        self.journal, now, earlier = kept, self.clock.now(), self.orders
        self.orders = orders.open_outbox(self.journal, self.settings.hub.order_key_file, now=now)
        if self.orders is not None and earlier is not None:
            self.orders.succeed(earlier)
        self.evidence = evidence.Sources(self.journal, self.engine, self.fleet, self.version)
        self._pipeline = pipeline.Pipeline(self._parts(), now=now)
        around = rule_loops.Surroundings(self._take_alerts, self._has_read_everything, self._survived)
        self._rules.join(self._pipeline, around, known=self.journal.alerts())
        self.repairs.join(self._repair_parts())
        self.desk = delivery.Desk(self.settings.notify, self._desk_surroundings(), now=now)

    def _parts(self) -> pipeline.Parts:
        return pipeline.Parts(
            engine=self.engine,
            fleet=self.fleet,
            journal=self.journal,
            rules=self._rules.rules,
            policy=self.policy,
            driver=self.driver,
            ladder=self.repairs.ladder,
            under_repair=self.repairs.acting_on,
            newest_ms=self._upkeep.newest_ms,
        )

    def _repair_parts(self) -> repair_loop.Parts:
        return repair_loop.Parts(
            self.journal,
            self.engine,
            self.lead.fenced(self.driver),
            self.policy,
            self.fleet,
            self.clusters,
            report=lambda event: self.take_events([event]),
            changed=lambda: self.changes.send("incidents"),
            survived=self._survived,
            validators=node_checks.node_validators(lambda: self.orders),
            bundles=Path(self.settings.hub.data) / "bundles",
            cluster=self.settings.fleet.cluster,
            connected=self._cluster_driver if isinstance(self._cluster_driver, kubernetes.Kubernetes) else None,
        )

    def _desk_surroundings(self) -> delivery.Surroundings:
        known = message.Known(self.diagnosis, self.plan, self.settings.notify.console_url)
        about = subject.Inventory(self._domains_of, self.clusters.team_of)
        return delivery.Surroundings(self.journal, about, known, self.metrics, self.fleet.place_name)

    def _domains_of(self, cluster: str, name: str) -> Mapping[str, str]:
        node = self.fleet.node(name, cluster)
        return {} if node is None else {**node.domains, **({"pool": node.pool} if node.pool else {})}

    def close(self) -> None:
        self._closing.close()

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the fleet until `stop` is set."""
        interval = self.settings.fleet.scrape_interval_seconds
        self._scraper = scrape.Scraper(
            self._scrape_settings(), time=self.clock, sink=self.engine.appender, known=self.fleet, metrics=self.metrics
        )
        existing = self.settings.fleet.prometheus_config
        self._discovery = discovery.Discovery(
            [*self.settings.fleet.sd_files, *self.settings.fleet.sd_urls],
            defaults=discovery.Defaults(cluster=self.settings.fleet.cluster),
            config=None if existing is None else Path(existing),
        )
        loops = [
            self._repeat("clusters", self.clusters.run, 0.0),
            self._repeat("discovery", self._discover, DISCOVER_SECONDS),
            self._repeat("standing series", self._append_standing, interval),
            *(self._repeat(loop.name, loop.body, loop.pause_seconds) for loop in self._upkeep.loops(self._troubles)),
        ]
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await self.lead.run(leadership.Stages(self._join_stages, self._leading_loops), stop)
        finally:
            if self.orders is not None:
                self.orders.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._scraper.close()

    def _leading_loops(self) -> list[Coroutine[Any, Any, None]]:
        """What one hub of several does: everything that writes into the journal or changes a machine."""
        return [
            self._repeat("incidents", self._tick, TICK_SECONDS),
            self._repeat("diagnosis", self._undiagnosed.work, 0.0),
            self._repeat("recovery", self._look_for_recovery, RECOVERY_SECONDS),
            self._repeat("trimming", self._trim, TRIM_SECONDS),
            self._repeat("heartbeat", self._beat, heartbeat.BEAT_SECONDS),
            self._repeat("fabric", self._look_at_fabric, self.settings.fabric.interval_seconds),
            *(
                self._repeat(loop.name, loop.body, loop.pause_seconds)
                for loop in [*self._rules.loops(), *self.repairs.loops()]
            ),
            *(self._repeat(name, body, 0.0) for name, body in self.desk.loops(self.clock, self._at_clerk)),
        ]

    async def _repeat(self, name: str, body: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        """Run a loop's body for ever; a failure is said, counted, and followed by a pause."""
        while True:
            try:
                await body()
            except Exception as error:  # Deliberately everything: one broken loop must not blind the others.
                self._survived(name, error)
                await self.clock.sleep(max(pause_seconds, TICK_SECONDS))
            else:
                self._troubles.over(name)
                await self.clock.sleep(pause_seconds)

    def _survived(self, name: str, error: Exception) -> None:
        self._failures.add(loop=name)
        self._troubles.note(name, str(error) or type(error).__name__, now=self.clock.now())
        known = isinstance(error, WatchkeeperError)
        log.error("A loop of the hub failed", extra=fields(loop=name, error=error), exc_info=None if known else error)

    # Collect

    async def _discover(self) -> None:
        listed = await self._discovery.refresh(self.clock.now())
        agents = self._registered.found(listed, now=self.clock.now())
        found = await self.clusters.found(listed, agents, leaves=self.fabric.leaf_of())
        problems = [*self._discovery.problems(), *self.clusters.problems()]
        for problem in problems:
            if problem not in self._known_problems:
                log.warning("A source of targets has a problem", extra=fields(problem=problem))
        self._known_problems, self._dropped_targets = problems, found.dropped
        self.fleet.expect(found.nodes, clock.to_ms(self.clock.now()))
        await self._scraper.watch(found.targets if self._keeps_samples() and self.settings.fleet.scrape else ())
        self._unread_because = None
        if not self.settings.fleet.scrape:
            seen = await self.ask(seen_elsewhere.EXPR, at_ms := clock.to_ms(self.clock.now()))
            seen_elsewhere.learn(self.fleet, seen.frame.labels, self.settings.fleet.cluster, at_ms=at_ms)

    async def _look_at_fabric(self) -> None:
        if self.settings.fabric.is_watched and (changed := await self.fabric.refresh(self.clock.now())):
            await self.take_events(changed)

    def register_node(self, told: fleet_model.NodeRegistration, peer: str) -> None:
        """Take a node's word for what it has; `peer` is the address it came from. CollectError if it cannot be."""
        self._registered.take(told, peer, now=self.clock.now())
        for gpu in told.gpus:
            if gpu.index is not None:
                self.fleet.hear_of_gpu(gpu.uuid, str(gpu.index))

    def _keeps_samples(self) -> bool:
        """Each hub reads the fleet into a store of its own; into a server's only the leader writes."""
        return self.lead.is_leading or self._upkeep.is_ours

    async def _append_standing(self) -> None:
        """Nodes, holders of GPUs, event counts and our own metrics, as series that rules and pages can join with."""
        if not self._keeps_samples():
            return
        at_ms = clock.to_ms(self.clock.now())
        with contextlib.suppress(WatchkeeperError):  # Who holds a GPU is known without a journal, and others say so.
            for severity, count in (await self._at_clerk(self.journal.count_open)).items():
                self._open_incidents.set(count, severity=severity)
        self._left_out.set(self._pipeline.incidents.left_out)
        held = standing.workload_series((await self.ask(HOLDER_EXPR, at_ms)).frame.labels)
        answers = {expr: (await self.ask(expr, at_ms)).frame.labels for expr in self.clusters.questions()}
        # A large cluster has 40,000 series, which take a second when they are first made.
        of_clusters = await asyncio.to_thread(self.clusters.samples, answers, at_ms)
        found = fleet.inventory_samples(self.fleet, at_ms) + of_clusters
        series: Mapping[str, Callable[[], Mapping[Labels, float]]] = {
            "workloads": lambda: self.clusters.workload_series(self.fleet, held, at_ms=at_ms),
            "events": lambda: self._event_counts.series,
            "fabric": lambda: self.fabric.series(at_ms),
            "own": lambda: standing.own_series(self.metrics, job="watchkeeper", instance="hub"),
        }
        for name, make in series.items():
            # Whoever asks meanwhile waits for one of them, not for all.
            await asyncio.sleep(0)
            found += self._standing[name].samples(make(), at_ms)
        # A remote engine writes over the network.
        await asyncio.to_thread(lambda: self.engine.appender.append(found, together="standing series"))

    def _scrape_settings(self) -> scrape.ScrapeSettings:
        return scrape.ScrapeSettings(
            interval_seconds=self.settings.fleet.scrape_interval_seconds,
            timeout_seconds=self.settings.fleet.scrape_timeout_seconds,
        )

    # Rules

    def _has_read_everything(self) -> bool:
        """False until each target was read or missed once: a rule asked earlier would take unread for healthy."""
        return self.is_ready and all(state.last_scrape_ms is not None for state in self._scraper.states())

    async def _take_alerts(self, changed: Sequence[alerts.Alert], now: datetime) -> None:
        await self._change(lambda: self._pipeline.take_some_alerts(now, changed))
        # A part at a time: events of a storm come in between.
        while self._pipeline.has_unheard:
            await self._change(lambda: self._pipeline.take_some_alerts(now))

    async def reload_rules(self) -> reload.Reload:
        return await self._rules.reload()

    def reload_rules_soon(self) -> None:
        self._rules.reload_soon()

    def last_reload(self) -> reload.Reload:
        return self._rules.last_reload

    def slos(self) -> Sequence[slo.Slo]:
        return self._rules.slos

    # Incidents

    async def take_events(self, batch: Sequence[events.Event]) -> int:
        """Keep a push of events, and open what they mean; returns how many were new. Answered after commit."""
        now = self.clock.now()
        for event in batch:
            if event.place.gpu is not None and "gpu" in event.fields:
                self.fleet.hear_of_gpu(event.place.gpu, event.fields["gpu"])
        taken = await self._at_clerk(lambda: self._pipeline.take_events(batch, now))
        self.repairs.urgent(taken.changed)
        self._event_counts.count(taken.events)
        for event in taken.events:
            self._events.add(kind=event.kind)
        self._repeats.add(len(batch) - len(taken.events))
        self._announce(taken.changed)
        return len(taken.events)

    async def acknowledge(self, id: str, actor: str) -> Incident:
        return await self._change_one(lambda: self._pipeline.incidents.acknowledge(id, actor, self.clock.now()))

    async def resolve(self, id: str, actor: str, why: str) -> Incident:
        return await self._change_one(
            lambda: self._pipeline.incidents.resolve(id, actor, why=why, now=self.clock.now())
        )

    async def correct(self, id: str, actor: str, cause: str, why: str) -> lessons.Correction:
        now = self.clock.now()
        said = await self._at_clerk(lambda: self._pipeline.correct(id, actor, cause=cause, why=why, now=now))
        self._announce(filter(None, [await self.read(lambda: self.incident(id))]))
        return said

    def corrections(self) -> list[lessons.Correction]:
        return self._pipeline.lessons.all()

    async def note(self, id: str, actor: str, text: str) -> None:
        await self._at_clerk(lambda: self._pipeline.incidents.note(id, actor, text=text, now=self.clock.now()))
        self.changes.send("incidents")

    async def assign(self, id: str, actor: str, to: str) -> Incident:
        return await self._change_one(lambda: self._pipeline.incidents.assign(id, actor, to=to, now=self.clock.now()))

    async def silence(self, wish: silencing.Wish) -> Silence:
        made = await self.desk.silence(wish, self.clock, self._at_clerk)
        self.changes.send("incidents")
        return made

    async def unsilence(self, id: str, actor: str) -> Silence:
        ended = await self.desk.unsilence(id, actor, time=self.clock, clerk=self._at_clerk)
        self.changes.send("incidents")
        return ended

    async def take_foreign_alerts(self, found: Sequence[alerts.Alert]) -> None:
        """Alerts of rules that are not ours, from Alertmanager's webhook; returns after they are kept."""
        await self._take_alerts(found, self.clock.now())

    async def _tick(self) -> None:
        def work() -> list[Incident]:
            now = self.clock.now()
            changed = self._pipeline.tick(now, self._rules.server_alerts.values())
            self.desk.look(self._pipeline.incidents.recent(), now)
            return changed

        await self._change(work)

    async def _look_for_recovery(self) -> None:
        """A GPU that was repaired says so in its samples at most; make an event of it."""
        broken = await self._at_clerk(self._pipeline.incidents.broken_gpus)
        now = self.clock.now()
        found = await asyncio.to_thread(self._pipeline.recoveries, broken, now) if broken else []
        if found:
            await self.take_events(found)

    async def _beat(self) -> None:
        """Say outside that the hub works, once its clerk has shown it; silence is the alarm."""
        await self._at_clerk(self.journal.count_open)
        if not self._troubles.has_any(heartbeat.VITAL, now=self.clock.now()):
            await asyncio.to_thread(heartbeat.beat, self.settings, self.clock.now())

    async def _trim(self) -> None:
        """Drop what the journal need no longer keep; the chain stays verifiable."""
        now = self.clock.now()
        before = now - timedelta(seconds=self.settings.journal.retention_seconds)
        if self._doubt.may_remove(now.timestamp()):
            await self._at_clerk(lambda: self.journal.trim(before, now=now))

    async def _at_clerk(self, work: Callable[[], T]) -> T:
        self._at_work += 1
        try:
            return await self._at(self._clerk, work)
        finally:
            self._at_work -= 1

    async def _at(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(thread, work)

    async def _change(self, work: Callable[[], Iterable[Incident]]) -> None:
        self._announce(await self._at_clerk(work))

    async def _change_one(self, work: Callable[[], Incident]) -> Incident:
        changed = await self._at_clerk(work)
        self._announce([changed])
        return changed

    def _announce(self, changed: Iterable[Incident]) -> None:
        """Tell everyone who looks, and ask for a diagnosis of what is open."""
        if found := list(changed):
            self._undiagnosed.add(found)
            self.changes.send("incidents")

    # Diagnose and plan

    async def _diagnose(self, incident: Incident) -> None:
        now = self.clock.now()
        if await asyncio.to_thread(self.repairs.keeps_cause, incident):
            return
        finding = await asyncio.to_thread(self._pipeline.diagnose, incident, now)
        await asyncio.to_thread(self.repairs.take_plan, incident.id)
        self.changes.send("incidents")
        if finding is not None:
            await self._change(lambda: self._pipeline.explain(incident, finding, now))

    # What the pages ask for

    async def ask(self, expr: str, at_ms: int) -> engine.Answer:
        return await self._at(self._askers, lambda: self.engine.instant(expr, at_ms))

    async def ask_range(self, expr: str, span: engine.Span) -> engine.Answer:
        local = self.engine.local
        found = None if local is None else local.range_at_hand(expr, span)
        if found is not None:
            return found
        return await self._at(self._askers, lambda: self.engine.range(expr, span))

    def targets(self) -> list[scrape.TargetState]:
        return self._scraper.states()

    def dropped_targets(self) -> Sequence[discovery.Dropped]:
        return self._dropped_targets

    def rule_groups(self) -> list[tuple[rulefile.Group, evaluate.State]]:
        return self._rules.groups()

    def alerts(self) -> list[alerts.Alert]:
        return [*self._pipeline.active_alerts(), *self._rules.server_alerts.values()]

    def events_between(self, since: datetime, until: datetime) -> list[events.Event]:
        """Events of all clusters of this hub, oldest first."""
        clusters = sorted({self.settings.fleet.cluster, *(node.cluster for node in self.fleet.nodes())})
        found = [self.journal.events_at(fleet_model.Place(one), since=since, until=until) for one in clusters]
        return sorted((event for events_there in found for event in events_there), key=lambda event: event.at)

    def events_at(self, place: fleet_model.Place, since: datetime, until: datetime) -> list[events.Event]:
        return self.journal.events_at(place, since=since, until=until)

    def incidents(
        self, *, open_only: bool = True, limit: int = MOST_INCIDENTS, opened_since: datetime | None = None
    ) -> list[Incident]:
        return self.journal.incidents(open_only=open_only, limit=limit, opened_since=opened_since)

    def first_opened_at(self) -> datetime | None:
        return self.journal.first_opened_at()

    def incident(self, id: str) -> Incident | None:
        return self.journal.incident(id)

    def diagnosis(self, id: str) -> diagnosis.Diagnosis | None:
        return self.journal.diagnosis(id)

    def plan(self, id: str) -> actions.Plan | None:
        return self.journal.plan(id)

    def timeline(self, id: str) -> list[chain.Entry]:
        return self.journal.timeline(id)

    def notices(self, id: str) -> list[notices.Notice]:
        return self.journal.notices_of(id)

    def silences(self) -> list[Silence]:
        return self.desk.all_silences(self.clock.now())

    def silences_problem(self) -> str:
        return self.desk.silences_problem(self.clock.now())

    def silenced_by(self, incident: Incident) -> Silence | None:
        return self.desk.silenced_by(incident, self.clock.now())

    def alert_causes(self) -> Mapping[str, str]:
        """The cause that each of our alert rules names, by the alert's name."""
        rules = (rule for group in self._rules.rules.groups for rule in group.rules)
        own = (rule for rule in rules if isinstance(rule, rulefile.AlertingRule) and "cause" in rule.labels)
        return {rule.name: rule.labels["cause"].text for rule in own}

    async def simulator_request(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Pass a request on to the simulated fleet; HubError where the fleet is real."""
        if self.simulator_url is None:
            raise HubError("this fleet is real: there is no simulator behind this hub", status=404)
        connection = http.Connection()
        try:
            headers = {"Content-Type": "application/json"}
            request = http.Request(self.simulator_url + path, method=method, headers=headers, body=body or b"")
            response = await connection.send(request)
            return response.status, response.body
        finally:
            await connection.aclose()
