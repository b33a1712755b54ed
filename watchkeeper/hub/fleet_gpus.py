"""Decide the state of every GPU of the fleet: allocated, free, or why it is neither.

The only place that counts GPUs by state. The fleet map, nodes, jobs, capacity and the status of the hub read it, and
`own_series` writes its counts for rules and dashboards. Samples say which GPUs report, `holders` and schedulers who
holds them, incidents and schedulers which are out of service. A GPU without a current sample is never free.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from watchkeeper.errors import WatchkeeperError
from watchkeeper.hub import fleet_layout, holders, services
from watchkeeper.incidents import signals
from watchkeeper.model import cluster, fleet, incidents, workloads
from watchkeeper.model.alerts import Severity
from watchkeeper.model.gpu_states import MISSING, GpuCounts, GpuState, count_states
from watchkeeper.model.node_list import NodeService, ServiceState
from watchkeeper.scrape import target_loop

# Metrics that exporters have for every GPU, whatever else they lack. The newest sample counts: a target that fails ends
# its series at once.
REPORTING_EXPR = (
    "group by (cluster, Hostname, UUID) (DCGM_FI_DEV_GPU_TEMP or DCGM_FI_DEV_POWER_USAGE or DCGM_FI_DEV_GPU_UTIL"
    " or DCGM_FI_PROF_SM_ACTIVE)"
)
# All callers share an answer; one that is older, or of another inventory or other failing targets, is not used.
CACHE_SECONDS = 5.0
MAX_INCIDENTS = 1000
LOST_FAMILY = "gpu_lost"
# Agents give these reasons if no source can know the holder; only `free` is a fact.
UNKNOWN_HOLDER = frozenset(workloads.UnattributedReason) - {workloads.UnattributedReason.FREE}
ALLOCATABLE = frozenset({GpuState.ALLOCATED, GpuState.FREE})
NodeKey = fleet_layout.NodeKey


@dataclass(frozen=True, slots=True)
class NodeSchedule:
    """A node as its scheduler reports it, and how many of its GPUs the scheduler's workloads hold."""

    node: cluster.ScheduledNode
    allocated: int

    @property
    def is_in_service(self) -> bool:
        return self.node.is_schedulable and self.node.is_ready is not False


@dataclass(frozen=True, slots=True)
class FleetGpuSources:
    """What the states are decided from; `reporting` None: samples cannot be queried, so nothing is known."""

    layout: fleet_layout.FleetLayout
    reporting: frozenset[str] | None
    gpu_holders: holders.GpuHolders
    views: Sequence[cluster.ClusterView] = ()
    open_incidents: Sequence[incidents.Incident] = ()
    services: Mapping[fleet.Place, NodeService] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetGpuStates:
    """The state of each slot of the layout at one time."""

    layout: fleet_layout.FleetLayout
    gpu_holders: holders.GpuHolders
    states: tuple[GpuState, ...]
    schedules: Mapping[NodeKey, NodeSchedule] = field(default_factory=dict)
    at: datetime | None = None

    def count(self, cluster_name: str | None = None) -> GpuCounts:
        if cluster_name is None:
            return count_states(self.states)
        by_node = self.layout.slots_by_node.items()
        return count_states(self.states[slot] for key, slots in by_node if key[0] == cluster_name for slot in slots)

    def count_node(self, key: NodeKey) -> GpuCounts:
        return count_states(self.states[slot] for slot in self.layout.slots_by_node.get(key, ()))

    def state_of(self, uuid: str) -> GpuState | None:
        slot = self.layout.slot_by_uuid.get(uuid)
        return None if slot is None else self.states[slot]

    def is_missing(self, slot: int) -> bool:
        return self.states[slot] in MISSING


