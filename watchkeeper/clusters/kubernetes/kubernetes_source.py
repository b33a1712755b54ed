"""A Kubernetes cluster as the hub knows it: everything about it behind one name.

`clusters` runs it, merges `found` into discovery and appends its series each interval; whoever wants the cluster in
the words that Slurm shares asks for `view`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
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

# A hub that starts waits this long for the first list, so that its first picture is whole.
FIRST_LIST_SECONDS = 10.0
LOOK_SECONDS = 0.05


def of_settings(
    settings: config.FleetSettings, *, time: clock.Clock, metrics: own_metrics.Registry
) -> KubernetesSource | None:
    """The cluster that the settings name, or None; SettingsError where they name one that cannot be asked."""
    if settings.kubeconfig is not None:
        server = kubeconfig.load_kubeconfig(Path(settings.kubeconfig), settings.kubernetes_context)
    elif settings.kubernetes:
        server = kubeconfig.load_in_cluster()
    elif settings.kubernetes_context is not None:
        raise SettingsError(
            "a context is one of a kubeconfig, and none is named",
            where="fleet.kubernetes_context",
            remedy="Set fleet.kubeconfig to the file",
        )
    else:
        return None
    return KubernetesSource(server, settings, time=time, metrics=metrics)


class KubernetesSource:
    """One cluster, watched."""

    def __init__(
        self,
        server: kubeconfig.ApiServer,
        settings: config.FleetSettings,
        *,
        time: clock.Clock,
        metrics: own_metrics.Registry,
    ) -> None:
        targets = kubernetes_discovery.selectors(settings.kubernetes_targets)
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
        """Which clusters have a kube-state-metrics of their own."""
        return kubernetes_series.SEEN_EXPR if self._policy is config.KubernetesSeries.AUTO else None

    async def run(self) -> None:
        await self.watch.run()

    async def wait_for_first_read(self) -> None:
        try:
            async with asyncio.timeout(FIRST_LIST_SECONDS):
                while not self.watch.is_synced and not any(self.watch.problems()):
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return

    def discover(self, listed: discovery.DiscoveredTargets) -> discovery.DiscoveredTargets:
        return self._discovery.discover(listed)

    def problems(self) -> list[str]:
        return [f"kubernetes ({self.watch.server.origin}): {problem}" for problem in self.watch.problems()]

    def view(self) -> model.ClusterView:
        """The cluster as last told, made anew only after a change."""
        revision = self.watch.revision
        if self._view is None or self._view[0] != revision or self._view[1].problem or any(self.watch.problems()):
            self._view = (revision, kubernetes_view.view_of(self.watch))
        return self._view[1]

    def series(self, answer: Iterable[Mapping[str, str]]) -> dict[Labels, float]:
        """What kube-state-metrics would write, unless `answer` has our cluster, or one without a name."""
        has_others = any(labels.get("cluster", "") in ("", self.cluster) for labels in answer)
        if self._policy is config.KubernetesSeries.NEVER or has_others or not self.watch.is_synced:
            return {}
        return self._series.now()

    def workload_series(self, fleet: ScrapedInventory, known: Iterable[Labels]) -> dict[Labels, float]:
        def gpus_of(name: str) -> Iterable[Labels]:
            node = fleet.node(name, self.watch.cluster)
            for seen in fleet.gpus_of(node) if node is not None else ():
                index = "" if seen.gpu.index is None else str(seen.gpu.index)
                about = {"cluster": seen.cluster, "Hostname": seen.node, "UUID": seen.gpu.uuid, "gpu": index}
                if seen.gone_since_ms is None:
                    yield Labels(about)

        return kubernetes_series.workload_series(self.watch, gpus_of, known=known)
