"""Combine the watch, discovery, view and series of one Kubernetes cluster into a `ClusterScheduler`.

`clusters` runs it, merges `discover` into discovery and appends its series each interval; `view` is the cluster in the
types that Slurm shares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from watchkeeper.clusters.kubernetes import kubernetes_discovery, kubernetes_series, kubernetes_view, kubernetes_watch
from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import cluster as model
from watchkeeper.model.labels import Labels
from watchkeeper.readers.clusters import kubeconfig
from watchkeeper.scrape import discovery
from watchkeeper.scrape.fleet import ScrapedInventory

# A hub that starts waits this long for the first list, so that its first view is complete.
FIRST_LIST_SECONDS = 10.0
POLL_SECONDS = 0.05


def from_settings(
    settings: config.FleetSettings, *, time: clock.Clock, metrics: own_metrics.Registry
) -> KubernetesSource | None:
    """The configured cluster, or None; SettingsError if its settings are invalid."""
    if settings.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(settings.kubeconfig), settings.kubernetes_context)
    elif settings.kubernetes:
        server = kubeconfig.load_in_cluster()
    elif settings.kubernetes_context is not None:
        problem, remedy = (
            "a context needs a kubeconfig, and none is set",
            "Set fleet.kubeconfig to the path of the file",
        )
        raise SettingsError(problem, where="fleet.kubernetes_context", remedy=remedy)
    else:
        return None
    return KubernetesSource(server, settings, time=time, metrics=metrics)


class KubernetesSource:
    """One Kubernetes cluster; implements `ClusterScheduler`."""

    def __init__(
        self,
        server: kubeconfig.ApiServer,
        settings: config.FleetSettings,
        *,
        time: clock.Clock,
        metrics: own_metrics.Registry,
    ) -> None:
        targets = kubernetes_discovery.parse_selectors(settings.kubernetes_targets)
        self.watch = kubernetes_watch.KubernetesWatch(
            server, cluster=settings.cluster, time=time, metrics=metrics, targets=targets
        )
        self._discovery = kubernetes_discovery.KubernetesDiscovery(self.watch, targets)
        self._series = kubernetes_series.ClusterSeries(self.watch)
        self._policy = settings.kubernetes_series
        self._view: tuple[int, model.ClusterView] | None = None

    @property
    def cluster(self) -> str:
        return self.watch.cluster

    @property
    def required_query(self) -> str | None:
        """The query for clusters that have kube-state-metrics, if the setting is `auto`."""
        return kubernetes_series.KUBE_STATE_METRICS_QUERY if self._policy is config.KubernetesSeries.AUTO else None

    async def run(self) -> None:
        await self.watch.run()

    async def wait_for_first_read(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                while not self.watch.is_synced and not any(self.watch.problems()):
                    await asyncio.sleep(POLL_SECONDS)

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        return self._discovery.discover(listed)

    def problems(self) -> list[str]:
        return [f"kubernetes ({self.watch.server.origin}): {problem}" for problem in self.watch.problems()]

    def view(self) -> model.ClusterView:
        """The view of the cluster, rebuilt only after a change."""
        revision = self.watch.revision
        if self._view is None or self._view[0] != revision or self._view[1].problem or any(self.watch.problems()):
            self._view = (revision, kubernetes_view.build_view(self.watch))
        return self._view[1]

    def series(self, query_result: Iterable[Mapping[str, str]]) -> dict[Labels, float]:
        """The series of `kubernetes_series`; empty if `query_result` has this cluster or one without a name."""
        has_kube_state_metrics = any(labels.get("cluster", "") in ("", self.cluster) for labels in query_result)
        if self._policy is config.KubernetesSeries.NEVER or has_kube_state_metrics or not self.watch.is_synced:
            return {}
        return self._series.build()

    def workload_series(self, fleet: ScrapedInventory, attributed: Iterable[Labels]) -> dict[Labels, float]:
        def gpus_of(name: str) -> Iterable[Labels]:
            return (Labels(gpu.labels) for gpu in fleet.present_gpus(name, self.cluster))

        return kubernetes_series.workload_series(self.watch, gpus_of, attributed=attributed)