class FleetGpus:
    """Loads the states, once for all callers that ask at the same time."""

    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._queries, self._journal, self._fleet = hub.runtime, hub.queries, hub.journal, hub.fleet
        self._targets, self._views, self._lock = hub.targets, hub.cluster_views, asyncio.Lock()
        self._services = hub.node_services
        self._cached: tuple[object, FleetGpuStates] | None = None

    async def load(self) -> FleetGpuStates:
        async with self._lock:
            now, sources_key = self._runtime.clock.now(), self.sources_key()
            if self._cached is not None and self._cached[0] == sources_key:
                at = self._cached[1].at
                if at is not None and 0 <= (now - at).total_seconds() < CACHE_SECONDS:
                    return self._cached[1]
            states = await self._decide(now)
            self._cached = sources_key, states
            return states

    async def _decide(self, now: datetime) -> FleetGpuStates:
        layout, views = fleet_layout.current_layout(self._fleet), self._views()
        try:
            rows = await self._queries.instant(REPORTING_EXPR)
            gone = {gpu.gpu.uuid for gpu in self._fleet.gpus() if gpu.gone_since_ms is not None}
            reporting = frozenset(labels.get("UUID", "") for labels in rows.latest()) - gone
        except WatchkeeperError:
            reporting = None
        gpu_holders = await holders.load_holders(self._queries)
        open_incidents = await self._journal.read(lambda: self._journal.incidents(limit=MAX_INCIDENTS))
        sources = FleetGpuSources(layout, reporting, gpu_holders, views, open_incidents, self._services())
        return await asyncio.to_thread(decide_states, sources, at=now)

    def sources_key(self) -> tuple[int, frozenset[str]]:
        """Changes at once when the inventory changes, or when a target begins or ceases to answer."""
        down = (state.target.url for state in self._targets.targets() if state.health is target_loop.TargetHealth.DOWN)
        return self._fleet.revision, frozenset(down)


def decide_states(sources: FleetGpuSources, *, at: datetime | None = None) -> FleetGpuStates:
    schedules, states = _read_schedules(sources.views), [GpuState.UNKNOWN] * len(sources.layout.slots)
    # The fault of a recovering incident has ended.
    faulty = (incident for incident in sources.open_incidents if incident.recovering_since is None)
    critical = [incident for incident in faulty if incident.severity is Severity.CRITICAL]
    faulty_places = frozenset(incident.place for incident in critical)
    faults = _Faults(
        faulty_places,
        frozenset(place.gpu for place in faulty_places if place.gpu is not None),
        frozenset(incident.place.gpu for incident in critical if incident.family == LOST_FAMILY),
    )
    for node in sources.layout.nodes if sources.reporting is not None else ():
        key = (node.cluster, node.name)
        slots, schedule = sources.layout.slots_by_node[key], schedules.get(key)
        for slot, state in zip(slots, _decide_node(node, slots, schedule, sources=sources, faults=faults), strict=True):
            states[slot] = state
    return FleetGpuStates(sources.layout, _drop_missing(sources), tuple(states), schedules, at)


def _drop_missing(sources: FleetGpuSources) -> holders.GpuHolders:
    """The holders of GPUs that report: those of the others are unknown, and their series end a little later."""
    reporting, gpu_holders = sources.reporting, sources.gpu_holders
    if reporting is None:
        return gpu_holders
    return replace(gpu_holders, by_gpu={uuid: held for uuid, held in gpu_holders.by_gpu.items() if uuid in reporting})


@dataclass(frozen=True, slots=True)
class _Faults:
    """What open critical incidents are about."""

    places: frozenset[fleet.Place]
    gpus: frozenset[str]
    lost_gpus: frozenset[str | None]


