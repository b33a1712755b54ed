"""A cluster that a test writes down as objects, watched through the stand-in API server until all of it is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from tests.support.clusters.api_server import ApiServer, Raw, serving
from tests.support.waiting import until_async
from watchkeeper.clusters.kubernetes.kubernetes_source import KubernetesSource
from watchkeeper.clusters.kubernetes.kubernetes_watch import KubernetesWatch
from watchkeeper.config import settings as config
from watchkeeper.kit import clock, own_metrics

DEFAULTS = config.FleetSettings()


@asynccontextmanager
async def running(watch: KubernetesSource | KubernetesWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def watching(
    objects: Mapping[str, Sequence[Raw]], fleet: config.FleetSettings = DEFAULTS
) -> AsyncIterator[tuple[ApiServer, KubernetesSource]]:
    async with serving() as server:
        for path, raws in objects.items():
            server.fill(path, list(raws))
        source = KubernetesSource(
            server.reached(), fleet, time=clock.ScaledClock(speed=100.0), metrics=own_metrics.Registry()
        )
        async with running(source):
            await source.wait_for_first_read()
            await until_async(lambda: all(kind.is_synced for kind in source.watch.kinds))
            yield server, source


def watched(objects: Mapping[str, Sequence[Raw]], fleet: config.FleetSettings = DEFAULTS) -> KubernetesSource:
    """The cluster as it was when everything had been listed; nobody watches it any more."""

    async def look() -> KubernetesSource:
        async with watching(objects, fleet) as (_, source):
            return source

    return asyncio.run(look())
