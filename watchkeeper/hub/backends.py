"""What settings choose: where samples live, and the cluster that repairs are made in. The hub asks as it is built."""

from __future__ import annotations

from collections.abc import Callable

from watchkeeper.config import settings as config
from watchkeeper.errors import SettingsError
from watchkeeper.query import embedded, engine, local_cache, prometheus
from watchkeeper.remediate import driver
from watchkeeper.remediate.drivers import dry_run, kubernetes, simulated, slurm_rest
from watchkeeper.store.head import head


def build_engine(settings: config.Settings) -> engine.Engine:
    """Where samples live: in this process, or in a server that speaks Prometheus' API."""
    if settings.query.engine is config.QueryEngine.EMBEDDED:
        # `open` puts the store of the data directory in its place.
        return embedded.EmbeddedEngine(head.Head(max_series=settings.query.max_series))
    listed = settings.fleet.sd_files or settings.fleet.sd_urls or settings.fleet.prometheus_config
    reads = settings.fleet.scrape and (listed or settings.fleet.reads_pods)
    if reads and settings.query.write_url is None:
        raise SettingsError(
            "targets are to be scraped, but there is no place to write their samples",
            where="query.write_url",
            remedy="Set it to the server's remote-write address, or let the server scrape, with fleet.scrape = false",
        )
    return (
        local_cache.LocalCacheEngine(settings.query)
        if settings.query.near
        else prometheus.PrometheusEngine(settings.query)
    )


def build_driver(
    settings: config.Settings, simulator_url: str | None, *, is_stopped: Callable[[], bool] = lambda: False
) -> driver.Driver:
    """The cluster that plans are made for; a simulated one needs its address."""
    if settings.remediate.driver is config.DriverName.SIMULATED:
        if simulator_url is None:
            raise SettingsError(
                "the driver `simulated` needs a simulated fleet",
                where="remediate.driver",
                remedy="Start it with `watchkeeper up`",
            )
        return simulated.SimulatedDriver(simulator_url)
    if settings.remediate.driver is config.DriverName.KUBERNETES:
        return kubernetes.of_settings(settings, is_stopped=is_stopped)
    if settings.remediate.driver is config.DriverName.SLURM:
        return slurm_rest.of_settings(settings, is_stopped=is_stopped)
    return dry_run.DryRunDriver()
