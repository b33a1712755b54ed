"""Find the holders of a GPU or node, or the GPUs of a workload, user or team, by any of their names.

A name may be a GPU (UUID, a prefix of it, or `node/3`), a node, a pod (`namespace/name` or only the name), a Slurm job
(`4711`, `17_3`), or a user, team or namespace. If several match, all of them are returned.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from watchkeeper.clusters import inventory
from watchkeeper.hub import holders
from watchkeeper.hub.fleet_gpus import FleetGpuStates
from watchkeeper.hub.fleet_layout import natural_sort_key
from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.incidents import signals
from watchkeeper.kit import clock
from watchkeeper.model import cluster, incidents, workloads
from watchkeeper.model.gpu_states import MISSING, GpuState
from watchkeeper.model.node_list import NodeLine

# `GPU-3f2a` is a typical prefix; a shorter one would match too many GPUs.
MIN_UUID_CHARACTERS = 8
# A team may hold the whole fleet; `left_out` counts the workloads above the limit.
MAX_WORKLOADS = 200


@dataclass(frozen=True, slots=True)
class IncidentSummary:
    """An open incident in one line."""

    id: str
    severity: str
    title: str


@dataclass(frozen=True, slots=True)
class GpuAndHolders:
    """A GPU, its state and its holders; `reason` says why it has none."""

    uuid: str
    index: int | None
    model: str | None
    cluster: str
    node: str
    is_gone: bool
    holders: tuple[holders.GpuHolder, ...]
    reason: str
    incidents: tuple[IncidentSummary, ...]
    state: GpuState | None = None


@dataclass(frozen=True, slots=True)
class WorkloadAndGpus:
    """A workload and its GPUs; a pending workload has none, and `reason` says why it is pending."""

    kind: str
    name: str
    namespace: str
    cluster: str
    state: str
    user: str
    team: str
    project: str
    account: str
    queue: str
    gpus_asked: int | None
    nodes: tuple[str, ...]
    gpus: tuple[GpuAndHolders, ...]
    reason: str
    since: datetime | None
    incidents: tuple[IncidentSummary, ...]


@dataclass(frozen=True, slots=True)
class NodeAndGpus:
    node: NodeLine
    gpus: tuple[GpuAndHolders, ...]


@dataclass(frozen=True, slots=True)
class HolderMatches:
    gpus: tuple[GpuAndHolders, ...] = ()
    nodes: tuple[NodeAndGpus, ...] = ()
    workloads: tuple[WorkloadAndGpus, ...] = ()
    omitted: int = 0


@dataclass(frozen=True, slots=True)
class HolderSources:
    """The data that `find_holders` searches."""

    fleet: FleetProtocol
    lines: Sequence[NodeLine]
    gpu_states: FleetGpuStates
    views: Sequence[cluster.ClusterView]
    open_incidents: Sequence[incidents.Incident]
    # Finds the owners of pending workloads; None: they are unknown.
    node_inventory: inventory.NodeInventory | None = None

    def find_owner(
        self, scheduled: workloads.ScheduledWorkload | None, held: Sequence[holders.GpuHolder]
    ) -> inventory.Owner:
        if held:
            return inventory.Owner(held[0].team, held[0].project)
        if scheduled is None or self.node_inventory is None:
            return inventory.Owner("")
        return self.node_inventory.owner(scheduled)


def find_holders(name: str, sources: HolderSources) -> HolderMatches:
    """Everything with this name; empty if nothing matches."""
    gpus = [gpu for gpu in sources.fleet.gpus() if _matches_gpu(name, gpu)]
    if gpus:
        return HolderMatches(gpus=tuple(_describe_gpu(gpu, sources) for gpu in gpus))
    aliases = {(node.cluster, node.name) for node in sources.fleet.nodes() if name == node.name or name in node.aliases}
    lines = [line for line in sources.lines if line.name == name or (line.cluster, line.name) in aliases]
    if lines:
        return HolderMatches(nodes=tuple(_describe_node(line, sources) for line in lines))
    matches = _find_workloads(name, sources)
    matches.sort(key=lambda match: (natural_sort_key(match.namespace), natural_sort_key(match.name), match.cluster))
    return HolderMatches(workloads=tuple(matches[:MAX_WORKLOADS]), omitted=max(0, len(matches) - MAX_WORKLOADS))


def _matches_gpu(name: str, gpu: GpuView) -> bool:
    uuid = gpu.gpu.uuid
    if name == uuid or (len(name) >= MIN_UUID_CHARACTERS and name.startswith("GPU-") and uuid.startswith(name)):
        return True
    node, slash, index = name.rpartition("/")
    return bool(slash) and index.isdigit() and node == gpu.node and gpu.gpu.index == int(index)


def _describe_gpu(gpu: GpuView, sources: HolderSources) -> GpuAndHolders:
    uuid, all_holders = gpu.gpu.uuid, sources.gpu_states.gpu_holders
    held = all_holders.by_gpu.get(uuid, ())
    state, is_gone = sources.gpu_states.state_of(uuid), gpu.gone_since_ms is not None
    # A replaced GPU has no slot and so no state.
    is_missing = is_gone or state in MISSING
    reason = "GPU does not report" if is_missing else all_holders.no_holder_reason(uuid, gpu.cluster)
    return GpuAndHolders(
        uuid,
        gpu.gpu.index,
        gpu.gpu.model,
        gpu.cluster,
        gpu.node,
        is_gone=is_gone,
        holders=held,
        reason="" if held else reason,
        incidents=_summarise(incident for incident in sources.open_incidents if _affects_gpu(incident, gpu)),
        state=state,
    )


def _describe_node(line: NodeLine, sources: HolderSources) -> NodeAndGpus:
    node_gpus = [gpu for gpu in sources.fleet.gpus() if (gpu.cluster, gpu.node) == (line.cluster, line.name)]
    node_gpus.sort(key=lambda gpu: (gpu.gpu.index is None, gpu.gpu.index or 0, gpu.gpu.uuid))
    return NodeAndGpus(line, tuple(_describe_gpu(gpu, sources) for gpu in node_gpus))


WorkloadKey = tuple[str, str, str, str]


def _find_workloads(name: str, sources: HolderSources) -> list[WorkloadAndGpus]:
    """Workloads with this name, from schedulers and from the holders of GPUs."""
    held: dict[WorkloadKey, list[holders.GpuHolder]] = defaultdict(list)
    for holder in chain.from_iterable(sources.gpu_states.gpu_holders.by_gpu.values()):
        held[holder.cluster, holder.kind, holder.namespace, holder.name].append(holder)
    scheduled: dict[WorkloadKey, workloads.ScheduledWorkload] = {}
    for work in chain.from_iterable(view.workloads for view in sources.views):
        scheduled[work.cluster, work.workload.kind.value, work.workload.namespace, work.workload.name] = work
    gpus = {gpu.gpu.uuid: gpu for gpu in sources.fleet.gpus()}
    matches = []
    for key in dict.fromkeys([*scheduled, *held]):
        _, _, namespace, own_name = key
        workload, owner = scheduled.get(key), sources.find_owner(scheduled.get(key), held[key])
        # A workload is also found by its user, team, project and account.
        names = {own_name, f"{namespace}/{own_name}", namespace, f"slurm/{own_name}", owner.team, owner.project}
        names |= {holder.user for holder in held[key]}
        if workload is not None:
            names |= {workload.account, workload.owner, workload.workload.user, workload.labels.get("array_job", "")}
        if name in names:
            matches.append(_describe_workload(key, workload, held[key], owner=owner, gpus=gpus, sources=sources))
    return matches


def _describe_workload(
    key: WorkloadKey,
    scheduled: workloads.ScheduledWorkload | None,
    held: Sequence[holders.GpuHolder],
    *,
    owner: inventory.Owner,
    gpus: Mapping[str, GpuView],
    sources: HolderSources,
) -> WorkloadAndGpus:
    cluster_name, kind, namespace, name = key
    uuids = dict.fromkeys(holder.uuid for holder in held if holder.uuid in gpus)
    own_gpus = [_describe_gpu(gpus[uuid], sources) for uuid in uuids]
    own_gpus.sort(key=lambda gpu: (gpu.node, gpu.index or 0))
    full_name = workloads.workload_name(namespace, name)
    incidents_of_gpus = dict.fromkeys(summary for gpu in own_gpus for summary in gpu.incidents)
    own_incidents = _summarise(incident for incident in sources.open_incidents if full_name in incident.workloads)
    started = None if scheduled is None else scheduled.started_at or scheduled.requested_at
    scheduled_user = "" if scheduled is None else scheduled.workload.user or scheduled.owner
    return WorkloadAndGpus(
        kind,
        name,
        namespace,
        cluster_name,
        state=(workloads.WorkloadState.RUNNING if scheduled is None else scheduled.state).value,
        user=scheduled_user or (held[0].user if held else ""),
        team=owner.team,
        project=owner.project,
        account="" if scheduled is None else scheduled.account,
        queue="" if scheduled is None else scheduled.queue,
        gpus_asked=None if scheduled is None else scheduled.gpus,
        nodes=tuple(dict.fromkeys([*(() if scheduled is None else scheduled.nodes), *(gpu.node for gpu in own_gpus)])),
        gpus=tuple(own_gpus),
        reason="" if scheduled is None else ": ".join(filter(None, (scheduled.reason, scheduled.detail))),
        since=None if started is None else clock.from_ms(started * 1000),
        incidents=tuple(incidents_of_gpus | dict.fromkeys(own_incidents)),
    )


def _affects_gpu(incident: incidents.Incident, gpu: GpuView) -> bool:
    clusters = (gpu.cluster, signals.UNNAMED_CLUSTER)
    return any(incident.concerns_gpu(cluster, gpu.node, gpu.gpu.uuid) for cluster in clusters)


def _summarise(related: Iterable[incidents.Incident]) -> tuple[IncidentSummary, ...]:
    return tuple(IncidentSummary(incident.id, incident.severity.value, incident.title) for incident in related)
