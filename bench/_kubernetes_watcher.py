"""A process that watches a Kubernetes API server and nothing else.

`python -m bench._kubernetes_watcher URL TOKEN CHANGES` prints one JSON object when everything is listed, and a second
one when that many changes have arrived.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable

from watchkeeper.clusters import cluster_series
from watchkeeper.clusters.kubernetes import kubernetes_source
from watchkeeper.config import settings
from watchkeeper.kit import clock, own_metrics
from watchkeeper.net import access
from watchkeeper.readers.clusters import kubeconfig


def resident(name: str = "VmRSS") -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def watch(url: str, token: str, changes: int) -> None:
    empty = resident()
    registry = own_metrics.Registry()
    server = kubeconfig.ApiServer(url, access.Access(credentials=token), "bench")
    source = kubernetes_source.KubernetesSource(
        server, settings.FleetSettings(), time=clock.ScaledClock(), metrics=registry
    )
    began = time.perf_counter()
    task = asyncio.create_task(source.run())
    await until(lambda: all(kind.is_synced for kind in source.watch.kinds))
    listed = time.perf_counter() - began
    print(json.dumps({"list_seconds": listed, "empty_megabytes": empty, "listed_megabytes": resident()}), flush=True)

    counted, lists = registry.metrics["watchkeeper_kubernetes_changes_total"], "watchkeeper_kubernetes_lists_total"
    await until(lambda: sum(counted.values.values()) >= changes)
    took = time.perf_counter()
    view = source.view()
    viewed = time.perf_counter()
    made = source.series([]) | cluster_series.series(view, "main", now=time.time())
    first = time.perf_counter()
    source.series([])
    found = {
        "view_seconds": viewed - took,
        "first_series_seconds": first - viewed,
        "next_series_seconds": time.perf_counter() - first,
        "series": len(made),
        "workloads": len(view.workloads),
        "lists": sum(registry.metrics[lists].values.values()),
    }
    del view, made
    print(json.dumps({**found, "resident_megabytes": resident(), "peak_megabytes": resident("VmHWM")}), flush=True)
    task.cancel()


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
