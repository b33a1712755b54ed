"""Series that represent current state: repeated each interval, and ended with a stale marker when the state ends.

The hub's own series are of this kind: nodes, GPU holders, event counts, the health of the hub. Each is a mapping of
label sets to values, built again every time; this module tracks which series existed before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchkeeper.kit import own_metrics, recency_cache
from watchkeeper.model import events, fleet
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.model.samples import STALE, Sample

WORKLOAD_INFO = "watchkeeper_gpu_workload_info"
# An exporter's labels name the holder of a GPU. DCGM has no GPU_UTIL for MIG instances: FB_USED carries their labels.
MIG_MEMORY = 'DCGM_FI_DEV_FB_USED{GPU_I_ID!=""}'
WORKLOAD_SOURCES = f"(DCGM_FI_DEV_GPU_UTIL or on (UUID, GPU_I_ID) {MIG_MEMORY})"
GPU_LABELS = ("cluster", "Hostname", "UUID", "gpu", "GPU_I_ID", "GPU_I_PROFILE")
EVENTS_TOTAL = "watchkeeper_events_total"
# One series for each place, kind and code that ever had an event; above this limit new series are not counted.
MAX_EVENT_SERIES = 50_000


class StatusSeries:
    def __init__(self) -> None:
        self._before: frozenset[Labels] = frozenset()

    def samples(self, values: Mapping[Labels, float], at_ms: int) -> list[Sample]:
        """The values at this time, and a stale marker for each series that ended."""
        ended = self._before - values.keys()
        self._before = frozenset(values)
        current = [Sample(labels, at_ms, value) for labels, value in values.items()]
        return current + [Sample(labels, at_ms, STALE) for labels in ended]


def workload_series(label_sets: Iterable[Labels]) -> dict[Labels, float]:
    """The holder of each GPU or MIG instance, as information series to join with, built from labels of GPU metrics."""
    # The team is the namespace, unless an inventory maps it; a Slurm job has none, because its number names no team.
    _holder_cache.start_generation()
    return {info: 1.0 for labels in label_sets if (info := _holder_cache(labels)) is not None}


def _holder_series(labels: Labels) -> Labels | None:
    holder = fleet.holder_from_labels(labels)
    if holder is None:
        return None
    namespace, _, name = holder.rpartition("/")
    gpu_labels = {label: labels.get(label, "") for label in GPU_LABELS}
    workload = {"workload_kind": "pod" if namespace else "slurm_job", "workload": name}
    return Labels({METRIC_NAME: WORKLOAD_INFO, **gpu_labels, **workload, "namespace": namespace, "team": namespace})


def agent_workload_series(holders: Iterable[Labels]) -> dict[Labels, float]:
    """The holder of each GPU as agents report it, without the labels that their scrape added."""
    _agent_label_cache.start_generation()
    return {_agent_label_cache(labels): 1.0 for labels in holders}


# Label sets stay the same objects between intervals, and 20,000 are looked up each time.
_holder_cache = recency_cache.RecencyCache(_holder_series)
_agent_label_cache = recency_cache.RecencyCache[Labels, Labels](lambda labels: labels.with_labels(instance="", job=""))


class EventCounts:
    """The number of events since the hub started, by place, kind and code."""

    def __init__(self) -> None:
        self.series: dict[Labels, float] = {}

    def count(self, new_events: Iterable[events.Event]) -> None:
        for event in new_events:
            place = {"cluster": event.place.cluster, "Hostname": event.place.node or "", "UUID": event.place.gpu or ""}
            code = "" if event.code is None else str(event.code)
            labels = Labels({METRIC_NAME: EVENTS_TOTAL, **place, "kind": event.kind, "code": code})
            if labels in self.series or len(self.series) < MAX_EVENT_SERIES:
                self.series[labels] = self.series.get(labels, 0.0) + 1


def own_metric_series(registry: own_metrics.Registry, **target: str) -> dict[Labels, float]:
    """A process's own metrics as series, with the labels a scrape of it would add."""
    return {
        Labels({METRIC_NAME: metric.name, **target, **dict(pairs)}): value
        for metric in registry.metrics.values()
        for pairs, value in metric.samples()
    }
