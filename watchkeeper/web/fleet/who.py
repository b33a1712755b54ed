"""Find the holders of a GPU or node, or the GPUs of a workload, user or team, by any of their names.

A name may be a GPU (UUID, a prefix of it, or `node/3`), a node, a pod (`namespace/name` or only the name), a Slurm job
(`4711`, `17_3`), or a user, team or namespace. If several match, all of them are returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from watchkeeper.clusters import inventory
from watchkeeper.hub.services import FleetProtocol, GpuView
from watchkeeper.incidents import signals
from watchkeeper.kit import clock
from watchkeeper.model import cluster, incidents, workloads
from watchkeeper.model.node_list import NodeLine
from watchkeeper.web.fleet import holders
from watchkeeper.web.fleet.fleet_layout import natural_sort_key

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
    """A GPU and its holders; `reason` says why it has none."""

    uuid: str
    index: int | None
    model: str | None
    cluster: str
    node: str
    is_gone: bool
    holders: tuple[holders.GpuHolder, ...]
    reason: str
    incidents: tuple[IncidentSummary, ...]


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
    """The data to search."""

    fleet: FleetProtocol
    lines: Sequence[NodeLine]
    gpu_holders: holders.GpuHolders
    views: Sequence[cluster.ClusterView]
    open_incidents: Sequence[incidents.Incident]
    # Finds the owners of pending workloads; None: they are unknown.
    node_inventory: inventory.NodeInventory | None = None

    def find_owner(
        self, scheduled: workloads.ScheduledWorkload | None, workload_holders: Sequence[holders.GpuHolder]
    ) -> inventory.Owner:
        if workload_holders:
            return inventory.Owner(workload_holders[0].team, workload_holders[0].project)
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
    matches = sorted(
        _find_workloads(name, sources),
        key=lambda workload: (natural_sort_key(workload.namespace), natural_sort_key(workload.name), workload.cluster),
    )
    return HolderMatches(workloads=tuple(matches[:MAX_WORKLOADS]), omitted=max(0, len(matches) - MAX_WORKLOADS))


def _matches_gpu(name: str, gpu: GpuView) -> bool:
    uuid = gpu.gpu.uuid
    if name == uuid or (len(name) >= MIN_UUID_CHARACTERS and name.startswith("GPU-") and uuid.startswith(name)):
        return True
    node, slash, index = name.rpartition("/")
    return bool(slash) and index.isdigit() and node == gpu.node and gpu.gpu.index == int(index)


def _describe_gpu(inventory_gpu: GpuView, sources: HolderSources) -> GpuAndHolders:
    uuid = inventory_gpu.gpu.uuid
    gpu_holders = sources.gpu_holders.by_gpu.get(uuid, ())
    reason = (
        ""
        if gpu_holders
        else sources.gpu_holders.problem or sources.gpu_holders.reasons.get(uuid) or "its exporter reports no holder"
    )
    related = [incident for incident in sources.open_incidents if _affects_gpu(incident, inventory_gpu)]
    return GpuAndHolders(
        uuid,
        inventory_gpu.gpu.index,
        inventory_gpu.gpu.model,
        inventory_gpu.cluster,
        inventory_gpu.node,
        is_gone=inventory_gpu.gone_since_ms is not None,
        holders=gpu_holders,
        reason=reason,
        incidents=_summarise_incidents(related),
    )


def _describe_node(line: NodeLine, sources: HolderSources) -> NodeAndGpus:
    node_gpus = [gpu for gpu in sources.fleet.gpus() if (gpu.cluster, gpu.node) == (line.cluster, line.name)]
    node_gpus.sort(key=lambda gpu: (gpu.gpu.index is None, gpu.gpu.index or 0, gpu.gpu.uuid))
    return NodeAndGpus(line, tuple(_describe_gpu(gpu, sources) for gpu in node_gpus))


WorkloadKey = tuple[str, str, str, str]


def _find_workloads(name: str, sources: HolderSources) -> list[WorkloadAndGpus]:
    """Workloads with this name, from schedulers and from the holders of GPUs."""
    holders_by_workload: dict[WorkloadKey, list[holders.GpuHolder]] = {}
    for gpu_holders in sources.gpu_holders.by_gpu.values():
        for holder in gpu_holders:
            holders_by_workload.setdefault((holder.cluster, holder.kind, holder.namespace, holder.name), []).append(
                holder
            )
    scheduled: dict[WorkloadKey, workloads.ScheduledWorkload] = {
        (
            scheduled_workload.cluster,
            scheduled_workload.workload.kind.value,
            scheduled_workload.workload.namespace,
            scheduled_workload.workload.name,
        ): scheduled_workload
        for view in sources.views
        for scheduled_workload in view.workloads
    }
    gpus_by_uuid = {gpu.gpu.uuid: gpu for gpu in sources.fleet.gpus()}
    return [
        _describe_workload(
            key, scheduled.get(key), holders_by_workload.get(key, []), gpus_by_uuid=gpus_by_uuid, sources=sources
        )
        for key in dict.fromkeys([*scheduled, *holders_by_workload])
        if _matches_workload(name, scheduled.get(key), holders_by_workload.get(key, []), key=key, sources=sources)
    ]


def _matches_workload(
    searched_name: str,
    scheduled: workloads.ScheduledWorkload | None,
    workload_holders: Sequence[holders.GpuHolder],
    *,
    key: WorkloadKey,
    sources: HolderSources,
) -> bool:
    _, _, namespace, name = key
    names = {name, f"{namespace}/{name}", namespace, f"slurm/{name}"}
    if scheduled is not None:
        names |= {scheduled.account, scheduled.owner, scheduled.workload.user, scheduled.labels.get("array_job", "")}
    owner = sources.find_owner(scheduled, workload_holders)
    names |= {owner.team, owner.project, *(holder.user for holder in workload_holders)}
    return searched_name in names - {""}


def _describe_workload(
    key: WorkloadKey,
    scheduled: workloads.ScheduledWorkload | None,
    workload_holders: Sequence[holders.GpuHolder],
    *,
    gpus_by_uuid: dict[str, GpuView],
    sources: HolderSources,
) -> WorkloadAndGpus:
    cluster_name, kind, namespace, name = key
    gpus = [
        _describe_gpu(gpus_by_uuid[uuid], sources)
        for uuid in dict.fromkeys(holder.uuid for holder in workload_holders)
        if uuid in gpus_by_uuid
    ]
    gpus.sort(key=lambda gpu: (gpu.node, gpu.index or 0))
    first = workload_holders[0] if workload_holders else None
    owner = sources.find_owner(scheduled, workload_holders)
    nodes = dict.fromkeys([*(scheduled.nodes if scheduled is not None else ()), *(gpu.node for gpu in gpus)])
    workload_name = workloads.workload_name(namespace, name)
    summaries = {summary: None for gpu in gpus for summary in gpu.incidents}
    summaries |= dict.fromkeys(
        _summarise_incidents(incident for incident in sources.open_incidents if workload_name in incident.workloads)
    )
    started = None if scheduled is None else scheduled.started_at or scheduled.requested_at
    return WorkloadAndGpus(
        kind,
        name,
        namespace,
        cluster_name,
        state=scheduled.state.value if scheduled is not None else workloads.WorkloadState.RUNNING.value,
        user=(scheduled.workload.user or scheduled.owner if scheduled is not None else "")
        or (first.user if first else ""),
        team=owner.team,
        project=owner.project,
        account=scheduled.account if scheduled is not None else "",
        queue=scheduled.queue if scheduled is not None else "",
        gpus_asked=scheduled.gpus if scheduled is not None else None,
        nodes=tuple(nodes),
        gpus=tuple(gpus),
        reason=": ".join(part for part in (scheduled.reason, scheduled.detail) if part)
        if scheduled is not None
        else "",
        since=None if started is None else clock.from_ms(started * 1000),
        incidents=tuple(summaries),
    )


def _affects_gpu(incident: incidents.Incident, gpu: GpuView) -> bool:
    place, uuid = incident.place, gpu.gpu.uuid
    is_here = place.gpu is None and place.node == gpu.node and place.cluster in (gpu.cluster, signals.UNNAMED_CLUSTER)
    return is_here or any(member.place.gpu == uuid for member in incident.members)


def _summarise_incidents(related: Iterable[incidents.Incident]) -> tuple[IncidentSummary, ...]:
    return tuple(IncidentSummary(incident.id, incident.severity.value, incident.title) for incident in related)
