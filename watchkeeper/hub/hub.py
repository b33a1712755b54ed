"""The hub: its services, how they are connected, and the loops that run all the time.

Read `Hub.run` for what happens all the time, and `pipeline.Pipeline` for what happens to an incident. Two paths lead to
one: pushed events at once, and rules over scraped samples. Every loop survives its own failures (`loops`). Whoever asks
or changes something does so through `Hub.services`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import (
    backends,
    fleet_state,
    health,
    incident_service,
    journal_reader,
    journal_thread,
    leadership,
    own_series,
    pipeline,
    repair_loop,
    rule_loops,
    services,
    silence_service,
    simulator,
    stages,
)
from watchkeeper.hub.loops import LoopRunner
from watchkeeper.hub.samples import Samples
from watchkeeper.incidents import incident_labels
from watchkeeper.notify import delivery, message
from watchkeeper.remediate import driver as drivers
from watchkeeper.remediate import evidence, node_checks, orders
from watchkeeper.remediate.drivers import composite_driver, kubernetes
from watchkeeper.store.journal import journal as journals


class Hub:
    """One fleet, watched. `open` goes on where the journal ends, `run` watches until told to stop, `close` lets go.

    Its constructor fails with an error of ours where settings, or files that they name, are wrong.
    """

    def __init__(
        self, samples: Samples, *, simulator_url: str | None = None, driver: drivers.Driver | None = None
    ) -> None:
        """`driver` takes the place of the cluster that settings choose."""
        self.runtime = runtime = samples.runtime
        self.samples, settings, time, metrics = samples, runtime.settings, runtime.clock, runtime.metrics
        self.current = stages.CurrentStages()
        self.loops = LoopRunner(runtime)
        self.lead = leadership.Leadership(settings, metrics=metrics)
        self.fleet = fleet_state.FleetState(runtime, samples)
        self._thread = journal_thread.JournalThread()
        self._reader = journal_reader.JournalReader(self.current, self.fleet.fleet, cluster=settings.fleet.cluster)
        self.rules = rule_loops.RuleLoops(settings, self._around_rules(), time=time, metrics=metrics)
        self.repairs = repair_loop.RepairLoop(
            settings.remediate, cluster=settings.fleet.cluster, time=time, metrics=metrics
        )
        self._policy = repair_loop.load_policy(
            settings.remediate, gives_orders=composite_driver.uses_node_agents(settings)
        )
        self._cluster_driver = driver or backends.build_driver(
            settings, simulator_url, is_stopped=lambda: self.repairs.is_stopped
        )
        self._driver = composite_driver.with_node_agents(self._cluster_driver, settings, self._orders, time=time)
        self.incidents = incident_service.IncidentService(
            runtime,
            self.current,
            journal_thread=self._thread,
            reader=self._reader,
            fleet=self.fleet,
            rules=self.rules,
            repairs=self.repairs,
            loops=self.loops,
        )
        silences = silence_service.SilenceService(runtime, self.current, self._thread)
        self.own_series = own_series.OwnSeries(
            runtime,
            samples,
            fleet=self.fleet,
            incidents=self.incidents,
            current=self.current,
            journal_thread=self._thread,
        )
        self._health = self._health_of(silences)
        self.services = self._services(silences, simulator_url)

    def open(self) -> None:
        """Go on where the journal ends, over samples that are open; whoever cannot be opened holds nothing."""
        closing = self.samples.closing
        closing.callback(self.lead.close)
        try:
            self._join(self.lead.open())
        except (OSError, WatchkeeperError):
            self.close()
            raise
        # Another lead brings another journal.
        closing.callback(lambda: self.current.stages.journal.close())  # noqa: PLW0108
        for service in (self._thread, self._reader, self.rules, self.repairs):
            closing.callback(service.close)

    def close(self) -> None:
        """Let go of everything, and of the samples last."""
        self.samples.close()

    def _join(self, kept: journals.Journal) -> None:
        """Build everything that remembers on a journal; it remembers what that has, and nothing else."""
        settings, now = self.runtime.settings, self.runtime.clock.now()
        outbox, earlier = orders.open_order_queue(kept, settings.hub.order_key_file, now=now), self._orders()
        if outbox is not None and earlier is not None:
            outbox.take_listeners(earlier)
        line = pipeline.Pipeline(
            pipeline.PipelineDependencies(
                engine=self.samples.engine,
                fleet=self.fleet.fleet,
                journal=kept,
                rules=self.rules.rules,
                policy=self._policy,
                driver=self._driver,
                ladder=self.repairs.ladder,
                under_repair=self.repairs.acting_on,
                newest_ms=self.samples.newest_ms,
            ),
            now=now,
        )
        self.rules.restore_server_alerts(kept.alerts())
        self.repairs.join(self._repair_parts(kept))
        told = delivery.Notifier(settings.notify, self._around_delivery(kept), now=now)
        sources = evidence.EvidenceSources(kept, self.samples.engine, self.fleet.fleet, self.runtime.version)
        self.current.replace(stages.Stages(kept, line, told, sources, outbox))

    def _health_of(self, silences: silence_service.SilenceService) -> health.HubHealth:
        return health.HubHealth(
            [lambda: self.lead.not_leading_reason, lambda: self.fleet.not_ready_reason],
            [
                self.loops.problems,
                self.fleet.problems,
                self.samples.problems,
                lambda: filter(None, [silences.silences_problem()]),
            ],
        )

    def _services(self, silences: silence_service.SilenceService, simulator_url: str | None) -> services.Services:
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
            None if simulator_url is None else simulator.SimulatorProxy(simulator_url),
            self.repairs,
            self._orders,
            lambda: self.current.stages.evidence,
        )

    def _orders(self) -> orders.OrderQueue | None:
        return self.current.stages.orders if self.current.has_stages else None

    def _around_rules(self) -> rule_loops.RuleLoopDependencies:
        return rule_loops.RuleLoopDependencies(
            lambda: self.current.stages.pipeline,
            lambda changed, now: self.incidents.ingest_alerts(changed, now),  # noqa: PLW0108 (it is made later)
            # A rule that is asked before each target was read would take unread for healthy.
            lambda: self._health.is_ready and self.fleet.has_scraped_every_target(),
            self.loops.report_failure,
        )

    def _around_delivery(self, kept: journals.Journal) -> delivery.NotifierDependencies:
        known = message.MessageContext(kept.diagnosis, kept.plan, self.runtime.settings.notify.console_url)
        about = incident_labels.InventoryLookup(self.fleet.domains_of, self.fleet.clusters.team_of)
        return delivery.NotifierDependencies(kept, about, known, self.runtime.metrics, self.fleet.fleet.place_name)

    def _repair_parts(self, kept: journals.Journal) -> repair_loop.RepairLoopDependencies:
        settings = self.runtime.settings
        return repair_loop.RepairLoopDependencies(
            kept,
            self.samples.engine,
            self.lead.fence_driver(self._driver),
            self._policy,
            self.fleet.fleet,
            self.fleet.clusters,
            report=lambda event: self.incidents.ingest_events([event]),
            changed=lambda: self.runtime.changes.send("incidents"),
            report_failure=self.loops.report_failure,
            validators=node_checks.node_validators(self._orders),
            bundles=Path(settings.hub.data) / "bundles",
            connected=self._cluster_driver if isinstance(self._cluster_driver, kubernetes.KubernetesDriver) else None,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Watch the fleet until `stop` is set."""
        everywhere = [
            *self.fleet.loops(is_leading=lambda: self.lead.is_leading),
            self.own_series.loop(may_write=lambda: self.lead.is_leading or self.samples.are_stored_here),
            *self.samples.loops(self.loops.failures),
        ]
        tasks = [asyncio.create_task(self.loops.repeat(loop)) for loop in everywhere]
        try:
            await self.lead.run(leadership.LeadershipCallbacks(self._join, self._leading_loops), stop)
        finally:
            if (outbox := self._orders()) is not None:
                outbox.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.fleet.close()

    def _leading_loops(self) -> list[Coroutine[Any, Any, None]]:
        """What one hub of several does: everything that writes into the journal or changes a machine."""
        each = [*self.incidents.loops(), *self.rules.loops(), *self.repairs.loops()]
        return [self.loops.repeat(loop) for loop in each]
