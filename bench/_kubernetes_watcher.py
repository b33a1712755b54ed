"""Watch a Kubernetes API server, and do nothing else.

`python -m bench._kubernetes_watcher URL TOKEN CHANGES` prints one JSON object after the initial lists, and another
after this number of changes.
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


def resident_mib(name: str = "VmRSS") -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


async def watch(url: str, token: str, changes: int) -> None:
    empty_mib = resident_mib()
    registry = own_metrics.Registry()
    server = kubeconfig.ApiServer(url, access.Access(credentials=token), "bench")
    source = kubernetes_source.KubernetesSource(
        server, settings.FleetSettings(), time=clock.ScaledClock(), metrics=registry
    )
    started_at = time.perf_counter()
    task = asyncio.create_task(source.run())
    await until(lambda: all(kind.is_synced for kind in source.watch.kinds))
    list_seconds = time.perf_counter() - started_at
    print(
        json.dumps({"list_seconds": list_seconds, "empty_megabytes": empty_mib, "listed_megabytes": resident_mib()}),
        flush=True,
    )

    changes_total, lists = (
        registry.metrics["watchkeeper_kubernetes_changes_total"],
        "watchkeeper_kubernetes_lists_total",
    )
    await until(lambda: sum(changes_total.values.values()) >= changes)
    changed_at = time.perf_counter()
    view = source.view()
    viewed_at = time.perf_counter()
    series = source.series([]) | cluster_series.scheduler_series(view, "main", now=time.time())
    first_series_at = time.perf_counter()
    source.series([])
    numbers = {
        "view_seconds": viewed_at - changed_at,
        "first_series_seconds": first_series_at - viewed_at,
        "next_series_seconds": time.perf_counter() - first_series_at,
        "series": len(series),
        "workloads": len(view.workloads),
        "lists": sum(registry.metrics[lists].values.values()),
    }
    del view, series
    print(
        json.dumps({**numbers, "resident_megabytes": resident_mib(), "peak_megabytes": resident_mib("VmHWM")}),
        flush=True,
    )
    task.cancel()


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
