"""The state of the fleet: which nodes and GPUs exist, who holds them, and which targets are scraped.

Sources are discovery, schedulers, agents and the switch fabric; each hub collects its own state, leader or not. The hub
runs `loops`; rules and pages read `fleet`, `clusters` and `fabric`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from watchkeeper.clusters import clusters
from watchkeeper.clusters.fabric import fabric_watch
from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.runtime import Loop, Runtime
from watchkeeper.hub.samples import Samples
from watchkeeper.kit import clock
from watchkeeper.kit.logs import fields
from watchkeeper.model import events
from watchkeeper.model import fleet as fleet_model
from watchkeeper.scrape import discovery, fleet, jobs, registrations, scrape

log = logging.getLogger(__name__)

DISCOVER_SECONDS = 30.0


class FleetState:
    def __init__(self, runtime: Runtime, samples: Samples, *, simulator_url: str | None = None) -> None:
        settings = runtime.settings
        self._settings, self._clock, self._samples = settings.fleet, runtime.clock, samples
        self.fleet = fleet.ScrapedInventory()
        self._registered = registrations.NodeRegistrations()
        self.clusters = clusters.from_settings(
            settings.fleet, time=runtime.clock, metrics=runtime.metrics, simulator_url=simulator_url
        )
        fabric_file = Path(settings.hub.data) / "fabric.json"
        self.fabric = fabric_watch.FabricWatch(settings.fabric, settings.fleet.cluster, state_path=fabric_file)
        self._scraper = scrape.Scraper(
            scrape.ScrapeSettings(
                interval_seconds=settings.fleet.scrape_interval_seconds,
                timeout_seconds=settings.fleet.scrape_timeout_seconds,
            ),
            time=runtime.clock,
            sink=lambda: samples.engine.appender,
            inventory=self.fleet,
            metrics=runtime.metrics,
        )
        prometheus_config = settings.fleet.prometheus_config
        self._discovery = discovery.Discovery(
            [*settings.fleet.sd_files, *settings.fleet.sd_urls],
            cluster=settings.fleet.cluster,
            config=None if prometheus_config is None else Path(prometheus_config),
        )
        self._problems: list[str] = []
        self._dropped: tuple[jobs.DroppedTarget, ...] = ()
        self.not_ready_reason: str | None = "discovery has not finished yet"

    def loops(self, *, is_leading: Callable[[], bool]) -> list[Loop]:
        return [
            Loop("clusters", self.clusters.run, 0.0),
            Loop("discovery", partial(self._discover, is_leading), DISCOVER_SECONDS),
        ]

    async def close(self) -> None:
        await self._scraper.close()

    async def _discover(self, is_leading: Callable[[], bool]) -> None:
        discovered = await self._discovery.refresh(self._clock.now())
        agents = self._registered.discovered_nodes(discovered, now=self._clock.now())
        scan = await self.clusters.discover(discovered, agents, leaves=self.fabric.leaf_by_node())
        problems = [*self._discovery.problems(), *self.clusters.problems()]
        for problem in problems:
            if problem not in self._problems:
                log.warning("discovery failed", extra=fields(problem=problem))
        self._problems, self._dropped = problems, scan.dropped
        self.fleet.set_expected_nodes(scan.nodes, clock.to_ms(self._clock.now()))
        if self.not_ready_reason is not None and self._settings.scrape:
            await self._restore_gpus()
        # Every hub scrapes into its own store; only the leader writes to a server.
        may_write = self._samples.are_stored_here or is_leading()
        await self._scraper.set_targets(scan.targets if may_write and self._settings.scrape else ())
        self.not_ready_reason = None
        if not self._settings.scrape:
            at_ms = clock.to_ms(self._clock.now())
            answer = await self._samples.queries.instant(fleet.GPU_QUERY, at_ms)
            fleet.record_queried_gpus(self.fleet, answer.frame.labels, self._settings.cluster, at_ms=at_ms)

    async def _restore_gpus(self) -> None:
        """Before the first scrape: the GPUs that reported before a restart of the hub."""
        at_ms = clock.to_ms(self._clock.now())
        try:
            answer = await self._samples.queries.instant(fleet.RECENT_GPU_QUERY, at_ms)
        except WatchkeeperError as error:
            log.warning("GPUs before the restart are unknown", extra=fields(error=error))
        else:
            fleet.restore_gpus(self.fleet, answer.frame.labels, self._settings.cluster, at_ms=at_ms)

    def register_node(self, registration: fleet_model.NodeRegistration, peer: str) -> None:
        """Register a node and its GPUs; `peer` is the address of the request. CollectError if it is refused."""
        self._registered.register(registration, peer, now=self._clock.now())
        for gpu in registration.gpus:
            if gpu.index is not None:
                self.fleet.record_gpu_index(gpu.uuid, str(gpu.index))

    def record_gpu_indices(self, batch: Iterable[events.Event]) -> None:
        """Record GPU indices from events, which can arrive before the first scrape."""
        for event in batch:
            if event.place.gpu is not None and "gpu" in event.fields:
                self.fleet.record_gpu_index(event.place.gpu, event.fields["gpu"])

    def targets(self) -> list[scrape.TargetState]:
        return self._scraper.states()

    def dropped_targets(self) -> Sequence[jobs.DroppedTarget]:
        return self._dropped

    def problems(self) -> Sequence[str]:
        return self._problems

    def has_scraped_every_target(self) -> bool:
        return all(state.last_scrape_ms is not None for state in self._scraper.states())

    def failure_domains(self, cluster: str, name: str) -> Mapping[str, str]:
        node = self.fleet.node(name, cluster)
        return {} if node is None else {**node.domains, **({"pool": node.pool} if node.pool else {})}
