"""Combine the schedulers that a hub reads: run them, merge their nodes and targets, and build their series.

Each is a `ClusterScheduler`; one hub can read Kubernetes and Slurm at the same time. The hub uses only this interface.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from watchkeeper.clusters import cluster_series, inventory, simulated_cluster
from watchkeeper.clusters.kubernetes import kubernetes_source
from watchkeeper.clusters.slurm import slurm_watch
from watchkeeper.config import settings as config
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import cluster as model
from watchkeeper.model.labels import Labels
from watchkeeper.model.samples import Sample
from watchkeeper.scrape import discovery, status_series
from watchkeeper.scrape.fleet import ScrapedInventory


class ClusterScheduler(Protocol):
    """One scheduler of one cluster; `run` keeps its view up to date."""

    @property
    def cluster(self) -> str: ...

    @property
    def required_query(self) -> str | None:
        """A PromQL expression whose result `series` needs; None if it needs none."""

    async def run(self) -> None: ...

    async def wait_for_first_read(self) -> None:
        """Wait until the scheduler has been read once, or a time limit passed."""

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets: ...

    def problems(self) -> list[str]: ...

    def view(self) -> model.ClusterView: ...

    def series(self, query_result: Iterable[Mapping[str, str]]) -> dict[Labels, float]:
        """Series that only this kind of scheduler has."""

    def workload_series(self, fleet: ScrapedInventory, attributed: Iterable[Labels]) -> dict[Labels, float]:
        """The holders of GPUs that are not in `attributed`."""


def from_settings(
    settings: config.FleetSettings,
    *,
    time: clock.Clock,
    metrics: own_metrics.Registry,
    simulator_url: str | None = None,
) -> Clusters:
    """The configured schedulers; SettingsError if the settings of one are invalid."""
    name = settings.cluster
    schedulers: list[ClusterScheduler | None] = [
        kubernetes_source.from_settings(settings, time=time, metrics=metrics),
        slurm_watch.from_settings(settings, time=time, metrics=metrics),
        None if simulator_url is None else simulated_cluster.SimulatedCluster(simulator_url, cluster=name, time=time),
    ]
    path = None if settings.inventory is None else Path(settings.inventory)
    return Clusters(schedulers, inventory.NodeInventory(path, default_cluster=settings.cluster, metrics=metrics))


class Clusters:
    """All schedulers of a hub, and its node inventory; a hub may have no scheduler."""

    def __init__(
        self, schedulers: Iterable[ClusterScheduler | None], node_inventory: inventory.NodeInventory | None = None
    ) -> None:
        self.schedulers = tuple(scheduler for scheduler in schedulers if scheduler is not None)
        self.inventory = node_inventory or inventory.NodeInventory(
            None, default_cluster="main", metrics=own_metrics.Registry()
        )
        self._owners = inventory.Owners(self.inventory)
        self._status_series = status_series.StatusSeries()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for scheduler in self.schedulers:
                group.create_task(scheduler.run())
            await asyncio.Event().wait()

    async def discover(
        self,
        listed: discovery.DiscoveredTargets,
        registered: discovery.DiscoveredTargets | None = None,
        *,
        leaves: Mapping[str, str] | None = None,
    ) -> discovery.DiscoveredTargets:
        """Merge the lists, schedulers, registered agents and the fabric's `leaves`; `inventory` sets the priority."""
        # The target of a registered agent is its registered address; a scheduler adds none for the same node.
        await asyncio.gather(*(scheduler.wait_for_first_read() for scheduler in self.schedulers))
        agents = registered or discovery.DiscoveredTargets()
        parts = [listed]
        for scheduler in self.schedulers:
            parts.append(scheduler.discover(discovery.merge_discovered([*parts, agents])))
        return await asyncio.to_thread(self.inventory.merge, [*parts, agents], leaves=leaves)

    def problems(self) -> list[str]:
        problems = [problem for scheduler in self.schedulers for problem in scheduler.problems()]
        return problems + self.inventory.problems()

    def views(self) -> list[model.ClusterView]:
        return [scheduler.view() for scheduler in self.schedulers]

    def required_queries(self) -> list[str]:
        """The queries whose results `samples` needs."""
        return [scheduler.required_query for scheduler in self.schedulers if scheduler.required_query is not None]

    def workload_series(
        self, fleet: ScrapedInventory, attributed: dict[Labels, float], *, at_ms: int
    ) -> dict[Labels, float]:
        """The holder of each GPU: from agents, from exporters' labels (`attributed`), then from the schedulers."""
        # A scheduler whose view is too old adds none: its pods may have ended.
        agent_series = status_series.agent_workload_series(fleet.workload_labels())
        agent_uuids = {labels.get("UUID") for labels in agent_series}
        if agent_uuids:
            attributed = agent_series | {
                labels: value for labels, value in attributed.items() if labels.get("UUID") not in agent_uuids
            }
        for scheduler in self.schedulers:
            if cluster_series.is_current(scheduler.view(), at_ms / 1000):
                attributed = attributed | scheduler.workload_series(fleet, attributed)
        return self._owners.add_owners(attributed, self.views())

    def team_of(self, workload: str) -> str:
        """The team to notify about an incident of this workload; `unmapped` if unknown."""
        return self._owners.team_of(workload)

    def samples(self, query_results: Mapping[str, Iterable[Mapping[str, str]]], at_ms: int) -> list[Sample]:
        """The series of every scheduler at this time; `query_results` has the results of `required_queries`."""
        series: dict[Labels, float] = {}
        now = at_ms / 1000
        for scheduler in self.schedulers:
            view = scheduler.view()
            series |= cluster_series.scheduler_series(view, scheduler.cluster, now=now)
            if cluster_series.is_current(view, now):
                series |= scheduler.series(query_results.get(scheduler.required_query or "", ()))
        return self._status_series.samples(series, at_ms)