def _decide_node(
    node: fleet.Node,
    slots: Sequence[int],
    schedule: NodeSchedule | None,
    *,
    sources: FleetGpuSources,
    faults: _Faults,
) -> list[GpuState]:
    service = sources.services.get(node.place)
    idle_state = _state_without_holder(node, schedule, None if service is None else service.state, faults=faults)
    uuids = [None if (gpu := sources.layout.slots[slot].gpu) is None else gpu.uuid for slot in slots]
    # No GPU of the node was ever read: then its scheduler, if it has one, is the only source.
    is_only_scheduled = schedule is not None and not any(uuids)
    reporting, states = sources.reporting or frozenset(), []
    for uuid in uuids:
        if uuid not in reporting and not is_only_scheduled:
            states.append(GpuState.DOWN if uuid in faults.lost_gpus and uuid else GpuState.NOT_REPORTING)
        elif uuid is not None and sources.gpu_holders.by_gpu.get(uuid):
            states.append(GpuState.ALLOCATED)
        elif idle_state is GpuState.FREE and uuid in faults.gpus:
            states.append(GpuState.UNHEALTHY)
        elif idle_state is GpuState.FREE and schedule is None and _is_holder_unknown(sources.gpu_holders, uuid):
            states.append(GpuState.UNKNOWN)
        else:
            states.append(idle_state)
    return states if schedule is None else _apply_schedule(states, schedule, counts_gpus=is_only_scheduled)


def _state_without_holder(
    node: fleet.Node, schedule: NodeSchedule | None, service: ServiceState | None, *, faults: _Faults
) -> GpuState:
    """The state of a GPU of the node that reports, has no holder and no fault of its own."""
    # While a scheduler does not answer, its last word counts.
    is_refused = schedule is not None and not schedule.node.is_schedulable
    if service not in (None, ServiceState.UNKNOWN, ServiceState.IN_SERVICE):
        return GpuState.CORDONED
    if is_refused and service is not ServiceState.IN_SERVICE:
        return GpuState.CORDONED
    is_not_ready = schedule is not None and schedule.node.is_ready is False
    return GpuState.UNHEALTHY if is_not_ready or _is_faulty(node, faults.places) else GpuState.FREE


def _is_holder_unknown(gpu_holders: holders.GpuHolders, uuid: str | None) -> bool:
    return gpu_holders.problem is not None or gpu_holders.reasons.get(uuid or "") in UNKNOWN_HOLDER


def _apply_schedule(states: list[GpuState], schedule: NodeSchedule, *, counts_gpus: bool) -> list[GpuState]:
    """Add what only the scheduler counts: further allocated GPUs, and those that it cannot allocate."""
    node = schedule.node
    allocated = math.ceil(schedule.allocated * node.gpu_part) - states.count(GpuState.ALLOCATED)
    # A scheduler that counts MIG instances or shares does not know on how many GPUs they are; samples do.
    if node.gpu_part == 1 or counts_gpus:
        for state in (GpuState.FREE, GpuState.UNHEALTHY, GpuState.CORDONED):
            while allocated > 0 and state in states:
                states[states.index(state)] = GpuState.ALLOCATED
                allocated -= 1
    refused = 0 if node.allocatable_gpus is None or not node.gpus else node.gpus - node.allocatable_gpus
    unusable = round(refused * node.gpu_part) - sum(state not in ALLOCATABLE for state in states)
    while unusable > 0 and GpuState.FREE in states:
        states[states.index(GpuState.FREE)] = GpuState.UNHEALTHY
        unusable -= 1
    return states


def _is_faulty(node: fleet.Node, faulty: frozenset[fleet.Place]) -> bool:
    places = (node.place, fleet.Place(signals.UNNAMED_CLUSTER, node=node.name), *node.failure_domains())
    return not frozenset(places).isdisjoint(faulty)


def _read_schedules(views: Iterable[cluster.ClusterView]) -> dict[NodeKey, NodeSchedule]:
    schedules: dict[NodeKey, NodeSchedule] = {}
    for view in views:
        allocated: dict[str, int] = {}
        for work in view.workloads:
            for name, count in work.nodes.items():
                allocated[name] = allocated.get(name, 0) + count
        for node in view.nodes:
            if node.gpus:
                schedules[node.cluster, node.name] = NodeSchedule(node, allocated.get(node.name, 0))
    return schedules
