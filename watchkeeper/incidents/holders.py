"""The pods and Slurm jobs that hold a node or GPU, also just after the GPU stopped reporting.

`hub.pipeline` passes `Holders.workloads_at` to the incidents, which list the affected workloads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from watchkeeper.incidents.place_cache import PlaceCache
from watchkeeper.kit import clock, own_metrics
from watchkeeper.model import fleet
from watchkeeper.query import engine as engines

# A GPU that fell off the bus stops reporting; its job is the one it had just before.
HOLDER_WINDOW = "2m"
MAX_PLACES = 10_000
# The labels of an exporter name the holder, and our own series where an agent reports it.
HOLDER_SERIES = ("DCGM_FI_DEV_GPU_UTIL", "watchkeeper_gpu_workload_info")


class Holders:
    def __init__(self, engine: engines.InstantEngine, now: Callable[[], datetime]) -> None:
        self._engine, self._now = engine, now
        self._cache = PlaceCache(self._query, now, max_places=MAX_PLACES, result_name="workloads")

    def workloads_at(self, place: fleet.Place) -> Sequence[str]:
        """Pods and Slurm jobs on a node or GPU in the last minutes; empty if unknown."""
        return () if place.node is None else self._cache.get(place) or ()

    def _query(self, place: fleet.Place) -> Sequence[str]:
        cluster, node = own_metrics.escape(place.cluster), own_metrics.escape(place.node or "")
        gpu = f',UUID="{own_metrics.escape(place.gpu)}"' if place.gpu else ""
        selector = f'{{cluster="{cluster}",Hostname="{node}"{gpu}}}[{HOLDER_WINDOW}]'
        expr = " or ".join(f"last_over_time({name}{selector})" for name in HOLDER_SERIES)
        result = self._engine.instant(expr, clock.to_ms(self._now()))
        return sorted({name for labels in result.frame.labels if (name := fleet.holder_from_labels(labels))})
