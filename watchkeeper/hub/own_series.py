"""Write the hub's own series: nodes, holders of GPUs, counts of events, and the metrics of the hub.

Rules and pages join other series with them. The hub runs `append` once each scrape interval.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub.fleet_gpus import FleetGpus
from watchkeeper.hub.fleet_prices import FleetPrices
from watchkeeper.hub.fleet_state import FleetState
from watchkeeper.hub.incident_service import IncidentService
from watchkeeper.hub.runtime import Loop, Runtime
from watchkeeper.hub.samples import Samples
from watchkeeper.hub.stages import CurrentStages
from watchkeeper.kit import clock
from watchkeeper.model.gpu_states import GpuState
from watchkeeper.model.labels import Labels
from watchkeeper.scrape import fleet, status_series

# If Prometheus scrapes the agents itself, it has these series already.
HOLDER_EXPR = f'{status_series.WORKLOAD_SOURCES} unless on (UUID) {status_series.WORKLOAD_INFO}{{instance!=""}}'


class OwnSeries:
    def __init__(
        self,
        runtime: Runtime,
        samples: Samples,
        *,
        fleet: FleetState,
        incidents: IncidentService,
        current: CurrentStages,
        gpus: FleetGpus,
        prices: FleetPrices,
    ) -> None:
        self._gpus, self._prices = gpus, prices
        self._runtime, self._samples, self._fleet, self._incidents = runtime, samples, fleet, incidents
        self._current = current
        self._status_series = {name: status_series.StatusSeries() for name in ("workloads", "events", "own", "fabric")}
        gauge = runtime.metrics.gauge
        self._dropped_signals = gauge(
            "watchkeeper_hub_signals_dropped", "Signals dropped because an incident or the tracker was at its limit"
        )
        self._open_incidents = gauge("watchkeeper_hub_open_incidents", "Incidents that are not resolved, by severity")
        self._gpu_counts = gauge("watchkeeper_hub_gpus", "GPUs of the fleet by cluster and state; each is in one state")
        self._gpu_prices = gauge(
            "watchkeeper_hub_gpu_hour_price", "Price of a GPU-hour by GPU model and pool, from the price book"
        )

    def loop(self, *, may_write: Callable[[], bool]) -> Loop:
        async def append_if_allowed() -> None:
            if may_write():
                await self.append()

        return Loop("own series", append_if_allowed, self._runtime.settings.fleet.scrape_interval_seconds)

    async def append(self) -> None:
        at_ms, query = clock.to_ms(self._runtime.clock.now()), self._samples.queries.instant
        # The other series do not need the journal; other loops report its failure.
        with contextlib.suppress(WatchkeeperError):
            for severity, count in (await self._current.write(self._current.stages.journal.count_open)).items():
                self._open_incidents.set(count, severity=severity)
        with contextlib.suppress(WatchkeeperError):
            await self._count_gpus()
        self._gpu_prices.set_all(
            {
                (("modelName", model), ("pool", pool), ("currency", price.currency)): price.per_gpu_hour
                for (model, pool), price in (await self._prices.by_model()).items()
                if price.per_gpu_hour is not None
            }
        )
        self._dropped_signals.set(self._incidents.dropped_signals())
        clusters = self._fleet.clusters
        holders = status_series.workload_series((await query(HOLDER_EXPR, at_ms)).frame.labels)
        results = {expr: (await query(expr, at_ms)).frame.labels for expr in clusters.required_queries()}
        # A large cluster has 40,000 series; creating them takes a second.
        cluster_samples = await asyncio.to_thread(clusters.samples, results, at_ms)
        samples = fleet.inventory_samples(self._fleet.fleet, at_ms) + cluster_samples
        series: Mapping[str, Callable[[], Mapping[Labels, float]]] = {
            "workloads": lambda: clusters.workload_series(self._fleet.fleet, holders, at_ms=at_ms),
            "events": lambda: self._incidents.event_counts.series,
            "fabric": lambda: self._fleet.fabric.series(at_ms),
            "own": lambda: status_series.own_metric_series(self._runtime.metrics, job="watchkeeper", instance="hub"),
        }
        for name, compute in series.items():
            # Other tasks can run between these.
            await asyncio.sleep(0)
            samples += self._status_series[name].samples(compute(), at_ms)
        # A remote engine writes over the network.
        await asyncio.to_thread(lambda: self._samples.engine.appender.append(samples, group_key="own series"))

    async def _count_gpus(self) -> None:
        states = await self._gpus.load()
        clusters = {node.cluster for node in states.layout.nodes}
        counts = {cluster: states.count(cluster) for cluster in clusters}
        self._gpu_counts.set_all(
            {
                (("cluster", cluster), ("state", state.value)): float(getattr(counts[cluster], state.value))
                for cluster in clusters
                for state in GpuState
            }
        )
