"""Create the services of the hub, connect them, and run their loops.

`Hub.run` starts the loops, and `pipeline.Pipeline` creates incidents: from pushed events, and from rules over scraped
samples. Every loop survives its own failures (`runtime`). `web` and `cli` use `Hub.services`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import (
    backends,
    fleet_gpus,
    fleet_prices,
    fleet_state,
    incident_service,
    journal_reader,
    leadership,
    own_series,
    pipeline,
    repair_loop,
    rule_loops,
    services,
    stages,
)
from watchkeeper.hub.runtime import LoopRunner
from watchkeeper.hub.samples import Samples
from watchkeeper.incidents import incident_labels
from watchkeeper.kit import files
from watchkeeper.notify import delivery, message
from watchkeeper.remediate import evidence, orders, validation
from watchkeeper.remediate.driver import Driver
from watchkeeper.remediate.drivers import kubernetes, node
from watchkeeper.store.journal import journal as journals


class Hub:
    """The hub of a fleet: `open` restores the state from the journal, `run` monitors, `close` releases everything.

    The constructor raises a WatchkeeperError if settings, or files that they name, are invalid.
    """

    def __init__(self, samples: Samples, *, simulator_url: str | None = None, driver: Driver | None = None) -> None:
        """`driver` overrides the driver of the settings."""
        self.runtime = runtime = samples.runtime
        self.samples, settings, time, metrics = samples, runtime.settings, runtime.clock, runtime.metrics
        self.current = stages.CurrentStages()
        self.loops = LoopRunner(runtime)
        self.leadership = leadership.Leadership(settings, metrics=metrics)
        self.fleet = fleet_state.FleetState(runtime, samples, simulator_url=simulator_url)
        self._reader = journal_reader.JournalReader(self.current, self.fleet.fleet, cluster=settings.fleet.cluster)
        self.rules = rule_loops.RuleLoops(settings, self._rule_dependencies(), time=time, metrics=metrics)
        cluster = settings.fleet.cluster
        self.repairs = repair_loop.RepairLoop(settings.remediate, cluster=cluster, time=time, metrics=metrics)
        self._policy = repair_loop.load_policy(settings.remediate, gives_orders=node.uses_node_agents(settings))
        if driver is None:
            driver = backends.build_driver(settings, simulator_url, is_stopped=lambda: self.repairs.is_stopped)
        self._cluster_driver = driver
        self._driver = node.add_node_agents(driver, settings, self._orders, time=time)
        self.incidents = incident_service.IncidentService(
            runtime,
            self.current,
            reader=self._reader,
            fleet=self.fleet,
            rules=self.rules,
            repairs=self.repairs,
            loops=self.loops,
        )
        silences = incident_service.SilenceService(runtime, self.current)
        self._health = services.HubHealth(
            [
                lambda: self.leadership.not_leading_reason,
                lambda: self.current.stages.journal.fenced_reason,
                lambda: self.fleet.not_ready_reason,
            ],
            [
                self.loops.problems,
                self.fleet.problems,
                self.samples.problems,
                lambda: self.current.stages.journal.problems,
                lambda: filter(None, [silences.silences_problem()]),
            ],
        )
        self.services = self._build_services(silences, simulator_url)
        self.own_series = own_series.OwnSeries(
            runtime,
            samples,
            fleet=self.fleet,
            incidents=self.incidents,
            current=self.current,
            gpus=fleet_gpus.FleetGpus(self.services),
            prices=fleet_prices.FleetPrices(self.services),
        )

    def open(self) -> None:
        """Restore the state from the journal; the samples must be open. A failure releases everything."""
        closing = self.samples.closing
        closing.callback(self.leadership.close)
        try:
            self._build_stages(self.leadership.open())
        except (OSError, WatchkeeperError):
            self.close()
            raise
        # The journal changes with each new lease.
        closing.callback(lambda: self.current.stages.journal.close())  # noqa: PLW0108
        for service in (self.current, self._reader, self.rules, self.repairs):
            closing.callback(service.close)

    def close(self) -> None:
        self.samples.close()

    def _build_stages(self, journal: journals.Journal) -> None:
        """Build all stages on a journal; their state comes only from this journal."""
        settings, now = self.runtime.settings, self.runtime.clock.now()
        order_queue, previous_orders = None, self._orders()
        # Without a key the hub issues no orders.
        if settings.hub.order_key_file is not None:
            key = files.read_key_file(Path(settings.hub.order_key_file))
            order_queue = orders.OrderQueue(journal, key, now=now)
            if previous_orders is not None:
                order_queue.take_listeners(previous_orders)
        new_pipeline = pipeline.Pipeline(
            pipeline.PipelineDependencies(
                engine=self.samples.engine,
                fleet=self.fleet.fleet,
                journal=journal,
                rules=self.rules.rules,
                policy=self._policy,
                driver=self._driver,
                trust_rules=self.repairs.trust_rules,
                # The repairs change with the journal.
                under_repair=lambda place: self.repairs.repairs.incidents_under_repair(place),  # noqa: PLW0108
                active_repair=lambda incident: self.repairs.repairs.active_repair(incident),  # noqa: PLW0108
                newest_ms=self.samples.newest_ms,
            ),
            now=now,
        )
        self.rules.restore_server_alerts(journal.alerts())
        self.repairs.bind_journal(self._repair_dependencies(journal))
        context = message.MessageContext(journal.diagnosis, journal.plan, settings.notify.console_url)
        lookup = incident_labels.InventoryLookup(self.fleet.failure_domains, self.fleet.clusters.team_of)
        names, metrics = self.fleet.fleet.place_name, self.runtime.metrics
        notifier_dependencies = delivery.NotifierDependencies(journal, lookup, context, metrics, names)
        notifier = delivery.Notifier(settings.notify, notifier_dependencies, now=now)
        sources = evidence.EvidenceSources(journal, self.samples.engine, self.fleet.fleet, self.runtime.version)
        self.current.replace(stages.Stages(journal, new_pipeline, notifier, sources, order_queue))

    def _build_services(
        self, silences: incident_service.SilenceService, simulator_url: str | None
    ) -> services.Services:
        return services.Services(
            self.runtime,
            self._health,
            self.samples.queries,
            self._reader,
            self.incidents,
            silences,
            self.rules,
            self.fleet.fleet,
            self.fleet,
            self.fleet.clusters,
            self.fleet.fabric,
            None if simulator_url is None else services.SimulatorProxy(simulator_url),
            self.repairs,
            self._orders,
            lambda: self.current.stages.evidence,
        )

    def _orders(self) -> orders.OrderQueue | None:
        return self.current.stages.orders if self.current.has_stages else None

    def _rule_dependencies(self) -> rule_loops.RuleLoopDependencies:
        return rule_loops.RuleLoopDependencies(
            lambda: self.current.stages.pipeline,
            lambda changed, now: self.incidents.ingest_alerts(changed, now),  # noqa: PLW0108 (created later)
            # A rule that runs before every target was scraped would treat missing samples as healthy.
            lambda: self._health.is_ready and self.fleet.has_scraped_every_target(),
            self.loops.report_failure,
        )

    def _repair_dependencies(self, journal: journals.Journal) -> repair_loop.RepairLoopDependencies:
        settings = self.runtime.settings
        return repair_loop.RepairLoopDependencies(
            journal,
            self.samples.engine,
            self.leadership.fence_driver(self._driver),
            self._policy,
            self.fleet.fleet,
            self.fleet.clusters,
            report=lambda event: self.incidents.ingest_events([event]),
            changed=lambda: self.runtime.changes.send("incidents"),
            report_failure=self.loops.report_failure,
            validators=validation.node_validators(self._orders),
            bundles=Path(settings.hub.data) / "bundles",
            connected=self._cluster_driver if isinstance(self._cluster_driver, kubernetes.KubernetesDriver) else None,
        )

    async def run(self, stop: asyncio.Event) -> None:
        permanent_loops = [
            *self.fleet.loops(is_leading=lambda: self.leadership.is_leading),
            self.own_series.loop(may_write=lambda: self.leadership.is_leading or self.samples.are_stored_here),
            *self.samples.loops(self.loops.failures),
        ]
        tasks = [asyncio.create_task(self.loops.repeat(loop)) for loop in permanent_loops]
        try:
            await self.leadership.run(self._build_stages, self._leading_loops, stop)
        finally:
            if (order_queue := self._orders()) is not None:
                order_queue.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.fleet.close()

    def _leading_loops(self) -> list[Coroutine[Any, Any, None]]:
        """The loops of the leader: those that write to the journal or change a node."""
        loops = (*self.incidents.loops(), *self.rules.loops(), *self.repairs.loops())
        return [self.loops.repeat(loop) for loop in loops]
