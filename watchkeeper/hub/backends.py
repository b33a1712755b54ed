"""Build the query engine and the repair driver that the settings choose; called when the hub is created."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.query import embedded, engine, local_cache, prometheus
from watchkeeper.remediate import driver
from watchkeeper.remediate.drivers import cluster_driver, kubernetes, simulated, slurm_rest
from watchkeeper.store.head import head


def build_engine(settings: config.Settings) -> engine.Engine:
    if settings.query.engine is config.QueryEngine.EMBEDDED:
        # `Samples.open` replaces this head with the store in the data directory.
        limits = engine.QueryLimits(max_bytes=settings.query.max_query_mebibytes << 20)
        return embedded.EmbeddedEngine(head.Head(max_series=settings.query.max_series), limits)
    has_target_lists = settings.fleet.sd_files or settings.fleet.sd_urls or settings.fleet.prometheus_config
    scrapes = settings.fleet.scrape and (has_target_lists or settings.fleet.reads_pods)
    if scrapes and settings.query.write_url is None:
        raise SettingsError(
            "targets are scraped, but `query.write_url` is not set, so samples cannot be written",
            where="query.write_url",
            remedy="Set it to the server's remote-write URL, or set `fleet.scrape = false` if the server scrapes",
        )
    return (
        local_cache.LocalCacheEngine(settings.query)
        if settings.query.near
        else prometheus.PrometheusEngine(settings.query)
    )


def build_driver(
    settings: config.Settings, simulator_url: str | None, *, is_stopped: Callable[[], bool] = lambda: False
) -> driver.Driver:
    if settings.remediate.driver is config.DriverName.SIMULATED:
        if simulator_url is None:
            raise SettingsError(
                "the driver `simulated` needs a simulated fleet",
                where="remediate.driver",
                remedy="Start it with `watchkeeper up`",
            )
        return simulated.SimulatedDriver(simulator_url)
    if settings.remediate.driver is config.DriverName.KUBERNETES:
        return kubernetes.build_driver(settings, is_stopped=is_stopped)
    if settings.remediate.driver is config.DriverName.SLURM:
        return slurm_rest.build_driver(settings, is_stopped=is_stopped)
    return cluster_driver.DryRunDriver()
