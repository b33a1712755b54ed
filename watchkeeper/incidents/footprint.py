"""On which machines and GPUs a job runs, so that what breaks there and what the job suffers become one incident.

`pipeline` gives `Footprints.of` to the incidents; `domains` finds with it what is near a job, and `correlate` decides
whether a fault lies under one of its ranks. The ranks tell it themselves, or whoever reports what holds a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from watchkeeper.kit import clock, own_metrics
from watchkeeper.kit.logs import fields
from watchkeeper.model import fleet, incidents, jobs
from watchkeeper.query import engine as engines

log = logging.getLogger(__name__)

RANKS = "training_rank_info"
OF_JOB = "job="
# What its GPUs show because of what a job does: one incident for all of them, for its owner.
OF_WHOLE_JOBS = frozenset({"waste"})
# Which series tell where a workload runs, by the kind of its place, and the labels that name it there.
SERIES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "job": ((RANKS, ("job_name",)), ("watchkeeper:job_gpu:share", ("job_name",))),
    "pod": (("watchkeeper_gpu_workload_info", ("namespace", "workload")),),
    "hpc_job": (("watchkeeper_gpu_workload_info", ("workload",)),),
}
# A rank that is gone takes its series along, and a job without it is called stalled after ten minutes at the latest.
LOOK_BACK = "15m"
KEPT, MOST_KEPT = timedelta(seconds=15), 1_000


@dataclass(frozen=True, slots=True)
class Footprint:
    """Where a job runs; `whole` are the nodes of which nobody tells which of their GPUs it has."""

    gpus: frozenset[fleet.Place] = frozenset()
    nodes: frozenset[fleet.Place] = frozenset()
    whole_nodes: frozenset[fleet.Place] = frozenset()

    @classmethod
    def from_places(cls, places: Collection[fleet.Place]) -> Footprint:
        """The footprint of a job with ranks at these nodes and GPUs."""
        gpus = frozenset(replace(place, slice=None) for place in places if place.gpu is not None)
        nodes = frozenset(place.whole_node for place in places)
        return cls(gpus, nodes, nodes - {place.whole_node for place in gpus})

    def includes(self, place: fleet.Place) -> bool:
        """True when a rank runs on this GPU or one of its slices, or on this machine or the one with this port."""
        if place.node is None:
            return False
        if place.gpu is None:
            return place.whole_node in self.nodes
        return replace(place, slice=None) in self.gpus or place.whole_node in self.whole_nodes


NOWHERE = Footprint()


def is_workload(place: fleet.Place) -> bool:
    return place.domain is not None and place.domain.partition("=")[0] in SERIES


def workload_name(place: fleet.Place) -> str:
    """What a job, a pod or a Slurm job is called."""
    return (place.domain or "").partition("=")[2]


def holders_of(incident: incidents.Incident) -> frozenset[str]:
    """The jobs that hold the GPUs of an incident, where GPUs of one job are one incident."""
    is_one = incident.family in OF_WHOLE_JOBS and incident.place.gpu is not None
    return frozenset(map(jobs.job_of_holder, incident.workloads)) if is_one else frozenset()


def jobs_of(incident: incidents.Incident) -> frozenset[str]:
    """The jobs whose own signals are a part of an incident, by the names that they give themselves."""
    places = {member.place for member in incident.members if (member.place.domain or "").startswith(OF_JOB)}
    return frozenset(map(workload_name, places))


class Footprints:
    """Asks an engine, and remembers for moments: in a storm the same job is asked about again and again."""

    def __init__(self, engine: engines.InstantEngine, now: Callable[[], datetime]) -> None:
        self._engine, self._now = engine, now
        self._known: dict[fleet.Place, tuple[datetime, Footprint]] = {}

    def footprint_of(self, place: fleet.Place) -> Footprint:
        """Where a workload runs, or ran until minutes ago; nowhere if nobody tells."""
        if not is_workload(place):
            return NOWHERE
        now = self._now()
        asked_at, known = self._known.get(place, (now, None))
        if known is not None and abs(now - asked_at) < KEPT:
            return known
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        try:
            found = self._ask(place, clock.to_ms(now))
        # Deliberately everything: that a job stands still is worth more than where it runs.
        except Exception as error:
            log.warning("Where a workload runs is unknown", extra=fields(place=str(place), error=error))
            return NOWHERE
        self._known[place] = (now, found)
        return found

    def _ask(self, place: fleet.Place, at_ms: int) -> Footprint:
        kind, _, name = (place.domain or "").partition("=")
        found: set[fleet.Place] = set()
        for series, labels in SERIES[kind]:
            parts = dict(zip(labels, name.split("/", len(labels) - 1), strict=False))
            named = "".join(f',{label}="{own_metrics.escape(text)}"' for label, text in parts.items())
            selector = f'{series}{{cluster="{own_metrics.escape(place.cluster)}"{named}}}'
            before = self._engine.instant(f"last_over_time({selector}[{LOOK_BACK}])", at_ms).frame.labels
            current = self._engine.instant(selector, at_ms).frame.labels if series == RANKS else ()
            found.update(_places(place.cluster, [*current, *_not_moved(before, current)]))
        return Footprint.from_places(found)


def _not_moved(before: Iterable[Mapping[str, str]], current: Iterable[Mapping[str, str]]) -> list[Mapping[str, str]]:
    """Ranks that are silent now, where they were last; one that was started elsewhere is no longer there."""
    present = {labels.get("rank") for labels in current}
    return [labels for labels in before if labels.get("rank") is None or labels.get("rank") not in present]


def _places(cluster: str, told: Iterable[Mapping[str, str]]) -> Iterable[fleet.Place]:
    for labels in told:
        if labels.get("Hostname"):
            yield fleet.Place(cluster, node=labels["Hostname"], gpu=labels.get("UUID") or None)
