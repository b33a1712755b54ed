"""The nodes and GPUs on which a job runs, so that a fault there and its effect on the job become one incident.

`hub.pipeline` passes `Footprints.footprint_of` to the incidents; `domains` finds with it what is near a job, and
`correlate` decides whether a fault is under one of its ranks. Ranks report it themselves, or the reported holder does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from watchkeeper.kit import clock, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet, incidents, jobs
from watchkeeper.query import engine as engines

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_AGE = timedelta(seconds=15)
RANKS = "training_rank_info"
JOB_PREFIX = "job="
# Signals of GPUs that a job causes itself: one incident for all its GPUs, for its owner.
WHOLE_JOB_FAMILIES = frozenset({"waste"})
# The series that contain where a workload runs, by the kind of its place, and the labels that name it there.
SERIES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "job": ((RANKS, ("job_name",)), ("watchkeeper:job_gpu:share", ("job_name",))),
    "pod": (("watchkeeper_gpu_workload_info", ("namespace", "workload")),),
    "hpc_job": (("watchkeeper_gpu_workload_info", ("workload",)),),
}
# The series of a rank end with it, and a job without it counts as stalled after ten minutes at the latest.
LOOKBACK = "15m"
MAX_PLACES = 1_000
# A GPU that fell off the bus stops reporting; its job is the one it had just before.
HOLDER_WINDOW = "2m"
MAX_PLACES = 10_000
# The labels of an exporter name the holder, and our own series where an agent reports it.
HOLDER_SERIES = ("DCGM_FI_DEV_GPU_UTIL", "watchkeeper_gpu_workload_info")


class PlaceCache(Generic[T]):
    """Calls `load` for a place that is not cached; `result_name` is in the log if that fails."""

    def __init__(
        self, load: Callable[[fleet.Place], T], now: Callable[[], datetime], *, max_places: int, result_name: str
    ) -> None:
        self._load, self._now, self._max_places, self._result_name = load, now, max_places, result_name
        self._results: dict[fleet.Place, tuple[datetime, T]] = {}

    def get(self, place: fleet.Place) -> T | None:
        """The result; None if it cannot be loaded now, which is not cached."""
        now = self._now()
        if place in self._results and abs(now - self._results[place][0]) < MAX_AGE:
            return self._results[place][1]
        if len(self._results) >= self._max_places:
            self._results.clear()
        try:
            result = self._load(place)
        # Deliberately everything: the incident matters more than this detail of it.
        except Exception as error:
            log.warning("incident query failed", extra=fields(query=self._result_name, place=str(place), error=error))
            return None
        self._results[place] = (now, result)
        return result


@dataclass(frozen=True, slots=True)
class Footprint:
    """The GPUs and nodes of a job; `whole_nodes` are nodes on which its GPUs are unknown."""

    gpus: frozenset[fleet.Place] = frozenset()
    nodes: frozenset[fleet.Place] = frozenset()
    whole_nodes: frozenset[fleet.Place] = frozenset()

    @classmethod
    def from_places(cls, places: Collection[fleet.Place]) -> Footprint:
        gpus = frozenset(replace(place, slice=None) for place in places if place.gpu is not None)
        nodes = frozenset(place.whole_node for place in places)
        return cls(gpus, nodes, nodes - {place.whole_node for place in gpus})

    def includes(self, place: fleet.Place) -> bool:
        """True if a rank runs on this GPU or a MIG instance of it, on this node, or on the node with this port."""
        if place.node is None:
            return False
        if place.gpu is None:
            return place.whole_node in self.nodes
        return replace(place, slice=None) in self.gpus or place.whole_node in self.whole_nodes


NO_FOOTPRINT = Footprint()


def is_workload(place: fleet.Place) -> bool:
    return place.domain is not None and place.domain.partition("=")[0] in SERIES


def workload_name(place: fleet.Place) -> str:
    return (place.domain or "").partition("=")[2]


def holders_of(incident: incidents.Incident) -> frozenset[str]:
    """The jobs of an incident of a family with one incident for all GPUs and pods of a job."""
    is_of_jobs = incident.family in WHOLE_JOB_FAMILIES and (incident.place.gpu or is_workload(incident.place))
    return frozenset(map(jobs.job_of_holder, incident.workloads)) if is_of_jobs else frozenset()


def jobs_of(incident: incidents.Incident) -> frozenset[str]:
    """The jobs with own signals in an incident, by the names that they report."""
    places = {member.place for member in incident.members if (member.place.domain or "").startswith(JOB_PREFIX)}
    return frozenset(map(workload_name, places))


class Footprints:
    def __init__(self, engine: engines.InstantEngine, now: Callable[[], datetime]) -> None:
        self._engine, self._now = engine, now
        self._cache = PlaceCache(self._query, now, max_places=MAX_PLACES, result_name="nodes of a workload")

    def footprint_of(self, place: fleet.Place) -> Footprint:
        """Where a workload runs, or ran until minutes ago; nowhere if unknown."""
        return (self._cache.get(place) or NO_FOOTPRINT) if is_workload(place) else NO_FOOTPRINT

    def _query(self, place: fleet.Place) -> Footprint:
        at_ms = clock.to_ms(self._now())
        kind, _, name = (place.domain or "").partition("=")
        places: set[fleet.Place] = set()
        for series, label_names in SERIES[kind]:
            parts = dict(zip(label_names, name.split("/", len(label_names) - 1), strict=False))
            matchers = "".join(f',{label}="{own_metrics.escape(text)}"' for label, text in parts.items())
            selector = f'{series}{{cluster="{own_metrics.escape(place.cluster)}"{matchers}}}'
            before = self._engine.instant(f"last_over_time({selector}[{LOOKBACK}])", at_ms).frame.labels
            current = self._engine.instant(selector, at_ms).frame.labels if series == RANKS else ()
            # The last place of a rank that does not report now; a rank that reports from another place has moved.
            present = {labels.get("rank") for labels in current} - {None}
            for labels in [*current, *(labels for labels in before if labels.get("rank") not in present)]:
                if labels.get("Hostname"):
                    places.add(fleet.Place(place.cluster, node=labels["Hostname"], gpu=labels.get("UUID") or None))
        return Footprint.from_places(places)


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
