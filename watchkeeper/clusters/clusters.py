"""The schedulers that a hub watches, as one thing: run, ask for nodes, targets and problems, make series of.

Each is a `Scheduler`; Kubernetes and Slurm may run side by side. The hub calls these few methods and knows neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from watchkeeper.clusters import cluster_series, inventory
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
    """One scheduler of one cluster, kept up to date by itself."""

    @property
    def cluster(self) -> str: ...

    @property
    def required_query(self) -> str | None:
        """An expression whose answer `series` wants to see; None: it wants nothing."""
        ...

    async def run(self) -> None: ...

    async def wait_for_first_read(self) -> None:
        """Wait, not for long, until the scheduler has been read once."""
        ...

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets: ...

    def problems(self) -> list[str]: ...

    def view(self) -> model.ClusterView: ...

    def series(self, answer: Iterable[Mapping[str, str]]) -> dict[Labels, float]:
        """Series of its own, beside those that all schedulers have."""
        ...

    def workload_series(self, fleet: ScrapedInventory, known: Iterable[Labels]) -> dict[Labels, float]:
        """Holders of GPUs that no exporter's labels name."""
        ...


def of_settings(settings: config.FleetSettings, *, time: clock.Clock, metrics: own_metrics.Registry) -> Clusters:
    """The schedulers that the settings name; SettingsError where one of them cannot be asked."""
    schedulers: list[ClusterScheduler | None] = [
        kubernetes_source.of_settings(settings, time=time, metrics=metrics),
        slurm_watch.of_settings(settings, time=time, metrics=metrics),
    ]
    path = None if settings.inventory is None else Path(settings.inventory)
    return Clusters(schedulers, inventory.NodeInventory(path, default_cluster=settings.cluster, metrics=metrics))


class Clusters:
    """All schedulers of a hub; none is a fleet without one."""

    def __init__(
        self, schedulers: Iterable[ClusterScheduler | None], mapping: inventory.NodeInventory | None = None
    ) -> None:
        self.schedulers = tuple(scheduler for scheduler in schedulers if scheduler is not None)
        self.inventory = mapping or inventory.NodeInventory(
            None, default_cluster="main", metrics=own_metrics.Registry()
        )
        self._owners = inventory.Owners(self.inventory)
        self._standing = status_series.StatusSeries()

    async def run(self) -> None:
        """Keep every scheduler's picture up to date, for ever."""
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
        """What is listed, what the schedulers and the fabric know, and what agents say, as `inventory` orders it.

        An agent's own word is where it is read, whatever a scheduler thinks.
        """
        await asyncio.gather(*(scheduler.wait_for_first_read() for scheduler in self.schedulers))
        agents = registered or discovery.DiscoveredTargets()
        parts = [listed]
        for scheduler in self.schedulers:
            parts.append(scheduler.discover(discovery.merge_discovered([*parts, agents])))
        return await asyncio.to_thread(self.inventory.merge, [*parts, agents], leaves=leaves)

    def problems(self) -> list[str]:
        said = [problem for scheduler in self.schedulers for problem in scheduler.problems()]
        return said + self.inventory.problems()

    def views(self) -> list[model.ClusterView]:
        return [scheduler.view() for scheduler in self.schedulers]

    def required_queries(self) -> list[str]:
        """What `samples` wants answered first."""
        return [scheduler.required_query for scheduler in self.schedulers if scheduler.required_query is not None]

    def workload_series(
        self, fleet: ScrapedInventory, known: dict[Labels, float], *, at_ms: int
    ) -> dict[Labels, float]:
        """Holders by agents' own word, by exporters' labels (`known`), and those that only a scheduler can name.

        A scheduler that has been silent for too long names nobody: the pod that it knew may be gone.
        """
        told = status_series.agent_workload_series(fleet.workload_labels())
        named = {labels.get("UUID") for labels in told}
        if named:
            known = told | {labels: value for labels, value in known.items() if labels.get("UUID") not in named}
        for scheduler in self.schedulers:
            if cluster_series.speaks_for(scheduler.view(), at_ms / 1000):
                known = known | scheduler.workload_series(fleet, known)
        return self._owners.add_owners(known, self.views())

    def team_of(self, workload: str) -> str:
        """The team that an incident of this workload is told to; `unmapped` where nobody says."""
        return self._owners.team_of(workload)

    def samples(self, answers: Mapping[str, Iterable[Mapping[str, str]]], at_ms: int) -> list[Sample]:
        """Every scheduler's series at this time; `answers` are those to `questions`."""
        made: dict[Labels, float] = {}
        now = at_ms / 1000
        for scheduler in self.schedulers:
            view = scheduler.view()
            made |= cluster_series.series(view, scheduler.cluster, now=now)
            if cluster_series.speaks_for(view, now):
                made |= scheduler.series(answers.get(scheduler.required_query or "", ()))
        return self._standing.samples(made, at_ms)
